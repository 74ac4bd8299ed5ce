"""Parameters that several stages use, over the in-memory transport, against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly, run_nodes
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.errors import PeerFailedError, ProtocolError
from ravnest.stage.schedule import ActionKind, Schedule, StagePosition, list_actions
from ravnest.wire.frame import Frame, FrameKind

VOCABULARY, WIDTH, LENGTH, BATCH = 11, 8, 5, 3
IDS = torch.randint(0, VOCABULARY, (30, LENGTH + 1), generator=torch.Generator().manual_seed(0))
X, Y = IDS[:, :-1].contiguous(), IDS[:, 1:].contiguous()


class TiedGpt(torch.nn.Module):
    """A language model whose head is its embedding.

    Args:
        detached: which of its uses, "owner" and "holder", give it no gradient.
    """

    def __init__(self, detached: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.detached = detached
        self.wte = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first = self.wte.weight.detach() if "owner" in self.detached else self.wte.weight
        x = F.embedding(ids, first)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        last = self.wte.weight.detach() if "holder" in self.detached else self.wte.weight
        return F.linear(self.norm(x), last)


class Frozen(TiedGpt):
    """The embedding is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.wte.weight.requires_grad_(False)


class OnlyEval(TiedGpt):
    """Training has a head of its own; evaluation adds that of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        x = self.norm(x)
        return self.own(x) if self.training else self.own(x) + self.lm_head(x)


class Albert(torch.nn.Module):
    """One layer used first, last, and after every layer in between."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("eye", torch.eye(VOCABULARY))
        self.again = torch.nn.Linear(VOCABULARY, VOCABULARY)
        self.own = torch.nn.ModuleList(torch.nn.Linear(VOCABULARY, VOCABULARY) for _ in range(5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.again(F.embedding(ids, self.eye))
        for layer in self.own:
            x = x + torch.tanh(self.again(torch.tanh(layer(x))))
        return self.again(x)


def build(kind: Callable[[], torch.nn.Module] = TiedGpt) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=BATCH)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return F.cross_entropy(predictions.flatten(0, 1), targets[1].flatten())


def adam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02, eps=1e-4, weight_decay=0.1)


def decay(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)


SETTINGS: dict[str, Any] = {
    "optimizer": adam,
    "lr_scheduler": decay,
    "lr_step_on_epoch_change": False,
    "criterion": criterion,
}


def train(node: Node, **options: Any) -> dict[str, torch.Tensor]:
    """Trains; returns all that the stage's module holds, replicas included."""
    Trainer(node, train_loader=loader(), save=True, **options).train()
    return {**dict(node.model.named_parameters()), **dict(node.model.named_buffers())}


def fused(run: Run, cluster: int = 0) -> dict[str, torch.Tensor]:
    return model_fusion(cluster, node_data=run.folder / "node_data", trained=run.folder / "trained")


def assert_equal(run: Run, expected: torch.nn.Module) -> None:
    """Fused and loaded strictly, it is the expected model; and every replica has its values."""
    actual = fused(run)
    other = build(type(expected))
    other.load_state_dict(actual, strict=True)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(actual[name], tensor, atol=1e-6, rtol=0, msg=name)
    for stage in run.plan.stages:
        held = run.results[stage.node_id]
        for name in (*stage.parameters, *(replica.name for replica in stage.replicas)):
            assert torch.equal(held[name], fused(run, stage.cluster_id)[name]), name


def reference(frequency: int, epochs: int, kind: Callable[[], Any] = TiedGpt) -> Any:
    """Plain training; an incomplete group at an epoch's end gets a step of its own."""
    model = build(kind)
    optimizer = adam(p for p in model.parameters() if p.requires_grad)
    scheduler = decay(optimizer)
    for _ in range(epochs):
        batches = list(loader())
        for number, batch in enumerate(batches, 1):
            criterion(model(batch[0]), batch).backward()
            if number % frequency == 0 or number == len(batches):
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
    return model


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("frequency", [1, 3])
def test_1f1b_equals_plain_training(nodes: int, frequency: int, tmp_path: Path) -> None:
    """10 batches per epoch: with 3 of them a step, the last group of an epoch is incomplete."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=nodes)
    assert len([stage for stage in run.plan.stages if stage.replicas]) == (nodes > 1)
    run_cleanly(run, lambda n: train(n, epochs=2), update_frequency=frequency, **SETTINGS)
    assert_equal(run, reference(frequency, epochs=2))


@pytest.mark.parametrize(
    "kind",
    [
        lambda: TiedGpt(("owner",)),
        lambda: TiedGpt(("holder",)),
        lambda: TiedGpt(("owner", "holder")),
        Frozen,
        OnlyEval,
        Albert,
    ],
    ids=["owner-detached", "holder-detached", "both-detached", "frozen", "only-eval", "albert"],
)
def test_every_kind_of_sharing_equals_plain_training(
    kind: Callable[[], Any], tmp_path: Path
) -> None:
    """An absent gradient stays absent: AdamW then leaves the parameter as it is."""
    run = make_plan(tmp_path, build(kind), (X[:BATCH],), nodes=3)
    replicas = {replica for stage in run.plan.stages for replica in stage.replicas}
    assert bool(replicas) == (kind is not Frozen)
    if kind is Albert:
        assert [bool(stage.replicas) for stage in run.plan.stages] == [False, True, True]

    def script(node: Node) -> dict[str, torch.Tensor]:
        held = train(node)
        trainer = Trainer(node, train_loader=loader())
        predicted = trainer.pred(X[:BATCH])
        return {**held, "predicted": predicted} if node.node_type == "root" else held

    run_cleanly(run, script, update_frequency=3, **SETTINGS)
    expected = reference(3, epochs=1, kind=kind)
    assert_equal(run, expected)
    with torch.no_grad():
        output = expected.eval()(X[:BATCH])
    torch.testing.assert_close(run.result_of(0)["predicted"], output, atol=1e-5, rtol=0)


def async_reference(run: Run, frequency: int, kind: Callable[[], Any]) -> torch.nn.Module:
    """One process in which every owner's parameters have the age its schedule gives them."""
    stages = run.plan.stages
    batches = list(loader())
    model = build(kind)
    initial = {name: each.detach() for name, each in model.named_parameters()}
    live = [
        {name: torch.nn.Parameter(initial[name].clone()) for name in stage.parameters}
        for stage in stages
    ]
    optimizers = [adam(parameters.values()) for parameters in live]
    schedulers = [decay(optimizer) for optimizer in optimizers]
    history = [[{n: p.detach().clone() for n, p in each.items()}] for each in live]
    seen = [_versions_seen(stage.index, len(stages), frequency, len(batches)) for stage in stages]
    for number, batch in enumerate(batches):
        for versions, known in zip(seen, history, strict=True):
            for name, value in known[versions[number]].items():
                model.get_parameter(name).data.copy_(value)
        model.zero_grad()
        criterion(model(batch[0]), batch).backward()
        is_last = (number + 1) % frequency == 0 or number == len(batches) - 1
        for each, known, optimizer, scheduler in zip(
            live, history, optimizers, schedulers, strict=True
        ):
            for name, parameter in each.items():
                gradient = model.get_parameter(name).grad
                assert gradient is not None
                total = gradient.clone() if parameter.grad is None else parameter.grad + gradient
                parameter.grad = total
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                known.append({n: p.detach().clone() for n, p in each.items()})
    for each in live:
        for name, parameter in each.items():
            model.get_parameter(name).data.copy_(parameter.data)
    return model


def _versions_seen(stage: int, num_stages: int, frequency: int, total: int) -> list[int]:
    position = StagePosition(Schedule.ASYNC, stage, num_stages, frequency)
    steps, versions = 0, []
    for action in list_actions(position, total):
        if action.kind is ActionKind.FORWARD:
            versions.append(steps)
        steps += action.kind is ActionKind.STEP
    return versions


@pytest.mark.parametrize("kind", [TiedGpt, Albert])
@pytest.mark.parametrize(("nodes", "frequency"), [(2, 1), (3, 3), (4, 1), (4, 3)])
def test_async_uses_the_owners_version_everywhere(
    kind: Callable[[], Any], nodes: int, frequency: int, tmp_path: Path
) -> None:
    run = make_plan(tmp_path, build(kind), (X[:BATCH],), nodes=nodes)
    most: dict[int, int] = {}

    def script(node: Node) -> dict[str, torch.Tensor]:
        replicas = node._parts.engine.replicas
        overwrite = replicas.overwrite

        def counting(values: Any) -> None:
            overwrite(values)
            most[node.plan.stage] = max(most.get(node.plan.stage, 0), replicas.num_stashed)

        replicas.overwrite = counting  # type: ignore[method-assign]
        held = train(node)
        assert replicas.num_stashed == 0
        return held

    run_cleanly(run, script, schedule="async", update_frequency=frequency, **SETTINGS)
    assert_equal(run, async_reference(run, frequency, kind))
    assert most, "no replica was ever updated"
    assert all(number <= nodes - stage - 1 for stage, number in most.items())


def test_clusters_that_are_cut_differently_average_what_owners_hold(tmp_path: Path) -> None:
    """Replicas get the mean too; in between each cluster trains on its own share."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=5, clusters=2)
    assert [len(cluster) for cluster in run.plan.clusters] == [3, 2]
    assert {stage.cluster_id for stage in run.plan.stages if stage.replicas} == {0, 1}
    run_cleanly(run, train, reduce_factor=2, **SETTINGS)

    models = [build(), build()]
    optimizers = [adam(model.parameters()) for model in models]
    schedulers = [decay(optimizer) for optimizer in optimizers]
    batches = list(loader())
    for step in range(5):
        for cluster, model in enumerate(models):
            batch = batches[2 * step + cluster]
            criterion(model(batch[0]), batch).backward()
            optimizers[cluster].step()
            optimizers[cluster].zero_grad()
            schedulers[cluster].step()
        if step in (1, 3, 4):  # every second step, and at the end
            for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
                mean = (one.data + other.data) / 2
                one.data.copy_(mean)
                other.data.copy_(mean)
    names = dict(models[0].named_parameters())
    for stage in run.plan.stages:
        for name in (*stage.parameters, *(replica.name for replica in stage.replicas)):
            held = run.results[stage.node_id][name]
            torch.testing.assert_close(held, names[name], atol=1e-6, rtol=0)
            owners = [s for s in run.plan.stages if name in s.parameters]
            assert all(torch.equal(held, run.results[s.node_id][name]) for s in owners)


@pytest.mark.parametrize("schedule", ["1f1b", "async"])
@pytest.mark.parametrize("kind", [TiedGpt, Albert])
def test_rounds_and_replicas_do_not_wait_for_each_other(
    kind: Callable[[], Any], schedule: str, tmp_path: Path
) -> None:
    """Clusters of different length and another number of steps, averaging after every step."""
    run = make_plan(tmp_path, build(kind), (X[:BATCH],), nodes=5, clusters=2)

    def script(node: Node) -> dict[str, torch.Tensor]:
        short = DataLoader(TensorDataset(X[:-BATCH], Y[:-BATCH]), batch_size=BATCH)  # 5 and 4
        Trainer(node, train_loader=short, epochs=2, save=True).train()
        return {**dict(node.model.named_parameters()), **dict(node.model.named_buffers())}

    run_cleanly(run, script, schedule=schedule, update_frequency=2, reduce_factor=1, **SETTINGS)
    holders = [stage for stage in run.plan.stages if stage.replicas]
    assert holders
    for stage in holders:
        for replica in stage.replicas:
            own = run.results[stage.node_id][replica.name]
            for other in run.plan.stages:
                if replica.name in other.parameters:
                    assert torch.equal(own, run.results[other.node_id][replica.name])


@pytest.mark.parametrize("schedule", ["1f1b", "async"])
def test_evaluation_between_batches_uses_the_newest_values(schedule: str, tmp_path: Path) -> None:
    """And leaves training as it would be without."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=3)
    outputs: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Evaluating(Trainer):
        def train(self) -> None:
            self.prelim_checks()
            node = self.node
            for number, batch in enumerate(self.train_loader):
                node.forward_compute(batch[0])
                if number == 5:
                    one = node.no_grad_forward_compute(X[:BATCH])
                    outputs.append((one, node.no_grad_forward_compute(X[:BATCH])))
            node.wait_for_backwards()
            outputs.append((node.no_grad_forward_compute(X[:BATCH]), torch.tensor(0.0)))
            node.trigger_save_submodel()

    def script(node: Node) -> dict[str, torch.Tensor]:
        Evaluating(node, train_loader=loader()).train()
        return {**dict(node.model.named_parameters()), **dict(node.model.named_buffers())}

    run_cleanly(run, script, schedule=schedule, update_frequency=2, **SETTINGS)
    expected = (
        reference(2, epochs=1)
        if schedule == "1f1b"
        else async_reference(run, frequency=2, kind=TiedGpt)
    )
    assert_equal(run, expected)
    assert torch.equal(*outputs[0])
    with torch.no_grad():
        torch.testing.assert_close(outputs[1][0], expected(X[:BATCH]), atol=1e-5, rtol=0)


def test_replicas_start_with_the_owners_values(tmp_path: Path) -> None:
    """Whatever the owner's script was given or did: here it doubles the embedding."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=2)

    def script(node: Node) -> Any:
        if node.node_type == "root":
            node.model.get_parameter("wte.weight").data.mul_(2.0)
        return Trainer(node, train_loader=loader()).pred(X[:BATCH])

    run_cleanly(run, script)
    expected = build()
    expected.get_parameter("wte.weight").data.mul_(2.0)
    with torch.no_grad():
        torch.testing.assert_close(run.result_of(0), expected(X[:BATCH]), atol=1e-6, rtol=0)


FAULTS: dict[str, tuple[Frame, str]] = {
    "kind": (Frame(FrameKind.SAVE, weight_version=1), "sent SAVE number 1, expected tied values"),
    "number": (Frame(FrameKind.TIED_VALUES, weight_version=2), "TIED_VALUES number 2, expected"),
    "nothing": (Frame(FrameKind.TIED_VALUES, weight_version=1), r"no values of \['wte.weight'\]"),
    "name": (
        Frame(FrameKind.TIED_VALUES, weight_version=1, tensors={"norm.bias": torch.zeros(WIDTH)}),
        r"sent tensors \['norm.bias'\], expected some of \['wte.weight'\]",
    ),
    "shape": (
        Frame(FrameKind.TIED_VALUES, weight_version=1, tensors={"wte.weight": torch.zeros(2, 3)}),
        r"shape \(2, 3\) and torch.float32, expected \(11, 8\) and torch.float32",
    ),
    "dtype": (
        Frame(
            FrameKind.TIED_VALUES,
            weight_version=1,
            tensors={"wte.weight": torch.zeros(VOCABULARY, WIDTH, dtype=torch.int64)},
        ),
        r"shape \(11, 8\) and torch.int64, expected \(11, 8\) and torch.float32",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_owner_that_sends_something_else_is_refused(fault: str, tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=2)
    root, leaf = run.plan.clusters[0]
    frame, message = FAULTS[fault]

    def script(node: Node) -> None:
        if node.node_type == "root":
            node._parts.links.send_tied(leaf, frame)
        train(node)

    run_nodes(run, script, **SETTINGS)
    with pytest.raises(ProtocolError, match=message):
        raise run.errors[leaf]
    assert isinstance(run.errors[root], PeerFailedError)


def test_a_frame_that_does_not_say_which_values_it_used_is_refused(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=2)
    root, leaf = run.plan.clusters[0]

    def script(node: Node) -> None:
        if node.node_type == "root":
            node._parts.tied.before_pass = lambda frame: frame  # type: ignore[method-assign]
        train(node)

    run_nodes(run, script, **SETTINGS)
    with pytest.raises(ProtocolError, match=f"does not say which values of node {root}"):
        raise run.errors[leaf]
