"""A measured entry goes into node_configs.json: judged as a whole first, then written whole."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ravnest.config import NodeConfig, load_node_configs
from ravnest.config.addresses import parse_address
from ravnest.config.source import strip_comments
from ravnest.errors import ConfigError
from ravnest.probing.editing import edited, new_file

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """What is to stand in node_configs.json for one node, in the file's units.

    Attributes:
        address: `IP` of a node that the file does not have yet, or the same as in the file.
        ram_gb, bandwidth_mbps, flops_gflops, latency_ms, device: fields of `benchmarks`; None keeps
            what is there.
    """

    node_id: int
    address: str | None
    ram_gb: float | None = None
    bandwidth_mbps: float | None = None
    flops_gflops: float | None = None
    latency_ms: float | None = None
    device: str | None = None

    @property
    def benchmarks(self) -> dict[str, Any]:
        """The fields to set, numbers rounded to four digits."""
        numbers = {
            "ram": self.ram_gb,
            "bandwidth": self.bandwidth_mbps,
            "flops": self.flops_gflops,
            "latency": self.latency_ms,
        }
        fields: dict[str, Any] = {
            key: _rounded(value) for key, value in numbers.items() if value is not None
        }
        return fields if self.device is None else {**fields, "device": self.device}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A legal file that has the entry.

    Attributes:
        text: of the whole file.
        entry: the node's, as it stands there.
    """

    text: str
    entry: dict[str, Any]


def find_node(path: Path, node_id: int) -> NodeConfig | None:
    """The node's entry as it is; None when the file or the entry is not there.

    Raises:
        ConfigError: the file has faults.
    """
    if not path.exists():
        return None
    return next((each for each in load_node_configs(path) if each.node_id == node_id), None)


def prepare(path: Path, entry: Entry) -> Prepared:
    """Puts the entry into the text of the file; writes nothing.

    Raises:
        ConfigError: the file has faults, before or with the entry; or the entry is new and lacks
            something, or is there under another address.
    """
    known = find_node(path, entry.node_id)
    if known is None:
        _check_complete(path, entry)
    elif entry.address is not None:
        _check_same_address(path, entry, known)
    address = entry.address or ""
    if path.exists():
        before = path.read_bytes().decode("utf-8")
        text = edited(before, entry.node_id, address, entry.benchmarks)
    else:
        text = new_file(entry.node_id, address, entry.benchmarks)
    _check_legal(text, path)
    document = json.loads(strip_comments(text.removeprefix("\ufeff")))
    return Prepared(text, document[str(entry.node_id)])


def record(path: Path, prepared: Prepared) -> None:
    """Replaces the file by the prepared text, whole or not at all; makes it when it is missing.

    Raises:
        ConfigError: it cannot be written; the file is as it was.
    """
    try:
        # Resolved, because replacing a link would cut it off from its file.
        _replace(path.resolve(), prepared.text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}; it is as it was",
            hint="put the entry in by hand; --dry-run prints it",
        ) from error


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as output:
            output.write(content)
            output.flush()
            os.fsync(output.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _check_complete(path: Path, entry: Entry) -> None:
    """A node that is not in the file needs what the file demands of every node."""
    if entry.address is None:
        raise ConfigError(
            f"{path} has no node {entry.node_id}, and no address is given for it",
            hint="pass --address HOST:PORT, under which the others reach this node",
        )
    if entry.bandwidth_mbps is None:
        raise ConfigError(
            f"{path} has no bandwidth for node {entry.node_id}, and there is no peer to measure it "
            "against",
            hint="pass --peer HOST:PORT of a machine that runs `ravnest benchmark --listen`, or "
            "--bandwidth MBPS",
        )


def _check_same_address(path: Path, entry: Entry, known: NodeConfig) -> None:
    try:
        is_same = parse_address(entry.address or "") == parse_address(known.address)
    except ValueError as error:
        raise ConfigError(
            f"address {entry.address!r}: {error}", hint='such as "203.0.113.5:8080"'
        ) from None
    if not is_same:
        raise ConfigError(
            f"{path} has node {entry.node_id} at {known.address}, but {entry.address} is given",
            hint="leave --address out, or correct IP in the file, or --node",
        )


def _check_legal(text: str, path: Path) -> None:
    """Raises ConfigError in the usual words when a file of this text would be refused."""
    with tempfile.TemporaryDirectory(prefix="ravnest-") as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(text.encode("utf-8"))
        try:
            load_node_configs(copy)
        except ConfigError as error:
            message = error.message.replace(str(copy), f"{path} with the entry")
            raise ConfigError(message, hint="nothing is written; correct what is named") from None


def _rounded(value: float) -> float | int:
    if value == 0 or not math.isfinite(value):
        return value
    short = round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))
    return int(short) if short == int(short) else short
