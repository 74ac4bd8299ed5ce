"""Parameters that several stages use: where they may be cut, who owns them, what the files say."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from capture_chain import assert_same, eval_chain, through_files, train_chain, train_original
from torch import nn

from ravnest.capture.exporting import CapturedModel, capture_model
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import GRAPH_FILE, load_stage, write_stage
from ravnest.errors import PlanFileError

IDS = torch.randint(0, 9, (4, 3), generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    """Head and embedding are one parameter under two names, the head's first in the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail = nn.Linear(8, 9, bias=False), nn.Linear(9, 4)
        self.emb, self.mid = nn.Embedding(9, 8), nn.Linear(8, 8)
        self.emb.weight = self.head.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tail(torch.tanh(self.head(torch.tanh(self.mid(self.emb(ids))))))


class Transposed(Tied):
    """Multiplies by a view of the embedding, which depends on no input."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.mid(self.emb(ids)))
        return self.tail(torch.tanh(x @ self.emb.weight.t()))


class Thrice(nn.Module):
    """One layer over and over, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.layer, self.out = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        for _ in range(3):
            x = x + torch.tanh(self.layer(x))
        return self.out(x)


class OnlyInEval(Tied):
    """The second use of the embedding is in the evaluation graph alone."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.mid(self.emb(ids)))
        padded = torch.cat([x, x[..., :1]], -1)
        return self.tail(torch.tanh(padded if self.training else F.linear(x, self.emb.weight)))


class Frozen(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.emb.weight.requires_grad_(False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "transposed": Transposed,
    "thrice": Thrice,
    "only_eval": OnlyInEval,
    "frozen": Frozen,
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def capture(name: str) -> CapturedModel:
    return capture_model(build(name), (IDS,))


@pytest.mark.parametrize("name", MODELS)
def test_every_cut_is_legal_and_gradients_sum_up(name: str) -> None:
    captured = capture(name)
    positions = [cut.position for cut in captured.costs.cuts]
    assert positions == list(range(1, captured.costs.num_positions))
    expected = train_original(build(name), captured, (IDS,), {})
    names = captured.state.aliases
    gradients = {names.get(n, n): g for n, g in expected.gradients.items()}
    evaluated = build(name).eval()(IDS)
    sets = [*itertools.combinations(positions, 1), *itertools.combinations(positions, 2), positions]
    for cuts in sets:
        stages = through_files(captured, cuts)
        actual = train_chain(stages, (IDS,), {})
        assert_same(actual.output, expected.output)
        assert_same(actual.gradients, {n: gradients[n] for n in actual.gradients})
        assert actual.gradients.keys() == gradients.keys()
        assert_same(eval_chain(stages, (IDS,), {}), evaluated)
        owned = [name for stage in stages for name in stage.parameters]
        assert sorted(owned) == sorted(n for n, _ in build(name).named_parameters())


def test_owner_is_the_first_user_and_holders_are_those_after() -> None:
    captured = capture("tied")
    assert captured.state.aliases == {"emb.weight": "head.weight"}
    assert captured.placement.owners["head.weight"] == 0
    uses = {each.name: each.uses for each in captured.costs.stored}
    assert uses == {"head.weight": (0, 3), "tail.weight": (), "tail.bias": (), "mid.weight": (),
                    "mid.bias": ()}  # fmt: skip
    first, middle, last = through_files(captured, (1, 3))
    assert "head.weight" in first.parameters
    assert first.replicas == middle.replicas == {}
    assert last.replica_owners == {"head.weight": 0}
    assert torch.equal(last.replicas["head.weight"], first.parameters["head.weight"])
    assert "head.weight" not in last.trainable | last.parameters.keys()


def test_three_stages_share_a_layer() -> None:
    captured = capture("thrice")
    uses = next(each.uses for each in captured.costs.stored if each.name == "layer.weight")
    assert len(uses) == 3
    stages = through_files(captured, (uses[1], uses[2]))
    assert [sorted(stage.replica_owners.items()) for stage in stages] == [
        [],
        [("layer.bias", 0), ("layer.weight", 0)],
        [("layer.bias", 0), ("layer.weight", 0)],
    ]


def test_a_frozen_parameter_is_copied_as_a_constant() -> None:
    first, last = through_files(capture("frozen"), (3,))
    assert "head.weight" in first.parameters
    assert "head.weight" in last.constants
    assert last.replicas == {}


def test_a_view_of_a_shared_parameter_is_made_where_it_is_used() -> None:
    captured = capture("transposed")
    for stage in through_files(captured, (3,))[1:]:
        for program in (stage.train, stage.eval):
            assert [spec.name for spec in program.inputs] == ["tanh"]
            assert "head.weight" in program.state_names


def test_a_parameter_that_is_written_stays_on_one_stage() -> None:
    class Clipped(Tied):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.emb.weight.clamp_(-1.0, 1.0)
            return super().forward(ids)

    captured = capture_model(Clipped(), (IDS,))
    assert "head.weight" not in captured.placement.shared
    last = captured.placement.uses["head.weight"][-1]
    assert min(cut.position for cut in captured.costs.cuts) > last
    assert all(each.uses == () for each in captured.costs.stored)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "own": (lambda d: d["replicas"][0].update(owner=1), "owner: expected an integer from 0 to 0"),
    "later": (lambda d: d["replicas"][0].update(owner=2), "owner: expected an integer from 0 to 0"),
    "negative": (lambda d: d["replicas"][0].update(owner=-1), "expected an integer from 0 to 0"),
    "no_owner": (lambda d: d["replicas"][0].pop("owner"), r"lacks \['owner'\]"),
    "flag": (lambda d: d["replicas"][0].update(trainable=True), r"unknown fields \['trainable'\]"),
    "twice": (lambda d: d["replicas"].append(d["replicas"][0]), "declared twice"),
    "gone": (lambda d: d.pop("replicas"), r"lacks \['replicas'\]"),
    "dropped": (lambda d: d["replicas"].clear(), "there is no state"),
    "root": (lambda d: d.update(stage=0), "no stage comes before the first"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_replica_is_refused(name: str, tmp_path: Path) -> None:
    edit, message = EDITS[name]
    write_stage(split(capture("tied"), (3,))[1], tmp_path)
    assert load_stage(tmp_path).replicas
    data = json.loads((tmp_path / GRAPH_FILE).read_text())
    edit(data)
    (tmp_path / GRAPH_FILE).write_text(json.dumps(data))
    with pytest.raises(PlanFileError, match=message):
        load_stage(tmp_path)
