"""What carries frames from the thread that computes to the transport."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from node_harness import make_plan

from ravnest.errors import PeerFailedError, ProtocolError, TransportError
from ravnest.metrics.events import EventLog
from ravnest.node.couriers import OffloadingCourier, Parcel, courier_for
from ravnest.node.loading import load_node
from ravnest.node.presence import Presence
from ravnest.transport.interface import Message, Transport, TransportSettings
from ravnest.transport.memory import MemoryNetwork
from ravnest.wire.codec import decode
from ravnest.wire.frame import Codec, Frame, FrameKind

CPU = torch.device("cpu")


def parcel(number: int, lane: str = "forward", codec: Codec = Codec.RAW) -> Parcel:
    tensors = {"x": torch.full((3,), float(number))}
    return Parcel(1, lane, Frame(FrameKind.ACTIVATION, tensors=tensors), codec)


def unsendable() -> Parcel:
    sparse = torch.eye(2).to_sparse()
    return Parcel(1, "forward", Frame(FrameKind.ACTIVATION, tensors={"x": sparse}), Codec.RAW)


def number_of(message: Message) -> float:
    return float(decode(message.header, memoryview(message.payload[0])).tensors["x"][0])


def receive_all(end: Transport, got: list[float]) -> None:
    while True:
        got.append(number_of(end.receive(0, "forward", purpose="it")))


@pytest.fixture
def ends() -> Iterator[tuple[Transport, Transport]]:
    network = MemoryNetwork()
    here, there = network.transport(0), network.transport(1)
    here.start()
    there.start()
    yield here, there
    here.close()
    there.close()


@pytest.fixture(autouse=True)
def no_courier_left() -> Iterator[None]:
    yield
    assert not [each for each in threading.enumerate() if each.name == "ravnest-courier"]


def test_frames_leave_in_their_order_from_another_thread(
    ends: tuple[Transport, Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ends
    sent_in = []
    send = here.send

    def noted(*arguments: object, **options: object) -> None:
        sent_in.append(threading.current_thread().name)
        send(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(here, "send", noted)
    courier = courier_for(CPU, here, str)
    for number in range(10):
        courier.send(parcel(number, lane="forward" if number % 2 else "backward"), at_once=False)
    odd = [number_of(there.receive(0, "forward", purpose="it")) for _ in range(5)]
    even = [number_of(there.receive(0, "backward", purpose="it")) for _ in range(5)]
    courier.close()
    assert (odd, even) == ([1, 3, 5, 7, 9], [0, 2, 4, 6, 8])
    assert set(sent_in) == {"ravnest-courier"}


def test_who_has_nothing_else_to_do_sends_at_once_but_never_past_others(
    ends: tuple[Transport, Transport],
) -> None:
    here, there = ends
    courier = courier_for(CPU, here, str)
    courier.send(parcel(0), at_once=True)
    assert not [each for each in threading.enumerate() if each.name == "ravnest-courier"]
    assert there.has_message(0, "forward")
    got = []
    for number in range(1, 51):
        courier.send(parcel(number), at_once=number % 3 > 0)
        if number % 10 == 0:
            got += [number_of(there.receive(0, "forward", purpose="it")) for _ in range(10)]
    courier.close()
    assert got == [*range(50)]


def test_closing_sends_what_is_left(ends: tuple[Transport, Transport]) -> None:
    here, there = ends
    courier = courier_for(CPU, here, str)
    for number in range(5):
        courier.send(parcel(number), at_once=False)
    courier.close()
    assert [number_of(there.receive(0, "forward", purpose="it")) for _ in range(5)] == [*range(5)]


def test_who_never_sent_has_no_thread(ends: tuple[Transport, Transport]) -> None:
    courier = courier_for(CPU, ends[0], str)
    assert not [each for each in threading.enumerate() if each.name == "ravnest-courier"]
    courier.close()


def test_a_failure_ends_the_wait_of_who_computes_and_is_its_cause(
    ends: tuple[Transport, Transport],
) -> None:
    here, there = ends
    courier = courier_for(CPU, here, lambda error: f"node 0: {type(error).__name__}")
    courier.send(unsendable(), at_once=False)
    with pytest.raises(TransportError, match="closed"):
        here.receive(1, "backward", purpose="an answer")
    with pytest.raises(ProtocolError, match="expected a strided tensor"):
        courier.check()
    with pytest.raises(ProtocolError, match="expected a strided tensor"):
        courier.send(parcel(1), at_once=False)
    with pytest.raises(PeerFailedError, match="node 0: ProtocolError"):
        there.receive(0, "forward", purpose="it")
    courier.abort("because of it")


def test_closing_raises_what_was_not_sent(ends: tuple[Transport, Transport]) -> None:
    courier = courier_for(CPU, ends[0], str)
    courier.send(unsendable(), at_once=False)
    with pytest.raises(ProtocolError, match="expected a strided tensor"):
        courier.close()


class _Owner:
    """What a presence belongs to."""


def test_a_node_that_could_not_send_its_last_frame_has_failed_and_not_ended(
    ends: tuple[Transport, Transport], tmp_path: Path
) -> None:
    run = make_plan(
        tmp_path, torch.nn.Sequential(torch.nn.Linear(2, 2)), (torch.ones(1, 2),), nodes=1
    )
    node_id = run.plan.clusters[0][0]
    plan, _ = load_node(tmp_path / "node_data", node_id, (), CPU)
    events = EventLog(tmp_path / "events", node=node_id, cluster=0, stage=0)
    courier = courier_for(CPU, ends[0], str)
    owner = _Owner()
    presence = Presence(owner, plan, courier, events)
    courier.send(unsendable(), at_once=False)
    with pytest.raises(ProtocolError, match="expected a strided tensor"):
        presence.close()
    (failed,) = run.events(node_id, "failed")
    assert "expected a strided tensor" in failed["reason"]
    assert not run.events(node_id, "run_ended")


def test_aborting_drops_what_is_left_and_ends_a_wait_for_credit(
    ends: tuple[Transport, Transport],
) -> None:
    here, there = ends
    courier = OffloadingCourier(here, str)
    for number in range(40):  # more than a window
        courier.send(parcel(number), at_once=False)
    got = [number_of(there.receive(0, "forward", purpose="so that the thread is at work"))]
    courier.abort("enough")
    courier.check()  # what was dropped is no failure
    with pytest.raises(PeerFailedError, match="enough"):
        receive_all(there, got)
    # The others had no credit, and the thread that waited for one has ended.
    assert got == [*range(len(got))]
    assert len(got) <= TransportSettings().window + 1
