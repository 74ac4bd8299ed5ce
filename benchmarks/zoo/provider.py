"""A clean process that runs stages from files: `python -m benchmarks.zoo.provider FOLDER`.

It cannot import the models' classes nor the libraries they come from. FOLDER has calls/ and
stages/<count>/<stage>/, and gets results/<count>/<call>, see `exchange.save_value`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from benchmarks.zoo.chain import load_chain, run_chain
from benchmarks.zoo.exchange import load_value, save_value
from benchmarks.zoo.registry import ROWS

BLOCKED = ("torchvision", "transformers", "ravnest.capture.exporting", *ROWS)


class Blocking(MetaPathFinder):
    """Fails the import of what a provider does not have."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """ImportError for a blocked module, None (ask the next finder) for any other."""
        if any(fullname == name or fullname.startswith(f"{name}.") for name in BLOCKED):
            raise ImportError(f"a provider has no {fullname}")
        return None


def main() -> int:
    """Runs every call through every chain."""
    loaded = [name for name in BLOCKED if name in sys.modules]
    if loaded:
        raise RuntimeError(f"{loaded} are imported already")
    sys.meta_path.insert(0, Blocking())
    folder = Path(sys.argv[1])
    calls = {path.stem: load_value(path) for path in sorted((folder / "calls").glob("*.json"))}
    for chain in sorted((folder / "stages").iterdir()):
        stages = load_chain(chain)
        results = folder / "results" / chain.name
        results.mkdir(parents=True)
        for name, call in calls.items():
            save_value(run_chain(stages, call, keyed=False), results / name)
        save_value(run_chain(stages, calls["example"], keyed=True), results / "keyed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
