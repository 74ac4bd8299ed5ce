"""Costs against PyTorch's own numbers, and what makes a cut illegal."""

from __future__ import annotations

import pytest
import torch
from capture_chain import even_cuts
from capture_zoo import CASES, build, call, captured
from torch import nn

from ravnest.capture.exporting import capture_model
from ravnest.capture.splitting import split
from ravnest.errors import CaptureError


def test_flops_of_a_linear_chain_are_exact() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    costs = capture_model(model, (torch.randn(3, 8),)).costs
    assert costs.forward_flops == (2 * 3 * 8 * 16, 0, 2 * 3 * 16 * 4)
    assert costs.output_bytes == (3 * 16 * 4, 3 * 16 * 4, 3 * 4 * 4)
    assert costs.input_bytes == 3 * 8 * 4


def test_saved_bytes_are_what_autograd_keeps() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(3, 8)
    ignored = {t.untyped_storage().data_ptr() for t in (x, *model.parameters())}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ignored:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    for run_forward in (False, True):
        costs = capture_model(model, (x,), run_forward=run_forward).costs
        assert sum(costs.saved_bytes) == sum(kept.values()) == 3 * 16 * 4


@pytest.mark.parametrize("name", ["cnn", "gpt", "residual"])
def test_propagated_and_measured_costs_agree(name: str) -> None:
    propagated = captured(name).costs
    measured = capture_model(build(name), *call(name), run_forward=True).costs
    assert propagated.forward_flops == measured.forward_flops
    assert propagated.cuts == measured.cuts
    total = sum(measured.saved_bytes)
    assert abs(sum(propagated.saved_bytes) - total) <= 0.1 * total


@pytest.mark.parametrize("name", CASES)
def test_cut_bytes_are_the_bytes_of_the_values_on_the_wire(name: str) -> None:
    model = captured(name)
    sizes = {
        node.name: torch.empty(
            [s if isinstance(s, int) else s.node.hint for s in node.meta["val"].shape],
            dtype=node.meta["val"].dtype,
            device="meta",
        )
        for node in model.train.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    }
    names = {f"{n.target}" if n.op == "placeholder" else n.name: n.name for n in _values(model)}
    for cut in model.costs.cuts:
        outputs = split(model, [cut.position])[0].train.outputs
        tensors = [(spec, sizes[names[spec.name]]) for spec in outputs if spec.is_tensor]
        scalars = 8 * sum(not spec.is_tensor for spec in outputs)
        assert cut.forward_bytes == scalars + sum(t.numel() * t.itemsize for _, t in tensors)
        assert cut.backward_bytes == sum(
            t.numel() * t.itemsize for spec, t in tensors if spec.differentiable
        )


def _values(model: object) -> list[torch.fx.Node]:
    graph = model.train.graph  # type: ignore[attr-defined]
    return [node for node in graph.nodes if node.op in ("placeholder", "call_function")]


@pytest.mark.parametrize("name", CASES)
def test_every_stored_tensor_has_a_place(name: str) -> None:
    model = captured(name)
    state = [n for n in model.state.state_names if n not in model.state.aliases]
    assert [cost.name for cost in model.costs.stored] == state
    assert all(0 <= cost.position < model.costs.num_positions for cost in model.costs.stored)
    by_stage = split(model, even_cuts(model, 2))
    owned = [n for stage in by_stage for n in (*stage.parameters, *stage.buffers)]
    assert sorted(owned) == sorted(state)


def test_unused_state_goes_with_its_nearest_module() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.ModuleDict({"used": nn.Linear(4, 4)})
            self.second = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(2, 2)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second["used"](torch.tanh(self.first["used"](x)))

    costs = capture_model(Nested(), (torch.randn(3, 4),)).costs
    positions = {cost.name: cost.position for cost in costs.stored}
    assert positions["second.unused.weight"] == positions["second.used.weight"] == 2


def _operators_between(name: str) -> tuple[list[str], set[int]]:
    model = captured(name)
    return (
        [str(node.target) for node in model.train.computing],
        {cut.position for cut in model.costs.cuts},
    )


def test_no_cut_inside_a_tuple_a_shared_norm_or_a_written_view() -> None:
    operators, legal = _operators_between("several")
    lstm = operators.index("aten.lstm.input")
    assert lstm + 1 not in legal
    operators, legal = _operators_between("norm_twice")
    norms = [i for i, op in enumerate(operators) if op == "aten.batch_norm.default"]
    assert not legal & set(range(norms[0] + 1, norms[1] + 1))
    operators, legal = _operators_between("views")
    written = operators.index("aten.mul_.Tensor")
    created = operators.index("aten.mul.Tensor")
    assert not legal & set(range(created + 1, written + 1))
    operators, legal = _operators_between("buffers")
    first, last = operators.index("aten.mul_.Tensor"), operators.index("aten.sub.Tensor")
    assert not legal & set(range(first + 1, last + 1))


def test_the_eval_graph_has_a_say_in_where_parameters_are_used() -> None:
    class SwapsInEval(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one, two = (self.a, self.b) if self.training else (self.b, self.a)
            return self.out(torch.tanh(two(torch.tanh(one(x)))))

    costs = capture_model(SwapsInEval(), (torch.randn(3, 4),)).costs
    assert [cut.position for cut in costs.cuts] == [1, 2, 3, 4]
    uses = {each.name: each.uses for each in costs.stored}
    assert uses["a.weight"] == (0, 2)  # the train graph's, and beside b.weight in the eval graph
    assert uses["b.weight"] == ()


def test_an_illegal_cut_is_refused_with_the_nearest_legal_ones() -> None:
    model = captured("norm_twice")
    with pytest.raises(CaptureError, match=r"cannot be cut at 4\n.*\[1, 7\]"):
        split(model, [4])
    with pytest.raises(CaptureError, match="not increasing"):
        split(model, [7, 1])
