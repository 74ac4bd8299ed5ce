"""A TCP proxy that breaks what goes through it: after so many bytes, at once, or silently."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

PIECE_BYTES = 64 << 10
_RESET = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class _Pair:
    """Both ends of one connection through the proxy, which end together."""

    near: socket.socket
    far: socket.socket
    left_bytes: int | None
    is_stalled: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def cut(self, *, reset: bool) -> None:
        for each in (self.near, self.far):
            with contextlib.suppress(OSError):
                if reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.shutdown(socket.SHUT_RDWR)

    def allowed(self, num_bytes: int) -> int:
        """How many of so many bytes still go through."""
        with self.lock:
            if self.left_bytes is None:
                return num_bytes
            allowed = min(num_bytes, self.left_bytes)
            self.left_bytes -= allowed
            return allowed


class CuttingProxy:
    """Forwards ports of 127.0.0.1, each from a port of its own.

    Args:
        budgets: for each new connection the bytes, both directions together, after which it is cut;
            None: it is not. Negative: cut in good order (FIN) instead of reset. When they are used
            up nothing is cut any more.
    """

    def __init__(self, budgets: Iterable[int | None] = ()) -> None:
        self.num_cut = 0
        self.budget_of_all: int | None = None  # of new connections, without one of their own
        self._budgets = iter(budgets)
        self._lock = threading.Lock()
        self._ports: dict[int, int] = {}
        self._listeners: list[socket.socket] = []
        self._pairs: set[_Pair] = set()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def port_for(self, port: int) -> int:
        """Where that port is reached through the proxy."""
        with self._lock:
            if port not in self._ports:
                listener = socket.create_server(("127.0.0.1", 0))
                self._listeners.append(listener)
                self._ports[port] = listener.getsockname()[1]
                self._run(self._accept, listener, port)
            return self._ports[port]

    def cut_all(self) -> int:
        """Resets every connection now; returns how many."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.cut(reset=True)
        return len(pairs)

    def stall_all(self) -> None:
        """Nothing more goes through the connections of now, and nobody is told."""
        with self._lock:
            for pair in self._pairs:
                pair.is_stalled.set()

    def refuse(self) -> None:
        """From now on nobody listens."""
        with self._lock:
            listeners = self._listeners
        for listener in listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def close(self) -> None:
        self.refuse()
        with self._lock:
            self._is_closed = True
            pairs = list(self._pairs)
        for pair in pairs:
            pair.cut(reset=True)
        for thread in self._threads:
            thread.join(10.0)

    def _run(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", port), 5.0)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                budget = next(self._budgets, self.budget_of_all)
                pair = _Pair(near, far, None if budget is None else abs(budget))
                reset = budget is None or budget >= 0
                self._pairs.add(pair)
                if self._is_closed:
                    pair.cut(reset=True)
                done: list[bool] = []
                self._run(self._pump, pair, near, far, done, reset)
                self._run(self._pump, pair, far, near, done, reset)

    def _pump(
        self, pair: _Pair, source: socket.socket, sink: socket.socket, done: list[bool], reset: bool
    ) -> None:
        try:
            while piece := source.recv(PIECE_BYTES):
                allowed = pair.allowed(len(piece))
                if not pair.is_stalled.is_set():
                    sink.sendall(piece[:allowed])
                if allowed < len(piece):
                    self._cut_by_budget(pair, reset)
                    break
        except OSError:
            pass
        pair.cut(reset=False)
        with self._lock:
            done.append(True)
            if len(done) < 2:
                return
            self._pairs.discard(pair)
        pair.near.close()
        pair.far.close()

    def _cut_by_budget(self, pair: _Pair, reset: bool) -> None:
        with self._lock:
            self.num_cut += 1
        pair.cut(reset=reset)
