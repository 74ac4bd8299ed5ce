"""Probes over real sockets on loopback, and every way they can fail."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress

import pytest

from ravnest.errors import (
    AddressInUseError,
    ConfigError,
    PeerLostError,
    PeerUnreachableError,
    ProtocolError,
    TransportError,
)
from ravnest.probing import messages
from ravnest.probing.link import measure_link
from ravnest.probing.listener import Caps, ProbeListener
from ravnest.probing.messages import Arrival, Kind
from ravnest.transport.grpc_options import CHANNEL_OPTIONS, grpc

SECONDS = 0.3


@pytest.fixture
def listener() -> Iterator[ProbeListener]:
    with ProbeListener("127.0.0.1:0", caps=Caps(silence_s=0.5)) as listening:
        yield listening


def address_of(listening: ProbeListener) -> str:
    return f"127.0.0.1:{listening.port}"


@contextmanager
def proxy(target: int, *, after: int, cut: bool) -> Iterator[tuple[int, threading.Event]]:
    """Passes bytes on in both directions; tells, and perhaps cuts, when so many came to it."""
    reached = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))
    pairs: list[socket.socket] = []

    def pump(source: socket.socket, sink: socket.socket, *, watched: bool) -> None:
        passed = 0
        with suppress(OSError):
            while chunk := source.recv(65536):
                passed += len(chunk)
                if watched and passed > after:
                    reached.set()
                    if cut:
                        break
                sink.sendall(chunk)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            near, _ = server.accept()
            far = socket.create_connection(("127.0.0.1", target))
            pairs.extend([near, far])
            back = threading.Thread(target=pump, args=(far, near), kwargs={"watched": False})
            back.start()
            pump(near, far, watched=True)
            back.join()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1], reached
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        for each in pairs:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in pairs:
            each.close()


def converse(port: int, requests: Sequence[bytes], *, stay: bool = False) -> list[bytes]:
    """Says something to a listener as a stranger would; its answers until the stream ends.

    Args:
        stay: leave the stream open after the last request.
    """
    done = threading.Event()

    def said() -> Iterator[bytes]:
        yield from requests
        if stay:
            done.wait()

    answers: list[bytes] = []
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
        method = channel.stream_stream(f"/{messages.SERVICE}/{messages.METHOD}", None, None)
        try:
            with suppress(grpc.RpcError):
                answers.extend(method(said(), timeout=20))
        finally:
            done.set()
    return answers


def test_both_directions_and_the_delay_are_measured(listener: ProbeListener) -> None:
    reading = measure_link(address_of(listener), seconds=SECONDS)
    for rate in (reading.up, reading.down):
        assert 0 < rate.low_bps <= rate.bps <= rate.high_bps
    assert reading.bandwidth_bps == min(reading.up.bps, reading.down.bps) > 1e6
    assert 0 < reading.low_round_trip_s <= reading.round_trip_s <= reading.high_round_trip_s < 1
    assert reading.one_way_s == reading.round_trip_s / 2
    assert listener.num_probes == 1


def test_a_local_name_or_wildcard_is_dialled_on_loopback(listener: ProbeListener) -> None:
    for host in ("0.0.0.0", "localhost"):
        measure_link(f"{host}:{listener.port}", seconds=SECONDS)
    assert listener.num_probes == 2


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        PeerUnreachableError, match=rf"127.0.0.1:{port} cannot .* refused"
    ) as caught:
        measure_link(f"127.0.0.1:{port}")
    assert f"benchmark --listen --address 127.0.0.1:{port}" in (caught.value.hint or "")


def test_a_name_that_is_none() -> None:
    with pytest.raises(PeerUnreachableError, match="DNS"):
        measure_link("no-such-host.invalid:80", insecure=True)


def test_something_else_listens_that_speaks_http() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ProtocolError, match="is no `ravnest benchmark --listen`"):
                measure_link(f"127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def test_something_else_listens_that_says_nothing() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(ProtocolError, match=r"is no `ravnest .* does not answer"),
    ):
        measure_link(f"127.0.0.1:{server.getsockname()[1]}")


@contextmanager
def grpc_service(answers: Sequence[bytes] | None) -> Iterator[int]:
    """A gRPC server that answers a probe with these bytes, or has no such service."""
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        if answers is not None:
            handler = grpc.stream_stream_rpc_method_handler(lambda requests, _: iter(answers))
            methods = {messages.METHOD: handler}
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(messages.SERVICE, methods),)
            )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


def test_another_grpc_service_listens() -> None:
    with (
        grpc_service(None) as port,
        pytest.raises(ProtocolError, match="it answers gRPC, but not to probes"),
    ):
        measure_link(f"127.0.0.1:{port}")


NEWER = messages.ready()[:-2] + b"\x00\x02"


@pytest.mark.parametrize(
    ("answers", "error", "words"),
    [
        ([NEWER], ProtocolError, "version 2 of the probe came, 1 is expected"),
        ([messages.refused("no \x1b[31mthanks")], ProtocolError, r"refuses .* no \?\[31mthanks"),
        ([b""], ProtocolError, "0 bytes came"),
        ([b"\xff"], ProtocolError, "1 bytes came that are no message"),
        ([messages.ping(1)], ProtocolError, "a PING came; expected READY"),
        ([messages.ready()[:-3]], ProtocolError, "a READY of 13 bytes came; expected 16"),
        ([], PeerLostError, "was cut before the probe began"),
        ([messages.ready()], PeerLostError, "was cut while latency was measured"),
        ([messages.ready(), messages.pong(messages.ping(7))], ProtocolError, "another ping"),
    ],
)
def test_a_listener_that_is_none_of_ours(
    answers: list[bytes], error: type[Exception], words: str
) -> None:
    with grpc_service(answers) as port, pytest.raises(error, match=words):
        measure_link(f"127.0.0.1:{port}")


def test_the_link_is_cut_while_uploading(listener: ProbeListener) -> None:
    with proxy(listener.port, after=1 << 20, cut=True) as (port, cut):
        with pytest.raises(PeerLostError, match="was cut while uploading"):
            measure_link(f"127.0.0.1:{port}", seconds=5.0)
        assert cut.is_set()
    # The listener is free again, and goes on.
    measure_link(address_of(listener), seconds=SECONDS)


def test_the_listener_goes_while_it_is_probed() -> None:
    caught: list[BaseException] = []

    def probe(port: int) -> None:
        try:
            measure_link(f"127.0.0.1:{port}", seconds=10.0)
        except TransportError as error:
            caught.append(error)

    with (
        ProbeListener("127.0.0.1:0") as listening,
        proxy(listening.port, after=4096, cut=False) as (port, under_way),
    ):
        thread = threading.Thread(target=probe, args=(port,))
        thread.start()
        assert under_way.wait(20)
        listening.close()
        thread.join()
    (error,) = caught
    assert isinstance(error, PeerLostError)
    assert "was cut while" in error.message


def test_one_probe_at_a_time(listener: ProbeListener) -> None:
    ready, done = threading.Event(), threading.Event()

    def said() -> Iterator[bytes]:
        yield messages.begin()
        done.wait()

    with grpc.insecure_channel(address_of(listener), options=CHANNEL_OPTIONS) as channel:
        method = channel.stream_stream(f"/{messages.SERVICE}/{messages.METHOD}", None, None)
        call = method(said())
        assert next(call) == messages.ready()
        ready.set()
        with pytest.raises(
            TransportError, match=r"busy with a probe from ipv4:127.0.0.1"
        ) as caught:
            measure_link(address_of(listener), seconds=SECONDS)
        assert "try again" in (caught.value.hint or "")
        done.set()
        assert list(call) == []
    measure_link(address_of(listener), seconds=SECONDS)


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([b""], "0 bytes came that are no message of a probe"),
        ([b"\x00" * 1000], "1000 bytes came that are no message"),
        ([messages.ping(0)], "a PING came; expected BEGIN"),
        ([messages.begin(9)], "version 9 of the probe came, 1 is expected"),
        ([b"\x01" + b"x" * 13 + b"\x00\x01"], "what came is no probe of ravnest"),
        ([messages.begin(), messages.end()], "a END came; expected PING, DOWNLOAD or UPLOAD"),
        (
            [messages.begin(), messages.transfer(Kind.DOWNLOAD, 11, 0.01)],
            "a transfer of 11 s is asked",
        ),
        ([messages.begin(), messages.transfer(Kind.UPLOAD, 0, 0.01)], "a transfer of 0 s is asked"),
        (
            [messages.begin(), messages.transfer(Kind.UPLOAD, 1, 0.01), b"\x08"],
            "a DATA of 1 bytes came",
        ),
        (
            [
                messages.begin(),
                messages.transfer(Kind.DOWNLOAD, 1, 0.01),
                messages.ack(Arrival(1 << 50, 0)),
            ],
            "an acknowledgement of 1125899906842624 bytes",
        ),
        (
            [messages.begin(), *[messages.ping(i) for i in range(1001)]],
            "1000 pings, 2 transfers at most",
        ),
        (
            [messages.begin(), *[messages.transfer(Kind.UPLOAD, 1, 0.01), messages.end()] * 3],
            "1000 pings, 2 transfers at most",
        ),
    ],
)
def test_strangers_are_refused_and_the_listener_goes_on(
    listener: ProbeListener, requests: list[bytes], reason: str
) -> None:
    *_, last = converse(listener.port, requests)
    assert messages.kind_of(last) is Kind.REFUSED
    assert reason in messages.parse_refused(last)
    assert messages.ready() in converse(listener.port, [messages.begin()])


def test_a_message_larger_than_any_is_not_taken(listener: ProbeListener) -> None:
    upload = [messages.begin(), messages.transfer(Kind.UPLOAD, 1, 0.01)]
    answers = converse(
        listener.port, [*upload, bytes([Kind.DATA]) * (messages.MAX_MESSAGE_BYTES + 1)]
    )
    assert answers == [messages.ready()]


def test_a_stranger_who_says_nothing_is_cut(listener: ProbeListener) -> None:
    assert converse(listener.port, [], stay=True) == []


def test_a_probe_that_takes_in_nothing_is_cut_and_gets_little() -> None:
    caps = Caps(probe_s=0.5)
    with ProbeListener("127.0.0.1:0", caps=caps) as listening:
        asked = [messages.begin(), messages.transfer(Kind.DOWNLOAD, 10, 0.01)]
        answers = converse(listening.port, asked, stay=True)
    assert sum(map(len, answers)) < 200_000


def test_what_is_not_loopback_needs_to_be_meant() -> None:
    with pytest.raises(ConfigError, match=r"203.0.113.5:80 is not loopback"):
        measure_link("203.0.113.5:80")
    with pytest.raises(ConfigError, match=r"0.0.0.0:8080 is not loopback") as caught:
        ProbeListener("0.0.0.0:8080")
    assert "--insecure" in (caught.value.hint or "")


def test_a_taken_port_is_named(listener: ProbeListener) -> None:
    with pytest.raises(AddressInUseError, match=f"{listener.port}: another process uses it"):
        ProbeListener(address_of(listener))


@pytest.mark.parametrize("seconds", [0.0, -1.0, 10.5, float("nan")])
def test_seconds_outside_the_cap_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="at most 10"):
        measure_link("127.0.0.1:80", seconds=seconds)


def test_a_malformed_peer_is_refused() -> None:
    with pytest.raises(ConfigError, match="not of the form host:port"):
        measure_link("localhost")


def test_closing_twice_is_fine() -> None:
    listening = ProbeListener("127.0.0.1:0")
    listening.close()
    listening.close()
    listening.wait()
