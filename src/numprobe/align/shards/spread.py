"""How every leaf of a group of ranks is spread over its members: decided from the evidence, leaf by leaf.

* *replicated*: every member has the full shape and the same figures;
* *split*: the members' shapes make up the full one along one dimension, members with one part among them (k and v heads), or
  with padding at the end (a vocabulary);
* *diverged*: the full shape, other figures, though they should be the same: the inputs are the same on all members, or a
  collective gave it, or some member agrees with the other side;
* *partial*: the full shape, other figures, as addends of a sum or what is the rank's own business (masks of a vocabulary's
  part) have: nothing to compare with;
* *unfit*: shapes that do not make up the full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from numprobe.align.shards.joined import COMMUNICATION, JoinedCalls
from numprobe.align.shards.split import Shape, Split, merged_figures, split_of
from numprobe.align.shards.tables import Rows
from numprobe.formats.msprobe.values import GIVEN, ValueTable
from numprobe.record.dtypes import float_format
from numprobe.record.names import FORWARD, OpName
from numprobe.record.trace import INPUT, PARAMETER

Figures = NDArray[np.float64]
UNKNOWN, REPLICATED, SPLIT, PADDED, DIVERGED, PARTIAL, UNFIT = range(7)
CASES = ("unknown", "replicated", "split", "padded", "diverged", "partial", "unfit")
NEAR = 0.05  # figures of two runs of one model are nearer than that, addends of one sum seldom
EQUAL = 1e-3  # and these are those of the same tensor, whatever it was computed from
# of what these give, every member has the same or a part
ADDING = ("all_reduce", "all_gather", "broadcast", "reduce_scatter")


@dataclass
class Spread:
    """By row of the joined side: ``case`` (index of :data:`CASES`), ``split`` of those that are split or padded, ``member``: of
    those that diverged the column that stands for them, ``copies``: of split ones of which several columns should have one part,
    and have not, the columns that stand for them. ``sized``: numbers that count one member's part."""

    case: NDArray[np.uint8]
    split: dict[int, Split] = field(default_factory=dict)
    member: dict[int, int] = field(default_factory=dict)
    copies: dict[int, tuple[int, ...]] = field(default_factory=dict)
    sized: dict[int, object] = field(default_factory=dict)


def spread_of(
    side: JoinedCalls, other: ValueTable, partner: Rows, cut: Sequence[int] = (), *, trusted: bool = False
) -> Spread:
    """``partner``: by row of ``side``, the row of the other side; -1 where there is none. ``cut``: columns whose dumps end early,
    so that what they lack says nothing. For those that diverged stands the one that is farthest from the other side, of a
    ``trusted`` side the nearest."""
    found = _Spreading(side, other, partner, trusted).run()
    found.case[(side.parts[:, list(cut)] < 0).any(1) & (found.case != UNKNOWN)] = UNFIT
    for row in [r for r in (*found.split, *found.member) if found.case[r] == UNFIT]:
        for known in (found.split, found.member, found.copies):
            known.pop(row, None)
    return found


class _Spreading:
    def __init__(self, side: JoinedCalls, other: ValueTable, partner: Rows, trusted: bool) -> None:
        self.side, self.other, self.trusted = side, other, trusted
        self.table, self.parts = side.ranks.table, side.parts
        self.partner: list[int] = partner.tolist()
        self.found = Spread(np.zeros(len(self.parts), np.uint8))
        self.equal = self._equal()
        self.tensor = self._tensors()
        self.weak = self._weak().tolist()
        self.made: dict[str, int] = {}  # figures of all members of a tensor that is not the same on all -> its case
        # column and figures of what a record gave that other columns do not have
        self.alone: set[tuple[int, str]] = set()
        # calls whose inputs are each rank's own: their backward is, too
        self.own: set[tuple[str, str, str, int]] = set()
        self._splits: dict[tuple[object, ...], Split | None] = {}

    def run(self) -> Spread:
        case = self.found.case
        partner = np.array(self.partner, np.int64)
        case[(partner >= 0) & self.equal & self._whole()] = REPLICATED
        first = self.side.values.first
        own = (self.parts < 0).any(1)
        looked_at = np.r_[0, np.cumsum(own | ((partner >= 0) & ((case == UNKNOWN) | self.weak)))]
        for i in np.flatnonzero(looked_at[first[1:]] > looked_at[first[:-1]]).tolist():
            self._record(i, self.side.values.rows(i))
        return self.found

    # --- what is the same on all members ---------------------------------------------------------------------------

    def _equal(self) -> NDArray[np.bool_]:
        """Have all members that have the leaf the same shape, figures and digest?"""
        t, parts = self.table, self.parts
        lead = parts[np.arange(len(parts)), self.side.column]
        equal = np.ones(len(parts), bool)
        for column in parts.T:
            here = np.where(column >= 0, column, lead)
            same = (t.shape[here] == t.shape[lead]) & (t.status[here] == t.status[lead]).all(1)
            a, b = t.figures[here], t.figures[lead]
            equal &= same & ((a == b) | (np.isnan(a) & np.isnan(b))).all(1)
            if t.digests:
                equal &= [
                    t.digests.get(x) == t.digests.get(y) for x, y in zip(here.tolist(), lead.tolist(), strict=True)
                ]
            if t.scalars:
                equal &= [
                    t.scalars.get(x) == t.scalars.get(y) for x, y in zip(here.tolist(), lead.tolist(), strict=True)
                ]
        return equal

    def _whole(self) -> NDArray[np.bool_]:
        """Is the shape that of the other side (and the plain value, of what is no tensor)?"""
        mine, theirs = self.side.values, self.other
        numbers = {shape: i for i, shape in enumerate(theirs.shapes)}
        same = np.array([numbers.get(shape, -1) for shape in mine.shapes], np.int64)
        rows = np.array(self.partner, np.int64)
        whole = np.zeros(len(rows), bool)
        both = rows >= 0
        if both.any():
            whole[both] = same[mine.shape[both]] == theirs.shape[rows[both]]
        for row, scalar in mine.scalars.items():
            if both[row] and scalar != theirs.scalars.get(self.partner[row]):
                whole[row] = False
        return whole

    def _tensors(self) -> NDArray[np.bool_]:
        values = self.side.values
        typed = np.array([bool(dtype) for _, dtype, _ in values.kinds], bool)
        tensor: NDArray[np.bool_] = values.status[:, 0] != 0
        return tensor | typed[values.kind] if len(values) else tensor

    def _weak(self) -> NDArray[np.bool_]:
        """Tensors of integers, truth values or one number: other ones may have the same figures by chance."""
        values = self.side.values
        exact = np.array([float_format(short) is None for _, _, short in values.kinds], bool)
        constant = values.figures[:, 0] == values.figures[:, 1]
        weak: NDArray[np.bool_] = self.tensor & (exact[values.kind] | constant) if len(values) else constant
        return weak

    # --- one record ------------------------------------------------------------------------------------------------

    def _record(self, i: int, rows: range) -> None:
        case = self.found.case
        op = self.side.ops[i]
        inputs = [r for r in rows if self._role(r) in (INPUT, PARAMETER)]
        for row in (r for r in rows if r not in inputs and (self.parts[r] < 0).any()):
            self.alone.update((c, self._one(p)) for c, p in enumerate(self.parts[row].tolist()) if p >= 0)
        for row in sorted(inputs, key=self._is_new):  # what has come from a rank's own calls first
            if case[row] == UNKNOWN and self.partner[row] >= 0:
                own = any(case[r] == PARTIAL and self.tensor[r] for r in inputs)
                self._leaf(row, op, same_inputs=False, is_input=not own)
            elif self.weak[row] and case[row] == REPLICATED:
                case[row] = self.made.get(self._figures(row), REPLICATED)
        call = (op.prefix, op.path, op.api, op.call)
        own = call in self.own or any(case[r] in (PARTIAL, UNFIT) for r in inputs)
        if own:
            self.own.add(call)
        same_inputs = not own and all(case[r] in (REPLICATED, DIVERGED) for r in inputs if self.tensor[r])
        for row in (r for r in rows if r not in inputs):
            if case[row] == UNKNOWN and self.partner[row] >= 0:
                self._leaf(row, op, same_inputs=same_inputs, is_input=False)
            elif self.weak[row] and case[row] == REPLICATED:
                if own and not op.is_module and not _adds(op):
                    case[row] = PARTIAL
                self.made[self._figures(row)] = int(case[row])

    def _figures(self, row: int) -> str:
        """Of all members, what tells a tensor from others."""
        return "".join(self._one(p) for p in self.parts[row].tolist() if p >= 0)

    def _one(self, part: int) -> str:
        t = self.table
        return f"{t.figures[part].tolist()}{t.numel[part]}{t.digests.get(part, '')}"

    def _is_new(self, row: int) -> bool:
        """Has no record given this tensor?"""
        own = any((c, self._one(p)) in self.alone for c, p in enumerate(self.parts[row].tolist()) if p >= 0)
        return not own and self._figures(row) not in self.made

    def _role(self, row: int) -> str:
        values = self.side.values
        return str(values.slots[values.slot[row]][0])

    def _leaf(self, row: int, op: OpName, *, same_inputs: bool, is_input: bool) -> None:
        found = self.found
        if not self.tensor[row]:
            found.case[row] = self._plain(row)
            return
        members = [int(p) for p in self.parts[row] if p >= 0]
        t, full = self.table, self.other.shapes[self.other.shape[self.partner[row]]]
        shapes = [t.shapes[t.shape[p]] for p in members]
        if all(s == full for s in shapes):
            found.case[row] = self._unequal(row, members, op, same_inputs, is_input)
            return
        split = self._split(shapes, full)
        if split is not None and split.copies > 1 and not self._runs(members, split.copies):
            if op.direction != FORWARD:
                found.case[row] = PARTIAL  # gradients of what several members have are addends
                return
            found.copies[row] = self._standing_for(row, members, split.copies)
        if split is None:
            if (
                self.equal[row]
                and op.prefix != COMMUNICATION
                and not self._made_of_parts(shapes[0], full, len(members))
            ):
                found.case[row] = REPLICATED  # another shape on every member alike: that is for the judge
            else:
                found.case[row] = UNFIT
            return
        found.case[row] = PADDED if split.padded else SPLIT
        found.split[row] = split

    def _plain(self, row: int) -> int:
        """A plain value: the same for all, or a number that counts one member's part."""
        scalars = [self.table.scalars.get(int(p)) for p in self.parts[row] if p >= 0]
        if any(s != scalars[0] for s in scalars):
            return PARTIAL
        theirs = self.other.scalars.get(self.partner[row])
        if _sized(scalars[0], theirs, len(scalars)):
            self.found.sized[row] = theirs
        return REPLICATED

    def _split(self, shapes: Sequence[Shape | None], full: Shape | None) -> Split | None:
        key = (*shapes, full)
        if key not in self._splits:
            self._splits[key] = split_of(shapes, full)
        return self._splits[key]

    @staticmethod
    def _made_of_parts(shape: Shape | None, full: Shape | None, count: int) -> bool:
        """Could a tensor of this shape be one of ``count`` parts, split some other way?"""
        if shape is None or full is None or len(shape) != len(full):
            return True
        return all(a == b or (a and b > a) for a, b in zip(shape, full, strict=True))

    def _runs(self, members: Sequence[int], copies: int) -> bool:
        """Have ``copies`` members behind each other always the same figures?"""
        t = self.table
        return all(self._same(t, members[i], members[i - i % copies]) for i in range(len(members)) if i % copies)

    def _standing_for(self, row: int, members: list[int], copies: int) -> tuple[int, ...]:
        """Of every part that several columns should have, the one with which the whole is farthest from the other side."""
        chosen = members[::copies]
        for i in range(0, len(members), copies):
            swapped = [[*chosen[: i // copies], m, *chosen[i // copies + 1 :]] for m in members[i : i + copies]]
            apart = [self._distance_of(self._merged(s), self.partner[row]) for s in swapped]
            chosen = swapped[int(np.argmin(apart) if self.trusted else np.argmax(apart))]
        columns = np.flatnonzero(self.parts[row] >= 0).tolist()
        return tuple(columns[members.index(m)] for m in chosen)

    def _merged(self, members: list[int]) -> Figures:
        t = self.table
        found: Figures = merged_figures(t.figures[None, members], t.numel[None, members])[0]
        return found

    @staticmethod
    def _same(t: ValueTable, a: int, b: int) -> bool:
        if t.digests.get(a) != t.digests.get(b):
            return False
        return np.array_equal(t.figures[a], t.figures[b], equal_nan=True)

    # --- the full shape, and other figures -------------------------------------------------------------------------

    def _unequal(self, row: int, members: list[int], op: OpName, same_inputs: bool, is_input: bool) -> int:
        key = self._figures(row)
        known = self.made.get(key)
        if known is None:
            known = self.made[key] = self._kind(row, members, op, same_inputs, is_input)
        if known == DIVERGED:
            self.found.member[row] = self._farthest(row, members)
        return known

    def _kind(self, row: int, members: list[int], op: OpName, same_inputs: bool, is_input: bool) -> int:
        if not is_input and _adds(op):
            return DIVERGED
        t, there = self.table, self.partner[row]
        if any((c, self._one(p)) in self.alone for c, p in enumerate(self.parts[row].tolist()) if p >= 0):
            return PARTIAL
        if any(_all_zero(t, p) for p in members):  # tokens of one part of a vocabulary: zeros are added
            return PARTIAL
        parameter = self._role(row) == PARAMETER
        tolerance = NEAR if same_inputs or parameter else EQUAL if is_input or op.is_module else 0.0
        if not tolerance:
            return PARTIAL
        near = [self._distance(p, there) <= max(tolerance, 4 * self._unit(row)) for p in members]
        return DIVERGED if any(near) else PARTIAL

    def _unit(self, row: int) -> float:
        """The rounding of the coarser dtype of both sides."""
        kinds = self.side.values.kinds[self.side.values.kind[row]], self.other.kinds[self.other.kind[self.partner[row]]]
        return max((2.0**-f.p for _, _, short in kinds if (f := float_format(short)) is not None), default=0.0)

    def _distance(self, mine: int, theirs: int) -> float:
        """The largest relative distance of Max, Min and Norm; infinite where other values are not finite, or digests differ."""
        t, o = self.table, self.other
        if mine in t.digests and theirs in o.digests and t.kinds[t.kind[mine]][2] == o.kinds[o.kind[theirs]][2]:
            return 0.0 if t.digests[mine] == o.digests[theirs] else float("inf")
        return self._distance_of(t.figures[mine], theirs) if t.status[mine, 0] == GIVEN else float("inf")

    def _distance_of(self, a: Figures, theirs: int) -> float:
        o, b = self.other, self.other.figures[theirs]
        if (np.isfinite(a) != np.isfinite(b))[[0, 1, 3]].any():
            return float("inf")
        numel = max(int(o.numel[theirs]), 1)
        rms = abs(b[3]) / numel**0.5 if np.isfinite(b[3]) else 0.0
        apart = [0.0]
        for k in (0, 1):
            if np.isfinite(a[k]) and a[k] != b[k]:
                apart.append(abs(a[k] - b[k]) / max(abs(b[k]), rms, 1e-300))
        if np.isfinite(a[3]) and a[3] != b[3]:
            apart.append(abs(a[3] - b[3]) / max(abs(b[3]), 1e-300))
        return float(max(apart))

    def _farthest(self, row: int, members: list[int]) -> int:
        apart = [self._distance(p, self.partner[row]) for p in members]
        columns = np.flatnonzero(self.parts[row] >= 0)
        return int(columns[int(np.argmin(apart) if self.trusted else np.argmax(apart))])


def _adds(op: OpName) -> bool:
    """Is it a collective whose results are no rank's own?"""
    return op.prefix == COMMUNICATION and any(word in op.api for word in ADDING)


def _all_zero(table: ValueTable, row: int) -> bool:
    return bool((table.figures[row, :2] == 0).all())


def _sized(mine: object, theirs: object, count: int) -> bool:
    """Is a number the same but for what counts one of ``count`` parts? Lists (sizes) element by element."""
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(mine) == len(theirs):
        return all(a == b or _sized(a, b, count) for a, b in zip(mine, theirs, strict=True)) and mine != theirs
    if isinstance(mine, bool) or not isinstance(mine, int) or not isinstance(theirs, int):
        return False
    return mine > 0 and any(mine * n == theirs for n in range(2, count + 1) if count % n == 0)
