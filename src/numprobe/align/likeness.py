"""How alike two records are by what they computed: to tell calls of one API apart."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise

import numpy as np

from numprobe.align.calls import Calls
from numprobe.formats.msprobe.values import GIVEN, ValueTable

Signature = tuple[float, ...]


class Likeness:
    """``likeness(t, g)`` in 0..1: half from the figures (or digests), the rest from shapes and the line of code."""

    def __init__(self, target: Calls, golden: Calls) -> None:
        self.target, self.golden = target, golden

    def __call__(self, t: int, g: int) -> float:
        (figures_t, shapes_t), (figures_g, shapes_g) = self._sides
        alike = self._digests(t, g) if self._both_digests else _alike(figures_t[t], figures_g[g])
        same_code = self.target.code(t) == self.golden.code(g)
        return 0.5 * alike + 0.3 * (shapes_t[t] == shapes_g[g]) + 0.2 * same_code

    def _digests(self, t: int, g: int) -> float:
        one, other = self.target.values, self.golden.values
        pairs = [(one.digests.get(a), other.digests.get(b)) for a, b in zip(one.rows(t), other.rows(g), strict=False)]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        return sum(a == b for a, b in known) / len(known) if known else 0.0

    @cached_property
    def _both_digests(self) -> bool:
        return bool(self.target.values.digests and self.golden.values.digests)

    @cached_property
    def _sides(self) -> tuple[tuple[list[Signature], list[object]], tuple[list[Signature], list[object]]]:
        numbers: dict[object, int] = {}
        sides = [(_signatures(v), _shapes(v, numbers)) for v in (self.target.values, self.golden.values)]
        return sides[0], sides[1]


def _alike(a: Signature, b: Signature) -> float:
    total, count = 0.0, 0
    for x, y in zip(a, b, strict=True):
        if x == x and y == y:
            size = max(abs(x), abs(y))
            total += math.exp(-20 * abs(x - y) / size) if 0 < size < math.inf else float(x == y)
            count += 1
    return total / count if count else 0.0


def _signatures(values: ValueTable) -> list[Signature]:
    """By record: Norm, Max and Min of the first and of the last tensor; NaN where there is none."""
    found = np.full((len(values.names), 6), np.nan)
    rows = np.flatnonzero((values.status[:, 0] == GIVEN) & np.isfinite(values.figures[:, 0]))
    if len(rows):
        owner = values.op_of()[rows]
        columns = values.figures[rows][:, [3, 0, 1]]
        begin = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
        end = np.r_[begin[1:], len(owner)] - 1
        found[owner[begin], :3] = columns[begin]
        found[owner[begin], 3:] = columns[end]
    return [tuple(row) for row in found.tolist()]


def _shapes(values: ValueTable, numbers: dict[object, int]) -> list[object]:
    """By record: the shapes of its leaves, as numbers that are shared by both sides."""
    known = [numbers.setdefault(shape, len(numbers)) for shape in values.shapes]
    shape, first = [known[i] for i in values.shape.tolist()], values.first.tolist()
    return [tuple(shape[a:b]) for a, b in pairwise(first)]
