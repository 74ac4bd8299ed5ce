"""Compiles protos/ into the package during the build; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PROTOS = ROOT / "protos"


class BuildWithProtos(build_py):
    """`build_py` that first turns every .proto below protos/ into a `*_pb2.py` in its package."""

    def run(self) -> None:
        compile_protos()
        # The packages were listed before the generated ones existed.
        generated = {
            ".".join(source.parent.relative_to(PROTOS).parts) for source in PROTOS.rglob("*.proto")
        }
        self.packages = sorted({*(self.packages or []), *generated})
        super().run()


def compile_protos() -> None:
    """Generates the modules beside the sources that import them; protos/ mirrors the packages."""
    from grpc_tools import protoc

    sources = sorted(PROTOS.rglob("*.proto"))
    for source in sources:
        package = ROOT / source.parent.relative_to(PROTOS)
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
    arguments = ["protoc", f"-I{PROTOS}", f"--python_out={ROOT}", f"--pyi_out={ROOT}"]
    if protoc.main([*arguments, *map(str, sources)]) != 0:
        raise SystemExit("protoc could not compile protos/")


setup(cmdclass={"build_py": BuildWithProtos})
