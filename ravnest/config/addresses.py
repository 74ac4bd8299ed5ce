"""Addresses as people write them, `host:port`: their grammar, and who can reach them.

Looks nothing up: a DNS name is judged by its spelling alone.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_ADDRESS = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*):(?P<port>[^:]*)", re.DOTALL)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", re.ASCII)
# What the resolver of the operating system takes for a number, not for a name.
_NUMERIC_LABEL = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)
_MAX_NAME_LENGTH = 253
_MAX_PORT = 65535

LOOPBACK_V4 = "127.0.0.1"
LOOPBACK_V6 = "::1"
WILDCARD_V4 = "0.0.0.0"
WILDCARD_V6 = "::"

_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, spelled the one canonical way so that equal addresses compare equal.

    Attributes:
        host: IPv4, IPv6 without brackets, or a DNS name in lower case without a final dot.
        port: 1 to 65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all interfaces of whichever machine reads it."""
        return self.host in (WILDCARD_V4, WILDCARD_V6)

    @property
    def is_local(self) -> bool:
        """Whether it means the machine that reads it: loopback or a wildcard."""
        if self.is_wildcard or self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        ip = _ip_of(self.host)
        return ip is not None and ip.is_loopback

    @property
    def on_loopback(self) -> Address:
        """A local address in the form that can be dialled and listened on without being exposed."""
        if self.host == WILDCARD_V6:
            return Address(LOOPBACK_V6, self.port)
        is_number = _ip_of(self.host) is not None
        return self if is_number and not self.is_wildcard else Address(LOOPBACK_V4, self.port)

    @property
    def on_all_interfaces(self) -> Address:
        """The same port on every interface, of IPv6 too when the host is an IPv6 address."""
        return Address(WILDCARD_V6 if ":" in self.host else WILDCARD_V4, self.port)


def parse_address(text: str) -> Address:
    """Reads `host:port`; the host is IPv4, IPv6 in brackets or a DNS name.

    Raises:
        ValueError: the text is no such address; the message says which part is wrong.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError("not of the form host:port (an IPv6 host goes in brackets)")
    host, port = match["host"], match["port"]
    if not _PORT.fullmatch(port) or int(port) > _MAX_PORT:
        raise ValueError(f"port {port!r} is no number from 1 to {_MAX_PORT}")
    return Address(_parse_host(host), int(port))


def dialable(text: str) -> str:
    """The address to connect to for a configured one: `0.0.0.0` becomes loopback.

    Raises:
        ValueError: the text is no address.
    """
    address = parse_address(text)
    return str(address.on_loopback) if address.is_local else text


def _parse_host(host: str) -> str:
    if host.startswith("["):
        return _usable(_parse_ip(ipaddress.IPv6Address, host[1:-1], "IPv6 address"))
    if not host:
        raise ValueError("the host before ':' is empty")
    name = host.removesuffix(".")
    labels = name.split(".")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        return _usable(_parse_ip(ipaddress.IPv4Address, host, "IPv4 address"))
    if len(name) > _MAX_NAME_LENGTH or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"host {host!r} is neither an IPv4 address nor a DNS name")
    return name.lower()


def _parse_ip(kind: type[_IpAddress], text: str, words: str) -> _IpAddress:
    if "%" in text:
        raise ValueError(f"host {text!r} has a zone, which means nothing on other machines")
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"host {text!r} is no {words}") from None


def _usable(ip: _IpAddress) -> str:
    """The canonical spelling of an address that a connection can be made to."""
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_unspecified or ip.is_loopback:
        return str(ip)
    if ip.is_multicast:
        raise ValueError(f"host {str(ip)!r} is a multicast address, not one machine")
    if isinstance(ip, ipaddress.IPv4Address) and (ip.is_reserved or int(ip) >> 24 == 0):
        raise ValueError(f"host {str(ip)!r} is a reserved address, not one machine")
    if isinstance(ip, ipaddress.IPv6Address) and ip.is_link_local:
        raise ValueError(f"host {str(ip)!r} is link-local, which means nothing on other machines")
    return str(ip)


def _ip_of(host: str) -> _IpAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
