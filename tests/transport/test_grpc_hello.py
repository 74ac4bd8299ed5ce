"""Who is let in: addresses, ports, plans and names; told on both ends."""

from __future__ import annotations

import logging
import socket

import pytest
from transport_support import PLAN, QUICK, free_address

from ravnest.errors import AddressInUseError, ConfigError, ProtocolError, TransportError
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import Formats, Message, PeerAddress


def test_two_plans_refuse_each_other_on_both_ends(grpc_nodes, caplog):
    ours, theirs = grpc_nodes.addresses[0], grpc_nodes.addresses[1]
    a = GrpcTransport(0, ours, [PeerAddress(1, theirs)], PLAN, QUICK)
    b = GrpcTransport(1, theirs, [PeerAddress(0, ours)], "f" * 64, QUICK)
    grpc_nodes.made += [a, b]
    a.start()
    b.start()
    for node, peer in ((a, 1), (b, 0)):
        with pytest.raises(ProtocolError) as caught:
            node.receive(peer, "forward", purpose="it")
        assert PLAN in str(caught.value)
        assert "f" * 64 in str(caught.value)
    assert a.num_refused >= 1
    assert b.num_refused >= 1
    assert "refused a stream" in caplog.text


def test_a_format_that_the_peer_does_not_understand_is_refused_on_both_ends(grpc_nodes):
    ours, theirs = grpc_nodes.addresses[0], grpc_nodes.addresses[1]
    new = Formats(frozenset({"RAW", "INT8", "INT4"}), {1: frozenset({"RAW", "INT4"})})
    old = Formats(frozenset({"RAW", "INT8"}), {0: frozenset({"RAW", "INT8"})})
    a = GrpcTransport(0, ours, [PeerAddress(1, theirs)], PLAN, QUICK, formats=new)
    b = GrpcTransport(1, theirs, [PeerAddress(0, ours)], PLAN, QUICK, formats=old)
    grpc_nodes.made += [a, b]
    a.start()
    b.start()
    expected = "node 0 would send INT4 to node 1, which only understands INT8, RAW"
    for node, peer in ((a, 1), (b, 0)):
        with pytest.raises(ProtocolError, match=expected):
            node.receive(peer, "forward", purpose="it")


def test_formats_that_both_understand_connect(grpc_nodes):
    understood = frozenset({"RAW", "INT8"})
    made = []
    for node, peer, used in ((0, 1, "INT8"), (1, 0, "RAW")):
        peers = [PeerAddress(peer, grpc_nodes.addresses[peer])]
        formats = Formats(understood, {peer: frozenset({used})})
        address = grpc_nodes.addresses[node]
        made.append(GrpcTransport(node, address, peers, PLAN, QUICK, formats=formats))
    grpc_nodes.made += made
    for each in made:
        each.start()
    made[0].send(1, "forward", Message(b"it"), purpose="it")
    assert made[1].receive(0, "forward", purpose="it").header == b"it"


def test_another_node_at_the_address_is_named(grpc_nodes):
    a, _ = grpc_nodes.make(0), grpc_nodes.start(1)
    wrong = GrpcTransport(0, free_address(), [PeerAddress(7, grpc_nodes.addresses[1])], PLAN, QUICK)
    grpc_nodes.made.append(wrong)
    wrong.start()
    with pytest.raises(ProtocolError, match="stream for node 7 came, but node 1 listens here"):
        wrong.receive(7, "forward", purpose="it")
    a.close()


def test_a_node_that_is_not_in_the_plan_is_refused_and_the_others_go_on(grpc_nodes):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    stranger = GrpcTransport(
        9, free_address(), [PeerAddress(1, grpc_nodes.addresses[1])], PLAN, QUICK
    )
    grpc_nodes.made.append(stranger)
    stranger.start()
    with pytest.raises(ProtocolError, match=r"node 9 came, expected are nodes \[0\]"):
        stranger.receive(1, "forward", purpose="it")
    a.send(1, "forward", Message(b"unharmed"), purpose="it")
    assert b.receive(0, "forward", purpose="it").header == b"unharmed"
    assert b.num_refused >= 1


def test_a_second_process_with_the_same_id_is_refused(grpc_nodes):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    a.send(1, "forward", Message(b"first"), purpose="it")
    b.receive(0, "forward", purpose="it")
    double = GrpcTransport(
        0, free_address(), [PeerAddress(1, grpc_nodes.addresses[1])], PLAN, QUICK
    )
    grpc_nodes.made.append(double)
    double.start()
    with pytest.raises(ProtocolError, match="again"):
        double.receive(1, "forward", purpose="it")
    a.send(1, "forward", Message(b"second"), purpose="it")
    assert b.receive(0, "forward", purpose="it").header == b"second"


def test_a_port_in_use_is_named_with_the_fix(grpc_nodes):
    grpc_nodes.start(0)
    second = grpc_nodes.make(0)
    with pytest.raises(AddressInUseError) as caught:
        second.start()
    assert grpc_nodes.addresses[0] in str(caught.value)
    assert caught.value.hint is not None


def test_a_port_that_another_program_listens_on_is_named():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        transport = GrpcTransport(0, address, [], PLAN)
        with pytest.raises(AddressInUseError, match=address):
            transport.start()
        transport.close()


def test_an_address_of_another_machine_cannot_be_bound():
    transport = GrpcTransport(0, "192.0.2.1:8080", [], PLAN, insecure=True)
    with pytest.raises(AddressInUseError, match=r"192\.0\.2\.1:8080.*assign"):
        transport.start()


def test_a_port_is_free_again_after_close():
    address = free_address()
    for _ in range(3):
        transport = GrpcTransport(0, address, [], PLAN)
        transport.start()
        assert transport.port == int(address.rpartition(":")[2])
        transport.close()


def test_the_port_is_listened_on_once_start_returns():
    transport = GrpcTransport(0, "127.0.0.1:0", [], PLAN)
    with pytest.raises(TransportError, match="does not listen yet"):
        _ = transport.port
    transport.start()
    socket.create_connection(("127.0.0.1", transport.port), timeout=1.0).close()
    transport.close()


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "203.0.113.5", "provider.example.org", "[2001:db8::1]"]
)
def test_what_is_not_loopback_needs_an_explicit_word(host):
    with pytest.raises(ConfigError, match="loopback") as caught:
        GrpcTransport(0, "127.0.0.1:1", [PeerAddress(1, f"{host}:8080")], PLAN)
    assert "insecure=True" in str(caught.value)
    with pytest.raises(ConfigError):
        GrpcTransport(0, f"{host}:8080", [], PLAN)
    GrpcTransport(0, f"{host}:8080", [PeerAddress(1, f"{host}:8081")], PLAN, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback_needs_none(host):
    GrpcTransport(0, f"{host}:8080", [PeerAddress(1, f"{host}:8081")], PLAN)


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":80", "::1:80", "h:99999", "h:-1", "h:x"]
)
def test_a_malformed_address_is_refused(address):
    with pytest.raises(ConfigError, match="address"):
        GrpcTransport(0, address, [], PLAN, insecure=True)


def test_ipv6_works(grpc_nodes):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    grpc_nodes.addresses.update({i: "[::1]:" + free_address().rpartition(":")[2] for i in range(2)})
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    a.send(1, "forward", Message(b"six"), purpose="it")
    assert b.receive(0, "forward", purpose="it").header == b"six"


def test_a_name_that_does_not_resolve_is_told(grpc_nodes):
    settings = QUICK.__class__(timeout_s=0.3)
    peers = [PeerAddress(1, "no-such-host.invalid:8080")]
    a = GrpcTransport(0, "127.0.0.1:0", peers, PLAN, settings, insecure=True)
    grpc_nodes.made.append(a)
    a.start()
    with pytest.raises(TransportError, match=r"DNS: .*no-such-host\.invalid"):
        a.receive(1, "forward", purpose="it")


def test_what_is_not_ravnest_at_the_address_is_told(grpc_nodes):
    from concurrent import futures

    from ravnest.transport.grpc_options import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_insecure_port(grpc_nodes.addresses[1])
    server.start()
    a = grpc_nodes.start(0)
    with pytest.raises(ProtocolError, match="not Ravnest"):
        a.receive(1, "forward", purpose="it")
    a.close()
    server.stop(None).wait()


def test_only_peers_are_talked_to(grpc_nodes):
    a = grpc_nodes.start(0)
    with pytest.raises(TransportError, match="node 5 is no peer of node 0"):
        a.receive(5, "forward", purpose="it")


def test_closing_reports_what_an_absent_peer_never_got(grpc_nodes, caplog):
    settings = QUICK.__class__(timeout_s=0.4, report_every_s=0.3)
    a = grpc_nodes.start(0, settings)
    a.send(1, "forward", Message(b"never"), purpose="it")
    with caplog.at_level(logging.WARNING):
        a.close()
    assert "node 1 has yet to get" in caplog.text
