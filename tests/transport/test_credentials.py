"""Mutual TLS: files that cannot be used, peers without or with a foreign certificate, and bytes."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace

import pytest
import trustme
from transport_support import PLAN, QUICK, free_address, issue, positions_sent

from ravnest.errors import ConfigError, ProtocolError
from ravnest.transport.credentials import load_identity
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import Message, PeerAddress

Make = Callable[..., GrpcTransport]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def stranger() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def make(grpc_nodes, tmp_path, authority) -> Make:
    """Starts a node, with credentials of the authority unless others are given."""

    def start(node_id: int, **options: object) -> GrpcTransport:
        files = issue(tmp_path / f"{node_id}", authority, f"node-{node_id}")
        arguments = {"credentials": files, **options}
        peers = [PeerAddress(i, a) for i, a in grpc_nodes.addresses.items() if i != node_id]
        node = GrpcTransport(
            node_id, grpc_nodes.addresses[node_id], peers, PLAN, QUICK, **arguments
        )
        grpc_nodes.made.append(node)
        node.start()
        return node

    return start


def test_messages_of_any_size_arrive_over_tls(make, monkeypatch):
    sent = positions_sent(monkeypatch)
    a, b = make(0), make(1)
    sizes = [0, 1, 100, 256 << 10, 16 << 20, 5, (2 << 20) + 1]
    pattern = bytes(range(251))
    for i, size in enumerate(sizes):
        payload = (pattern * (size // 251 + 1))[:size]
        a.send(1, "forward", Message(b"%d" % i, (payload,)), purpose="it")
        message = b.receive(0, "forward", purpose="it")
        assert message.header == b"%d" % i
        assert bytes(message.payload[0]) == payload
    assert sent[-6:] == [1, 2, 3, 4, 5, 6]  # the first may have gone before the Welcome
    b.send(0, "back", Message(b"back"), purpose="it")
    assert a.receive(1, "back", purpose="it").header == b"back"
    a.close()
    b.close()


@pytest.mark.parametrize("comes_first", [0, 1])
def test_a_foreign_certificate_is_named_on_both_ends(make, tmp_path, stranger, comes_first):
    foreign = issue(tmp_path / "foreign", stranger, "node-1")
    options = {0: {}, 1: {"credentials": foreign}}
    order = [comes_first, 1 - comes_first]
    nodes = {i: make(i, **options[i]) for i in order}
    for node_id, peer in ((0, 1), (1, 0)):
        with pytest.raises(ProtocolError, match=f"node {peer}.*its certificate is not accepted"):
            nodes[node_id].receive(peer, "forward", purpose="it")
    assert nodes[0].num_refused == nodes[1].num_refused == 0  # nobody got as far as a Hello


def test_who_trusts_us_but_is_not_trusted_is_told(make, tmp_path, authority, stranger):
    """Its own handshake succeeds; only what comes after it shows that it was refused."""
    both = tmp_path / "both.pem"
    both.write_bytes(authority.cert_pem.bytes() + stranger.cert_pem.bytes())
    foreign = replace(issue(tmp_path / "foreign", stranger, "node-1"), authority=both)
    a, b = make(0), make(1, credentials=foreign)
    with pytest.raises(ProtocolError, match="its certificate is not accepted"):
        a.receive(1, "forward", purpose="it")
    with pytest.raises(ProtocolError, match="does not accept this node's certificate"):
        b.receive(0, "forward", purpose="it")


def test_a_peer_without_certificate_is_named(make):
    a = make(0)
    make(1, credentials=None)
    with pytest.raises(ProtocolError, match=r"node 1.*does not use TLS, and this node does"):
        a.receive(1, "forward", purpose="it")


def test_a_certificate_of_another_node_is_refused(make, grpc_nodes, tmp_path, authority):
    """Of the run, but not that node's: nobody poses as somebody else."""
    files = issue(tmp_path / "7", authority, "node-7")
    b = make(1)
    peers = [PeerAddress(1, grpc_nodes.addresses[1])]
    seven = GrpcTransport(7, free_address(), peers, PLAN, QUICK, credentials=files)
    outbound = seven._outbounds[1]
    outbound._sender = replace(outbound._sender, node_id=0)  # what it says in its Hello
    grpc_nodes.made.append(seven)
    seven.start()
    with pytest.raises(ProtocolError, match="node 0 came with a certificate for node-7"):
        seven.receive(1, "forward", purpose="it")
    assert b.num_refused >= 1


def test_an_impostor_at_the_address_of_a_peer_is_not_talked_to(make, tmp_path, authority):
    a = make(0)
    impostor = make(1)  # listens there, with a valid certificate for itself
    impostor.close()
    other = issue(tmp_path / "9", authority, "node-9")
    with pytest.raises(ConfigError, match="node-1"):
        make(1, credentials=other)
    a.close()


def test_credentials_allow_addresses_that_are_not_loopback(tmp_path, authority):
    files = issue(tmp_path / "0", authority, "node-0")
    peers = [PeerAddress(1, "203.0.113.5:8080")]
    GrpcTransport(0, "0.0.0.0:8080", peers, PLAN, credentials=files)
    with pytest.raises(ConfigError, match="without credentials nothing is encrypted"):
        GrpcTransport(0, "0.0.0.0:8080", peers, PLAN)


@pytest.mark.parametrize("field", ["certificate", "key", "authority"])
def test_a_file_that_is_missing_unreadable_or_no_pem_is_named(tmp_path, authority, field):
    files = issue(tmp_path / "0", authority, "node-0")
    path = tmp_path / "other"
    wrong = replace(files, **{field: path})
    with pytest.raises(ConfigError, match=f"{field} {path} cannot be read: no such file"):
        load_identity(wrong, 0)
    path.mkdir()
    with pytest.raises(ConfigError, match=f"{field} {path} cannot be read"):
        load_identity(wrong, 0)
    path.rmdir()
    path.write_bytes(b"\x30\x82 not PEM")
    with pytest.raises(ConfigError, match=f"{field} {path} has no .* expected PEM"):
        load_identity(wrong, 0)
    marks = {"key": "PRIVATE KEY"}
    mark = marks.get(field, "CERTIFICATE")
    path.write_text(f"-----BEGIN {mark}-----\nrubbish\n-----END {mark}-----\n")
    with pytest.raises(ConfigError, match="cannot be used"):
        load_identity(wrong, 0)


def test_a_key_of_another_certificate_is_named(tmp_path, authority):
    files = issue(tmp_path / "0", authority, "node-0")
    other = issue(tmp_path / "1", authority, "node-1")
    with pytest.raises(ConfigError, match="is not that of certificate"):
        load_identity(replace(files, key=other.key), 0)


def test_a_certificate_of_another_authority_than_is_trusted_is_named(tmp_path, authority, stranger):
    files = issue(tmp_path / "0", authority, "node-0", trusted=stranger)
    with pytest.raises(ConfigError, match="would not be accepted by a peer that trusts") as caught:
        load_identity(files, 0)
    assert "node-0" in str(caught.value.hint)


def test_a_certificate_for_another_name_is_named(tmp_path, authority):
    files = issue(tmp_path / "0", authority, "node-0")
    with pytest.raises(ConfigError, match="node-3") as caught:
        load_identity(files, 3)
    assert "DNS name node-3" in str(caught.value.hint)


def test_an_expired_certificate_is_named(tmp_path, authority):
    files = issue(tmp_path / "0", authority, "node-0")
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = authority.issue_cert("node-0", not_after=long_ago)
    expired.cert_chain_pems[0].write_to_path(files.certificate)
    expired.private_key_pem.write_to_path(files.key)
    with pytest.raises(ConfigError, match="expired"):
        load_identity(files, 0)


def test_a_key_with_a_password_is_not_asked_for(tmp_path, authority):
    from cryptography.hazmat.primitives import serialization

    files = issue(tmp_path / "0", authority, "node-0")
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        load_identity(files, 0)
    assert "remove its password" in str(caught.value.hint)
