"""Credits that travel with messages: none is lost, none is said twice, and few are left to gRPC."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_support import QUICK

from ravnest.transport.backlog import Progress
from ravnest.transport.interface import Message
from ravnest.transport.lane_intake import LaneIntake
from ravnest.transport.window import ReceiveWindow


@given(
    window=st.integers(1, 20),
    choices=st.lists(st.sampled_from(["send", "arrive", "consume", "note"]), max_size=300),
)
def test_a_sender_always_gets_a_credit_in_the_end(window: int, choices: list[str]) -> None:
    """Whatever notes take along: who is out of credits is told of the next message consumed."""
    told: list[Progress] = []
    receiver = ReceiveWindow(window, told.append)
    num_sent = num_arrived = num_consumed = 0

    def num_free() -> int:
        return window - num_sent + max((each.num_consumed for each in told), default=0)

    for choice in choices:
        if choice == "send" and num_free():
            num_sent += 1
        elif choice == "arrive" and num_arrived < num_sent:
            num_arrived += 1
            receiver.arrived(1)
        elif choice == "consume" and num_consumed < num_arrived:
            num_consumed += 1
            receiver.consumed()
        elif choice == "note" and (news := receiver.taken_along()) is not None:
            assert news == Progress(num_arrived, num_consumed)
            told.append(news)
        assert num_free() >= 0
    for _ in range(num_sent - num_arrived):
        receiver.arrived(1)
    for _ in range(num_sent - num_consumed):
        receiver.consumed()
    assert num_free() > 0
    counts = [each.num_consumed for each in told]
    assert counts == sorted(set(counts))  # each is news


def test_a_note_is_due_from_a_quarter_of_the_window_on() -> None:
    receiver = ReceiveWindow(8, lambda progress: None)
    for _ in range(3):
        receiver.arrived(1)
    receiver.consumed()
    assert receiver.taken_along() is None
    receiver.consumed()
    assert receiver.taken_along() == Progress(3, 2)
    assert receiver.taken_along() is None


def test_nodes_that_send_to_each_other_say_no_credit_on_grpc(
    grpc_nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between stages: activations one way, gradients the other, on lanes of their own."""
    told: list[str] = []
    tell = LaneIntake._tell_progress

    def counted(self: LaneIntake, progress: Progress) -> None:
        told.append(self.lane)
        tell(self, progress)

    monkeypatch.setattr(LaneIntake, "_tell_progress", counted)
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    for i in range(10 * QUICK.window):
        a.send(1, "forward", Message(b"%d" % i), purpose="it")
        assert b.receive(0, "forward", purpose="it").header == b"%d" % i
        b.send(0, "back", Message(b"%d" % i, (bytes(1000),)), purpose="it")
        assert a.receive(1, "back", purpose="it").header == b"%d" % i
    assert told == []


def test_without_a_way_back_credits_are_said_on_grpc(grpc_nodes) -> None:
    """Else the sends wait for them in vain, after a window of messages."""
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    for i in range(10 * QUICK.window):
        a.send(1, "forward", Message(b"%d" % i), purpose="it")
        assert b.receive(0, "forward", purpose="it").header == b"%d" % i
