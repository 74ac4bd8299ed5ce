"""The mean, against the mean computed by hand in float64."""

import pytest
import torch
from averaging_harness import bytes_of, clones, membership, play
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.averaging import Averager, RoundResult
from ravnest.transport.interface import Transport
from ravnest.wire.frame import Codec

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
COMPLEX = [torch.complex64, torch.complex128]
COUNTERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]

Tensors = dict[str, torch.Tensor]


def make(dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if dtype in COUNTERS:
        low, high = (0, 2) if dtype is torch.bool else (0, 100)
        return torch.randint(low, high, shape, generator=generator).to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=wide, generator=generator).to(dtype)


def average_all(
    per_node: dict[int, Tensors], weights: list[int], *, window: int = 16, **options: object
) -> dict[int, RoundResult]:
    nodes = list(per_node)

    def work(node: int, transport: Transport) -> RoundResult:
        ring = membership(node, nodes, list(per_node[node]))
        averager = Averager(node, [ring], transport, window=window, **options)
        return averager.average(
            per_node[node], round_id=3, num_samples=weights[nodes.index(node)], finished=False
        )

    return play(nodes, work, window=window)


def assert_mean(got: torch.Tensor, members: list[torch.Tensor], weights: list[int]) -> None:
    if got.dtype in COUNTERS:
        expected = torch.stack([m.to(torch.int64) for m in members]).amax(0).to(got.dtype)
        assert torch.equal(got, expected)
        return
    wide = torch.complex128 if got.dtype.is_complex else torch.float64
    total = sum(weights)
    terms = [m.to(wide) * (w / total) for m, w in zip(members, weights, strict=True)]
    mean = torch.stack(terms).sum(0)
    size = torch.stack([t.abs() for t in terms]).sum(0)
    adding = 2.0**-53 if got.dtype in (torch.float64, torch.complex128) else 2.0**-24
    rounding = torch.finfo(got.dtype).eps / 2
    bound = (len(members) + 2) * adding * size + rounding * mean.abs()
    bound += torch.finfo(got.dtype).smallest_normal * torch.finfo(got.dtype).eps
    assert ((got.to(wide) - mean).abs() <= bound * (2 if got.dtype.is_complex else 1)).all()


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@settings(max_examples=80, deadline=None)
@given(
    weights=st.lists(st.integers(0, 300), min_size=1, max_size=6).filter(any),
    kinds=st.lists(st.tuples(st.sampled_from(FLOATS + COMPLEX + COUNTERS), shapes), max_size=6),
    window=st.integers(1, 4),
    chunk_bytes=st.integers(1, 80),
    seed=st.integers(0, 2**31),
)
def test_members_get_the_mean_and_identical_bytes(
    weights: list[int],
    kinds: list[tuple[torch.dtype, tuple[int, ...]]],
    window: int,
    chunk_bytes: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    nodes = [10 * (rank + 1) for rank in range(len(weights))]
    before = {
        node: {f"t{i}": make(dtype, shape, generator) for i, (dtype, shape) in enumerate(kinds)}
        for node in nodes
    }
    after = {node: clones(before[node]) for node in nodes}
    results = average_all(after, weights, window=window, chunk_bytes=chunk_bytes)
    for node in nodes:
        assert results[node].num_samples == sum(weights)
        assert results[node].applied == (len(nodes) > 1)
    for name in before[nodes[0]]:
        assert len({bytes_of(after[node][name]) for node in nodes}) == 1
        if len(nodes) > 1:
            members = [before[node][name] for node in nodes]
            assert_mean(after[nodes[0]][name], members, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_equal_members_give_half_the_sum_exactly(dtype: torch.dtype) -> None:
    a, b = torch.randn(1000, dtype=dtype), torch.randn(1000, dtype=dtype) * 1e-3
    live = {0: {"w": a.clone()}, 1: {"w": b.clone()}}
    average_all(live, [7, 7], chunk_bytes=256)
    assert torch.equal(live[0]["w"], (a + b) / 2)
    assert torch.equal(live[1]["w"], (a + b) / 2)


def test_largest_values_do_not_overflow() -> None:
    lowest = torch.full((5,), torch.finfo(torch.float32).min)
    live = {node: {"mask": lowest.clone()} for node in range(3)}
    average_all(live, [10, 20, 30])
    assert torch.isfinite(live[0]["mask"]).all()


def test_no_samples_count_as_nothing_even_where_they_are_not_finite() -> None:
    nan = torch.tensor([float("nan"), float("inf"), 1.0])
    for rank in range(3):
        live = {node: {"w": torch.tensor([1.0, 2.0, 3.0])} for node in range(3)}
        live[rank]["w"] = nan.clone()
        average_all(live, [0 if node == rank else 8 for node in range(3)])
        assert live[rank]["w"].tolist() == [1.0, 2.0, 3.0]


def test_one_element_and_five_members() -> None:
    live = {node: {"w": torch.tensor(float(node))} for node in range(5)}
    average_all(live, [1] * 5, window=1)
    assert all(live[node]["w"].item() == 2.0 for node in range(5))


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_many_chunks_pass_a_small_window(window: int, size: int) -> None:
    live = {node: {"w": torch.full((503,), float(node))} for node in range(size)}
    average_all(live, [1] * size, window=window, chunk_bytes=16)
    assert all((live[node]["w"] == (size - 1) / 2).all() for node in range(size))


def test_strides_are_kept() -> None:
    def strided(value: float) -> Tensors:
        base = torch.arange(24.0).view(4, 6) + value
        return {
            "transposed": base.clone().t(),
            "sliced": base.clone()[::2, 1:4],
            "channels_last": (torch.ones(1, 2, 3, 3) * value).to(memory_format=torch.channels_last),
            "expanded": torch.tensor([[value], [value + 1]]).expand(2, 7),
            "conjugate": torch.full((3,), complex(value, value)).conj(),
            "parameter": torch.nn.Parameter(torch.full((2, 3), value)).t(),
        }

    live = {0: strided(0.0), 1: strided(2.0)}
    strides = {name: tensor.stride() for name, tensor in live[0].items()}
    average_all(live, [1, 1])
    for name, expected in strided(1.0).items():
        for node in live:
            assert torch.equal(live[node][name], expected), name
            assert live[node][name].stride() == strides[name]


def test_the_same_inputs_give_the_same_bytes() -> None:
    generator = torch.Generator().manual_seed(0)
    start = {node: {"w": torch.randn(997, generator=generator)} for node in range(4)}
    runs = []
    for window in (1, 3, 16):
        live = {node: clones(start[node]) for node in start}
        average_all(live, [3, 5, 7, 11], window=window, chunk_bytes=128)
        runs.append(bytes_of(live[2]["w"]))
    assert len(set(runs)) == 1


@pytest.mark.parametrize("codec", [Codec.FLOAT16, Codec.BFLOAT16])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_lossy_codec_leaves_identical_bytes(codec: Codec, size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    start = {
        node: {
            "w": torch.randn(301, generator=generator),
            "wide": torch.randn(31, dtype=torch.float64, generator=generator),
            "count": torch.tensor(2**40 + node),
        }
        for node in range(size)
    }
    weights = list(range(1, size + 1))
    live = {node: clones(start[node]) for node in start}
    results = average_all(live, weights, codec=codec, chunk_bytes=64)
    plain = average_all({node: clones(start[node]) for node in start}, weights, chunk_bytes=64)
    assert results[0].sent_bytes < plain[0].sent_bytes
    for name in start[0]:
        assert len({bytes_of(live[node][name]) for node in live}) == 1
    mean = sum(start[node]["w"].double() * weights[node] for node in start) / sum(weights)
    loss = 2.0**-8 if codec is Codec.BFLOAT16 else 2.0**-11
    assert (live[0]["w"] - mean).abs().max() < size * loss * 4
    assert_mean(live[0]["wide"], [start[node]["wide"] for node in start], weights)
    assert live[0]["count"].item() == 2**40 + size - 1
