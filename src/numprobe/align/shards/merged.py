"""A group of ranks as one side: figures of the whole from those of the parts, and tensors that are read from several files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from numprobe.align.shards.columns import of_backward
from numprobe.align.shards.joined import JoinedCalls
from numprobe.align.shards.signature import pattern
from numprobe.align.shards.split import Shape, merged_figures
from numprobe.align.shards.spread import PADDED, PARTIAL, SPLIT, UNFIT, UNKNOWN, Spread
from numprobe.align.shards.tables import Rows
from numprobe.align.shards.tensor import Piece, joined, pieces
from numprobe.formats.msprobe.values import ABSENT, GIVEN, NULL, Texts, ValueTable
from numprobe.formats.tensors import TensorFile
from numprobe.record.dtypes import float_format
from numprobe.record.trace import PARAMETER

T = TypeVar("T")
Status = NDArray[np.uint8]
SAME_RATIO = 0.01


@dataclass
class MergedCalls(JoinedCalls):
    """A joined side whose leaves have the figures and shapes of the whole tensors.

    ``groups``: by row, in how many groups along the split dimension the parts lie (2: gate and up, each split by itself); 1 where
    it is not in there. ``full`` is the shape on the other side, of split rows. ``averaged``: the loss is a mean over each
    rank's own part of a batch, so that all gradients are so many times those of the other side.
    """

    spread: Spread = field(kw_only=True)
    full: dict[int, Shape] = field(kw_only=True)
    groups: dict[int, int] = field(kw_only=True)
    averaged: int = 1

    @property
    def left_out(self) -> Mapping[str, Rows]:
        reasons = (("partial", PARTIAL), ("shards", UNFIT), ("padding", PADDED))
        found = {reason: np.flatnonzero(self.spread.case == case) for reason, case in reasons}
        if self.averaged > 1:
            found["average"] = np.flatnonzero(self._of_backward() & (self.spread.case != UNKNOWN))
        return found

    def _of_backward(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.array(of_backward(self), bool)[self.values.op_of()]
        return found

    def find_average(self, other: ValueTable, partner: Rows) -> int:
        """How many times the other side's gradients are these, if that is the number of parts; else 1."""
        rows = np.flatnonzero((self.spread.case == SPLIT) & self._of_backward())
        mine, theirs = self.values.figures[rows, 3], other.figures[partner[rows], 3]
        told = np.isfinite(mine) & np.isfinite(theirs) & (theirs > 0)
        if not told.any():
            return 1
        parts, ratio = self.parts.shape[1], float(np.median(mine[told] / theirs[told]))
        return parts if abs(ratio / parts - 1) < SAME_RATIO else 1

    def order(self, row: int) -> tuple[Piece, ...]:
        """How the parts of a split row lie in the whole: pieces of the columns that are not copies of others."""
        split, shape = self.spread.split[row], self.full[row]
        table = self.ranks.table
        sizes = [(table.shapes[table.shape[p]] or ())[split.dim] for p in self.own_parts(row)]
        return pieces(sizes, shape[split.dim], self.groups.get(row, 1))

    def orders(self) -> dict[str, int]:
        """Numbers of groups of parameters, where that is more than one, by name without the layer's number."""
        values = self.values
        found = {}
        for row, groups in self.groups.items():
            role, path = values.slots[values.slot[row]]
            if role == PARAMETER:
                found[pattern(f"{self.path_of(row)}.{path.rsplit('.', 1)[-1]}")[0]] = groups
        return found

    def own_parts(self, row: int) -> list[int]:
        """Rows, in the table of all ranks, of the different parts of a leaf."""
        if row in self.spread.copies:
            return [int(self.parts[row, c]) for c in self.spread.copies[row]]
        members = [int(p) for p in self.parts[row] if p >= 0]
        split = self.spread.split.get(row)
        return members if split is None else members[:: split.copies]

    def tensor_of(self, row: int, part: Callable[[int], TensorFile]) -> TensorFile:
        if row in self.spread.split:
            parts = [part(p) for p in self.own_parts(row)]
            return joined(parts, self.spread.split[row].dim, self.order(row))
        if row in self.spread.member:
            return part(int(self.parts[row, self.spread.member[row]]))
        return super().tensor_of(row, part)


def merge(side: JoinedCalls, spread: Spread, other: ValueTable, partner: Rows) -> MergedCalls:
    """``partner``: by row of ``side``, the row of the other side; -1 where there is none."""
    full = {row: other.shapes[other.shape[partner[row]]] or () for row in spread.split}
    merged = MergedCalls(
        side.dump,
        side.values,
        side.parent,
        side.around,
        side.phase,
        ranks=side.ranks,
        records=side.records,
        parts=side.parts,
        talk=side.talk,
        spread=spread,
        full=full,
        groups={},
    )
    merged.values = _whole_values(merged)
    _drop_digests(merged.values, other, partner)
    merged.averaged = merged.find_average(other, partner)
    return merged


def _whole_values(side: MergedCalls) -> ValueTable:
    values, table, spread = side.values, side.ranks.table, side.spread
    figures, status = values.figures.copy(), values.status.copy()
    shape, numel = values.shape.copy(), values.numel.copy()
    exact, digests, files = dict(values.exact), dict(values.digests), dict(values.files)
    for row, column in spread.member.items():
        part = int(side.parts[row, column])
        figures[row], status[row] = table.figures[part], table.status[part]
        _take_over(exact, row, table.exact, part)
        _take_over(digests, row, table.digests, part)
    shapes = Texts()
    for known in values.shapes:
        shapes.number(known)
    by_count: dict[int, list[int]] = defaultdict(list)
    for row in spread.split:
        shape[row] = shapes.number(side.full[row])
        numel[row] = int(np.prod(side.full[row]))
        digests.pop(row, None)
        exact.pop(row, None)
        by_count[len(side.own_parts(row))].append(row)
    for rows in by_count.values():
        parts = np.array([side.own_parts(row) for row in rows])
        figures[rows] = merged_figures(table.figures[parts], table.numel[parts])
        status[rows] = _merged_status(table.status[parts], table.numel[parts])
        for row, members in zip(rows, parts.tolist(), strict=True):
            whole = [table.exact[p][:2] for p in members if p in table.exact and None not in table.exact[p][:2]]
            if len(whole) == len(members):
                mean, norm = figures[row, 2:].tolist()
                exact[row] = (max(w[0] for w in whole), min(w[1] for w in whole), mean, norm)  # type: ignore[type-var]
    padded = [row for row in spread.split if spread.case[row] == PADDED]
    figures[padded], status[padded] = np.nan, ABSENT
    for row in np.flatnonzero((spread.case == PARTIAL) | (spread.case == UNFIT)).tolist():
        files.pop(row, None)
    for row in [r for r in files if any(int(p) not in table.files for p in side.own_parts(r))]:
        del files[row]
    return replace(
        values,
        shape=shape,
        shapes=shapes.all,
        numel=numel,
        figures=figures,
        status=status,
        exact=exact,
        digests=digests,
        files=files,
        scalars={**values.scalars, **spread.sized},
    )


def _drop_digests(values: ValueTable, other: ValueTable, partner: Rows) -> None:
    """Another number of ranks adds up in another order: bits of floats that differ are no sign of anything, figures are."""
    floats = {i for i, (_, _, short) in enumerate(values.kinds) if float_format(short) is not None}
    for row in [r for r in values.digests if int(values.kind[r]) in floats]:
        if values.digests[row] != other.digests.get(int(partner[row])):
            del values.digests[row]


def _take_over(mine: dict[int, T], row: int, theirs: Mapping[int, T], part: int) -> None:
    mine.pop(row, None)
    if part in theirs:
        mine[row] = theirs[part]


def _merged_status(status: Status, numel: Rows) -> Status:
    """Given where all parts that have elements give it."""
    filled: NDArray[np.bool_] = numel > 0
    worst = np.where(filled[:, :, None], status, GIVEN).min(1)
    found: Status = np.where(filled.max(1, keepdims=True), worst, NULL).astype(np.uint8)
    return found
