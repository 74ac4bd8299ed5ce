"""Options of `Node` beyond the published ones, checked in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from ravnest.averaging.settings import AveragingSettings, parse_averaging
from ravnest.errors import ConfigError
from ravnest.node.settings import RunSettings
from ravnest.stage.groups import Groups, check_groups
from ravnest.stage.precision import parse_autocast
from ravnest.stage.schedule import Schedule
from ravnest.transport.interface import Transport


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Keyword options of a node.

    Attributes:
        node_data: folder that clusterize wrote.
        trained: folder that trained sub-models are saved to.
        events: folder of the event log, `node_<id>.jsonl` in it.
        val_filename: the root writes one line per validation to it; the roots of clusters above 0
            add `_cluster_<c>` to the name.
        schedule: "1f1b" or "zb-h1" (synchronous), "async" or "2bw"; see `Schedule`. Default: the
            plan's; "1f1b" with `loss_scale`.
        num_microbatches: parts that each batch is split into along its first dimension, so that the
            stages work at the same time; the gradient stays that of the whole batch. None: 1, with
            `schedule="2bw"` as many as give a step at least one per stage.
        delay_compensation: what a stage does about gradients that are older than the weights they
            update: "auto", None, or a name of `DelayCompensation`. Without a delay, as under
            `1f1b`, none of them does anything.
        loss_reduction: how the criterion makes one number of a batch, "mean" or "sum". Default: its
            attribute `reduction` if it has one, else "mean".
        clip_grad_norm: scale the gradients of every optimizer step so that their norm over the
            whole model, all stages of the cluster together, is at most this; None to leave them.
        clip_norm_type: of that norm: 2 for the Euclidean one, `float("inf")` for the largest
            absolute value.
        autocast: what this node computes in, as torch.autocast does: torch.bfloat16 or "bf16",
            torch.float16 or "fp16", None for the weights' own precision. May differ from node to
            node.
        loss_scale: "dynamic" or a number: what losses are multiplied by, so that gradients in
            float16 do not vanish; steps whose gradients overflow are left out on every stage.
        param_groups: options of the optimizer for parameters by pattern of their name, such as
            `{"*.bias": {"weight_decay": 0.0}}`; see `ravnest.stage.groups`.
        recompute: keep only a microbatch's inputs between its passes, and run its forward pass
            again before its backward pass: less memory, a third more computing. A stage that never
            has more than one microbatch in flight would save nothing, and keeps the pass.
        return_memory: on the CPU, have the C library of this process give freed tensors back to the
            system at once, which takes less memory and more time; see `ravnest.node.allocator`.
            None: where the plan leaves the node little to spare.
        outer_optimizer: what averaging rounds do with how far the clusters have trained since the
            last one: None takes the mean of their weights, "nesterov" (DiLoCo), "sgd", a
            torch.optim class or `f(params, **outer_optimizer_params)` makes a step along the mean
            change; see docs/averaging.md.
        outer_optimizer_params: keyword arguments for it.
        averaging_compression: of the changes that rounds exchange: False, True (half precision,
            scaled), "bf16", "int8", "int8-huffman" (the same in fewer bytes), "int4" or
            "int4-hadamard". What a round drops goes into the next one.
        averaging_overlap: optimizer steps that go on while a round is under way; its correction is
            applied after just as many. 0: training waits for rounds.
        averaging_fragments: parts of the model that rounds average in turn, each every
            `reduce_factor` steps.
        seed: of the run's randomness; the root's counts. Default: torch's own initial seed.
        timeout_s: how long any wait for a peer may last before it is an error.
        reconnect_s: how long a link that broke may take to come back before the peer is lost; 0: it
            is at once.
        trusted_modules: factories `package.module:function` of submodules that stayed code
            (`leaves` of
            clusterize); only these are ever imported and called because a stage file names them.
        insecure: allow peers beyond loopback without TLS.
        transport: the transport to use instead of gRPC, for simulation and tests.
    """

    node_data: Path = Path("node_data")
    trained: Path = Path("trained")
    events: Path = Path("events")
    val_filename: Path = Path("val_accuracies.txt")
    schedule: str | None = None
    num_microbatches: int | None = None
    delay_compensation: str | None = "auto"
    loss_reduction: str | None = None
    clip_grad_norm: float | None = None
    clip_norm_type: float = 2.0
    autocast: torch.dtype | None = None
    loss_scale: str | float | None = None
    param_groups: Groups = field(default_factory=dict)
    recompute: bool = False
    return_memory: bool | None = None
    outer_optimizer: Any = None
    outer_optimizer_params: Mapping[str, Any] | None = None
    averaging_compression: bool | str = False
    averaging_overlap: int = 0
    averaging_fragments: int = 1
    seed: int | None = None
    timeout_s: float = 600.0
    reconnect_s: float = 60.0
    trusted_modules: tuple[str, ...] = ()
    insecure: bool = False
    transport: Transport | None = None

    def run_settings(
        self, update_frequency: int, reduce_factor: int | None, average_optim: bool
    ) -> RunSettings:
        """What all nodes of a cluster must share, before the plan has its say.

        Raises:
            ConfigError: a value is impossible, or two do not go together.
        """
        groups = {pattern: dict(options) for pattern, options in self.param_groups.items()}
        return RunSettings(
            Schedule.ONE_F_ONE_B if self.schedule is None else Schedule.parse(self.schedule),
            update_frequency,
            reduce_factor,
            average_optim,
            self.num_microbatches,
            self.clip_grad_norm,
            self.clip_norm_type,
            repr(groups),
            self.loss_scale,
        )

    def averaging(self, reduce_factor: int | None) -> AveragingSettings:
        """How rounds average that come every so many steps; ConfigError where it cannot be."""
        return parse_averaging(
            outer_optimizer=self.outer_optimizer,
            outer_optimizer_params=self.outer_optimizer_params,
            compression=self.averaging_compression,
            overlap=self.averaging_overlap,
            fragments=self.averaging_fragments,
            reduce_factor=reduce_factor,
            timeout_s=self.timeout_s,
        )

    @classmethod
    def parse(cls, options: dict[str, Any]) -> NodeOptions:
        """Raises ConfigError for an unknown option or an impossible value."""
        names = [each.name for each in fields(cls)]
        unknown = sorted(set(options) - set(names))
        if unknown:
            raise ConfigError(
                f"Node has no option {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(names)} beside the documented arguments"
            )
        for name in ("node_data", "trained", "events", "val_filename"):
            if name in options:
                options = {**options, name: Path(options[name])}
        trusted = options.get("trusted_modules", ())
        if isinstance(trusted, str) or not all(isinstance(each, str) for each in trusted):
            raise ConfigError(
                f"trusted_modules={trusted!r} is not possible; expected a tuple of strings",
                hint="write trusted_modules=('package.module:function',)",
            )
        autocast = parse_autocast(options.get("autocast"))
        parsed = cls(**{**options, "trusted_modules": tuple(trusted), "autocast": autocast})
        if parsed.loss_reduction not in (None, "mean", "sum"):
            raise ConfigError(
                f"loss_reduction={parsed.loss_reduction!r} is unknown; expected 'mean' or 'sum'"
            )
        flags = {"recompute": (True, False), "return_memory": (None, True, False)}
        for name, choices in flags.items():
            if not any(getattr(parsed, name) is choice for choice in choices):
                raise ConfigError(
                    f"{name}={getattr(parsed, name)!r} is not possible; "
                    f"expected {' or '.join(map(str, choices[-2:]))}"
                )
        check_groups(parsed.param_groups)
        timeout = parsed.timeout_s
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ConfigError(f"timeout_s={timeout!r} is not possible; expected seconds above 0")
        again = parsed.reconnect_s
        if isinstance(again, bool) or not isinstance(again, (int, float)) or not again >= 0:
            raise ConfigError(f"reconnect_s={again!r} is not possible; expected seconds, 0 for off")
        return parsed
