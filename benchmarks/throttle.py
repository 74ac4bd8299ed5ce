"""Makes processes slower for real: each gets a set share of a processor's time, the whole process.

What a container's processor limit does, without its rights (Linux only): a thread here follows
the processor time of each process, stops it (SIGSTOP) once its balance is used up, and lets it go
on when a quantum has come together. A balance does not grow beyond a quantum, so that nobody saves
up time while waiting for others. Threads of gRPC are stopped with the rest and count as well: that
is a slow machine, not a slow model. A period is short beside a microbatch, so that the process as
good as runs evenly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

PERIOD_S = 0.02
_SHORTEST_S = 0.0005
_CPUCLOCK_SCHED = 2  # Linux: processor time of a whole process, as a clock id


@dataclass
class _Account:
    """One process: its share, what it may still use, and whether it is stopped."""

    pid: int
    share: float
    balance_s: float
    used_s: float
    is_stopped: bool = False

    def settle(self, elapsed_s: float) -> float:
        """Books the time since the last call; returns seconds to the next thing to do."""
        used_s = time.clock_gettime(_clock_of(self.pid))
        quantum_s = self.share * PERIOD_S
        earned_s = self.share * elapsed_s
        self.balance_s = min(quantum_s, self.balance_s + earned_s - (used_s - self.used_s))
        self.used_s = used_s
        if self.is_stopped and self.balance_s >= quantum_s:
            os.kill(self.pid, signal.SIGCONT)
            self.is_stopped = False
        elif not self.is_stopped and self.balance_s <= 0:
            os.kill(self.pid, signal.SIGSTOP)
            self.is_stopped = True
        if self.is_stopped:
            return (quantum_s - self.balance_s) / self.share
        return self.balance_s


class Throttle:
    """Throttles processes from construction to `close`.

    Args:
        shares: by process id the part of one processor it may use, 0 to 1; all of them together
            should be less than there are processors.
    """

    def __init__(self, shares: Mapping[int, float]) -> None:
        self._accounts = {
            pid: _Account(pid, share, 0.0, time.clock_gettime(_clock_of(pid)))
            for pid, share in shares.items()
        }
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="throttle")
        self._thread.start()

    def close(self) -> None:
        """Lets every process go on freely."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while self._accounts and not self._ended.is_set():
            now = time.monotonic()
            pause_s = PERIOD_S
            for pid, account in list(self._accounts.items()):
                try:
                    pause_s = min(pause_s, account.settle(now - before))
                except OSError:  # it has exited
                    del self._accounts[pid]
            before = now
            self._ended.wait(max(_SHORTEST_S, pause_s))
        for account in self._accounts.values():
            if account.is_stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(account.pid, signal.SIGCONT)


def _clock_of(pid: int) -> int:
    return (~pid << 3) | _CPUCLOCK_SCHED
