"""What `ravnest benchmark` does, and what it prints."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ravnest.config.addresses import Address, parse_address
from ravnest.errors import ConfigError
from ravnest.probing.compute import check_dtype, measure_compute
from ravnest.probing.link import LinkReading, measure_link
from ravnest.probing.listener import ProbeListener
from ravnest.probing.memory import measure_memory
from ravnest.probing.node import NodeReading, entry_of, expected_entry
from ravnest.probing.recording import Prepared, find_node, prepare, record


@dataclass(frozen=True, slots=True)
class Measuring:
    """What the command line asks for, in its units."""

    node_id: int
    address: str | None
    node_configs: Path
    peers: tuple[str, ...]
    dtype: str
    device: str | None
    ram_gb: float | None
    bandwidth_mbps: float | None
    seconds: float
    insecure: bool


def measure_and_record(asked: Measuring, *, dry_run: bool, as_json: bool) -> None:
    """Measures, writes the entry unless it is a dry run, and prints.

    Raises:
        ConfigError: the file or an argument is wrong; found before anything is measured.
        TransportError: a peer cannot be measured; nothing is written.
    """
    known = find_node(asked.node_configs, asked.node_id)
    device = _device(asked.device or (known.device if known else None) or "cpu")
    check_dtype(asked.dtype)
    expected = expected_entry(
        asked.node_id,
        asked.address,
        asked.peers,
        device=str(device),
        ram_gb=asked.ram_gb,
        bandwidth_mbps=asked.bandwidth_mbps,
    )
    prepare(asked.node_configs, expected)
    reading = _measure(asked, device)
    entry = entry_of(
        reading,
        asked.node_id,
        asked.address,
        ram_gb=asked.ram_gb,
        bandwidth_mbps=asked.bandwidth_mbps,
    )
    # Anew: the file may have been edited meanwhile.
    prepared = prepare(asked.node_configs, entry)
    if not dry_run:
        record(asked.node_configs, prepared)
    if as_json:
        typer.echo(json.dumps(_as_json(asked, reading, prepared, written=not dry_run)))
    else:
        _print(asked, reading, prepared, written=not dry_run)


def _measure(asked: Measuring, device: torch.device) -> NodeReading:
    """Links first, since they are what fails; memory before computing takes some of it."""
    links = []
    for peer in asked.peers:
        typer.echo(f"measuring the link to {peer} ...", err=True)
        links.append(measure_link(peer, seconds=asked.seconds, insecure=asked.insecure))
    memory = measure_memory(device)
    typer.echo(f"measuring the speed of {device} in {asked.dtype} ...", err=True)
    return NodeReading(memory, measure_compute(device, asked.dtype), tuple(links))


def listen_for_probes(
    node_id: int | None,
    address: str | None,
    node_configs: Path,
    seconds: float | None,
    *,
    insecure: bool,
    as_json: bool,
) -> None:
    """Answers probes until Ctrl-C, or for so many seconds.

    Raises:
        ConfigError: the address is wrong, or not loopback without `insecure`.
        AddressInUseError: it cannot be listened on.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    bind = _bind(node_id, address, node_configs)
    with ProbeListener(bind, insecure=insecure) as listener:
        until = "Ctrl-C ends it" if seconds is None else f"for {seconds:g} s"
        try:  # from the line on that says what Ctrl-C does
            typer.echo(f"listening for probes on {bind}; {until}", err=True)
            listener.wait(seconds)
        except KeyboardInterrupt:
            typer.echo("", err=True)
        if as_json:
            typer.echo(json.dumps({"bind": bind, "num_probes": listener.num_probes}))
        else:
            typer.echo(f"answered {listener.num_probes} probes")


def _bind(node_id: int | None, address: str | None, node_configs: Path) -> str:
    """What to listen on: as the node will, or the port of the address."""
    known = None if node_id is None else find_node(node_configs, node_id)
    if address is None:
        if known is None:
            raise ConfigError(
                f"{node_configs} has no node {node_id}", hint="pass --address HOST:PORT"
            )
        return known.bind
    parsed = _parsed(address)
    return str(parsed.on_loopback if parsed.is_local else parsed.on_all_interfaces)


def _parsed(address: str) -> Address:
    try:
        return parse_address(address)
    except ValueError as error:
        raise ConfigError(
            f"address {address!r}: {error}", hint='write host:port, such as "203.0.113.5:8080"'
        ) from None


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"device is {name!r}; expected a torch device such as cpu, cuda:0 or mps"
        ) from None


def _as_json(
    asked: Measuring, reading: NodeReading, prepared: Prepared, *, written: bool
) -> dict[str, Any]:
    return {
        "node": asked.node_id,
        "file": str(asked.node_configs),
        "written": written,
        "entry": prepared.entry,
        "memory": {**asdict(reading.memory), "offered_bytes": reading.memory.offered_bytes},
        "compute": asdict(reading.compute),
        "links": [
            {**asdict(link), "bandwidth_bps": link.bandwidth_bps, "one_way_s": link.one_way_s}
            for link in reading.links
        ],
    }


def _print(asked: Measuring, reading: NodeReading, prepared: Prepared, *, written: bool) -> None:
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for heading in ("", "measured", "in the file"):
        table.add_column(heading, overflow="fold")
    for row in _rows(reading, prepared):
        table.add_row(*row)
    console.print(table)
    done = f"written to {asked.node_configs}" if written else "not written (--dry-run)"
    console.print(f"\nnode {asked.node_id}, {done}:", highlight=False, soft_wrap=True)
    typer.echo(f'"{asked.node_id}": {json.dumps(prepared.entry, ensure_ascii=False)}')


def _rows(reading: NodeReading, prepared: Prepared) -> Iterator[tuple[str, str, str]]:
    memory, compute, fields = reading.memory, reading.compute, prepared.entry["benchmarks"]
    yield (
        "memory",
        f"{memory.free_bytes * 1e-9:.3g} GB free ({memory.source}), of which "
        f"{memory.kept_bytes * 1e-9:.2g} GB are left to the system",
        f"ram {fields['ram']:g} GB",
    )
    threads = f", threads: {compute.num_threads}" if compute.device == "cpu" else ""
    yield (
        "speed",
        f"{compute.flops * 1e-9:.4g} GFLOP/s in {compute.dtype}{threads}; networks differ by a "
        f"factor of {compute.spread:.2f} either way",
        f"flops {fields['flops']:g} GFLOP/s",
    )
    for network in compute.networks:
        yield f"  {network.name}", f"{network.flops * 1e-9:.4g} GFLOP/s", ""
    for link in reading.links:
        yield f"link to {link.peer}", _link_words(link), ""
    kept = "not measured" if not reading.links else "the slowest link, its slower direction"
    yield "bandwidth", kept, f"bandwidth {fields['bandwidth']:g} Mbps"
    if "latency" in fields:
        half = "half of the longest way, as plans add both ends"
        words = half if reading.links else "not measured"
        yield "delay", words, f"latency {fields['latency']:g} ms"


def _link_words(link: LinkReading) -> str:
    return (
        f"{link.up.bps * 1e-6:.4g} Mbps up ({link.up.low_bps * 1e-6:.4g} to "
        f"{link.up.high_bps * 1e-6:.4g}), {link.down.bps * 1e-6:.4g} down "
        f"({link.down.low_bps * 1e-6:.4g} to {link.down.high_bps * 1e-6:.4g}), "
        f"{link.one_way_s * 1e3:.3g} ms one way ({link.low_round_trip_s * 500:.3g} to "
        f"{link.high_round_trip_s * 500:.3g})"
    )
