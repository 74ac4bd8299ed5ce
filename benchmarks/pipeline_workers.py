"""The processes that `benchmarks.pipeline` starts; each writes its figures as JSON to a file.

`python -m benchmarks.pipeline_workers KIND WORKLOAD OUTPUT ARGUMENTS...`
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmarks.workloads import WORKLOADS, Workload


def main(kind: str, workload_name: str, output: str, arguments: list[str]) -> None:
    """Runs one worker."""
    torch.set_num_threads(1)
    workload = WORKLOADS[workload_name]()
    figures = WORKERS[kind](workload, json.loads(arguments[0]))
    Path(output).write_text(json.dumps(figures))


def single(workload: Workload, options: dict[str, Any]) -> dict[str, Any]:
    """One process on the same microbatches."""
    model = workload.build()
    optimizer = workload.optimizer(model)
    durations, loss = [], 0.0
    for _ in range(options["rounds"]):
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(options["steps"]):
            loss = 0.0
            optimizer.zero_grad()
            count = workload.num_microbatches
            microbatches = zip(
                workload.inputs.chunk(count), workload.targets.chunk(count), strict=True
            )
            for x, y in microbatches:
                part = workload.loss(model(x), y) / count
                part.backward()
                loss += float(part.detach())
            optimizer.step()
        durations.append((time.perf_counter() - started) / options["steps"])
        cpu_s = (time.process_time() - cpu) / options["steps"]
    return {"step_s": durations[1:], "cpu_s": cpu_s, "loss": loss}


def slowest_stage(workload: Workload, options: dict[str, Any]) -> dict[str, Any]:
    """The stage that takes longest, alone in plain PyTorch: what no pipeline can undercut."""
    model = workload.build()[1:2]
    optimizer = workload.optimizer(model)
    durations = []
    for _ in range(options["rounds"]):
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(options["steps"]):
            for x in workload.inputs.chunk(workload.num_microbatches):
                model(x.requires_grad_()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        durations.append((time.perf_counter() - started) / options["steps"])
        cpu_s = (time.process_time() - cpu) / options["steps"]
    return {"step_s": durations[1:], "cpu_s": cpu_s, "loss": 0.0}


def torch_pipelining(workload: Workload, options: dict[str, Any]) -> dict[str, Any]:
    """One stage under torch.distributed.pipelining, 1F1B over gloo; on loopback unless told."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    os.environ.update(MASTER_PORT=str(options["port"]))
    os.environ.update(MASTER_ADDR=options.get("address", "127.0.0.1"))
    os.environ.update(GLOO_SOCKET_IFNAME=options.get("interface", "lo"))
    rank, size = options["rank"], len(workload.stage_ends)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    start = workload.stage_ends[rank - 1] if rank else 0
    module = workload.build()[start : workload.stage_ends[rank]]
    optimizer = workload.optimizer(module)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, workload.num_microbatches, loss_fn=workload.loss)
    durations, losses = [], []
    for _ in range(options["rounds"]):
        dist.barrier()
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(options["steps"]):
            losses = []
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(workload.inputs)
            elif rank == size - 1:
                schedule.step(target=workload.targets, losses=losses)
            else:
                schedule.step()
            optimizer.step()
        cpu_s = (time.process_time() - cpu) / options["steps"]
        dist.barrier()
        durations.append((time.perf_counter() - started) / options["steps"])
    dist.destroy_process_group()
    loss = float(torch.stack(losses).mean()) if losses else None
    return {"step_s": durations[1:], "cpu_s": cpu_s, "loss": loss}


def provider(workload: Workload, options: dict[str, Any]) -> dict[str, Any]:
    """One Ravnest provider; the root's durations count.

    Processor time is between optimizer steps, as the peers' is: without connecting and warming up.
    """
    from ravnest import Node, Trainer

    frequency = workload.num_microbatches
    losses: list[float] = []

    def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
        loss = workload.loss(predictions, targets[1]) / frequency
        losses.append(float(loss.detach()))
        return loss

    class Clocked(torch.optim.AdamW):
        marks: ClassVar[list[float]] = []

        def step(self, closure: Any = None) -> Any:
            done = super().step(closure)
            self.marks.append(time.process_time())
            return done

    class Timed(Trainer):
        durations: list[float]

        def train(self) -> None:
            self.prelim_checks()
            self.durations = []
            for _ in range(options["rounds"]):
                started = time.perf_counter()
                for x, _ in self.train_loader:
                    self.node.forward_compute(x)
                self.node.wait_for_backwards()
                self.durations.append((time.perf_counter() - started) / options["steps"])

    node = Node(
        name=options["name"],
        optimizer=Clocked,
        optimizer_params={"lr": 1e-3},
        criterion=criterion,
        update_frequency=frequency,
        schedule=options["schedule"],
        compression=options.get("compression", False),
        trusted_modules=tuple(workload.leaves.values()),
        insecure=options.get("insecure", False),
    )
    trainer = Timed(node=node, train_loader=workload.loader(options["steps"]))
    trainer.train()
    node.close()
    counted = (options["rounds"] - 1) * options["steps"]
    cpu_s = (Clocked.marks[-1] - Clocked.marks[-1 - counted]) / counted
    loss = sum(losses[-frequency:]) if losses else None
    durations = getattr(trainer, "durations", [])
    return {"step_s": durations[1:], "cpu_s": cpu_s, "loss": loss}


WORKERS = {
    "single": single,
    "stage": slowest_stage,
    "torch": torch_pipelining,
    "provider": provider,
}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
