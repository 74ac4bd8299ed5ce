"""Peak memory of giving a model its weights stage by stage, against the size of its largest stage.

`python -m benchmarks.streaming [--json] [--quick]`. Makes sharded safetensors of a decoder with
more than a billion parameters in a temporary folder, then has a fresh process run `clusterize` on
the model without weights. Measured is the largest resident memory that process ever had,
memory-mapped pages of files included, less what it held after its imports, building the model and
one capture of it; a second capture, planning and writing all stages are in between.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.report import Claim, finish, parse_arguments
from benchmarks.streaming_worker import Decoder, Size

REPOSITORY = Path(__file__).resolve().parents[1]
FULL = Size(width=2048, num_layers=20, vocabulary=32_000)
QUICK = Size(width=256, num_layers=4, vocabulary=1_000)
NUM_STAGES = 4
MAX_PEAK = 1.3  # of the largest stage
TIMEOUT_S = 900


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    arguments = parse_arguments(__doc__ or "")
    size = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder:
        figures = measure(size, Path(folder))
    if not arguments.json:
        for name, value in figures.items():
            print(f"{name:24} {value}")
    claims = [
        Claim("tensors that are not as they were published", figures["num_wrong"], 0),
        Claim(
            "peak resident memory of streaming, in sizes of the largest stage",
            figures["peak_bytes"] / figures["largest_stage_bytes"],
            MAX_PEAK,
        ),
    ]
    # The process itself is larger than a small model's stages.
    return finish(figures, claims[:1] if arguments.quick else claims, as_json=arguments.json)


def measure(size: Size, work: Path) -> dict[str, Any]:
    """Publishes the weights below `work`, streams them, and compares what was written."""
    published, node_data = work / "published", work / "node_data"
    published.mkdir()
    node_data.mkdir()
    with torch.device("meta"):
        model = Decoder(size)
    num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    if (free := shutil.disk_usage(work).free) < 3 * num_bytes:
        raise RuntimeError(f"{work} has {free} bytes free, expected {3 * num_bytes}")
    publish(model, published)
    nodes = {
        str(i): {"IP": f"127.0.0.1:{8080 + i}", "benchmarks": {"ram": 16, "bandwidth": 1000}}
        for i in range(NUM_STAGES)
    }
    (node_data / "node_configs.json").write_text(json.dumps(nodes))
    output = work / "result.json"
    options = json.dumps([size.width, size.num_layers, size.vocabulary])
    subprocess.run(
        [sys.executable, "-m", "benchmarks.streaming_worker", options, *map(str, (work, output))],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=TIMEOUT_S,
        stdout=sys.stderr,
    )
    stages = sorted(node_data.glob("cluster_0/*/weights.safetensors"))
    return {
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "published_bytes": sum(file.stat().st_size for file in published.iterdir()),
        "num_files": len(list(published.glob("*.safetensors"))),
        "stage_bytes": [stage.stat().st_size for stage in stages],
        "largest_stage_bytes": max(stage.stat().st_size for stage in stages),
        "num_wrong": num_wrong(published, stages),
        **json.loads(output.read_text()),
    }


def publish(model: torch.nn.Module, folder: Path) -> None:
    """Writes random weights as model hubs do: an index, and a file per layer or so."""
    torch.manual_seed(0)
    shards: dict[str, list[str]] = {}
    names = list(model.state_dict())
    for name in names:
        layer = name.split(".")[1] if name.startswith("layers.") else "rest"
        shards.setdefault(layer, []).append(name)
    weight_map = {}
    for number, shard in enumerate(shards.values(), 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {
            name: torch.empty_like(model.get_parameter(name), device="cpu").uniform_(-0.1, 0.1)
            for name in shard
        }
        save_file({name: tensor.detach() for name, tensor in tensors.items()}, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


def num_wrong(published: Path, stages: list[Path]) -> int:
    """Published tensors that no stage, or more than one, or another value of has been written."""
    expected = dict(locations(published.glob("*.safetensors")))
    right: dict[str, int] = {}
    for name, file in locations(stages):
        one, other = read(file, name), read(expected[name], name)
        right[name] = right.get(name, 0) + (1 if torch.equal(one, other) else 2)
    return sum(right.get(name) != 1 for name in expected)


def locations(files: Any) -> Iterator[tuple[str, Path]]:
    """Every tensor's name, and the file it is in."""
    for path in files:
        with safe_open(path, framework="pt") as file:
            yield from ((name, path) for name in file.keys())  # noqa: SIM118


def read(path: Path, name: str) -> torch.Tensor:
    """One tensor of a file."""
    with safe_open(path, framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    return tensor


if __name__ == "__main__":
    sys.exit(main())
