"""Labels of a two-criteria dynamic programme: pairs (excess, loop) of which less is better in both.

Exact labels are the Pareto points. Relaxed labels are at most two that no Pareto point beats: what
is computed from them is a lower bound, and the true value where two points are enough.
"""

from __future__ import annotations

import numpy as np

from ravnest.planning.inputs.table import Floats, Ints

_EQUAL = 1.0 + 1e-12  # rounding of sums in another order makes no Pareto point


def relaxed_pair(excess: Floats, loop: Floats) -> tuple[Floats, Floats]:
    """Two labels below all candidates in the last axis.

    The first is the one of least excess. The second has the least excess of those with a shorter
    loop, and the shortest loop of all; infinite where the first has the shortest loop.

    Returns:
        Excess and loop with a last axis of 2.
    """
    least = excess.min(axis=-1)
    limit = (least * _EQUAL)[..., None]
    first = np.where(excess <= limit, loop, np.inf).min(axis=-1)
    shorter = (loop * _EQUAL < first[..., None]) & np.isfinite(excess)
    others = np.where(shorter, excess, np.inf).min(axis=-1)
    shortest = np.where(shorter, loop, np.inf).min(axis=-1)
    return np.stack((least, others), axis=-1), np.stack((first, shortest), axis=-1)


def pareto_points(excess: Floats, loop: Floats, most: int) -> tuple[Floats, Floats, Ints, bool]:
    """The Pareto points of candidates [row, candidate], by ascending excess.

    Returns:
        Excess, loop and index of each [row, point], infinite (index 0) where there are fewer than
        `most`; and whether there were more than that, of which then those with the most excess are
        missing.
    """
    shape = len(excess), most
    excesses, loops = np.full(shape, np.inf), np.full(shape, np.inf)
    indices: Ints = np.zeros(shape, dtype=np.int64)
    rows = np.arange(len(excess))
    remaining = excess
    for place in range(most):
        limit = remaining.min(axis=1) * _EQUAL
        index = np.where(remaining <= limit[:, None], loop, np.inf).argmin(axis=1)
        found, its_loop = remaining[rows, index], loop[rows, index]
        its_loop[~np.isfinite(found)] = np.inf
        excesses[:, place], loops[:, place], indices[:, place] = found, its_loop, index
        is_shorter = loop * _EQUAL < its_loop[:, None]
        is_shorter[its_loop == np.inf] = False
        remaining = np.where(is_shorter, remaining, np.inf)
        if not np.isfinite(remaining).any():
            return excesses, loops, indices, False
    return excesses, loops, indices, True
