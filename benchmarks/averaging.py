"""Averaging rounds beside gloo's all-reduce, on loopback and on links of 100 Mbps and 40 ms.

`python -m benchmarks.averaging [--json] [--quick] [--hivemind PYTHON]`. A round of Ravnest is the
whole of it: headers, copy into the shadow, all-reduce, vote, copy into the live tensors; gloo's is
one all-reduce of one flat tensor and the division; raw is the bytes of a ring between plain
sockets, where nobody waits for anybody. They take turns in the same processes; a round takes as
long as its slowest member, figures are medians, ratios medians of each pair's ratio. The bound of a
ring of n members is 2 (n - 1) / n of the bytes at the rate of the link, headers of packets left
out. Over links there are two figures: TCP starts slowly after each pause unless the machine is told
not to, which is set for all kinds of rounds in the second (docs/transport.md).
Links are emulated (`benchmarks.links`), which needs Linux and root; without it those figures and
claims are left out, and the report says so. hivemind's all-reduce, on loopback, comes after the
rounds of each case, in processes of its own: PYTHON is that of an environment which has it
(`pip install hivemind==1.1.12`). Without PYTHON its figures are left out, and the report says so.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks.averaging_worker import Case, command
from benchmarks.links import (
    MAX_ERROR,
    NO_SLOW_START,
    REPOSITORY,
    Access,
    Network,
    why_impossible,
)
from benchmarks.processes import free_ports
from benchmarks.report import Claim, arguments_of, finish
from ravnest.wire.frame import Codec

MB = 1_000_000
SIZES_MB = (16, 64, 256)
MAX_OVER_GLOO = 1.5
MAX_OVER_HIVEMIND = 0.3
LINK = Access(100e6, 0.01)
LINK_ROUNDS = {16: 5, 64: 3, 256: 1}
"""Over links: timed rounds by MB."""
MIN_OF_BOUND = 0.95
MIN_FEWER_BYTES = 3.6
NUM_FAILING = 100
MAX_GROWTH = 1.02
TIMEOUT_S = 900


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    parser = arguments_of(__doc__ or "")
    parser.add_argument("--hivemind", metavar="PYTHON", help="measure the hivemind that it has")
    arguments = parser.parse_args()
    if arguments.hivemind is not None and (reason := why_no_hivemind(arguments.hivemind)):
        parser.error(reason)
    quick = arguments.quick
    figures: dict[str, Any] = {"loopback": {}, "links": {}}
    claims: list[Claim] = []
    claims += on_loopback(figures, arguments.hivemind, quick=quick)
    figures["failing"] = failing(4 if quick else NUM_FAILING)
    claims.append(
        Claim("resident bytes after failed rounds", figures["failing"]["growth"], MAX_GROWTH)
    )
    if (reason := why_impossible()) is not None:
        figures["no_links"] = reason
        print(f"no emulated links: {reason}", file=sys.stderr)
    else:
        for members in (2,) if quick else (2, 4):
            for size, rounds in {1: 1}.items() if quick else LINK_ROUNDS.items():
                claims += over_links(figures, members, size, rounds)
    if not arguments.json:
        show(figures)
    return finish(figures, claims, as_json=arguments.json)


def on_loopback(figures: dict[str, Any], hivemind: str | None, *, quick: bool) -> list[Claim]:
    """Rounds of all sizes; `hivemind` is the Python that has it."""
    claims: list[Claim] = []
    for members in (2,) if quick else (2, 4):
        for size in (4,) if quick else SIZES_MB:
            name = f"{members} members, {size} MB"
            case = loopback_case(members, size * MB, 2 if quick else 7)
            row = compare(case, network=None)
            figures["loopback"][name] = row
            claims += loopback_claims(name, row)
            if hivemind is not None:
                row["hivemind_s"] = time_hivemind(hivemind, case)
                over = row["ravnest_s"] / row["hivemind_s"]
                claims.append(Claim(f"time over hivemind's, {name}", over, MAX_OVER_HIVEMIND))
    if hivemind is None:
        figures["no_hivemind"] = "no Python that has it was named by --hivemind"
        print(f"no figures for hivemind: {figures['no_hivemind']}", file=sys.stderr)
    return claims


def loopback_claims(name: str, row: dict[str, Any]) -> list[Claim]:
    """What holds of a case on loopback."""
    return [
        Claim(f"time over gloo's, {name}", row["over_gloo"], MAX_OVER_GLOO),
        Claim(f"different results, {name}", row["num_results"], 1),
    ]


def over_links(figures: dict[str, Any], members: int, size: int, rounds: int) -> list[Claim]:
    """Rounds of `size` MB over emulated links, in fp32; short ones in int8 as well."""
    name = f"{members} members, {size} MB"
    is_short = size <= min(LINK_ROUNDS)
    with Network([LINK] * members) as network:
        check = network.check(0, 1, seconds=0.5 if size == 1 else 2.0)
        case = replace(
            loopback_case(members, size * MB, rounds),
            warm_rounds=2 if is_short else 1,
            addresses=[f"{network.address(i)}:8080" for i in range(members)],
            raw=[f"{network.address(i)}:9002" for i in range(members)],
            store=f"{network.address(0)}:9001",
            devices=[network.device(i) for i in range(members)],
            rate_bps=LINK.rate_bps * network.payload_share,
        )
        plain = compare(case, network)
        small = compare(replace(case, codec=Codec.INT8.name), network) if is_short else None
        for host in range(members):
            subprocess.run(network.command(host, ("sysctl", "-qw", NO_SLOW_START)), check=True)
        steady = compare(case, network)
    ring_bytes = 2 * (members - 1) / members * size * MB
    bound_s = ring_bytes * 8 / (LINK.rate_bps * network.payload_share)
    row = {"link_error": check.error, "bound_s": bound_s, "raw": plain, "steady": steady}
    row |= {
        f"{prefix}of_bound": bound_s / measured[key]
        for prefix, measured, key in (
            ("", plain, "ravnest_s"),
            ("gloo_", plain, "gloo_s"),
            ("raw_", plain, "raw_s"),
            ("steady_", steady, "ravnest_s"),
            ("steady_raw_", steady, "raw_s"),
        )
    }
    if small is not None:
        row |= {"int8": small, "fewer_bytes": plain["sent_bytes"] / small["sent_bytes"]}
    figures["links"][name] = row
    return link_claims(name, row)


def link_claims(name: str, row: dict[str, Any]) -> list[Claim]:
    """What holds of a case over links."""
    bound = {"fp32": "of_bound", "fp32, no slow start after a pause": "steady_of_bound"}
    claims = [Claim(f"error of the emulated link, {name}", row["link_error"], MAX_ERROR)]
    claims += [
        Claim(f"of the ring's bound, {how}, {name}", row[key], MIN_OF_BOUND, at_least=True)
        for how, key in bound.items()
    ]
    results = {"fp32": row["raw"]}
    if "int8" in row:
        results["int8"] = row["int8"]
        fewer = row["fewer_bytes"]
        claims.append(
            Claim(f"times fewer bytes with int8, {name}", fewer, MIN_FEWER_BYTES, at_least=True)
        )
    return claims + [
        Claim(f"different results, {how} over links, {name}", measured["num_results"], 1)
        for how, measured in results.items()
    ]


def loopback_case(members: int, num_bytes: int, repeats: int) -> Case:
    """Members on ports of this machine that are free now."""
    store, *own = [f"127.0.0.1:{port}" for port in free_ports(2 * members + 1)]
    devices = ["lo"] * members
    return Case(own[:members], own[members:], store, devices, num_bytes, repeats)


def compare(case: Case, network: Network | None) -> dict[str, Any]:
    """Seconds of all kinds of rounds, Ravnest's over gloo's, bytes sent, and distinct results."""
    reports = play(case, network)
    seconds = {
        kind: [max(each) for each in zip(*(r["seconds"][kind] for r in reports), strict=True)]
        for kind in ("raw", "gloo", "ravnest")
    }
    pairs = zip(seconds["ravnest"], seconds["gloo"], strict=True)
    return {
        **{f"{kind}_s": statistics.median(each) for kind, each in seconds.items()},
        **{
            f"{kind}_processor_s": sum(statistics.median(r[f"{kind}_processor_s"]) for r in reports)
            for kind in seconds
        },
        "over_gloo": statistics.median(own / other for own, other in pairs),
        "sent_bytes": max(r["sent_bytes"] for r in reports),
        "num_results": len({r["digest"] for r in reports}),
    }


def failing(count: int) -> dict[str, Any]:
    """Resident bytes over twice `count` rounds, every other one refused after it has moved all."""
    reports = play(replace(loopback_case(2, 4 * MB, 0), num_failing=count), network=None)
    settled = count // 5
    growth = [r["resident_bytes"][-1] / r["resident_bytes"][settled] for r in reports]
    return {"num_rounds": 2 * count, "growth": max(growth)}


def why_no_hivemind(python: str) -> str | None:
    """Why a program is no Python that has hivemind; None when it is."""
    try:
        line = [python, "-c", "import hivemind"]
        tried = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"--hivemind {python}: {error.strerror}; expected the path of a Python"
    if tried.returncode != 0:
        words = tried.stderr.strip().splitlines()[-1:] or ["it failed without a word"]
        return f"--hivemind {python}: {words[0]}; try `{python} -m pip install hivemind==1.1.12`"
    return None


def time_hivemind(python: str, case: Case) -> float:
    """Seconds of its all-reduce, as those of others: medians of the slowest member's."""
    size = len(case.addresses)
    line = [python, "-m", "benchmarks.averaging_hivemind", case.store, f"{size}"]
    reports = outputs_of(
        [[*line, f"{rank}", f"{case.num_bytes}", f"{case.repeats}"] for rank in range(size)]
    )
    rounds = zip(*(report["seconds"] for report in reports), strict=True)
    return statistics.median(map(max, rounds))


def play(case: Case, network: Network | None) -> list[dict[str, Any]]:
    """Runs all members of a case; what each reports."""
    lines = [command(case, rank) for rank in range(len(case.addresses))]
    if network is not None:
        lines = [network.command(rank, line) for rank, line in enumerate(lines)]
    return outputs_of(lines)


def outputs_of(lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Runs all at once; the object that each prints."""
    with ExitStack() as stack:
        members = []
        for line in lines:
            member = subprocess.Popen(line, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
            stack.callback(member.wait)
            stack.callback(member.kill)
            members.append(member)
        reports = [member.communicate(timeout=TIMEOUT_S)[0] for member in members]
        for member in members:
            if member.returncode != 0:
                raise RuntimeError(f"{member.args!r} ended with {member.returncode}; see above")
    return [json.loads(report) for report in reports]


def show(figures: dict[str, Any]) -> None:
    """Prints what was measured."""
    for name, row in figures["loopback"].items():
        print(f"loopback, {name}: " + _beside(row))
    for name, row in figures["links"].items():
        print(f"100 Mbps, 40 ms, {name}: " + _beside(row["raw"]))
        print(
            f"  bound {row['bound_s']:.3f} s, of it {row['of_bound']:.3f}, gloo "
            f"{row['gloo_of_bound']:.3f}, raw TCP {row['raw_of_bound']:.3f}; "
            f"no slow start {row['steady_of_bound']:.3f}, raw TCP {row['steady_raw_of_bound']:.3f}"
            + (f"; int8 {row['int8']['ravnest_s']:.3f} s" if "int8" in row else "")
        )


def _beside(row: dict[str, Any]) -> str:
    return (
        f"{row['ravnest_s'] * 1e3:.1f} ms ({row['ravnest_processor_s'] * 1e3:.0f} ms processor), "
        f"gloo {row['gloo_s'] * 1e3:.1f} ms ({row['gloo_processor_s'] * 1e3:.0f} ms processor)"
        + (f", hivemind {row['hivemind_s'] * 1e3:.0f} ms" if "hivemind_s" in row else "")
    )


if __name__ == "__main__":
    sys.exit(main())
