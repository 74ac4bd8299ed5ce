"""The least that gRPC takes from Python: raw bytes in chunks, copied into a buffer made before.

No protobuf around the bytes, no serializer, no checksum, and the channel set up as the transport
sets it up; what is measured is gRPC.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures

from ravnest.transport.envelope import MAX_CHUNK_BYTES
from ravnest.transport.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS, grpc

_SERVICE, _METHOD = "benchmark.bare", "Take"


class BareTaker:
    """The receiving end, on a free port."""

    def __init__(self, host: str, buffer: memoryview) -> None:
        self._buffer = buffer
        self._num_bytes = 1
        self._taken = threading.Semaphore(0)
        self._server = grpc.server(futures.ThreadPoolExecutor(1), options=SERVER_OPTIONS)
        handler = grpc.stream_unary_rpc_method_handler(self._take, None, None)
        handlers = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})
        self._server.add_generic_rpc_handlers((handlers,))
        self.port = self._server.add_insecure_port(f"{host}:0")
        self._server.start()

    def take(self, num_bytes: int) -> None:
        """Waits for one payload of that size, the same until all payloads of a run are taken."""
        self._num_bytes = num_bytes
        self._taken.acquire()

    def stop(self) -> None:
        """Frees the port."""
        self._server.stop(None).wait()

    def _take(self, chunks: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        offset = 0
        for chunk in chunks:
            self._buffer[offset : offset + len(chunk)] = chunk
            offset += len(chunk)
            if offset == self._num_bytes:
                offset = 0
                self._taken.release()
        return b""


class BareGiver:
    """The sending end."""

    def __init__(self, address: str) -> None:
        self._payloads: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        call = self._channel.stream_unary(f"/{_SERVICE}/{_METHOD}", None, None)
        self._call = call.future(self._chunks(), wait_for_ready=True)

    def give(self, payload: memoryview) -> None:
        """Queues one payload."""
        self._payloads.put(payload)

    def close(self) -> None:
        """Ends the stream."""
        self._payloads.put(None)
        self._call.result(timeout=60)
        self._channel.close()

    def _chunks(self) -> Iterator[bytes]:
        while (payload := self._payloads.get()) is not None:
            for start in range(0, payload.nbytes, MAX_CHUNK_BYTES):
                yield bytes(payload[start : start + MAX_CHUNK_BYTES])
