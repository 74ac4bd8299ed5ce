"""Settings and addresses for the tests of this folder."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trustme

from ravnest.transport import envelope
from ravnest.transport.bulk_connection import BulkConnection
from ravnest.transport.credentials import Credentials
from ravnest.transport.envelope import Caller
from ravnest.transport.interface import Formats, Message, TransportSettings

PLAN = "0" * 64
QUICK = TransportSettings(timeout_s=10.0, report_every_s=1.0, window=4)


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def hello(
    plan_sha256: str,
    sender: int,
    receiver: int,
    lane: str,
    formats: Formats | None = None,
    *,
    incarnation: bytes = bytes(16),
    expected: bytes = b"",
    connection: int = 1,
) -> bytes:
    """The first request of a stream, as a rule on the first connection of some process."""
    caller = Caller(incarnation, expected, connection)
    return envelope.hello(plan_sha256, sender, receiver, lane, formats, caller)


def issue(
    folder: Path, authority: trustme.CA, name: str, trusted: trustme.CA | None = None
) -> Credentials:
    """Files of a node; what it trusts may be another authority than its own."""
    folder.mkdir(exist_ok=True)
    issued = authority.issue_cert(name)
    files = Credentials(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    (trusted or authority).cert_pem.write_to_path(files.authority)
    return files


def positions_sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with the positions of messages that go over bulk connections, at once or in turn."""
    sent: list[int] = []
    send, send_now = BulkConnection.send, BulkConnection.send_now

    def noted(self: BulkConnection, position: int, message: Message) -> None:
        sent.append(position)
        send(self, position, message)

    def noted_now(self: BulkConnection, position: int, message: Message) -> bool:
        if is_sent := send_now(self, position, message):
            sent.append(position)
        return is_sent

    monkeypatch.setattr(BulkConnection, "send", noted)
    monkeypatch.setattr(BulkConnection, "send_now", noted_now)
    return sent
