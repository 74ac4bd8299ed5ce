"""Events of a run as JSON lines in a file, one file per node. Knows nothing of what it records."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

_log = logging.getLogger(__name__)

Value = bool | int | float | str | None

_OWN_FIELDS = frozenset({"time", "node", "cluster", "stage", "event"})


class EventName(StrEnum):
    """Everything a run records; readers may rely on there being no other name.

    STALENESS, once per epoch, is a histogram: `stale_<k>` microbatches had k optimizer steps
    between the weights of their forward pass and those that their gradient was for. COMPRESSION,
    once per neighbour in the cluster, says what it is sent in which codec, and why.

    LEDGER, once per epoch on root and leaf, says what became of every sample, by the numbers of the
    loader's batches, as ranges ("0-8, 12-20:2", every second of the latter; "" for none). `batches`
    were trained, in the optimizer steps `steps`; of these `left_out` were in steps that a
    float16 overflow cancelled, `repeated` were trained more than once, `empty` had no
    samples. On the root also what its loader had and nobody trained: `skipped` batches, which the
    script took and passed over, `unread` ones, before which it broke off, and `cut_off`: positions
    in the sampler's order of the samples that drop_last leaves out.
    """

    RUN_STARTED = "run_started"
    COMPRESSION = "compression"
    STEP = "step"
    EPOCH_ENDED = "epoch_ended"
    STALENESS = "staleness"
    LEDGER = "ledger"
    EVALUATION = "evaluation"
    AVERAGING_ROUND = "averaging_round"
    WAITED = "waited"
    SAVED = "saved"
    FAILED = "failed"
    RUN_ENDED = "run_ended"


def _utc_now() -> datetime:
    return datetime.now(UTC)


class EventLog:
    """Writes one JSON object per event to `<folder>/node_<id>.jsonl`; thread-safe.

    Every line has `time` (UTC, ISO 8601 with microseconds), `node`, `cluster`, `stage`, `event` and
    the fields of the event, which are JSON scalars. JSON has no NaN and no infinities: they are
    written as the strings "nan", "inf" and "-inf". A line is complete on disk when `emit` returns,
    as far as the operating system is concerned.

    A new log replaces the file of an earlier run in one step: a reader, and a process of that run
    that still writes, keep the old file, and no line of it is in the new one.

    When a line cannot be written (a full disk) the rest of the events is lost, with one warning:
    training is worth more than its record.

    Args:
        folder: made when missing, with its parents.
        node: id of the node.
        cluster: id of its cluster.
        stage: index of its stage in the cluster.
        now: tells the time; aware, in UTC.

    Raises:
        OSError: the folder or the file cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        *,
        node: int,
        cluster: int,
        stage: int,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.path = folder / f"node_{node}.jsonl"
        self._place = {"node": node, "cluster": cluster, "stage": stage}
        self._now = now
        self._lock = threading.Lock()
        self._is_lost = False
        folder.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        fresh.touch()
        fresh.replace(self.path)
        self._file = self.path.open("a", buffering=1, encoding="utf-8", newline="\n")

    def emit(self, event: EventName, **fields: Value) -> None:
        """Appends one event.

        Raises:
            TypeError: a value is no JSON scalar, such as a tensor.
            ValueError: a field has the name of one that every event has, or the log is closed.
        """
        if taken := _OWN_FIELDS & fields.keys():
            raise ValueError(f"event {event} has fields {sorted(taken)}; every event has its own")
        values = {name: _json_scalar(event, name, value) for name, value in fields.items()}
        with self._lock:
            if self._file.closed:
                raise ValueError(f"event {event} comes after {self.path} was closed")
            time = self._now().isoformat(timespec="microseconds")
            record = {"time": time, **self._place, "event": EventName(event).value, **values}
            self._write(json.dumps(record, allow_nan=False) + "\n")

    def close(self) -> None:
        """Closes the file; idempotent."""
        with self._lock:
            try:
                self._file.close()
            except OSError as error:
                self._lose(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, line: str) -> None:
        if not self._is_lost:
            try:
                self._file.write(line)
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        if not self._is_lost:
            self._is_lost = True
            _log.warning(
                "cannot write to %s (%s); events from now on are lost, training goes on",
                self.path,
                error,
            )


def _json_scalar(event: EventName, name: str, value: Value) -> Value:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(
            f"field {name!r} of event {event} is a {type(value).__name__};"
            " expected a bool, int, float, str or None (a tensor: its .item())"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value
