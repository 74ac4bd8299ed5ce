"""Settings and addresses for the tests of this folder."""

from __future__ import annotations

import socket

from ravnest.transport.interface import TransportSettings

PLAN = "0" * 64
QUICK = TransportSettings(timeout_s=10.0, report_every_s=1.0, window=4)


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"
