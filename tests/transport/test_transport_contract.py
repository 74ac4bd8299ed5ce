"""What every transport keeps, in memory and over gRPC alike."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest
from transport_support import QUICK

from ravnest.errors import (
    ConfigError,
    PeerFailedError,
    PeerLostError,
    PeerUnreachableError,
    ProtocolError,
    TransportError,
)
from ravnest.transport.interface import Message


def message(text: str, *payload: bytes | bytearray | memoryview) -> Message:
    return Message(text.encode(), payload)


def test_messages_of_a_lane_keep_their_order(nodes):
    a, b = nodes.start(0), nodes.start(1)
    sender = threading.Thread(
        target=lambda: [a.send(1, "forward", message(str(i)), purpose="it") for i in range(100)]
    )
    sender.start()
    got = [b.receive(0, "forward", purpose="it").header for _ in range(100)]
    sender.join()
    assert got == [str(i).encode() for i in range(100)]


def test_lanes_do_not_wait_for_each_other(nodes):
    a, b = nodes.start(0), nodes.start(1)
    for i in range(QUICK.window):
        a.send(1, "full", message(str(i)), purpose="it")
    a.send(1, "other", message("through"), purpose="it")
    b.send(0, "full", message("back"), purpose="it")
    assert b.receive(0, "other", purpose="it").header == b"through"
    assert a.receive(1, "full", purpose="it").header == b"back"
    assert b.receive(0, "full", purpose="it").header == b"0"


@pytest.mark.parametrize(
    "num_bytes",
    [0, 1, 60 << 10, (60 << 10) + 1, 2 << 20, (2 << 20) + 1, (4 << 20) + 1, 64 << 20, 129 << 20],
)
def test_any_size_arrives_as_one_writable_buffer(nodes, num_bytes):
    a, b = nodes.start(0), nodes.start(1)
    pattern = bytes(range(251))
    whole = (pattern * (num_bytes // 251 + 1))[:num_bytes]
    third = num_bytes // 3
    parts = (whole[:third], bytearray(whole[third : 2 * third]), memoryview(whole)[2 * third :])
    a.send(1, "forward", message("h", *parts), purpose="it")
    (payload,) = b.receive(0, "forward", purpose="it").payload
    view = memoryview(payload)
    assert not view.readonly
    assert view.nbytes == num_bytes
    assert view == whole


def test_messages_of_some_lanes_are_opened_before_they_are_received(nodes):
    a, b = nodes.start(0), nodes.start(1)
    opened_in = []

    def opener(message: Message) -> str:
        opened_in.append(threading.current_thread())
        return f"{message.header.decode()}, {len(message.payload[0])} bytes"

    b.open_early(("forward", "backward"), opener)
    a.send(1, "forward", message("first", b"12"), purpose="it")
    a.send(1, "other", message("as it is", b"3"), purpose="it")
    first = b.receive(0, "forward", purpose="it")
    assert (first.header, tuple(first.payload), first.content) == (b"", (), "first, 2 bytes")
    other = b.receive(0, "other", purpose="it")
    assert (other.header, bytes(other.payload[0]), other.content) == (b"as it is", b"3", None)
    if nodes.kind == "grpc":  # in memory, the sender's own thread delivers
        assert threading.current_thread() not in opened_in


def test_what_cannot_be_opened_early_is_received_as_it_came(nodes):
    a, b = nodes.start(0), nodes.start(1)

    def opener(message: Message) -> object:
        raise ProtocolError("it makes no sense")

    b.open_early(("forward",), opener)
    a.send(1, "forward", message("strange", b"12"), purpose="it")
    a.send(1, "forward", message("more of it"), purpose="it")
    got = b.receive(0, "forward", purpose="it")
    assert (got.header, bytes(got.payload[0]), got.content) == (b"strange", b"12", None)
    assert b.receive(0, "forward", purpose="it").header == b"more of it"


def test_a_received_buffer_is_not_used_again_while_it_is_held(nodes):
    a, b = nodes.start(0), nodes.start(1)
    held = []
    for i in range(8):
        a.send(1, "forward", message("h", bytes([i]) * (1 << 20)), purpose="it")
        held.append(b.receive(0, "forward", purpose="it").payload[0][10:-10])
    assert [view[0] for view in held] == list(range(8))
    assert all(bytes(view) == bytes([i]) * len(view) for i, view in enumerate(held))


def test_many_dimensional_and_empty_buffers_are_joined(nodes):
    a, b = nodes.start(0), nodes.start(1)
    square = memoryview(bytes(range(16))).cast("B", (4, 4))
    a.send(1, "forward", message("h", b"", square, bytearray()), purpose="it")
    assert bytes(b.receive(0, "forward", purpose="it").payload[0]) == bytes(range(16))


def test_a_message_sent_before_the_peer_started_arrives(nodes):
    a = nodes.start(0)
    a.send(1, "forward", message("early", b"x"), purpose="it")
    b = nodes.start(1)
    assert b.receive(0, "forward", purpose="it").header == b"early"


def test_a_receiver_may_wait_before_the_peer_started(nodes, in_thread):
    b = nodes.start(1)
    waiting = in_thread(lambda: b.receive(0, "forward", purpose="it").header)
    nodes.start(0).send(1, "forward", message("late"), purpose="it")
    assert waiting.result() == b"late"


def test_a_full_window_holds_the_sender_until_one_is_consumed(nodes, in_thread):
    a, b = nodes.start(0), nodes.start(1)
    for i in range(QUICK.window):
        a.send(1, "forward", message(str(i)), purpose="it")
    fifth = in_thread(lambda: a.send(1, "forward", message("4"), purpose="it"))
    fifth.thread.join(0.2)
    assert fifth.thread.is_alive()
    b.receive(0, "forward", purpose="it")
    assert fifth.result() is None
    got = [b.receive(0, "forward", purpose="it").header for _ in range(4)]
    assert got == [b"1", b"2", b"3", b"4"]


def test_the_smaller_window_of_a_receiver_is_kept(nodes):
    a, b = nodes.start(0), nodes.start(1, replace(QUICK, window=1))
    for i in range(QUICK.window):
        a.send(1, "forward", message(str(i)), purpose="it")
    got = [b.receive(0, "forward", purpose="it").header for _ in range(QUICK.window)]
    assert got == [b"0", b"1", b"2", b"3"]


def test_a_peer_that_never_came_is_named_with_place_time_and_purpose(nodes):
    a = nodes.start(0, replace(QUICK, timeout_s=0.3))
    with pytest.raises(PeerUnreachableError) as caught:
        a.receive(1, "backward", purpose="gradient of microbatch 0.17")
    text = str(caught.value)
    assert "node 1" in text
    assert "0.3 s" in text
    assert "gradient of microbatch 0.17" in text
    assert ("not started" if nodes.kind == "memory" else "connection refused") in text
    if nodes.kind == "grpc":
        assert nodes.addresses[1] in text


def test_a_sender_to_a_peer_that_never_came_ends_at_the_deadline(nodes):
    a = nodes.start(0, replace(QUICK, timeout_s=0.3, window=1))
    a.send(1, "forward", message("waits"), purpose="activation 0.1")
    with pytest.raises(PeerUnreachableError, match=r"activation 0\.2"):
        a.send(1, "forward", message("too many"), purpose="activation 0.2")


def test_a_silent_peer_ends_the_wait_at_the_deadline(nodes):
    a, b = nodes.start(0, replace(QUICK, timeout_s=0.5)), nodes.start(1)
    b.send(0, "seen", message("alive"), purpose="it")
    a.receive(1, "seen", purpose="it")
    with pytest.raises(PeerLostError, match=r"did not send gradient 0\.1 .* within 0\.5 s"):
        a.receive(1, "backward", purpose="gradient 0.1")


def test_a_peer_that_does_not_consume_ends_the_send_at_the_deadline(nodes):
    a, b = nodes.start(0, replace(QUICK, timeout_s=0.5, window=1)), nodes.start(1)
    b.send(0, "seen", message("alive"), purpose="it")
    a.receive(1, "seen", purpose="it")
    a.send(1, "forward", message("0"), purpose="activation 0.0")
    with pytest.raises(PeerLostError, match=r"did not take in activation 0\.1"):
        a.send(1, "forward", message("1"), purpose="activation 0.1")


def test_a_long_wait_is_reported(nodes, caplog):
    a = nodes.start(0, replace(QUICK, timeout_s=0.5, report_every_s=0.2))
    with caplog.at_level(logging.INFO), pytest.raises(PeerUnreachableError):
        a.receive(1, "backward", purpose="gradient of microbatch 0.17")
    reports = [r for r in caplog.records if "waiting for node 1" in r.getMessage()]
    assert 1 <= len(reports) <= 2
    assert reports[0].levelno == logging.WARNING
    assert "gradient of microbatch 0.17" in reports[0].getMessage()


def test_after_a_goodbye_what_was_sent_arrives_and_then_the_end(nodes):
    a, b = nodes.start(0), nodes.start(1)
    for i in range(QUICK.window):
        a.send(1, "forward", message(str(i), bytes(3 << 20)), purpose="it")
    a.close()
    got = [b.receive(0, "forward", purpose="it").header for _ in range(QUICK.window)]
    assert got == [b"0", b"1", b"2", b"3"]
    with pytest.raises(PeerLostError, match=r"node 0 .* closed in good order .*activation 0\.9"):
        b.receive(0, "forward", purpose="activation 0.9")
    with pytest.raises(PeerLostError):
        b.send(0, "backward", message("in vain"), purpose="it")


def test_a_goodbye_ends_a_wait_for_that_peer_but_no_other(nodes, in_thread):
    nodes.expect(3)
    a, b, c = nodes.start(0), nodes.start(1), nodes.start(2)
    for node in (a, c):
        node.send(1, "seen", message("alive"), purpose="it")
        b.receive(0 if node is a else 2, "seen", purpose="it")
    for_a = in_thread(lambda: b.receive(0, "forward", purpose="it"))
    for_c = in_thread(lambda: b.receive(2, "forward", purpose="it").header)
    a.close()
    assert isinstance(for_a.error(), PeerLostError)
    c.send(1, "forward", message("still here"), purpose="it")
    assert for_c.result() == b"still here"


def test_a_failure_reaches_every_peer_whomever_it_waits_for(nodes, in_thread):
    nodes.expect(3)
    a, b, c = nodes.start(0), nodes.start(1), nodes.start(2)
    for peer, node in ((1, b), (2, c)):
        a.send(peer, "seen", message("alive"), purpose="it")
        node.receive(0, "seen", purpose="it")
    c.send(1, "seen", message("alive"), purpose="it")
    b.receive(2, "seen", purpose="it")
    b_for_a = in_thread(lambda: b.receive(0, "forward", purpose="activation 0.1"))
    b_for_c = in_thread(lambda: b.receive(2, "forward", purpose="activation 0.2"))
    c_for_b = in_thread(lambda: c.receive(1, "forward", purpose="activation 0.3"))
    started = time.monotonic()
    a.abort("ValueError: the loss is NaN")
    for running in (b_for_a, b_for_c, c_for_b):
        error = running.error()
        assert isinstance(error, PeerFailedError)
        assert str(error).startswith("node 0 failed: ValueError: the loss is NaN")
    assert time.monotonic() - started < 5.0


def test_what_was_delivered_before_a_failure_can_still_be_taken(nodes, in_thread):
    a, b = nodes.start(0), nodes.start(1)
    a.send(1, "forward", message("last"), purpose="it")
    a.send(1, "seen", message("alive"), purpose="it")
    b.receive(0, "seen", purpose="it")
    waiting = in_thread(lambda: b.receive(0, "nothing", purpose="it"))
    a.abort("boom")
    assert isinstance(waiting.error(), PeerFailedError)
    assert b.receive(0, "forward", purpose="it").header == b"last"
    with pytest.raises(PeerFailedError, match="boom"):
        b.receive(0, "forward", purpose="it")
    with pytest.raises(PeerFailedError, match="boom"):
        b.send(0, "backward", message("in vain"), purpose="it")


def test_closing_ends_the_waits_of_ones_own(nodes, in_thread):
    a = nodes.start(0)
    receiving = in_thread(lambda: a.receive(1, "forward", purpose="activation 0.1"))
    receiving.thread.join(0.1)
    a.close()
    error = receiving.error()
    assert type(error) is TransportError
    assert "closed" in str(error)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_ending_twice_is_the_same_as_once_and_nothing_works_after_it(nodes, end):
    a = nodes.start(0)
    for _ in range(2):
        a.close() if end == "close" else a.abort("boom")
    a.close()
    a.abort("late")
    with pytest.raises(TransportError, match="closed"):
        a.send(1, "forward", message("h"), purpose="it")
    with pytest.raises(TransportError, match="closed"):
        a.receive(1, "forward", purpose="it")
    with pytest.raises(TransportError, match="closed"):
        a.start()


def test_nothing_works_before_the_start(nodes):
    a = nodes.make(0)
    with pytest.raises(TransportError, match="not started"):
        a.send(1, "forward", message("h"), purpose="it")
    with pytest.raises(TransportError, match="not started"):
        a.receive(1, "forward", purpose="it")


def test_a_node_that_was_closed_or_failed_without_starting_leaves_nothing(nodes):
    nodes.make(0).close()
    nodes.make(1).abort("never began")


def test_a_larger_payload_than_allowed_ends_it_on_both_ends(nodes, in_thread):
    a, b = nodes.start(0), nodes.start(1, replace(QUICK, max_payload_bytes=1000))
    ends = [
        in_thread(lambda: a.receive(1, "backward", purpose="it")),
        in_thread(lambda: b.receive(0, "forward", purpose="it")),
    ]
    a.send(1, "forward", message("h", bytes(1001)), purpose="it")
    for waiting in ends:
        error = waiting.error()
        assert isinstance(error, ProtocolError)
        assert "1001" in str(error)
        assert "1000" in str(error)


def test_both_ends_may_close_at_once(nodes, in_thread, caplog):
    a, b = nodes.start(0), nodes.start(1)
    for node, peer in ((a, 1), (b, 0)):
        node.send(peer, "forward", message("h", bytes(1 << 20)), purpose="it")
    for node, peer in ((a, 1), (b, 0)):
        node.receive(peer, "forward", purpose="it")
    started = time.monotonic()
    for running in [in_thread(a.close), in_thread(b.close)]:
        assert running.result() is None
    assert time.monotonic() - started < 2.0
    assert caplog.text == ""


@pytest.mark.parametrize("lane", ["", "x" * 129])
def test_a_lane_needs_a_name_of_sensible_length(nodes, lane):
    a = nodes.start(0)
    with pytest.raises(TransportError, match="lane"):
        a.send(1, lane, message("h"), purpose="it")


def test_a_large_header_arrives_and_one_too_large_is_not_sent(nodes):
    a, b = nodes.start(0), nodes.start(1)
    header = bytes(32 << 20)
    a.send(1, "forward", Message(header, (b"x",)), purpose="it")
    assert b.receive(0, "forward", purpose="it").header == header
    with pytest.raises(TransportError, match="header"):
        a.send(1, "forward", Message(header + b"x"), purpose="it")


def test_a_node_is_no_peer_of_itself(nodes):
    a = nodes.start(0)
    with pytest.raises(TransportError, match="node 0 is no peer"):
        a.send(0, "forward", message("h"), purpose="it")


@pytest.mark.parametrize(
    "wrong", [{"timeout_s": 0.0}, {"report_every_s": float("nan")}, {"window": 0}]
)
def test_settings_without_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(QUICK, **wrong)


def test_all_send_to_all_at_once_without_deadlock(nodes, in_thread):
    nodes.expect(3)
    transports = {i: nodes.start(i) for i in range(3)}

    def exchange(me: int) -> int:
        others = [i for i in transports if i != me]
        for i in range(20):
            for peer in others:
                transports[me].send(peer, "ring", message(f"{i}", bytes(100_000)), purpose="it")
            for peer in others:
                assert transports[me].receive(peer, "ring", purpose="it").header == f"{i}".encode()
        return me

    running = [in_thread(lambda me=me: exchange(me)) for me in transports]
    assert [r.result(30.0) for r in running] == [0, 1, 2]
