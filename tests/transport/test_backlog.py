"""The numbers of a lane: whatever is lost when, each message is delivered once and in order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.errors import ProtocolError
from ravnest.transport.backlog import Backlog, Progress
from ravnest.transport.interface import Message
from ravnest.transport.window import (
    MAX_KEPT_BYTES,
    MAX_KEPT_IN_STREAM_BYTES,
    ReceiveWindow,
)

EVENTS = st.lists(
    st.one_of(
        st.just(("send", 0)),
        st.just(("arrive", 0)),
        st.just(("acknowledge", 0)),
        st.tuples(st.just("stale"), st.integers(0, 5)),
        st.just(("break", 0)),
    ),
    max_size=80,
)


@settings(max_examples=60)
@given(EVENTS)
def test_messages_arrive_once_and_in_order_over_any_breaks(events):
    backlog, wire, received = Backlog("x"), [], []
    said = [0]
    for event, age in events:
        match event:
            case "send":
                message = Message(b"%d" % backlog.num_sent)
                backlog.append(message)
                wire.append(message)
            case "arrive" if wire:
                received.append(wire.pop(0))
                said.append(len(received))
            case "acknowledge":
                backlog.acknowledge(len(received))
            case "stale":  # what was said before may come again
                backlog.acknowledge(said[max(0, len(said) - 1 - age)])
            case "break":
                wire = backlog.rest(len(received))
        assert backlog.num_kept >= len(wire)
        assert backlog.num_sent == len(received) + len(wire)
    received += wire
    assert [int(message.header) for message in received] == list(range(backlog.num_sent))


def test_what_was_received_is_not_held_any_longer():
    backlog = Backlog("x")
    for _ in range(5):
        backlog.append(Message(b""))
    backlog.acknowledge(3)
    assert (backlog.num_kept, backlog.num_sent) == (2, 5)
    assert len(backlog.rest(4)) == 1
    assert backlog.num_kept == 1


@pytest.mark.parametrize("num_received", [3, 1 << 63])
def test_nobody_has_received_what_was_not_sent(num_received):
    backlog = Backlog("x")
    backlog.append(Message(b""))
    for call in (backlog.acknowledge, backlog.rest):
        with pytest.raises(ProtocolError, match=r"1 were sent"):
            call(num_received)


def test_what_was_acknowledged_cannot_be_asked_for_again():
    backlog = Backlog("x")
    backlog.append(Message(b""))
    backlog.acknowledge(1)
    with pytest.raises(ProtocolError, match="go on with message 0"):
        backlog.rest(0)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, MAX_KEPT_BYTES)), max_size=60)
)
def test_a_sender_never_keeps_much_that_was_received_and_never_lacks_credits(steps):
    told: list[Progress] = [Progress()]
    window = ReceiveWindow(8, told.append)
    received_bytes: list[int] = []
    num_consumed = 0
    for is_arrival, is_followed, num_bytes in steps:
        kept_bytes = MAX_KEPT_IN_STREAM_BYTES
        if is_arrival and len(received_bytes) < told[-1].num_consumed + 8:
            received_bytes.append(num_bytes)
            window.arrived(num_bytes, is_followed=is_followed)
            kept_bytes = MAX_KEPT_IN_STREAM_BYTES if is_followed else MAX_KEPT_BYTES
        elif num_consumed < len(received_bytes):
            num_consumed += 1
            window.consumed()
        assert sum(received_bytes[told[-1].num_received :]) < kept_bytes
        assert window.progress == Progress(len(received_bytes), num_consumed)
        if len(received_bytes) == told[-1].num_consumed + 8:  # the sender has no credit left
            assert told[-1].num_consumed == num_consumed
