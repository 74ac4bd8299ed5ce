"""Regions inside forward: no_grad, enable_grad and autocast compute what they do in the model."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from capture_chain import even_cuts, through_files
from capture_oracle import Compare, assert_bitwise, assert_stages_equal
from torch import nn

from ravnest.capture.exporting import CapturedModel, capture_model
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import GRAPH_FILE, LoadedStage, load_stage, write_stage
from ravnest.errors import PlanFileError


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.layer = nn.BatchNorm1d(8), nn.LayerNorm(8)


class Part(Base):
    """One part in low precision; parameters used in and out of it, one of them twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.norm(self.b(torch.tanh(self.b(h))))
            h = F.softmax(h, -1) + h
        return self.c(h.float() + h)


class Whole(Base):
    """All of it, as a decorated forward is; the input of q, k and v is shared."""

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(self.a(x))
        q, k, v = self.a(h), self.b(h), self.c(h)
        h = F.scaled_dot_product_attention(q[None], k[None], v[None])[0] + h
        return F.cross_entropy(self.norm(h), h.detach().softmax(-1))


class Nested(Base):
    """A disabled region inside, and operators of every list that autocast has."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.a(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.b(h)
            with torch.autocast("cpu", enabled=False):
                # One operator: a transposed view that crosses a cut arrives contiguous, and a
                # product with another layout adds up in another order.
                y = F.linear(self.layer(y.float()), h)
                with torch.autocast("cpu", dtype=torch.float16):
                    z = self.c(h)
            z = torch.cat([z.to(torch.bfloat16), h], 0)
            loss = F.mse_loss(self.b(h), h) + F.binary_cross_entropy_with_logits(h, h.sigmoid())
            e = torch.einsum("ij,kj->ik", z, h)
        return y, z, loss, e


class Mixed(Base):
    """no_grad inside autocast and autocast inside no_grad."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.b(h)
            with torch.no_grad():
                gate = torch.sigmoid(self.norm(h))
            h = h * gate
        with torch.no_grad():
            scale = self.c(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                scale = scale + self.c(scale)
        return h * scale


class NoGradFirst(Base):
    """The same parameter in one region under no_grad and then with gradients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                gate = self.b(self.a(x))
            return self.c(self.b(x) * gate)


class Adjacent(Base):
    """The same parameter in two regions with nothing in between: two casts, not one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.b(h)
        return self.c(h.float())


class Half(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return self.c(F.gelu(self.b(F.gelu(self.a(x)))))


class NoGrad(Base):
    """BatchNorm under no_grad still counts; what comes out of it passes no gradient on."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.a(x)
        with torch.no_grad():
            target = self.norm(self.b(h))
            h.mul_(0.5)
        return self.c(h) * target, target


class GradAgain(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        with torch.no_grad():
            g = self.b(h)
            with torch.enable_grad():
                k = self.c(h) * g
            g = g + k
        return g + self.layer(k)


class Inference(Base):
    """The exporter records nothing of inference_mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        with torch.inference_mode():
            gate = self.b(h)
            with torch.inference_mode(False):
                k = self.layer(h)
        return self.c(h) + gate + k


@torch.no_grad()
def frozen_part(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)


class Decorated(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(frozen_part(self.a, x)) + self.c(x).detach()


CASES: dict[str, Callable[[], nn.Module]] = {
    each.__name__: each
    for each in (
        Part,
        Whole,
        Nested,
        Mixed,
        NoGradFirst,
        Adjacent,
        Half,
        NoGrad,
        GradAgain,
        Inference,
        Decorated,
    )
}


@functools.cache
def build(name: str) -> tuple[nn.Module, CapturedModel]:
    torch.manual_seed(0)
    model = CASES[name]()
    return model, capture_model(model, (torch.randn(4, 8),))


def bitwise_but_shared(stages: Sequence[LoadedStage]) -> Compare:
    """Bit for bit, but for gradients of parameters that several of the stages use.

    Autocast casts a parameter once per region, so the model adds the gradients of its uses in
    bfloat16. Stages each have a cast of their own, and their shares add up in float32.
    """
    shared = {name for stage in stages for name in stage.replicas}

    def same(actual: Any, expected: Any) -> None:
        if isinstance(expected, dict) and shared <= expected.keys():
            for name in shared:
                scale = expected[name].abs().max().item()
                torch.testing.assert_close(
                    actual[name],
                    expected[name],
                    rtol=0,
                    atol=scale * torch.finfo(torch.bfloat16).eps,
                )
            actual = {name: value for name, value in actual.items() if name not in shared}
            expected = {name: value for name, value in expected.items() if name not in shared}
        assert_bitwise(actual, expected)

    return same


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_stages_equal_the_model_bit_for_bit(name: str, num_stages: int) -> None:
    model, captured = build(name)
    stages = through_files(captured, even_cuts(captured, num_stages))
    assert len(stages) == num_stages or name == "NoGrad"  # which has one legal cut
    for batch in (4, 7):
        same = bitwise_but_shared(stages)
        assert_stages_equal(stages, model, (torch.randn(batch, 8),), same=same)


@pytest.mark.parametrize("name", CASES)
def test_every_cut_equals_the_model_bit_for_bit(name: str) -> None:
    """Also those within a region: each operator knows the regions it stands in."""
    model, captured = build(name)
    for cut in captured.costs.cuts:
        stages = through_files(captured, [cut.position])
        assert_stages_equal(stages, model, (torch.randn(3, 8),), same=bitwise_but_shared(stages))


def test_model_within_one_region_can_still_be_cut() -> None:
    _, captured = build("Half")
    assert len(captured.costs.cuts) == captured.costs.num_positions - 1


def test_autocast_is_left_after_an_error() -> None:
    _, captured = build("Half")
    (stage,) = through_files(captured, [])
    state = {**stage.parameters, **stage.buffers}
    with pytest.raises(RuntimeError):
        stage.train(state, {"input.x": torch.randn(4, 9)}, lambda _: None)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.filterwarnings("ignore:.*not available")
def test_autocast_for_another_device_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Elsewhere(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", dtype=torch.float16):
                return self.a(x)

    model = Elsewhere()
    with caplog.at_level(logging.WARNING):
        captured = capture_model(model, (torch.randn(4, 8),))
    assert [r for r in caplog.records if "does nothing to an example on cpu" in r.message]
    stages = through_files(captured, [])
    assert_stages_equal(stages, model, (torch.randn(3, 8),), same=assert_bitwise)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("bfloat16", "expected a list"),
        ([["bfloat16"]], "expected a number and a dtype"),
        ([[1, "float32"]], "no dtype to compute in"),
        ([[1, "os.system"]], "os.system"),
        ([[-1, "bfloat16"]], "expected an integer"),
        ([[1, "bfloat16"]] * 17, "at most 16"),
    ],
)
def test_regions_of_a_stage_file_are_checked(written: Any, message: str, tmp_path: Path) -> None:
    _, captured = build("Half")
    write_stage(split(captured, [])[0], tmp_path)
    data = json.loads((tmp_path / GRAPH_FILE).read_text())
    assert data["train"]["nodes"][1]["autocast"] == [[1, "float16"]]
    data["train"]["nodes"][1]["autocast"] = written
    (tmp_path / GRAPH_FILE).write_text(json.dumps(data))
    with pytest.raises(PlanFileError, match=message):
        load_stage(tmp_path)
