"""What became of every sample of an epoch: taken in, trained, left out. Counts alone, no network.

A sample's id is (epoch, number of its batch in the loader, row in the batch); a microbatch's is the
rows it has of its batch. Every stage keeps such a ledger; that of the root says what was sent, that
of the leaf what was trained. A microbatch is trained when the optimizer step has been made that its
gradient is part of. Sending one again after a fault (`Frame.attempt`) is no second entry: entries
are made by whoever computes, once per microbatch.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ravnest.errors import ProtocolError
from ravnest.node.microbatches import Rows
from ravnest.wire.frame import Frame

Run = tuple[int, int, int]
"""Numbers from the first to the last, both included, by a step."""

_ENTRY = struct.Struct("<4Q")


@dataclass(frozen=True, slots=True)
class Entry:
    """The samples of one microbatch: rows of a batch, by its number in the loader."""

    batch: int
    rows: Rows

    @classmethod
    def of(cls, frame: Frame) -> Entry:
        """What the root said in the frame of a microbatch."""
        return cls(int(frame.details["batch"]), Rows.of(frame))


class NumberRuns:
    """Numbers in the order they come, as few runs as regular numbers make.

    Args:
        period: step within a run; clusters that take turns get every so many-th batch.
    """

    def __init__(self, period: int = 1) -> None:
        self._period = period
        self._runs: dict[int, list[list[int]]] = {}
        self._count = 0

    def add(self, number: int) -> None:
        """Appends a number."""
        runs = self._runs.setdefault(number % self._period, [])
        if runs and runs[-1][1] + self._period == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
        self._count += 1

    def freeze(self) -> tuple[Run, ...]:
        """The runs, by their first number."""
        found = sorted((a, b, self._period) for runs in self._runs.values() for a, b in runs)
        if len(found) > 1:
            first, last = found[0][0], max(b for _, b, _ in found)
            is_regular = len(found) == len(self._runs)  # so that no number is there twice
            if is_regular and self._count == last - first + 1:
                return ((first, last, 1),)
        return tuple(found)

    def __len__(self) -> int:
        return self._count


def numbers_in(runs: Iterable[Run]) -> Iterator[int]:
    """Every number, as often as it is there."""
    for first, last, step in runs:
        yield from range(first, last + 1, step)


def in_words(runs: Iterable[Run]) -> str:
    """Such as "0-8, 11, 12-20:2" (every second from 12 to 20); empty for none."""
    return ", ".join(
        str(first) if first == last else f"{first}-{last}" + (f":{step}" if step > 1 else "")
        for first, last, step in runs
    )


@dataclass(frozen=True, slots=True)
class Account:
    """Microbatches in order, summed up so that two nodes can compare them.

    Attributes:
        batches: numbers of the batches that they are of.
        digest: CRC-32 of (batch, first row, row after the last, rows of the batch) of each.
    """

    batches: tuple[Run, ...]
    num_microbatches: int
    num_samples: int
    digest: int

    def details(self) -> dict[str, Any]:
        """As plain data, for a frame."""
        return {
            "batches": [list(run) for run in self.batches],
            "num_microbatches": self.num_microbatches,
            "num_samples": self.num_samples,
            "digest": self.digest,
        }

    @classmethod
    def of(cls, details: Any) -> Account:
        """What a peer says; ProtocolError when it is no account."""
        try:
            runs = tuple((int(a), int(b), max(int(step), 1)) for a, b, step in details["batches"])
            return cls(
                runs,
                int(details["num_microbatches"]),
                int(details["num_samples"]),
                int(details["digest"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a peer sent no account of an epoch: {details!r:.200}") from error


class _Tally:
    """An account in the making."""

    def __init__(self, period: int) -> None:
        self._batches = NumberRuns(period)
        self._last: int | None = None
        self._num_microbatches = 0
        self._num_samples = 0
        self._digest = 0

    def add(self, entry: Entry) -> None:
        rows = entry.rows
        if entry.batch != self._last or (rows.start == 0 and rows.total):
            self._batches.add(entry.batch)
            self._last = entry.batch
        packed = _ENTRY.pack(entry.batch, rows.start, rows.stop, rows.total)
        self._digest = zlib.crc32(packed, self._digest)
        self._num_microbatches += 1
        self._num_samples += rows.num_samples

    def account(self) -> Account:
        return Account(
            self._batches.freeze(), self._num_microbatches, self._num_samples, self._digest
        )


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One stage's ledger of an epoch.

    Attributes:
        taken: what its forward passes were made of.
        trained: what its optimizer steps were made of, those left out included.
        steps: numbers of its optimizer steps.
        left_out: batches whose step was left out, because a gradient in float16 overflowed.
        empty: batches without a sample.
    """

    taken: Account
    trained: Account
    steps: tuple[Run, ...]
    left_out: tuple[Run, ...]
    empty: tuple[Run, ...]

    @property
    def repeated(self) -> tuple[Run, ...]:
        """Batches that the script trained on more than once in the epoch."""
        seen, again = set[int](), NumberRuns()
        if len(self.trained.batches) > 1:  # one run has no number twice
            for number in sorted(numbers_in(self.trained.batches)):
                if number in seen:
                    again.add(number)
                seen.add(number)
        return again.freeze()


class Ledger:
    """One stage's entries of the epoch that runs. Costs microseconds per microbatch.

    Args:
        period: of the turns in which clusters get batches.
    """

    def __init__(self, period: int = 1) -> None:
        self._period = period
        self._taken, self._trained = _Tally(period), _Tally(period)
        self._awaiting_step: list[Entry] = []
        self._steps = NumberRuns()
        self._left_out, self._empty = NumberRuns(period), NumberRuns(period)
        self._last_empty: int | None = None

    def take(self, entry: Entry) -> None:
        """At a microbatch's forward pass."""
        self._taken.add(entry)
        if not entry.rows.total and entry.batch != self._last_empty:
            self._last_empty = entry.batch  # all microbatches of it are empty
            self._empty.add(entry.batch)

    def complete(self, entry: Entry) -> None:
        """When its backward pass is made; the next `step` applies it."""
        self._awaiting_step.append(entry)

    def step(self, number: int, *, is_left_out: bool) -> None:
        """At the optimizer step of that number."""
        self._steps.add(number)
        for entry in self._awaiting_step:
            self._trained.add(entry)
            if is_left_out and entry.rows.start == 0 and entry.rows.total:
                self._left_out.add(entry.batch)
        self._awaiting_step.clear()

    @property
    def taken(self) -> Account:
        """What forward passes of this epoch were made of so far."""
        return self._taken.account()

    def close(self) -> EpochRecord:
        """Ends the epoch."""
        record = EpochRecord(
            self._taken.account(),
            self._trained.account(),
            self._steps.freeze(),
            self._left_out.freeze(),
            self._empty.freeze(),
        )
        Ledger.__init__(self, self._period)
        return record


def differing(sent: Account, trained: Account) -> Mapping[str, str]:
    """Which batches only one of two accounts has; empty when they have the same ones."""
    ours, theirs = sorted(numbers_in(sent.batches)), sorted(numbers_in(trained.batches))
    found: dict[str, str] = {}
    for words, one, other in (
        ("sent but not trained", ours, theirs),
        ("trained but not sent", theirs, ours),
    ):
        missing = NumberRuns()
        for number in sorted(set(one) - set(other)):
            missing.add(number)
        if len(missing):
            found[words] = in_words(missing.freeze())
    return found
