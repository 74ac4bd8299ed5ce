"""Small messages go out in their sender's thread when the writer has nothing to do, in order."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_support import QUICK, positions_sent

from ravnest.transport.bulk_connection import BulkConnection, BulkHead
from ravnest.transport.interface import Message
from ravnest.transport.outbox import Outbox


def test_an_item_passes_only_a_writer_that_has_done_everything():
    outbox: Outbox[int] = Outbox()
    written: list[int] = []

    def write(item: int) -> bool:
        written.append(item)
        return True

    outbox.put(0, write)
    assert written == [0]
    outbox.put(1)
    outbox.put(2, write)  # 1 waits
    assert outbox.get() == 1
    outbox.put(3, write)  # the writer is at work on 1
    outbox.done()
    assert outbox.get() == 2
    outbox.done()
    assert outbox.get() == 3
    outbox.put(4, write)  # the writer is at work on 3
    outbox.done()
    assert outbox.get() == 4
    outbox.done()
    outbox.put(5, write)
    assert written == [0, 5]


def test_what_cannot_be_written_at_once_is_queued():
    outbox: Outbox[int] = Outbox()
    outbox.put(1, lambda item: False)
    assert outbox.get() == 1


def test_items_of_many_threads_are_written_once_and_in_the_order_of_each():
    outbox: Outbox[tuple[int, int] | None] = Outbox()
    written: list[tuple[int, int]] = []

    def write(item: tuple[int, int] | None) -> bool:
        assert item is not None
        if item[1] % 3 == 0:
            return False
        written.append(item)
        return True

    def put(number: int) -> None:
        for i in range(200):
            outbox.put((number, i), write)

    def empty() -> None:
        while (item := outbox.get()) is not None:
            written.append(item)
            outbox.done()

    writer = threading.Thread(target=empty)
    putting = [threading.Thread(target=put, args=(number,)) for number in range(3)]
    for thread in (writer, *putting):
        thread.start()
    for thread in putting:
        thread.join(10.0)
    outbox.put(None)
    writer.join(10.0)
    for number in range(3):
        assert [i for owner, i in written if owner == number] == list(range(200))


@pytest.mark.skipif(not hasattr(socket, "MSG_DONTWAIT"), reason="every call may wait here")
def test_a_small_message_goes_out_in_its_senders_thread(grpc_nodes, monkeypatch):
    threads: list[str] = []
    send, send_now = BulkConnection.send, BulkConnection.send_now

    def noted(self: BulkConnection, position: int, message: Message) -> None:
        threads.append(threading.current_thread().name)
        send(self, position, message)

    def noted_now(self: BulkConnection, position: int, message: Message) -> bool:
        if is_sent := send_now(self, position, message):
            threads.append(threading.current_thread().name)
        return is_sent

    monkeypatch.setattr(BulkConnection, "send", noted)
    monkeypatch.setattr(BulkConnection, "send_now", noted_now)
    sent = positions_sent(monkeypatch)
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    own = threading.current_thread().name
    for i in range(200):  # the first goes over gRPC if it is before the Welcome
        a.send(1, "forward", Message(b"%d" % i, (b"small",)), purpose="it")
        assert b.receive(0, "forward", purpose="it").header == b"%d" % i
        if own in threads:  # once the writer has found that there is nothing left
            break
    assert sent == list(range(sent[0], i + 1))
    assert sent[0] <= 1
    assert threads[0] != own == threads[-1]


def test_small_messages_do_not_pass_large_ones(grpc_nodes):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    sizes = [1, 1, 8 << 20, 1, 100, 8 << 20, 9 << 10, 1, 8 << 20, 0, 3] * 3

    def send() -> None:
        for i, size in enumerate(sizes):
            a.send(1, "forward", Message(b"%d" % i, (bytes([i]) * size,)), purpose="it")

    sender = threading.Thread(target=send)
    sender.start()
    for i, size in enumerate(sizes):
        message = b.receive(0, "forward", purpose="it")
        assert (message.header, bytes(message.payload[0])) == (b"%d" % i, bytes([i]) * size)
    sender.join()


@contextlib.contextmanager
def _connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), 5.0)
        far, _ = listener.accept()
    with near, far:
        yield near, far


@pytest.mark.skipif(not hasattr(socket, "MSG_DONTWAIT"), reason="every call may wait here")
def test_nothing_is_sent_at_once_into_a_full_connection():
    with _connected() as (near, _):
        connection = BulkConnection(near)
        assert connection.send_now(0, Message(b"", (bytes(8 << 10),)))
        assert not connection.send_now(1, Message(b"x", (bytes(256 << 10),)))  # not a small one
        near.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while near.send(bytes(1 << 20)):
                pass
        near.setblocking(True)
        assert not connection.send_now(1, Message(b"small"))


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.lists(st.integers(0, 90_000), max_size=80), min_size=1, max_size=12),
    data=st.data(),
)
def test_what_was_begun_at_once_is_finished_in_turn(sizes, data):
    """Whatever the kernel takes of each, the receiver gets all messages, and each note once."""
    chosen = random.Random(data.draw(st.integers(0, 2**32)))
    messages = [
        Message(chosen.randbytes(chosen.randrange(64)), tuple(map(chosen.randbytes, each)))
        for each in sizes
    ]
    with _connected() as (near, far):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        notes = [chosen.randbytes(chosen.randrange(3)) for _ in messages]
        left = iter(notes)
        giver = BulkConnection(near, take_note=lambda: next(left))
        taker = BulkConnection(far)

        def give() -> None:
            for i, message in enumerate(messages):
                if not giver.send_now(i, message):
                    giver.send(i, message)

        giving = threading.Thread(target=give)
        giving.start()
        for i, message in enumerate(messages):
            head = taker.receive_head()
            whole = bytearray(len(notes[i]) + len(message.header) + message.num_bytes)
            taker.receive_into(memoryview(whole))
            assert head == BulkHead(i, len(message.header), message.num_bytes, len(notes[i]))
            assert whole == notes[i] + message.header + b"".join(message.payload)
        giving.join()


def test_small_messages_wait_for_the_window(grpc_nodes, in_thread):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    a.send(1, "forward", Message(b"first"), purpose="it")
    assert b.receive(0, "forward", purpose="it").header == b"first"
    count = 5 * QUICK.window

    def send() -> None:
        for i in range(count):
            a.send(1, "forward", Message(b"%d" % i), purpose="it")

    sending = in_thread(send)
    for i in range(count):
        assert b.receive(0, "forward", purpose="it").header == b"%d" % i
    sending.result()


def test_a_cut_between_small_messages_is_told(grpc_nodes, in_thread):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    for i in range(3):
        a.send(1, "forward", Message(b"%d" % i), purpose="it")
        b.receive(0, "forward", purpose="it")
    waits = in_thread(lambda: b.receive(0, "forward", purpose="it"))
    a.abort("because")
    assert "because" in str(waits.error())
