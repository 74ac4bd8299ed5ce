"""Who a node is to its peers: certificate, key and the authority all of them trust.

Every node of a run has a certificate of one authority for the name `node-<id>` (a DNS name among
its subject's alternative names). Both ends of every connection show theirs, so a stranger gets no
further than the handshake, and a node cannot pose as another one.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from ravnest.errors import ConfigError

_NO_PASSWORD = "remove its password: openssl pkey -in KEY -out NEW_KEY"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files in PEM format.

    Attributes:
        certificate: of this node; intermediate ones, if there are any, after it.
        key: the certificate's private key, without a password.
        authority: certificates of who signs those of the nodes.
    """

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials as they were read and checked.

    Attributes:
        certificate, key, authority: contents of the files.
        accepting: TLS for who is connected to.
        connecting: TLS for who connects; its server name is `name_of` the peer.
    """

    certificate: bytes
    key: bytes
    authority: bytes
    accepting: ssl.SSLContext
    connecting: ssl.SSLContext


def name_of(node_id: int) -> str:
    """What a node's certificate has to be for."""
    return f"node-{node_id}"


def load_identity(credentials: Credentials, node_id: int) -> Identity:
    """Reads the files and sees that this node could talk to itself with them.

    Raises:
        ConfigError: one is missing, unreadable or of another kind, they do not belong together, or
            the certificate is not valid for this node now.
    """
    certificate = _read(credentials.certificate, "certificate", b"CERTIFICATE-----")
    key = _read(credentials.key, "key", b"PRIVATE KEY-----")
    authority = _read(credentials.authority, "authority", b"CERTIFICATE-----")
    accepting = _context(credentials, ssl.PROTOCOL_TLS_SERVER)
    connecting = _context(credentials, ssl.PROTOCOL_TLS_CLIENT)
    connecting.set_alpn_protocols(["h2"])  # gRPC's server insists
    try:
        _shake_hands(accepting, connecting, name_of(node_id))
    except ssl.SSLError as error:
        raise ConfigError(
            f"certificate {credentials.certificate} would not be accepted by a peer that trusts "
            f"{credentials.authority}: {words_of(error)}",
            hint=f"it has to be signed by that authority, for the DNS name {name_of(node_id)}",
        ) from error
    return Identity(certificate, key, authority, accepting, connecting)


def words_of(error: ssl.SSLError) -> str:
    """What went wrong, without numbers of OpenSSL's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    return (error.reason or str(error)).lower().replace("_", " ")


def _read(path: Path, what: str, mark: bytes) -> bytes:
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{what} {path} cannot be read: {(error.strerror or str(error)).lower()}"
        ) from error
    if mark not in contents:
        raise ConfigError(
            f"{what} {path} has no {mark.decode().rstrip('-').lower()} in it; expected PEM format"
        )
    return contents


def _context(credentials: Credentials, protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        # Python asks on the terminal unless it is told a password.
        context.load_cert_chain(credentials.certificate, credentials.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"key {credentials.key} is not that of certificate {credentials.certificate}",
                hint="name the key that the certificate was made with",
            ) from error
        raise ConfigError(
            f"certificate {credentials.certificate} and key {credentials.key} cannot be used: "
            f"{words_of(error)}",
            hint=_NO_PASSWORD if b"ENCRYPTED" in credentials.key.read_bytes() else None,
        ) from error
    try:
        context.load_verify_locations(credentials.authority)
    except ssl.SSLError as error:
        raise ConfigError(
            f"authority {credentials.authority} cannot be used: {words_of(error)}"
        ) from error
    return context


def _shake_hands(accepting: ssl.SSLContext, connecting: ssl.SSLContext, name: str) -> None:
    """A handshake in memory; raises as the end that is not content does."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = connecting.wrap_bio(back, there, server_hostname=name)
    far = accepting.wrap_bio(there, back, server_side=True)
    for end in (near, far, near, far):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
