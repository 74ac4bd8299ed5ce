"""node_configs.json: what is accepted, and every fault in one message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ravnest.config import NodeConfig, load_node_configs
from ravnest.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "node_data" / "node_configs.json"


def _entry(address: str = "203.0.113.5:8080", **changes: Any) -> dict[str, Any]:
    benchmarks = {"ram": 8, "bandwidth": 20, **changes.pop("benchmarks", {})}
    return {"IP": address, "benchmarks": benchmarks, **changes}


def _load(tmp_path: Path, document: Any) -> tuple[NodeConfig, ...]:
    path = tmp_path / "node_configs.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return load_node_configs(path)


def _faults(tmp_path: Path, document: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, document)
    first, *lines = caught.value.message.split("\n")
    assert "node_configs.json has " in first
    return lines


def test_the_example_of_the_repository_loads() -> None:
    nodes = load_node_configs(EXAMPLE)
    assert [node.node_id for node in nodes] == [0, 1, 2]
    assert all(node.bind == node.address for node in nodes)


def test_every_field_is_read_and_ids_may_come_in_any_order(tmp_path: Path) -> None:
    measured = {"ram": 1.5, "bandwidth": 2.5, "flops": 100, "latency": 0.5, "device": "cuda:0"}
    document = {
        "12": _entry("provider-b.example.org:8080", bind="10.0.0.7:9000", benchmarks=measured),
        "3": _entry(),
    }
    third, twelfth = _load(tmp_path, document)
    assert third == NodeConfig(3, "203.0.113.5:8080", "0.0.0.0:8080", 8.0, 20.0)
    assert twelfth == NodeConfig(
        12, "provider-b.example.org:8080", "10.0.0.7:9000", 1.5, 2.5, 100.0, 0.5, "cuda:0"
    )


@pytest.mark.parametrize(
    ("address", "bind"),
    [
        ("0.0.0.0:8080", "127.0.0.1:8080"),
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("127.0.0.2:8080", "127.0.0.2:8080"),
        ("localhost:8080", "127.0.0.1:8080"),
        ("[::]:8080", "[::1]:8080"),
        ("[::1]:8080", "[::1]:8080"),
    ],
)
def test_a_file_for_one_machine_listens_on_loopback(
    tmp_path: Path, address: str, bind: str
) -> None:
    (first, _) = _load(tmp_path, {"0": _entry(address), "1": _entry("0.0.0.0:8081")})
    assert (first.address, first.bind) == (address, bind)


@pytest.mark.parametrize(
    ("address", "bind"),
    [
        ("203.0.113.5:8080", "0.0.0.0:8080"),
        ("example.org:8080", "0.0.0.0:8080"),
        ("[2001:db8::1]:8080", "[::]:8080"),
    ],
)
def test_a_file_for_several_machines_listens_on_all_interfaces(
    tmp_path: Path, address: str, bind: str
) -> None:
    (node,) = _load(tmp_path, {"0": _entry(address)})
    assert node.bind == bind


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (_entry(benchmarks={"ram": True}), "benchmarks.ram is true; expected a positive number"),
        (_entry(benchmarks={"ram": "8"}), 'benchmarks.ram is "8"; expected a positive number'),
        (_entry(benchmarks={"ram": None}), "benchmarks.ram is null; expected a positive number"),
        (_entry(benchmarks={"ram": 0}), "benchmarks.ram is 0; expected a positive number of GB"),
        (_entry(benchmarks={"ram": -0.5}), "benchmarks.ram is -0.5; expected a positive number"),
        (_entry(benchmarks={"ram": float("nan")}), "benchmarks.ram is NaN; expected a positive"),
        (_entry(benchmarks={"ram": 10**400}), "benchmarks.ram is 1000"),
        (_entry(benchmarks={"ram": 1e13}), "from 1e-06 to 1e+12"),
        (_entry(benchmarks={"bandwidth": -1}), "benchmarks.bandwidth is -1; expected a positive"),
        (_entry(benchmarks={"bandwidth": float("inf")}), "benchmarks.bandwidth is Infinity"),
        (_entry(benchmarks={"flops": 0}), "benchmarks.flops is 0; expected a positive number of"),
        (_entry(benchmarks={"flops": None}), "benchmarks.flops is null"),
        (_entry(benchmarks={"latency": -1}), "benchmarks.latency is -1; expected a positive"),
        (_entry(benchmarks={"device": 1}), "benchmarks.device is 1; expected a torch device"),
        (_entry(benchmarks={"device": "GPU 1"}), 'benchmarks.device is "GPU 1"; expected a torch'),
        (_entry(benchmarks={"rma": 8}), "unknown key benchmarks.rma (value 8); expected one of"),
        (_entry(port=8080), "unknown key port (value 8080); expected one of IP, bind, benchmarks"),
        (_entry("203.0.113.5"), 'IP is "203.0.113.5": not of the form host:port'),
        (_entry("203.0.113.5:99999"), "port '99999' is no number from 1 to 65535; expected host"),
        (_entry("<host>:8080"), "IP is \"<host>:8080\": host '<host>' is neither"),
        ({**_entry(), "IP": 8080}, "IP is 8080; expected host:port"),
        (_entry(bind="0.0.0.0"), 'bind is "0.0.0.0": not of the form host:port'),
        (_entry(bind=None), "bind is null; expected host:port to listen on"),
        ({"benchmarks": {"ram": 1, "bandwidth": 1}}, "IP is missing; expected host:port"),
        ({"IP": "203.0.113.5:8080"}, "benchmarks is missing; expected an object"),
        ({"IP": "203.0.113.5:8080", "benchmarks": []}, "benchmarks is []; expected an object"),
        ({"IP": "203.0.113.5:8080", "benchmarks": {"ram": 1}}, "benchmarks.bandwidth is missing"),
        ("203.0.113.5:8080", 'node 7 is "203.0.113.5:8080"; expected an object'),
    ],
)
def test_a_fault_names_node_field_value_and_expectation(
    tmp_path: Path, entry: Any, words: str
) -> None:
    (fault,) = _faults(tmp_path, {"7": entry})
    assert "node 7" in fault
    assert words in fault


@pytest.mark.parametrize("key", ["00", "-1", "1.0", " 1", "+1", "a", "", "\u0661", "9" * 19, "1e3"])
def test_an_id_is_a_plain_whole_number(tmp_path: Path, key: str) -> None:
    (fault,) = _faults(tmp_path, {key: _entry()})
    assert f"node id {json.dumps(key, ensure_ascii=False)}: expected a whole number" in fault


def test_repeated_ids_and_keys_are_faults(tmp_path: Path) -> None:
    entry = '{"IP": "203.0.113.5:%d", "benchmarks": {"ram": 1, "bandwidth": 2, "ram": 3}}'
    (repeated, first, second) = _faults(tmp_path, f'{{"4": {entry % 1}, "4": {entry % 2}}}')
    assert "node 4: the id occurs 2 times" in repeated
    assert "benchmarks.ram is given 2 times (1 and 3)" in first
    assert "benchmarks.ram is given 2 times (1 and 3)" in second


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("203.0.113.5:8080", "203.0.113.5:8080"),
        ("Example.org:8080", "example.ORG.:8080"),
        ("[2001:db8::1]:8080", "[2001:DB8:0::1]:8080"),
        ("127.0.0.1:8080", "0.0.0.0:8080"),
        ("localhost:8080", "127.0.0.1:8080"),
    ],
)
def test_two_nodes_at_one_address_are_a_fault(tmp_path: Path, first: str, second: str) -> None:
    (fault,) = _faults(tmp_path, {"0": _entry(first), "1": _entry(second)})
    assert "node 1: IP " in fault
    assert "is that of node 0 too" in fault


def test_nodes_of_one_machine_cannot_share_a_bind(tmp_path: Path) -> None:
    document = {
        "0": _entry("127.0.0.1:1", bind="127.0.0.1:9"),
        "1": _entry("127.0.0.1:2", bind="127.0.0.1:9"),
    }
    (fault,) = _faults(tmp_path, document)
    assert 'node 1: bind "127.0.0.1:9" is that of node 0 too' in fault


@pytest.mark.parametrize("local", ["0.0.0.0:1", "127.0.0.1:1", "[::]:1", "[::1]:1", "localhost:1"])
def test_an_address_nobody_else_can_reach_is_a_fault_when_there_are_others(
    tmp_path: Path, local: str
) -> None:
    (fault,) = _faults(tmp_path, {"0": _entry(local), "1": _entry("203.0.113.5:8080")})
    assert f'node 0: IP is "{local}", which no other machine can reach' in fault
    assert "expected an address that the others can reach" in fault


@pytest.mark.parametrize(("document", "words"), [([], "the file holds []"), ({}, "names no node")])
def test_a_file_without_nodes_is_a_fault(tmp_path: Path, document: Any, words: str) -> None:
    (fault,) = _faults(tmp_path, document)
    assert words in fault


def test_all_faults_come_in_one_message(tmp_path: Path) -> None:
    document = {
        "0": _entry("0.0.0.0:8080", benchmarks={"ram": -1}),
        "1": _entry("203.0.113.5:0", extra=1),
        "2": {"IP": "203.0.113.6:8080"},
        "x": 5,
    }
    faults = _faults(tmp_path, document)
    for words in (
        "node 0: benchmarks.ram is -1",
        "node 1: IP is",
        "node 1: unknown key extra",
        "node 2: benchmarks is missing",
        'node id "x"',
        "node x is 5",
        "node 0: IP is",
    ):
        assert sum(words in fault for fault in faults) == 1, words
