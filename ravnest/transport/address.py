"""`host:port` addresses: their parts, whether they can be listened on, why they do not answer."""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys

from ravnest.errors import AddressInUseError, ConfigError

PROBE_TIMEOUT_S = 2.0


def split_address(address: str) -> tuple[str, int]:
    """Host without brackets, and port; ConfigError when it is no `host:port`."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ConfigError(
            f"address {address!r} is no host:port", hint='write an IPv6 host as "[::1]:8080"'
        )
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"address {address!r} has port {port!r}, expected 0 to 65535")
    return (host[1:-1] if bracketed else host), int(port)


def is_loopback(address: str) -> bool:
    """Whether an address never leaves this machine; names other than localhost may."""
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_bindable(address: str) -> None:
    """Raises AddressInUseError when the address cannot be listened on.

    gRPC only says that it failed; a socket of our own knows why.
    """
    listen(address).close()


def listen(address: str, *, port: int | None = None) -> socket.socket:
    """Listens on an address.

    Args:
        port: another port than that of the address; 0: any that is free.

    Raises:
        AddressInUseError: it cannot be listened on.
    """
    host, own_port = split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host,
            own_port if port is None else port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
    except OSError as error:
        raise AddressInUseError(
            f"cannot listen on {address}: {_words(error)}",
            hint="set bind in node_configs.json to an address of this machine",
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        # Elsewhere this lets a port in TIME_WAIT be taken; on Windows it would steal a live one.
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen()
    except OSError as error:
        listener.close()
        raise _not_bindable(address, error) from error
    return listener


def _not_bindable(address: str, error: OSError) -> AddressInUseError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"cannot listen on {address}: another process uses it",
            hint="stop that process, or set another port in node_configs.json and plan again",
        )
    return AddressInUseError(
        f"cannot listen on {address}: {_words(error)}",
        hint="set bind in node_configs.json to an address of this machine and a free port",
    )


def connect(address: str) -> socket.socket:
    """One connection, made or not within a short time, which is also its time limit; OSError."""
    return socket.create_connection(split_address(address), timeout=PROBE_TIMEOUT_S)


def why_unreachable(address: str) -> str:
    """Tries one connection and says in words what came of it."""
    try:
        connect(address).close()
    except socket.gaierror as error:
        return f"DNS: {error.strerror} ({split_address(address)[0]})"
    except TimeoutError:
        return f"connection timed out after {PROBE_TIMEOUT_S:g} s"
    except OSError as error:
        return _words(error)
    return "it accepts connections but does not answer"


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
