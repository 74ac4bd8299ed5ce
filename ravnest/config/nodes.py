"""node_configs.json: what each node is, checked as a whole before anything uses it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ravnest.config.addresses import Address, parse_address
from ravnest.config.schema import entry_faults
from ravnest.config.source import JsonObject, read_json, shown
from ravnest.errors import ConfigError

_NODE_ID = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_MAX_NODE_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One entry of node_configs.json, in the units people write.

    Attributes:
        address: `IP` as written, the `host:port` that others reach.
        bind: `host:port` to listen on.
        ram_gb: RAM or VRAM it offers, in GB of 10**9 bytes.
        bandwidth_mbps: rate of its link in Mbit/s.
        flops_gflops: measured speed in GFLOP/s, or None.
        latency_ms: measured one-way delay of its link in milliseconds, or None.
        device: torch device name, or None.
    """

    node_id: int
    address: str
    bind: str
    ram_gb: float
    bandwidth_mbps: float
    flops_gflops: float | None = None
    latency_ms: float | None = None
    device: str | None = None


def load_node_configs(path: Path) -> tuple[NodeConfig, ...]:
    """Reads node_configs.json; nodes come in order of id.

    Raises:
        ConfigError: something in the file is wrong; the message lists every fault with node id,
            field, value and what was expected.
    """
    document = read_json(path)
    faults = list(_document_faults(document))
    if not faults or isinstance(document, JsonObject):
        addresses = _addresses_of(document, "IP")
        faults += _address_faults(addresses, _addresses_of(document, "bind"))
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "\n".join(f"  {fault}" for fault in faults)
        raise ConfigError(
            f"{path} has {count}:\n{lines}", hint="correct the lines named above and run again"
        )
    is_local = all(address.is_local for address in addresses.values())
    entries = {int(key): document[key] for key in document}
    return tuple(_config(i, entries[i], addresses[i], is_local) for i in sorted(entries))


def _config(node_id: int, entry: Mapping[str, Any], address: Address, is_local: bool) -> NodeConfig:
    benchmarks = entry["benchmarks"]
    default_bind = address.on_loopback if is_local else address.on_all_interfaces
    return NodeConfig(
        node_id=node_id,
        address=entry["IP"],
        bind=entry.get("bind", str(default_bind)),
        ram_gb=float(benchmarks["ram"]),
        bandwidth_mbps=float(benchmarks["bandwidth"]),
        flops_gflops=_optional_float(benchmarks.get("flops")),
        latency_ms=_optional_float(benchmarks.get("latency")),
        device=benchmarks.get("device"),
    )


def _optional_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _document_faults(document: Any) -> Iterator[str]:
    """Faults of single entries, in the order of the file."""
    if not isinstance(document, JsonObject):
        yield f"the file holds {shown(document)}; expected an object with one entry per node"
        return
    if not document:
        yield "the file names no node; expected at least one entry"
    for key, entry in document.items():
        if not _NODE_ID.fullmatch(key) or int(key) > _MAX_NODE_ID:
            yield (
                f"node id {shown(key)}: expected a whole number from 0 on, without sign, spaces or "
                "leading zeros"
            )
        values = document.repeated.get(key)
        if values is not None:
            yield f"node {key}: the id occurs {len(values)} times; expected distinct ids"
        for candidate in values or [entry]:
            yield from entry_faults(key, candidate)


def _addresses_of(document: Mapping[str, Any], field: str) -> dict[int, Address]:
    """The well-formed addresses of the well-formed ids; the others have their fault already."""
    found: dict[int, Address] = {}
    for key, entry in document.items():
        text = entry.get(field) if isinstance(entry, dict) else None
        if not isinstance(text, str) or not _NODE_ID.fullmatch(key):
            continue
        try:
            found[int(key)] = parse_address(text)
        except ValueError:
            continue
    return found


def _address_faults(addresses: dict[int, Address], binds: dict[int, Address]) -> Iterator[str]:
    """Faults between entries: addresses given twice, or out of reach of the other nodes."""
    remote = {i: address for i, address in addresses.items() if not address.is_local}
    yield from _repeated("IP", addresses)
    if not remote:
        # All on one machine: two nodes cannot listen on one port of it.
        yield from _repeated("bind", binds)
        return
    example_id, example = min(remote.items())
    for node_id, address in sorted(addresses.items()):
        if address.is_local:
            yield (
                f'node {node_id}: IP is "{address}", which no other machine can reach, but node '
                f'{example_id} is at "{example}"; expected an address that the others can reach '
                '(what to listen on goes into "bind")'
            )


def _repeated(field: str, addresses: dict[int, Address]) -> Iterator[str]:
    first: dict[Address, int] = {}
    for node_id, address in sorted(addresses.items()):
        endpoint = address.on_loopback if address.is_local else address
        if endpoint in first:
            yield (
                f'node {node_id}: {field} "{address}" is that of node {first[endpoint]} too; '
                "expected a different host or port for every node"
            )
        first.setdefault(endpoint, node_id)
