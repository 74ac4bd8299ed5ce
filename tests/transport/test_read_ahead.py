"""Reading bulk connections: pieces of any size, with and without TLS, and ends in the middle."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ravnest.transport.bulk_connection import BulkConnection, BulkHead
from ravnest.transport.credentials import Credentials, Identity, load_identity
from ravnest.transport.interface import Message
from ravnest.transport.read_ahead import ReadAhead

PATTERN = bytes(range(251)) * 700
RECORD_BYTES = 16 << 10
Pair = tuple[socket.socket, socket.socket]
Connect = Callable[[], Pair]


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    folder: Path = tmp_path_factory.mktemp("identity")
    authority = trustme.CA()
    issued = authority.issue_cert("node-1")
    files = Credentials(folder / "certificate", folder / "key", folder / "authority")
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.authority)
    return load_identity(files, 1)


def _pair() -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), 5.0)
        far, _ = listener.accept()
    far.settimeout(5.0)
    return near, far


@pytest.fixture(params=["plain", "tls"])
def connect(request: pytest.FixtureRequest, identity: Identity) -> Iterator[Connect]:
    """Makes connected pairs: the first end sends, the second receives."""
    with contextlib.ExitStack() as stack:

        def made() -> Pair:
            pair = _pair()
            if request.param == "tls":
                pair = _secured(pair, identity)
            for each in pair:
                stack.callback(each.close)
            return pair

        yield made


def _secured(pair: Pair, identity: Identity) -> Pair:
    far: list[ssl.SSLSocket] = []
    accepting = threading.Thread(
        target=lambda: far.append(identity.accepting.wrap_socket(pair[1], server_side=True))
    )
    accepting.start()
    near = identity.connecting.wrap_socket(pair[0], server_hostname="node-1")
    accepting.join()
    near.settimeout(5.0)
    return near, far[0]


SIZES = st.lists(
    st.one_of(
        st.integers(0, 100),
        st.integers(RECORD_BYTES - 2, RECORD_BYTES + 2),
        st.integers(0, 3 * RECORD_BYTES),
    ),
    max_size=6,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(written=SIZES, asked=SIZES)
def test_what_is_read_is_what_was_written_whatever_the_pieces(connect, written, asked):
    near, far = connect()
    data = PATTERN[: sum(written)]

    def write() -> None:
        start = 0
        for size in written:
            near.sendall(data[start : start + size])
            start += size
        near.shutdown(socket.SHUT_WR)

    writer = threading.Thread(target=write)
    writer.start()
    incoming, start = ReadAhead(far), 0
    for size in asked:
        target = bytearray(size)
        filled = incoming.fill(memoryview(target))
        assert filled == min(size, len(data) - start)
        assert target[:filled] == data[start : start + filled]
        start += filled
    while filled := incoming.fill(memoryview(bytearray(1 << 20))):
        start += filled
    writer.join()
    assert start == len(data)
    near.close()
    far.close()


def test_a_small_message_is_one_read(connect, monkeypatch):
    near, far = connect()
    sender, receiver = BulkConnection(near), BulkConnection(far)
    sender.send(7, Message(b"header", (PATTERN[:1000],)))
    reads: list[int] = []
    read = ReadAhead._read
    monkeypatch.setattr(
        ReadAhead, "_read", lambda self, target: (reads.append(1), read(self, target))[1]
    )
    assert receiver.receive_head() == BulkHead(7, 6, 1000)
    header, payload = bytearray(6), bytearray(1000)
    receiver.receive_into(memoryview(header))
    receiver.receive_into(memoryview(payload))
    assert (header, payload) == (b"header", PATTERN[:1000])
    assert reads == [1]


@pytest.mark.parametrize("sent", [1, 22 + 5, 22 + 6 + 10, 22 + 6 + 3 * RECORD_BYTES])
@pytest.mark.parametrize("says_so", [True, False])
def test_an_end_in_the_middle_of_a_message_is_an_error(connect, sent, says_so):
    near, far = connect()
    size = 4 * RECORD_BYTES
    whole = b"".join(
        (bytes(7), b"\7", (6).to_bytes(4), size.to_bytes(8), bytes(2), b"header", PATTERN[:size])
    )
    near.sendall(whole[:sent])
    if says_so and isinstance(near, ssl.SSLSocket):
        near.setblocking(False)
        with contextlib.suppress(ssl.SSLWantReadError):
            near.unwrap()  # close_notify; the other end has yet to answer
    socket.socket.shutdown(near, socket.SHUT_WR)
    receiver = BulkConnection(far)

    def receive() -> None:
        head = receiver.receive_head()
        assert head is not None
        for num_bytes in (head.header_bytes, head.num_bytes):
            receiver.receive_into(memoryview(bytearray(num_bytes)))

    with pytest.raises(ConnectionError, match=r"it ended \d+ bytes early"):
        receive()


def test_an_end_between_messages_is_none(connect):
    near, far = connect()
    BulkConnection(near).send(0, Message(b"only"))
    socket.socket.shutdown(near, socket.SHUT_WR)
    receiver = BulkConnection(far)
    assert receiver.receive_head() == BulkHead(0, 4, 0)
    receiver.receive_into(memoryview(bytearray(4)))
    assert receiver.receive_head() is None


def test_bytes_that_are_no_record_are_an_error(identity):
    with contextlib.ExitStack() as stack:
        near, far = (stack.enter_context(each) for each in _secured(_pair(), identity))
        receiver = BulkConnection(far)
        socket.socket.send(near, b"plain text among records, longer than the head of one")
        with pytest.raises(ssl.SSLError):
            receiver.receive_head()


def test_who_reads_is_woken_by_a_cut(connect, in_thread):
    near, far = connect()
    receiver = BulkConnection(far)
    waits = in_thread(receiver.receive_head)
    receiver.cut()
    waits.thread.join(5.0)
    assert not waits.thread.is_alive()
    assert waits.results == [None] or isinstance(waits.errors[0], OSError)
    near.close()
