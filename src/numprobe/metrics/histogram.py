"""A histogram over all of float64: 8 bins an octave, at the exponent and the first three bits of the significand.

Its bins are the same for all data, so histograms of parts can be added. A quantile is known to within its bin, which is at most
1/8 wide, relative to its lower edge.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_SHIFT = 52 - 3
BINS = 1 << (11 + 3)


def count(bins: Counts, values: Floats, spare: Floats) -> None:
    """Add the values, none of which is negative, to ``bins``; ``spare`` is overwritten. 0 is in bin 0."""
    found = np.bincount(np.right_shift(values.view(np.int64), _SHIFT, out=spare.view(np.int64)))
    bins[: len(found)] += found


def quantile(bins: Counts, share: float) -> tuple[float, float]:
    """From and to of the bin of the smallest value that at least ``share`` of all values do not exceed."""
    index = int(np.searchsorted(np.cumsum(bins), share * int(bins.sum())))
    if index == 0:
        return 0.0, 0.0
    low, high = (np.array([index, index + 1], np.int64) << _SHIFT).view(np.float64)
    return float(low), float(high) if np.isfinite(high) else float(low)
