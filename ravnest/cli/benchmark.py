"""`ravnest benchmark`: its parameters. What it does is imported when it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def benchmark(
    node: Annotated[
        int | None,
        typer.Option(min=0, help="Id of this node in the file.", show_default=False),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the others reach this node; needed until the file has it.",
            show_default=False,
        ),
    ] = None,
    node_configs: Annotated[
        Path, typer.Option(dir_okay=False, help="The file that describes the nodes.")
    ] = Path("node_data/node_configs.json"),
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Measure the link to this machine, which runs `ravnest benchmark --listen`; "
            "repeatable: the slowest link is written.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Of the model: float32, bfloat16 or float16.")
    ] = "float32",
    device: Annotated[
        str | None,
        typer.Option(
            help="Where training will compute: cpu, cuda:0, mps.  [default: the file's, else cpu]",
            show_default=False,
        ),
    ] = None,
    ram: Annotated[
        float | None,
        typer.Option(metavar="GB", help="Memory to offer instead of what is free."),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(metavar="MBPS", help="Of the link, instead of what is measured."),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(metavar="S", help="How long to measure each direction of a link, to 10."),
    ] = 4.0,
    listen: Annotated[
        bool, typer.Option("--listen", help="Measure nothing; answer the probes of other nodes.")
    ] = False,
    listen_s: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", help="Listen for so long, not until Ctrl-C."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow addresses beyond loopback, although nothing is encrypted.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the entry and write nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure this node and put it into node_configs.json.

    Memory, speed in the model's dtype, and with --peer the bandwidth and delay of its links.
    Only this node's benchmarks change in the file; comments and all the rest stay.
    """
    from ravnest.cli.benchmarking import Measuring, listen_for_probes, measure_and_record

    if listen_s is not None and not (listen and 0 < listen_s < float("inf")):
        raise typer.BadParameter("expected a positive number, beside --listen", param_hint="--for")
    if listen:
        if peer or dry_run:
            raise typer.BadParameter("measures nothing; no --peer or --dry-run goes with it")
        if node is None and address is None:
            raise typer.BadParameter("expected --address HOST:PORT, or --node of the file")
        listen_for_probes(node, address, node_configs, listen_s, insecure=insecure, as_json=as_json)
        return
    if node is None:
        raise typer.BadParameter("expected the id of this node", param_hint="--node")
    measure_and_record(
        Measuring(
            node_id=node,
            address=address,
            node_configs=node_configs,
            peers=tuple(peer or ()),
            dtype=dtype,
            device=device,
            ram_gb=ram,
            bandwidth_mbps=bandwidth,
            seconds=seconds,
            insecure=insecure,
        ),
        dry_run=dry_run,
        as_json=as_json,
    )
