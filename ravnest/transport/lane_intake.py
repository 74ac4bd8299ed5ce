"""The messages of one lane, over gRPC and over its bulk connection, into the inbox in order."""

from __future__ import annotations

from collections.abc import Callable

from ravnest.errors import ProtocolError
from ravnest.transport.bulk_connection import BulkConnection, BulkHead
from ravnest.transport.envelope import (
    CONTROL_LANE,
    MAX_CHUNK_BYTES,
    check_payload,
    check_sizes,
    credit,
)
from ravnest.transport.interface import Message
from ravnest.transport.lane_order import LaneOrder
from ravnest.transport.pb import link_pb2
from ravnest.transport.reception import Reception
from ravnest.transport.window import ReceiveWindow


class LaneIntake:
    """Opens the lane in the inbox; `end` closes it.

    Attributes:
        offer: where the sender may bring messages, None when it may not.
        problem: why what came over the bulk connection was refused.

    Raises:
        ProtocolError: the peer may not open that lane.
    """

    def __init__(self, reception: Reception, sender: int, lane: str) -> None:
        self.problem: str | None = None
        self._reception = reception
        self.sender = sender
        self.lane = lane
        self.is_control = lane == CONTROL_LANE
        size = reception.settings.window
        self._window = ReceiveWindow(size, self._give)
        self._order = LaneOrder(lane, size, self._deliver)
        self._position = 0  # of the next message over gRPC
        self._is_over = False
        reception.inbox.open_lane(sender, lane, self._window.consumed, size)
        self.offer = None
        if reception.bulk is not None and not self.is_control:
            self.offer = reception.bulk.offer(self._serve_bulk)

    def take_whole(self, header: bytes, whole: memoryview) -> None:
        """A small message over gRPC; raises as `LaneOrder.let_through`."""
        check_payload(whole.nbytes, self._reception.settings.max_payload_bytes)
        payload = self._reception.pool.take(whole.nbytes)
        payload[:] = whole
        self._next_is(Message(header, (payload,)))

    def take_announced(
        self, announcement: link_pb2.Announcement, next_chunk: Callable[[], bytes]
    ) -> None:
        """A large message over gRPC, in chunks; raises as `LaneOrder.let_through`."""
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

    def resume(self, position: int) -> None:
        """Waits until the bulk connection has brought what is before a position."""
        self._order.wait_for(position)
        self._position = position

    def end(self) -> None:
        """The lane is over; what it delivered stays."""
        self._is_over = True
        self._order.end()
        if self.offer is not None and self._reception.bulk is not None:
            self._reception.bulk.withdraw(self.offer)
        self._reception.inbox.close_lane(self.sender, self.lane)

    def _serve_bulk(self, connection: BulkConnection) -> None:
        try:
            while (head := connection.receive_head()) is not None:
                self._take_bulk(connection, head)
        except ProtocolError as error:
            # The sender finds its connection cut and ends the stream, whose response says why.
            self.problem = error.message
            self._reception.peers.broke_protocol(self.sender, error.message)
            connection.cut()
        except OSError as error:
            if not self._is_over:
                cause = f"the bulk connection of its lane {self.lane!r} broke ({error})"
                self._reception.peers.lost(self.sender, cause)

    def _take_bulk(self, connection: BulkConnection, head: BulkHead) -> None:
        payload = self._room(head.header_bytes, head.num_bytes)
        header = bytearray(head.header_bytes)
        connection.receive_into(memoryview(header))
        connection.receive_into(payload)
        self._order.let_through(head.position, Message(bytes(header), (payload,)))

    def _room(self, header_bytes: int, num_bytes: int) -> memoryview:
        check_sizes(header_bytes, num_bytes, self._reception.settings.max_payload_bytes)
        try:
            return self._reception.pool.take(num_bytes)
        except (MemoryError, OverflowError, OSError) as error:
            raise ProtocolError(f"no memory for the {num_bytes} bytes announced") from error

    def _next_is(self, message: Message) -> None:
        self._order.let_through(self._position, message)
        self._position += 1

    def _deliver(self, message: Message) -> None:
        self._window.arrived()
        self._reception.inbox.deliver(self.sender, self.lane, message)

    def _give(self, num_credits: int) -> None:
        self._reception.reply(self.sender, credit(self.lane, num_credits))
