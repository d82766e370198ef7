"""The rows of a comparison while they are judged: what each is, in which state, and what was found."""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from numprobe.align.calls import Calls
from numprobe.align.leaves import LeafPairs
from numprobe.align.records import RecordPairs
from numprobe.compare.exact import is_number
from numprobe.compare.expected import ERROR, FOREIGN, WARNING, Expectation, Listed, single
from numprobe.compare.measure import DIGEST, FLOAT, INTEGER, NOTHING, REASON, Measures, weak_digests
from numprobe.formats.msprobe.values import GIVEN, ValueTable
from numprobe.record.names import BACKWARD, FORWARD, OpName
from numprobe.record.trace import PARAMETER

PASS, WARN, FAIL, INCOMPARABLE, UNMATCHED = "pass", "warning", "error", "incomparable", "unmatched"
CLEAN, FLIPPED, TAINTED = 0, 1, 2  # flipped: a near-tie went the other way; tainted: a finding has reached it
UNSIGNED = -1  # no signature
EVERYWHERE = (0.0, 1.0, -1.0)  # constant tensors of these are found everywhere


@dataclass
class Finding:
    """One event: a call (or the gap before it) that brought a difference in.

    ``cause``: introduced | parameter | input | nonfinite | layout | unmatched. ``reason`` is a code that says more
    (``digest``, ``argument``, ``operator_missing``, ``operator_extra``, ``gap``, ...). ``pair`` and ``row`` index the record and
    leaf pairs, ``after`` the record pair before a gap, ``unmatched`` the records without partner that go with it.
    """

    cause: str
    reason: str
    pair: int
    row: int
    severity: str
    rho: float
    after: int | None = None
    unmatched: list[int] = field(default_factory=list)
    consequences: int = 0


class Ledger:
    """Columns for a loop that looks at single rows.

    ``made`` has, by signature, the row of the tensor that was made last, ``made_golden`` the same by that of the golden run, and
    ``pair_of`` the record pair by record, ``pair_of_golden`` by that of the golden run: -1 for none, also at -1;
    ``missing`` the record pairs without partner since ``last``, the last pair that was compared; ``odd`` outputs that are a
    tensor on one side only, and no error by themselves.
    """

    t = Listed[int](lambda self: self.leaves.target)
    g = Listed[int](lambda self: self.leaves.golden)
    by = Listed[int](lambda self: self.measures.by)
    reason = Listed[int](lambda self: self.measures.reason.copy())
    error = Listed[float](lambda self: self.measures.error)
    rounding = Listed[float](lambda self: self.measures.rounding)
    differs = Listed[bool](lambda self: self.measures.differs)
    nonfinite = Listed[bool](lambda self: self.measures.nonfinite)
    from_tensors = Listed[bool](lambda self: self.measures.from_tensors)
    weak = Listed[bool](lambda self: self.measures.weak)
    signature = Listed[int](lambda self: self.signatures[0])
    golden_signature = Listed[int](lambda self: self.signatures[1])
    role = Listed[str](lambda self: _by_number([role for role, _ in self.slots], self.slot))
    path = Listed[str](lambda self: _by_number([path for _, path in self.slots], self.slot))

    def __init__(
        self,
        target: Calls,
        golden: Calls,
        records: RecordPairs,
        leaves: LeafPairs,
        measures: Measures,
        expect: Expectation,
        foreign: bool = False,
    ) -> None:
        self.foreign = foreign
        self.target, self.golden, self.records, self.leaves, self.expect = target, golden, records, leaves, expect
        self.measures = measures
        n = len(leaves)
        self.first: Sequence[int] = single(leaves.first)
        self.slots, self.slot = _slots(target.values, golden.values, leaves)
        self.signatures = _signatures(target.values, leaves.target), _signatures(golden.values, leaves.golden)
        self.quiet = self._quiet_pairs(measures)
        self.verdict = [PASS] * n
        self.status = [""] * n
        self.rho: MutableSequence[float] = single(np.full(n, math.nan))
        self.expected: MutableSequence[float] = single(np.full(n, math.nan))
        self.state = [CLEAN] * n
        self.cause = [-1] * n
        self.findings: list[Finding] = []
        self.made_rows = [np.full(int(s.max(initial=UNSIGNED)) + 2, -1) for s in self.signatures]
        self.made: MutableSequence[int] = single(self.made_rows[0])
        self.made_golden: MutableSequence[int] = single(self.made_rows[1])
        self.parameters = self._parameter_signatures()
        self.known_parameters: dict[int, int] = {}  # signature -> finding
        self.missing: list[int] = []
        self.odd: list[tuple[int, int]] = []
        self.last = -1
        self.first_flip = len(records)  # the record pair where a near-tie first went the other way
        self.pair_of = _inverse(records.target, len(target.ops))
        self.pair_of_golden = _inverse(records.golden, len(golden.ops))
        self.compared_outputs = 0
        self.same_gradients = target.dump.index.info.grad_kind == golden.dump.index.info.grad_kind
        self.kinds = {
            name: {(op.kind, op.direction) for op in side.ops}
            for name, side in (("target", target), ("golden", golden))
        }

    # --- what the rows are ---------------------------------------------------------------------------------------

    def _quiet_pairs(self, measures: Measures) -> Sequence[bool]:
        """Record pairs in which nothing differs at all."""
        quiet = self.leaves.both & (measures.reason == 0) & ~measures.differs & ~measures.nonfinite
        quiet &= (measures.error == 0) | ((measures.by != FLOAT) & (measures.by != NOTHING))
        loud = (
            np.add.reduceat(np.r_[~quiet, False], self.leaves.first[:-1]) if len(quiet) else np.zeros(len(self.records))
        )
        loud[self.leaves.first[1:] == self.leaves.first[:-1]] = 0
        quiet_pairs: Sequence[bool] = single(loud == 0)
        return quiet_pairs

    def _parameter_signatures(self) -> dict[int, int]:
        """Signatures of what module records call parameters -> the leaf row there."""
        found: dict[int, int] = {}
        parameters = np.array([role == PARAMETER for role, _ in self.slots], bool)[self.slot] & self.leaves.both
        for row in np.flatnonzero(parameters).tolist():
            found.setdefault(int(self.signatures[0][row]), row)
        found.pop(UNSIGNED, None)
        return found

    def both(self, row: int) -> bool:
        """Do both sides have this leaf?"""
        return self.t[row] >= 0 and self.g[row] >= 0

    def rows(self, pair: int) -> range:
        """The leaf rows of a record pair."""
        return range(self.first[pair], self.first[pair + 1])

    def side(self, pair: int) -> str:
        """Which side has a record without partner."""
        return "golden" if self.records.target[pair] < 0 else "target"

    def side_of(self, row: int) -> str:
        """Which side has a row without partner."""
        return "golden" if self.t[row] < 0 else "target"

    def is_tensor(self, row: int) -> bool:
        """Does a side that has this row have a tensor there?"""
        return any(v.kinds[v.kind[i]][1] for v, i in self._values(row))

    def lacks_tensor(self, row: int) -> bool:
        """Is this a tensor on one side, and on the other nothing, None or a plain value? Zeros may as well be None, and a single
        number be that number."""
        sides = self._values(row)
        tensors = [(v, i) for v, i in sides if v.kinds[v.kind[i]][1]]
        if len(tensors) != 1:
            return False
        values, i = tensors[0]
        plain = next((v.scalars.get(j) for v, j in sides if v is not values), None)
        if plain is not None:
            return values.numel[i] != 1 or not is_number(
                plain, float(values.figures[i, 0]), values.kinds[values.kind[i]][2]
            )
        return values.numel[i] != 0 and bool((values.figures[i, :2] != 0).any())

    def has_other_shape(self, row: int) -> bool:
        """Have the two sides tensors of two shapes, or only one of them a tensor?"""
        return self.reason[row] == REASON["shape"] or (self.reason[row] == REASON["kind"] and self.lacks_tensor(row))

    def _values(self, row: int) -> list[tuple[ValueTable, int]]:
        sides = ((self.target.values, self.t[row]), (self.golden.values, self.g[row]))
        return [(values, i) for values, i in sides if i >= 0]

    def has_forward(self, pair: int) -> bool:
        """Is the call paired that this backward record belongs to?"""
        t, g = self.records.target[pair], self.records.golden[pair]
        calls, i = (self.target, t) if t >= 0 else (self.golden, g)
        forward = calls.position.get(forward_name(calls.ops[i]), -1)
        at = (self.pair_of if t >= 0 else self.pair_of_golden)[forward]
        return at >= 0 and self.records.target[at] >= 0 and self.records.golden[at] >= 0

    def maker(self, row: int) -> int:
        """The row of the recorded output that this tensor of the target is; -1 where nothing recorded made it."""
        return self.made[self.signature[row]]

    # --- what was found ------------------------------------------------------------------------------------------

    def rate(self, row: int, expected: float, flipped: bool = False) -> float:
        """Note what was expected and found of a row; returns rho."""
        rho = self.expect.rho(row, expected, flipped)
        self.rho[row], self.expected[row] = rho, expected
        return rho

    def is_error(self, row: int, argument: bool = False) -> bool:
        """Is what was found of a row no noise? Where the call had another ``argument``, or a call that only one side has is just
        before it, less is enough; but not of single elements."""
        if self.rho[row] > (FOREIGN if self.foreign else ERROR):
            return True
        if self.foreign:
            few = self.expect.is_allowed(row) and not self.expect.everywhere(row, self.expected[row])
            return self.rho[row] > WARNING and not few and self.expect.stands_out(row)
        return bool(argument or self.missing) and self.expect.rho(row, self.expected[row], True) > WARNING

    def flip(self, row: int, status: str = "tie") -> None:
        """A near-tie went the other way here: no error, and no surprise further on."""
        self.state[row], self.verdict[row], self.status[row] = FLIPPED, WARN, status

    def note_made(self, row: int) -> None:
        """From here on this row's tensor is the one with its signature."""
        if self.signature[row] != UNSIGNED:
            self.made[self.signature[row]] = row
        if self.golden_signature[row] != UNSIGNED:
            self.made_golden[self.golden_signature[row]] = row

    def new_output(self, cause: str, reason: str, pair: int, row: int, severity: str, rho: float) -> int:
        """As :meth:`new`, for an output: several that are wrong of one call are one finding."""
        if not self.findings or self.findings[-1].pair != pair:
            return self.new(cause, reason, pair, row, severity, rho)
        self.rho[row] = rho
        self.mark(row, len(self.findings) - 1, severity, "introduced")
        return len(self.findings) - 1

    def new(self, cause: str, reason: str, pair: int, row: int, severity: str, rho: float, *, mark: bool = True) -> int:
        number = len(self.findings)
        self.findings.append(Finding(cause, reason, pair, row, severity, rho))
        if mark:
            self.rho[row] = rho
            self.mark(row, number, severity, cause if cause in ("parameter", "input") else "introduced")
        return number

    def mark(self, row: int, finding: int, verdict: str, status: str) -> None:
        self.state[row], self.cause[row] = TAINTED, finding
        self.verdict[row], self.status[row] = verdict, status

    def hand_on(self, row: int, source: int) -> None:
        """What a finding brought in has reached this row."""
        self.state[row], self.cause[row] = TAINTED, source
        self.status[row] = "propagated"
        self.findings[source].consequences += 1
        if self.reason[row]:
            self.verdict[row] = INCOMPARABLE
            return
        if self.nonfinite[row] or (self.differs[row] and self.by[row] in (INTEGER, DIGEST)):
            self.verdict[row] = FAIL
            return
        if self.error[row] == self.error[row]:
            rho = self.rate(row, self.expect.handed_on(row, self.expect.context()))
            self.verdict[row] = FAIL if rho > ERROR else WARN if rho > WARNING else PASS


def forward_name(op: OpName) -> str:
    """The name of the call that a record of its backward, or of gradients of its parameters, belongs to."""
    if not op.is_module:
        return op.name.removesuffix(BACKWARD) + FORWARD
    return f"{op.prefix}.{op.path}.{op.api}.{FORWARD}.{op.call}"


def _inverse(records: Sequence[int], count: int) -> Sequence[int]:
    """By record, the last pair that has it."""
    found = np.full(count + 1, -1)
    pairs = np.array(records, np.int64)
    found[pairs] = np.arange(len(pairs))
    found[-1] = -1
    by_record: Sequence[int] = single(found)
    return by_record


def _by_number(texts: list[str], numbers: NDArray[np.int64]) -> NDArray[np.object_]:
    return np.array(texts, object)[numbers]


def _slots(
    target: ValueTable, golden: ValueTable, leaves: LeafPairs
) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """Role and path of every row, by number: the target's where it has the leaf."""
    shift = len(target.slots)
    slot = np.full(len(leaves), 0, np.int64)
    ours, theirs = leaves.target >= 0, leaves.target < 0
    slot[ours] = target.slot[leaves.target[ours]]
    slot[theirs] = shift + golden.slot[leaves.golden[theirs]]
    return [*target.slots, *golden.slots], slot


def _signatures(values: ValueTable, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """By row, a number that tells a tensor of this side from others: one for each digest, else for each set of figures and size;
    :data:`UNSIGNED` where they say nothing, as those of a tensor of zeros, and where this side has no such row."""
    if not len(values):
        return np.full(len(rows), UNSIGNED)
    high, low, norm = values.figures[:, 0], values.figures[:, 1], values.figures[:, 3]
    found = _numbers_of([high, low, norm, values.numel.astype(np.float64)])
    found[((high == low) & np.isin(high, EVERYWHERE)) | (values.status[:, 0] != GIVEN)] = UNSIGNED
    if values.digests:
        numbers: dict[str, int] = {}
        shift = len(values)
        found[np.fromiter(values.digests, np.int64, len(values.digests))] = [
            numbers.setdefault(digest, shift + len(numbers)) for digest in values.digests.values()
        ]
        found[weak_digests(values)] = UNSIGNED
    return np.where(rows >= 0, found[rows], UNSIGNED)


def _numbers_of(columns: list[NDArray[np.float64]]) -> NDArray[np.int64]:
    """A number for each set of figures; NaN is equal to itself."""
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        bits = np.where(np.isnan(column), np.nan, column + 0.0).view(np.uint64)  # one NaN, one zero
        key = (key ^ (key >> np.uint64(29)) ^ bits) * np.uint64(0x9E3779B97F4A7C15)
    order = np.argsort(key)
    if not _together(columns, key, order):
        order = np.lexsort(columns)
    changes = _changes(columns, order)
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(changes)
    return found


def _together(columns: list[NDArray[np.float64]], key: NDArray[np.uint64], order: NDArray[np.int64]) -> bool:
    """Do all that have the same key have the same figures, too?"""
    return not (_changes(columns, order)[1:] & (key[order[1:]] == key[order[:-1]])).any()


def _changes(columns: list[NDArray[np.float64]], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """In this order: has a row other figures than the one before?"""
    changes = np.zeros(len(order), bool)
    for column in columns:
        row = column[order]
        changes[1:] |= (row[1:] != row[:-1]) & ~(np.isnan(row[1:]) & np.isnan(row[:-1]))
    return changes
