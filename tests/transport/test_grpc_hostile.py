"""Hostile bytes on the port: refused, counted and logged; the node and its real peers go on."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Callable, Iterator
from concurrent import futures

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transport_support import PLAN, QUICK, hello

from ravnest.errors import ProtocolError
from ravnest.transport.backlog import Progress
from ravnest.transport.envelope import (
    MAX_CHUNK_BYTES,
    MAX_WHOLE_BYTES,
    credit,
    farewell,
    parse_request,
    parse_response,
    received,
    refusal_of,
    welcome,
)
from ravnest.transport.grpc_options import METHOD, SERVICE, grpc
from ravnest.transport.grpc_server import LinkServer
from ravnest.transport.inbox import Inbox
from ravnest.transport.intakes import Intakes
from ravnest.transport.interface import Formats, Message
from ravnest.transport.payload import BufferPool
from ravnest.transport.pb import link_pb2
from ravnest.transport.peers import PeerTable
from ravnest.transport.reception import Reception

Talk = Callable[[list[bytes]], str]


def announcement(num_bytes: int) -> bytes:
    body = link_pb2.Announcement(header=b"h", num_bytes=num_bytes)
    return link_pb2.ToReceiver(announcement=body).SerializeToString()


@pytest.fixture
def talk(grpc_nodes) -> Iterator[Talk]:
    """Sends requests to node 1 as anybody could, and returns the reason of its refusal."""
    with grpc.insecure_channel(grpc_nodes.addresses[1]) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)

        def run(requests: list[bytes]) -> str:
            responses = call(iter(requests), wait_for_ready=True, timeout=20)
            parsed = [parse_response(raw) for raw in responses]
            return parsed[-1].refusal.reason if parsed else ""

        yield run


def goes_on(a, b, number: int) -> None:
    a.send(1, "forward", Message(b"%d" % number), purpose="it")
    assert b.receive(0, "forward", purpose="it").header == b"%d" % number


def test_random_bytes_on_the_port_do_no_harm(grpc_nodes):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    host, port = grpc_nodes.addresses[1].split(":")

    @settings(max_examples=40, deadline=None)
    @given(st.binary(max_size=4096), st.sampled_from([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]))
    def throw(junk: bytes, preface: bytes) -> None:
        connection = socket.create_connection((host, int(port)), timeout=5.0)
        with connection, contextlib.suppress(OSError):
            connection.sendall(preface + junk)
            connection.shutdown(socket.SHUT_WR)

    throw()
    goes_on(a, b, 1)


def test_malformed_requests_are_refused_and_counted(grpc_nodes, talk):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)

    @settings(
        max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(st.lists(st.binary(max_size=200), min_size=1, max_size=3))
    def throw(requests: list[bytes]) -> None:
        before = b.num_refused
        assert talk(requests) != ""
        assert b.num_refused == before + 1

    throw()
    goes_on(a, b, 1)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (farewell(None), "began with farewell"),
        (announcement(0), "began with announcement"),
        (hello("f" * 64, 0, 1, "x"), "plan"),
        (hello(PLAN, 0, 2, "x"), "for node 2"),
        (hello(PLAN, 0, 1, "x", incarnation=b"short"), "an incarnation of 5 bytes"),
        (hello(PLAN, 0, 1, "x", expected=b"x" * 16), "goes on with a process that was here before"),
        (hello(PLAN, 0, 1, "x", connection=0), "connection 0 came"),
        (hello(PLAN, -5, 1, "x"), "node -5 came"),
        (hello(PLAN, 0, 1, "x" * 200), "200 characters"),
        (
            hello(PLAN, 0, 1, "x", Formats(frozenset(map(str, range(65))))),
            "formats are named 65 and 0 times",
        ),
        (
            hello(PLAN, 0, 1, "x", Formats(used={1: frozenset({"Z" * 4000})})),
            f"node 0 would send {'Z' * 32} to node 1, which only understands nothing",
        ),
        (
            link_pb2.ToReceiver(hello=link_pb2.Hello(version=99, lane="x")).SerializeToString(),
            "version 99 came, 5 is expected",
        ),
    ],
)
def test_a_wrong_first_request_is_refused_and_does_not_touch_the_real_peer(
    grpc_nodes, talk, first, reason
):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    assert reason in talk([first])
    assert b.num_refused == 1
    goes_on(a, b, 1)


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([b"\xff\xff\xff"], "no ToReceiver"),
        ([hello(PLAN, 0, 1, "x")], "unexpected hello"),
        ([announcement(1 << 60)], "at most"),
        ([b"\0"], "payload begins at 5"),
        ([b"\0\0\0\0\x02h"], "of 6 bytes came whose payload begins at 7"),
        ([b"\0\xff\xff\xff\xff" + bytes(1 << 20)], "payload begins at 4294967300"),
        ([bytes(MAX_WHOLE_BYTES + 6)], f"at most {MAX_WHOLE_BYTES} bytes"),
        ([b"\0\0\0\0\x01h"] * (QUICK.window + 1), "more than the 4 messages"),
        ([welcome("x", 4, 1, Progress())], "unexpected welcome"),
        ([credit("x", Progress(1, 1))], "unexpected credit"),
        ([refusal_of("x", "no")], "unexpected refusal"),
        ([announcement(100_000), bytes(100_001)], "chunk of 100001 bytes"),
        ([announcement(100_000), b""], "chunk of 0 bytes"),
        ([announcement(1 << 30), bytes(MAX_CHUNK_BYTES + 1)], "chunk of"),
        ([announcement(0)] * (QUICK.window + 1), "more than the 4 messages"),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_cut_and_told(grpc_nodes, talk, requests, reason):
    b = grpc_nodes.start(1)
    assert reason in talk([hello(PLAN, 0, 1, "x"), *requests])
    with pytest.raises(ProtocolError, match="node 0") as caught:
        b.receive(0, "forward", purpose="it")
    assert reason in str(caught.value)


@pytest.fixture
def silent_node(grpc_nodes) -> Iterator[queue.SimpleQueue[bytes]]:
    """Something at the address of node 0 that takes every stream and never answers.

    Gives the lane of each stream that is opened.
    """
    opened: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def swallow(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with contextlib.suppress(Exception):
            opened.put(parse_request(next(requests)).hello.lane)
            for _ in requests:
                pass
        return received()

    pool = futures.ThreadPoolExecutor(4)
    server = grpc.server(pool)
    handler = grpc.stream_unary_rpc_method_handler(swallow, None, None)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
    )
    server.add_insecure_port(grpc_nodes.addresses[0])
    server.start()
    yield opened
    server.stop(None).wait()
    pool.shutdown()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([welcome("never", 4, 1, Progress())], "'never', which this node has not opened"),
        ([welcome("back", 4, 2, Progress())], "connection 2 of lane 'back', which this node has"),
        ([welcome("", 4, 9, Progress())], "connection 9 of lane '', which this node has not"),
        ([credit("never", Progress())], "'never', which this node has not opened"),
        ([refusal_of("never", "no")], "'never', which this node has not opened"),
        ([refusal_of("back", "it smells")], "it refuses lane 'back': it smells"),
        ([credit("back", Progress(2, 0))], "2 messages of lane 'back' are said to have been"),
        ([credit("back", Progress(1, 2))], "2 messages of lane 'back' are said to be consumed"),
        ([welcome("back", 4, 1, Progress(2, 1))], "2 messages of lane 'back' are said to have"),
        ([welcome("back", 0, 1, Progress())], "with a window of 0"),
        (
            [
                credit("back", Progress(1, 0)),
                welcome("back", 4, 1, Progress()),
            ],
            "is to go on with message 0; it and those up to 1 were acknowledged",
        ),
        (
            [welcome("back", 4, 1, Progress()), welcome("back", 5, 1, Progress())],
            "with a window of 5 a second time, and with 4 first",
        ),
        ([b"\0\0\0\0\0"], "no ToReceiver"),
    ],
)
def test_answers_that_make_no_sense_end_it_on_both_ends(
    grpc_nodes, silent_node, talk, in_thread, answers, reason
):
    b = grpc_nodes.start(1)
    b.send(0, "back", Message(b"waits"), purpose="it")
    assert {silent_node.get(timeout=10.0) for _ in "12"} == {"", "back"}
    b_waits = in_thread(lambda: b.receive(0, "forward", purpose="it"))
    talk([hello(PLAN, 0, 1, ""), *answers])
    assert reason in str(b_waits.error())


def test_a_huge_announced_size_takes_no_memory(grpc_nodes, talk):
    b = grpc_nodes.start(1)
    before = psutil.Process().memory_info().rss
    # Within the limit of the settings, beyond any machine of this century's first quarter.
    talk([hello(PLAN, 0, 1, "x"), announcement(1 << 39), bytes(MAX_CHUNK_BYTES)])
    assert psutil.Process().memory_info().rss - before < 64 << 20
    with pytest.raises(Exception, match="node 0"):
        b.receive(0, "forward", purpose="it")


def test_refused_streams_leave_no_memory_behind(grpc_nodes, talk):
    b = grpc_nodes.start(1)
    for _ in range(50):
        talk([bytes(1 << 20)])
    before = psutil.Process().memory_info().rss
    for _ in range(300):
        talk([bytes(1 << 20)])
    assert b.num_refused == 350
    assert psutil.Process().memory_info().rss - before < 32 << 20


def test_a_stranger_that_says_nothing_is_cut(grpc_nodes):
    refused = queue.SimpleQueue()
    peers = PeerTable(1, QUICK, locate=str, probe=str)
    reception = Reception(
        node_id=1,
        incarnation=bytes(16),
        plan_sha256=PLAN,
        settings=QUICK,
        peers=peers,
        links={},
        intakes=Intakes(QUICK, Inbox(peers), lambda peer, request: None),
        pool=BufferPool(),
        refused=lambda source, reason: refused.put(reason),
        arrived=lambda peer: None,
        answered=lambda peer, request: None,
        hello_timeout_s=0.2,
    )
    server = LinkServer(grpc_nodes.addresses[1], reception)
    server.start()
    with grpc.insecure_channel(grpc_nodes.addresses[1]) as channel:
        say: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)(
            iter(say.get, None), wait_for_ready=True
        )
        assert "no Hello came" in parse_response(next(call)).refusal.reason
        assert "no Hello came" in refused.get(timeout=5.0)
        say.put(None)
    server.stop()


def test_a_stranger_cannot_open_lanes_without_end(grpc_nodes):
    grpc_nodes.start(1)
    with grpc.insecure_channel(grpc_nodes.addresses[1]) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)
        reasons = []
        for i in range(300):
            requests = iter([hello(PLAN, 0, 1, f"lane-{i}"), farewell(None)])
            parsed = [parse_response(raw) for raw in call(requests, wait_for_ready=True)]
            reasons.append(parsed[-1].refusal.reason)
            if reasons[-1]:
                break
    assert "more lanes than the 64 allowed" in reasons[-1]
