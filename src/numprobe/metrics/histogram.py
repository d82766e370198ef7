"""A histogram of sizes: 8 bins an octave, at the exponent and the first three bits of a float64, from 2**-256 to 2**256.

Its bins are the same for all data, so histograms of parts can be added. A quantile is known to within its bin, which is at most
1/8 wide, relative to its lower edge. What is smaller than the first edge counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

SHIFT = 52 - 3
FIRST = (1023 - 256) << 3  # the bin of 2**-256 among those of all float64
BINS = 2 * 256 << 3


def count(bins: Counts, values: Floats, spare: Floats) -> None:
    """Add the values, which are neither negative nor NaN, to ``bins``; ``spare`` is overwritten."""
    found = np.bincount(np.right_shift(values.view(np.int64), SHIFT, out=spare.view(np.int64)))
    bins[0] += found[: FIRST + 1].sum()
    inside = found[FIRST + 1 : FIRST + BINS]
    bins[1 : len(inside) + 1] += inside
    bins[-1] += found[FIRST + BINS :].sum()


def quantiles(bins: Counts, shares: Sequence[float]) -> list[tuple[float, float]]:
    """For each share, from and to of the bin of the smallest value that at least that share of all values do not exceed."""
    used = np.flatnonzero(bins != 0)  # of booleans, this is ten times faster
    if not len(used):
        return [(0.0, 0.0)] * len(shares)
    below = np.cumsum(bins[used])
    found = []
    for share in shares:
        index = int(used[np.searchsorted(below, share * int(below[-1]))])
        low, high = (np.array([index, index + 1], np.int64) + FIRST << SHIFT).view(np.float64)
        found.append((float(low), float(high)) if index else (0.0, 0.0))
    return found
