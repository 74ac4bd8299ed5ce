"""Certificates of a throw-away authority, for benchmarks of TLS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trustme

from ravnest.transport.credentials import Credentials, name_of


def issue(folder: Path, nodes: Sequence[int]) -> None:
    """Writes what `credentials_in` finds there for each of these nodes."""
    authority = trustme.CA()
    for node in nodes:
        files = credentials_in(folder, node)
        issued = authority.issue_cert(name_of(node))
        issued.cert_chain_pems[0].write_to_path(files.certificate)
        issued.private_key_pem.write_to_path(files.key)
        authority.cert_pem.write_to_path(files.authority)


def credentials_in(folder: Path, node: int) -> Credentials:
    """The files of one node."""
    return Credentials(
        folder / f"{node}.certificate.pem", folder / f"{node}.key.pem", folder / "authority.pem"
    )
