"""Which rank of a group a finding is about: the rank whose part of the tensor differs.

With tensors each part is compared with its piece of the other side. With figures the other side has only those of the whole, and
its extremes tell: a part with an element beyond them is wrong; one that has them is right; of those that are left, the one whose
root mean square is not what it is in other layers. What cannot be told apart is named together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numprobe.align.calls import Calls
from numprobe.align.shards.joined import COMMUNICATION, JoinedCalls
from numprobe.align.shards.merged import MergedCalls
from numprobe.align.shards.spread import DIVERGED, PARTIAL
from numprobe.align.shards.tables import Rows
from numprobe.align.shards.tensor import Piece, joined
from numprobe.formats.msprobe.values import GIVEN, ValueTable
from numprobe.metrics.distance import distance
from numprobe.record.errors import NumprobeError
from numprobe.record.trace import OUTPUT

SAME_FACTOR = 1e-5
DISTINCT = 3.0  # a deviation that is so much larger than every other one is one rank's
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Blame:
    """``columns`` of the joined side; ``diverged``: they should have had what the others have."""

    columns: tuple[int, ...]
    diverged: bool = False


def blamed(
    side: JoinedCalls, other: Calls, record: int, row: int, partner: Rows, expected: float, *, tensors: bool
) -> Blame:
    """Of a finding at ``row`` of the joined side, a leaf of ``record``. ``partner``: by row of the side, that of the other.

    ``expected`` is the relative error that the row may have; ``tensors``: it was measured from tensors.
    """
    columns = tuple(np.flatnonzero(side.parts[row] >= 0).tolist())
    if not isinstance(side, MergedCalls) or partner[row] < 0 or len(columns) == 1:
        return Blame(columns)
    if side.spread.case[row] == DIVERGED:
        return Blame(_diverged(side, row), True)
    if row in side.spread.copies:
        return Blame(_odd_copies(side, row) or columns, True)
    summed = side.values.slots[side.values.slot[row]][0] == OUTPUT and _adds_up(side, record)
    if row in side.spread.split and not summed:
        found = _by_tensors(side, other, row, int(partner[row])) if tensors else []
        found = found or _by_figures(side, other.values, row, partner, expected)
        return Blame(tuple(columns[i * side.spread.split[row].copies] for i in found))
    return Blame(_not_finite_inside(side, record) or columns)


def _diverged(side: MergedCalls, row: int) -> tuple[int, ...]:
    """The columns that have what the farthest one has."""
    table, parts = side.ranks.table, side.parts[row]
    farthest = int(parts[side.spread.member[row]])
    return tuple(
        int(c)
        for c in np.flatnonzero(parts >= 0)
        if np.array_equal(table.figures[parts[c]], table.figures[farthest], equal_nan=True)
        and table.digests.get(int(parts[c])) == table.digests.get(farthest)
    )


def _odd_copies(side: MergedCalls, row: int) -> tuple[int, ...]:
    """Columns that stand for a part that others should have, and have not."""
    table, copies = side.ranks.table, side.spread.split[row].copies
    columns = np.flatnonzero(side.parts[row] >= 0).tolist()
    parts = side.parts[row]
    odd = []
    for i, chosen in enumerate(side.spread.copies[row]):
        siblings = columns[i * copies : (i + 1) * copies]
        same = [np.array_equal(table.figures[parts[c]], table.figures[parts[chosen]], equal_nan=True) for c in siblings]
        odd += [c for c, is_same in zip(siblings, same, strict=True) if is_same] if not all(same) else []
    return tuple(odd)


# --- by tensors ------------------------------------------------------------------------------------------------------


def _by_tensors(side: MergedCalls, other: Calls, row: int, there: int) -> list[int]:
    """The parts that are far from their pieces of the other side; none where there are no files."""
    values = side.values
    if row not in values.files or there not in other.values.files:
        return []
    own = side.own_parts(row)
    dim, order = side.spread.split[row].dim, side.order(row)
    apart = []
    try:
        whole = side.tensors.open(values.files[row])
        golden = other.tensors.open(other.values.files[there])
        for part in range(len(own)):
            pieces = _of_part(order, part)
            d = distance(joined([whole], dim, pieces), joined([golden], dim, pieces), threads=1)
            apart.append(np.inf if d.nonfinite_mismatch else d.relative_l2 if d.finite else 0.0)
    except (NumprobeError, ValueError):
        return []
    worst = max(apart)
    return [i for i, a in enumerate(apart) if a == worst or a > worst / DISTINCT] if worst > 0 else []


def _of_part(order: Sequence[Piece], part: int) -> list[Piece]:
    """Where the pieces of one part lie in the whole."""
    found, at = [], 0
    for piece in order:
        if piece.part == part:
            found.append(Piece(0, at, piece.length))
        at += piece.length
    return found


# --- by figures ------------------------------------------------------------------------------------------------------


def _by_figures(side: MergedCalls, other: ValueTable, row: int, partner: Rows, expected: float) -> list[int]:
    table, own = side.ranks.table, side.own_parts(row)
    parts, whole = table.figures[own], other.figures[partner[row]]
    finite = np.isfinite(parts[:, :2]).all(1)
    if np.isfinite(whole[:2]).all() and not finite.all():
        return _numbers(~finite)
    scale = np.maximum(np.abs(whole[:2]), 1e-300)
    slack = scale * max(2 * expected if expected == expected else 0.0, 1e-6)
    beyond = (parts[:, 0] > whole[0] + slack[0]) | (parts[:, 1] < whole[1] - slack[1])
    right: NDArray[np.bool_] = (np.abs(parts[:, :2] - whole[:2]) <= slack).max(1)
    if beyond.any():
        return _numbers(beyond if not _others_too(parts, whole, beyond) else ~right)
    left = _numbers(~right) or list(range(len(own)))
    if len(left) > 1:
        apart = _unusual(side, other, row, partner)[left]
        first, second = np.sort(apart)[::-1][:2]
        if first > DISTINCT * second:
            return [left[int(np.argmax(apart))]]
    return left


def _others_too(parts: Floats, whole: Floats, beyond: NDArray[np.bool_]) -> bool:
    """One part is the whole's times a factor, by both its extremes; if it alone were, its norm would say the same factor."""
    if beyond.sum() != 1:
        return False
    [one] = np.flatnonzero(beyond)
    with np.errstate(all="ignore"):
        high, low = parts[one, :2] / whole[:2]
        norm = parts[one, 3] / np.sqrt(whole[3] ** 2 - (parts[~beyond, 3] ** 2).sum())
    return bool(abs(high - low) <= SAME_FACTOR * abs(high) and not abs(norm - high) <= 100 * SAME_FACTOR * abs(high))


def _numbers(chosen: np.bool_ | NDArray[np.bool_]) -> list[int]:
    found: list[int] = np.flatnonzero(chosen).tolist()
    return found


def _unusual(side: MergedCalls, other: ValueTable, row: int, partner: Rows) -> Floats:
    """By part: how far rms(part) / rms(whole) is from what it is in the other layers."""
    mine = _shares(side, other, row, partner)
    others = [r for r in side.of_kind[side.kind_of(row)] if r != row and r in side.spread.split]
    layers = [shares for r in others if len(shares := _shares(side, other, r, partner)) == len(mine)]
    usual = np.median(layers, axis=0) if layers else np.ones(len(mine))
    with np.errstate(all="ignore"):
        found: Floats = np.nan_to_num(np.abs(mine / usual - 1))
    return found


def _shares(side: MergedCalls, other: ValueTable, row: int, partner: Rows) -> Floats:
    table, own, there = side.ranks.table, side.own_parts(row), int(partner[row])
    with np.errstate(all="ignore"):
        whole = other.figures[there, 3] / np.sqrt(other.numel[there])
        shares: Floats = table.figures[own, 3] / np.sqrt(table.numel[own]) / whole
    return shares


# --- what every rank has the same of ---------------------------------------------------------------------------------


def _adds_up(side: MergedCalls, record: int) -> bool:
    """Does a sum over the ranks come out of the record? Whose addend was wrong, the parts of the sum do not tell."""
    inside = [op for i in side.children[record] if (op := side.ops[i]).prefix == COMMUNICATION]
    return any("reduce" in op.api for op in (*inside, *(op for op, _ in side.talk.get(record, ()))))


def _not_finite_inside(side: MergedCalls, record: int) -> tuple[int, ...]:
    """A sum is not finite on any rank where one addend is not: columns that have such an addend in the record."""
    work = [record]
    while work:
        at = work.pop()
        work += side.children[at]
        rows = side.values.rows(at)
        lines = [
            *side.parts[rows][side.spread.case[rows] == PARTIAL],
            *(p for _, parts in side.talk.get(at, ()) for p in parts),
        ]
        for line in lines:
            columns = np.flatnonzero(line >= 0)
            finite = _finite(side.ranks.table, line[columns])
            if not finite.all() and finite.any():
                return tuple(columns[~finite].tolist())
    return ()


def _finite(table: ValueTable, rows: Rows) -> NDArray[np.bool_]:
    """Absent figures are no sign of anything."""
    given = (table.status[rows, :2] == GIVEN).all(1)
    finite: NDArray[np.bool_] = np.isfinite(table.figures[rows, :2]).all(1) | ~given
    return finite
