"""The oracle task with all frames over gRPC: `oracle_over_grpc_provider.py NAME SCHEDULE`.

As where the second port cannot be reached: so a proxy before the first sees all that goes through.
"""

from __future__ import annotations

import sys

import oracle_provider

from ravnest.transport.bulk_dialer import BulkDialer


def main(name: str, schedule: str) -> None:
    """Trains and saves."""
    BulkDialer.connect = lambda self, offer: None  # type: ignore[method-assign]
    oracle_provider.main(name, schedule)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
