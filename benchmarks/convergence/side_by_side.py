"""Runs over all cores, each on one thread of a process of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import TracebackType

import torch

from benchmarks.convergence.runs import Run, final_loss


class Losses:
    """Final losses of runs, each computed once; used in a `with` statement.

    Args:
        shortened: divides the number of steps.
    """

    def __init__(self, shortened: int) -> None:
        self._final_loss = partial(final_loss, shortened=shortened)
        self._pool = ProcessPoolExecutor(
            os.cpu_count(), multiprocessing.get_context("spawn"), _begin
        )
        self._known: dict[Run, float] = {}

    def compute(self, runs: Iterable[Run]) -> None:
        """Computes those that are not known yet."""
        new = [run for run in dict.fromkeys(runs) if run not in self._known]
        new.sort(key=lambda run: -run.num_stages)  # the slowest first, so that no core waits
        self._known.update(zip(new, self._pool.map(self._final_loss, new), strict=True))

    def of(self, run: Run) -> float:
        """Of a run that was computed."""
        return self._known[run]

    def __enter__(self) -> Losses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


def _begin() -> None:
    logging.disable(logging.WARNING)  # the uncompensated rows are meant to be
    torch.set_num_threads(1)
