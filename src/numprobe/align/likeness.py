"""How alike two records are by what they computed: to tell calls of one API apart."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from numprobe.align.calls import Calls
from numprobe.formats.msprobe.values import GIVEN, ValueTable


class Likeness:
    """``likeness(t, g)`` in 0..1: half from the figures (or digests), the rest from shapes and the line of code."""

    def __init__(self, target: Calls, golden: Calls) -> None:
        self.target, self.golden = target, golden

    def __call__(self, t: int, g: int) -> float:
        shapes = self._shapes(self.target, t) == self._shapes(self.golden, g)
        return 0.5 * self._figures(t, g) + 0.3 * shapes + 0.2 * (self.target.code(t) == self.golden.code(g))

    @staticmethod
    def _shapes(calls: Calls, i: int) -> list[object]:
        values = calls.values
        return [values.shapes[values.shape[row]] for row in values.rows(i)]

    def _figures(self, t: int, g: int) -> float:
        digests = [v.digests for v in (self.target.values, self.golden.values)]
        if digests[0] and digests[1]:
            pairs = list(zip(self.target.values.rows(t), self.golden.values.rows(g), strict=False))
            both = [(digests[0][a], digests[1][b]) for a, b in pairs if a in digests[0] and b in digests[1]]
            return sum(a == b for a, b in both) / len(both) if both else 0.0
        one, other = self._sides[0][t], self._sides[1][g]
        both_given = ~(np.isnan(one) | np.isnan(other))
        if not both_given.any():
            return 0.0
        a, b = one[both_given], other[both_given]
        with np.errstate(all="ignore"):
            apart = np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-30)
        return float(np.exp(-20 * apart).mean())

    @cached_property
    def _sides(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return _signature(self.target.values), _signature(self.golden.values)


def _signature(values: ValueTable) -> NDArray[np.float64]:
    """(records, 6): Norm, Max and Min of the first and of the last tensor of each record; NaN where there is none."""
    found = np.full((len(values.names), 6), np.nan)
    rows = np.flatnonzero((values.status[:, 0] == GIVEN) & np.isfinite(values.figures[:, 0]))
    if not len(rows):
        return found
    owner = values.op_of()[rows]
    columns = values.figures[rows][:, [3, 0, 1]]
    begin = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    end = np.r_[begin[1:], len(owner)] - 1
    found[owner[begin], :3] = columns[begin]
    found[owner[begin], 3:] = columns[end]
    return found
