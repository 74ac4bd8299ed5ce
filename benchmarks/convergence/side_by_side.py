"""Runs over all cores, each on one thread of a process of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch

from benchmarks.convergence.runs import Run, final_loss


def processes() -> ProcessPoolExecutor:
    """One for each core."""
    return ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), _begin)


class Losses:
    """Final losses of runs, each computed once.

    Args:
        pool: of `processes`.
        shortened: divides the number of steps.
    """

    def __init__(self, pool: ProcessPoolExecutor, shortened: int) -> None:
        self._final_loss = partial(final_loss, shortened=shortened)
        self._pool = pool
        self._known: dict[Run, float] = {}

    def compute(self, runs: Iterable[Run]) -> None:
        """Computes those that are not known yet."""
        new = [run for run in dict.fromkeys(runs) if run not in self._known]
        new.sort(key=lambda run: -run.num_stages)  # the slowest first, so that no core waits
        self._known.update(zip(new, self._pool.map(self._final_loss, new), strict=True))

    def of(self, run: Run) -> float:
        """Of a run that was computed."""
        return self._known[run]


def _begin() -> None:
    logging.disable(logging.WARNING)  # the uncompensated rows are meant to be
    torch.set_num_threads(1)
