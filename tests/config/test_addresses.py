"""The grammar of host:port, and who can reach an address."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ravnest.config.addresses import dialable, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("203.0.113.5:8080", "203.0.113.5", 8080),
        ("[2001:db8::1]:1", "2001:db8::1", 1),
        ("[2001:DB8:0:0::1]:65535", "2001:db8::1", 65535),
        ("[::ffff:203.0.113.5]:80", "203.0.113.5", 80),
        ("Provider-B.example.org.:8080", "provider-b.example.org", 8080),
        ("my_service:9", "my_service", 9),
        ("3com.example:9", "3com.example", 9),
    ],
)
def test_addresses_have_one_canonical_spelling(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert (address.host, address.port) == (host, port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "host:port"),
        ("example.org", "host:port"),
        ("2001:db8::1:8080", "host:port"),
        ("http://example.org:80", "host:port"),
        (":8080", "empty"),
        ("example.org:", "port ''"),
        ("example.org:0", "port '0'"),
        ("example.org:65536", "port '65536'"),
        ("example.org:-1", "port '-1'"),
        ("example.org:+80", r"port '\+80'"),
        ("example.org:080", "port '080'"),
        ("example.org: 80", "port ' 80'"),
        ("example.org:٨٠", "port"),
        ("example.org:80\n", "port"),
        ("256.1.1.1:80", "no IPv4 address"),
        ("1.2.3:80", "no IPv4 address"),
        ("010.0.0.1:80", "no IPv4 address"),
        ("0x7f000001:80", "no IPv4 address"),
        ("[203.0.113.5]:80", "no IPv6 address"),
        ("[::g]:80", "no IPv6 address"),
        ("[]:80", "no IPv6 address"),
        ("[fe80::1%eth0]:80", "zone"),
        ("[fe80::1]:80", "link-local"),
        ("224.0.0.1:80", "multicast"),
        ("255.255.255.255:80", "reserved"),
        ("-a.example:80", "DNS name"),
        ("a..example:80", "DNS name"),
        ("a b:80", "DNS name"),
        ("bücher.example:80", "DNS name"),
        ("<host>:80", "DNS name"),
        ("a" * 64 + ":80", "DNS name"),
        (".".join(["a" * 60] * 5) + ":80", "DNS name"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_address(text)


@given(st.ip_addresses(), st.integers(1, 65535))
def test_every_ip_address_is_understood_unless_it_is_no_single_machine(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    assume(not (ip.is_multicast or ip.is_reserved or ip.is_link_local) and mapped is None)
    assume(ip.is_unspecified or ip.version == 6 or int(ip) >> 24 != 0)
    address = parse_address(f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}")
    assert (address.host, address.port) == (str(ip), port)
    assert parse_address(str(address)) == address


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_and_never_crashes(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:8080", "127.0.0.1:8080"),
        ("[::]:8080", "[::1]:8080"),
        ("localhost:8080", "127.0.0.1:8080"),
        ("127.0.0.2:8080", "127.0.0.2:8080"),
        ("Provider-B.example.org:8080", "Provider-B.example.org:8080"),
    ],
)
def test_a_wildcard_is_dialled_on_loopback(text: str, expected: str) -> None:
    assert dialable(text) == expected
