"""The messages of one stream, over gRPC or its bulk connection, into their lane."""

from __future__ import annotations

from collections.abc import Callable

from ravnest.errors import ProtocolError
from ravnest.transport.bulk_connection import BulkConnection, BulkHead
from ravnest.transport.envelope import (
    CONTROL_LANE,
    MAX_CHUNK_BYTES,
    check_payload,
    check_sizes,
    parse_request,
)
from ravnest.transport.interface import Message
from ravnest.transport.lane_intake import LaneIntake
from ravnest.transport.pb import link_pb2
from ravnest.transport.reception import Reception

MIN_LOOKED_AFTER_BYTES = 1 << 20


class StreamIntake:
    """What one stream brings to a lane; `end` is to be called when it is over.

    Args:
        connection: of the sender, that the stream is on.
        cancel: ends the stream.

    Attributes:
        problem: why what came over the bulk connection was refused.
    """

    def __init__(
        self, reception: Reception, lane: LaneIntake, connection: int, cancel: Callable[[], None]
    ) -> None:
        self.problem: str | None = None
        self.sender = lane.sender
        self.lane = lane.lane
        self.is_control = lane.lane == CONTROL_LANE
        self._reception = reception
        self._intake = lane
        self._connection = connection
        self._cancel = cancel
        self._number = lane.progress.num_received  # of the next message over gRPC
        self._is_over = False
        self.offer = None
        if reception.bulk is not None and not self.is_control:
            self.offer = reception.bulk.offer(self._serve_bulk)

    def take_whole(self, header: bytes, whole: memoryview) -> None:
        """A small message over gRPC; raises as `LaneIntake.deliver`."""
        check_payload(whole.nbytes, self._reception.settings.max_payload_bytes)
        payload = self._reception.pool.take(whole.nbytes)
        payload[:] = whole
        self._next_is(Message(header, (payload,)))

    def take_announced(
        self, announcement: link_pb2.Announcement, next_chunk: Callable[[], bytes]
    ) -> None:
        """A large message over gRPC, in chunks; raises as `LaneIntake.deliver`."""
        payload = self._room(len(announcement.header), announcement.num_bytes)
        offset, num_bytes = 0, payload.nbytes
        while offset < num_bytes:
            chunk = next_chunk()
            if not 0 < len(chunk) <= min(MAX_CHUNK_BYTES, num_bytes - offset):
                raise ProtocolError(
                    f"a chunk of {len(chunk)} bytes came; at most {MAX_CHUNK_BYTES} are allowed "
                    f"and {num_bytes - offset} were left of the payload"
                )
            payload[offset : offset + len(chunk)] = chunk
            offset += len(chunk)
        self._next_is(Message(announcement.header, (payload,)))

    def finish(self, num_messages: int) -> None:
        """The sender has said all of the lane; raises as `LaneIntake.finish`."""
        self._intake.finish(self._connection, num_messages)

    def leave(self) -> None:
        """Nothing more comes: ends what waits for it."""
        self._intake.leave(self._connection)

    def end(self) -> None:
        """The stream is over; what it delivered stays."""
        self._is_over = True
        self.leave()
        if self.offer is not None and self._reception.bulk is not None:
            self._reception.bulk.withdraw(self.offer)

    def _serve_bulk(self, connection: BulkConnection) -> None:
        cause = "it ended"
        try:
            while (head := connection.receive_head()) is not None:
                self._take_bulk(connection, head)
        except ProtocolError as error:
            # The sender may find its connection cut and end the stream: its response says why, too.
            self.problem = error.message
            self._intake.refuse(error.message)
            self._reception.peers.broke_protocol(self.sender, error.message)
            self.leave()
            connection.cut()
            return
        except OSError as error:
            cause = str(error)
        if not self._is_over:
            # The sender may have nothing to send, and would not notice.
            self._reception.links[self.sender].incoming_broke(
                self._connection, f"the bulk connection of its lane {self.lane!r} broke ({cause})"
            )
            self.leave()
            self._cancel()

    def _take_bulk(self, connection: BulkConnection, head: BulkHead) -> None:
        payload = self._room(head.header_bytes, head.num_bytes)
        if head.note_bytes:
            self._take_note(connection, head.note_bytes)
        header = bytearray(head.header_bytes)
        connection.receive_into(memoryview(header))
        connection.receive_into(payload)
        message = Message(bytes(header), (payload,))
        # Looking takes a system call, and small messages are never kept for long.
        is_followed = head.num_bytes >= MIN_LOOKED_AFTER_BYTES and connection.has_more()
        self._intake.deliver(self._connection, head.position, message, is_followed=is_followed)

    def _take_note(self, connection: BulkConnection, num_bytes: int) -> None:
        """A Credit that came along with a message."""
        note = bytearray(num_bytes)
        connection.receive_into(memoryview(note))
        request = parse_request(bytes(note))
        if (kind := request.WhichOneof("body")) != "credit":
            raise ProtocolError(f"a message of lane {self.lane!r} takes along an unexpected {kind}")
        self._reception.answered(self.sender, request)

    def _room(self, header_bytes: int, num_bytes: int) -> memoryview:
        check_sizes(header_bytes, num_bytes, self._reception.settings.max_payload_bytes)
        try:
            return self._reception.pool.take(num_bytes)
        except (MemoryError, OverflowError, OSError) as error:
            raise ProtocolError(f"no memory for the {num_bytes} bytes announced") from error

    def _next_is(self, message: Message) -> None:
        self._intake.deliver(self._connection, self._number, message)
        self._number += 1
