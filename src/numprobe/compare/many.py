"""Calls that differ by no more than their inputs explain, many at a time.

Most calls of two runs that agree are of this kind, and what :mod:`numprobe.compare.judge` does with them one by one can be said
of whole columns. The same formulas in the same order, so that both give the same figures to the last bit (tests hold them to
it). Whatever is not plain is left to the judge: a call with a leaf that only one side has or that cannot be compared, with an
exact value that differs, an error, a tie, backward, tensors; and everything from the first finding or tie on.

Only one thing goes from call to call, how far apart the last clean outputs were, and that depends on which were clean. They are
taken to be all clean at first, and looked at again until nothing changes: each round settles at least one more, since a call
depends on earlier ones alone, and what is settled is what one look after another would give.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from numprobe.compare.expected import CONTEXT, ERROR, FLOOR, SMALL, SUMMING, WARNING, single
from numprobe.compare.inputs import ADDENDS
from numprobe.compare.ledger import CLEAN, WARN, Ledger
from numprobe.compare.measure import DIGEST, FLOAT, INTEGER, NOTHING, PLAIN, Measures
from numprobe.metrics.gains import (
    CONSTANT,
    PARAMETER_NAMES,
    PARAMETER_SLOTS,
    UNIT_ROUNDOFF_FP32,
    Family,
    family,
)
from numprobe.record.names import BACKWARD, PARAMETERS_GRAD, OpName
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]

FEWEST, MOST = 256, 8192  # pairs at once
WAIT = 256  # pairs at most that are looked at one by one before the next try
ROUNDS = 12
MOST_OF_A_CALL = 4096  # outputs times what they were computed from


class Many:
    """Judges stretches of plain calls of a :class:`Ledger`."""

    def __init__(self, book: Ledger, measures: Measures) -> None:
        self.book, self.m = book, measures
        self.size, self.wait, self.resting = FEWEST, 1, 0
        self.prepared = False
        self.odd = ~book.leaves.both | (measures.reason != 0) | measures.differs | measures.nonfinite
        self.odd |= measures.from_tensors
        self.plain_so_far = not book.foreign and not book.expect.allowed.noise and not book.expect.allowed.baseline

    def judge(self, pair: int) -> int:
        """Judge from ``pair`` on what is plain; returns the first pair that is not, to be looked at by itself."""
        book = self.book
        while pair < len(book.records):
            if self.resting:
                self.resting -= 1
                return pair
            if not self.plain_so_far or book.missing:
                return pair
            if not self.prepared:
                if self.odd[book.first[pair] : book.first[pair + 1]].any():
                    return pair  # many comparisons have found something after that
                self._prepare()
                self.prepared = True
            if self.hard[pair]:
                return pair
            end = min(pair + self.size, len(book.records))
            reached = self._block(pair, end)
            if reached < end:
                few = reached - pair < FEWEST // 8
                self.wait = min(2 * self.wait, WAIT) if few else 1
                self.resting = self.wait - 1
                self.size = FEWEST
                return reached
            self.size, self.wait = min(2 * self.size, MOST), 1
            pair = reached
        return pair

    def looked_at(self, pair: int) -> None:
        """The judge has looked at ``pair``: is everything still plain?"""
        if self.plain_so_far:
            book = self.book
            clean = all(book.state[row] == CLEAN for row in book.rows(pair))
            self.plain_so_far = clean and not book.findings and book.first_flip == len(book.records)
            if not self.plain_so_far:
                self.__dict__ = {
                    "book": book,
                    "plain_so_far": False,
                    "resting": 0,
                }  # the columns are not needed any more

    # --- what is the same whatever happened before -------------------------------------------------------------------

    def _prepare(self) -> None:
        book, m, leaves = self.book, self.m, self.book.leaves
        records_t = np.array(book.records.target, np.int64)
        records_g = np.array(book.records.golden, np.int64)
        matched = (records_t >= 0) & (records_g >= 0)
        self.pair, self.first = leaves.pair, leaves.first
        self.quiet = np.array(book.quiet, bool) & matched
        code, ops = _numbered(book, records_t)
        self.family = np.array([family(op) for op in ops], np.int64)[code]
        self.inside = (
            np.bincount(np.array([p for p in book.target.parent if p >= 0], np.int64), minlength=len(book.target.ops))[
                records_t
            ]
            > 0
            if len(book.target.ops)
            else np.zeros(len(records_t), bool)
        )
        roles = [role for role, _ in book.slots]
        slot = book.slot
        self.is_input = np.array([r == INPUT for r in roles], bool)[slot]
        is_parameter = np.array([r == PARAMETER for r in roles], bool)[slot]
        is_output = np.array([r == OUTPUT for r in roles], bool)[slot]
        self.output = ~self.is_input & ~is_parameter
        by = m.by
        self.floats = (by == FLOAT) | (by == DIGEST)
        known = self.floats & ~np.isnan(m.error)
        both = leaves.both

        called = matched & np.array([op.kind != PARAMETERS_GRAD for op in ops], bool)[code]
        noted = called[self.pair] & np.where(self.quiet[self.pair], is_output, self.output)
        self.noted = noted
        self.made = _made_before(book.signatures[0], self.pair, noted)
        made_golden = _made_before(book.signatures[1], self.pair, noted)

        first_input = np.full(len(book.records) + 1, -1)
        inputs = np.flatnonzero(self.is_input)
        first_input[self.pair[inputs[::-1]]] = inputs[::-1]
        self.parameter = is_parameter | (
            self.is_input
            & (self.made < 0)
            & (
                np.isin(book.signatures[0], np.array([*book.parameters], np.int64))
                | self._argument_slots(code, ops, slot, first_input)
            )
        )
        self.traced = self.is_input & ~self.parameter & known & ~self.quiet[self.pair]
        hard_row = self.odd.copy()
        hard_row |= self.is_input & ~self.parameter & (self.made < 0) & (made_golden >= 0)
        hard_row |= self.traced & (m.numel < SMALL)
        hard_row |= _out_of_order(self.pair, self.is_input)
        self._parameters(both)
        hard_row |= self.parameter & (self.parameter_rho > ERROR)
        self._aliases()
        hard_row |= (self.alias >= 0) & (m.reason[self.alias] != 0)
        self.hard = ~called | np.array([op.api.rstrip("_") in ADDENDS for op in ops], bool)[code]
        self._edges(records_t, records_g, is_parameter, is_output, known)
        self.hard[self.pair[hard_row]] = True
        self.hard &= ~self.quiet
        self.hard |= np.array([op.direction == BACKWARD for op in ops], bool)[code]

        kind = self.family[self.pair]
        self.exact = self.output & np.isin(by, (INTEGER, PLAIN, NOTHING))
        created = (kind == Family.CREATE) & (m.error == 0)
        self.judged = self.output & ~self.exact & ~created & (self.alias < 0) & ~self.quiet[self.pair]
        self.random = (kind == Family.CREATE) | (kind == Family.RANDOM)
        self.discrete = self.inside[self.pair] | (kind == Family.DISCRETE)
        with np.errstate(all="ignore"):
            self.norm = m.rms * np.sqrt(m.numel)
            before = np.where(self.made >= 0, m.error[self.made], 0.0)
            self.before = np.where(np.isnan(before), 0.0, before)
            self.least = np.where(m.rounding > FLOOR, m.rounding, FLOOR)

    def _argument_slots(self, code: Rows, ops: list[OpName], slot: Rows, first_input: Rows) -> Flags:
        """Inputs that are weights by their place among the arguments, for dumps that record no modules."""
        slots = self.book.slots
        keys, inverse = np.unique(code[self.pair] * len(slots) + slot, return_inverse=True)
        named, placed = np.zeros(len(keys), bool), np.zeros(len(keys), bool)
        for i, key in enumerate(keys.tolist()):
            op, (role, path) = ops[key // len(slots)], slots[key % len(slots)]
            if op.kind != "api" or role != INPUT:
                continue
            name = path.rsplit(".", 1)[-1]
            named[i] = name in PARAMETER_NAMES
            placed[i] = name.isdecimal() and int(name) in PARAMETER_SLOTS.get(op.api.strip("_"), ())
        first = first_input[self.pair] == np.arange(len(self.pair))
        found: Flags = named[inverse] | (placed[inverse] & ~first)
        return found

    def _parameters(self, both: Flags) -> None:
        """rho of what is a parameter: see :meth:`Expectation.parameter_rho`."""
        m = self.m
        bound = np.where(m.bound != 0, m.bound, 2 * UNIT_ROUNDOFF_FP32)
        with np.errstate(all="ignore"):
            norm = _ratio(m.d_norm, (bound + m.stat) / 8)
            extreme = _ratio(m.d_extreme, bound / 8)
            rho = np.where(extreme > norm, extreme, norm)
        self.parameter_rho = np.where(self.parameter & both & ~np.isnan(m.error), rho, np.nan)

    def _aliases(self) -> None:
        """By row, that of an output of a module which is the output of a call inside it; -1 elsewhere."""
        m, made = self.m, self.made
        error, other = m.error, m.error[made]
        same = (error == other) | (np.isnan(error) & np.isnan(other))
        found = self.output & self.inside[self.pair] & (made >= 0) & (self.book.leaves.golden[made] >= 0) & same
        self.alias = np.where(found, made, -1)

    def _edges(self, records_t: Rows, records_g: Rows, is_parameter: Flags, is_output: Flags, known: Flags) -> None:
        """The part of E^2 that does not depend on what was before, by row; see :meth:`Expectation.output`."""
        m = self.m
        rows = np.arange(len(self.pair))
        inner = is_output & (records_g[self.pair] >= 0) & (records_t[self.pair] >= 0)
        parent = np.array(self.book.target.parent, np.int64)
        pair_of = np.full(len(parent) + 1, -1)
        pair_of[records_t[records_t >= 0]] = np.flatnonzero(records_t >= 0)
        around = pair_of[parent[records_t]] if len(parent) else np.full(len(records_t), -1)
        around = np.where(records_t >= 0, around, -1)[self.pair]
        inner &= around > self.pair
        # what each call was computed from: inputs, parameters, outputs of the calls inside
        into = np.concatenate([self.pair[self.is_input], self.pair[is_parameter], around[inner]])
        among = np.concatenate([rows[self.is_input], rows[is_parameter], rows[inner]])
        order = np.argsort(into, kind="stable")
        into, among = into[order], among[order]
        hidden = m.is_float & (m.by == NOTHING)
        self.hard[into[hidden[among]]] = True
        into, among = into[known[among]], among[known[among]]
        begin = np.searchsorted(into, np.arange(len(records_t) + 1))
        count = np.diff(begin)
        outs = rows[self.output & ~self.quiet[self.pair] & ~self.hard[self.pair]]
        too_many = count[self.pair[outs]] * np.bincount(self.pair[outs], minlength=len(count))[self.pair[outs]]
        self.hard[self.pair[outs[too_many > MOST_OF_A_CALL]]] = True
        outs = outs[too_many <= MOST_OF_A_CALL]
        n = count[self.pair[outs]]
        start = np.repeat(begin[self.pair[outs]] - np.r_[0, np.cumsum(n)[:-1]], n) if len(outs) else begin[:0]
        edge = np.arange(n.sum()) + start
        out, row = np.repeat(outs, n), among[edge]
        kind = np.where(self.inside[self.pair[outs]], int(Family.CONTAINER), self.family[self.pair[outs]])
        ends = begin[self.pair[outs]]
        last = _last_dims(self.book)
        with np.errstate(all="ignore"):
            gain = self._gain(np.repeat(kind, n), row, out, np.repeat(n, n), among, np.repeat(ends, n), last)
            part = gain * m.error[row]
            squares = np.concatenate([m.rounding[outs] * m.rounding[outs], part * part])
            where = np.concatenate([np.arange(len(outs)), np.repeat(np.arange(len(outs)), n)])
            total = np.bincount(where, weights=squares, minlength=len(outs))
        terms = np.ones(len(outs))
        if len(edge):
            some = n > 0
            longest = np.maximum.reduceat(last[row], (np.cumsum(n) - n)[some])
            terms[some] = longest
        terms = np.where(np.isin(kind, SUMMING), terms, 1.0)
        self.total = np.zeros(len(self.pair))
        self.total[outs] = total + terms * FLOOR**2

    def _gain(self, kind: Rows, row: Rows, out: Rows, count: Rows, among: Rows, begin: Rows, last: Floats) -> Floats:
        """See :meth:`Expectation._gain`."""
        m = self.m
        rms, rms_out = m.rms[row], m.rms[out]
        ratio = np.where(rms_out != 0, rms / rms_out, 1.0)
        ratio = np.where(np.isnan(ratio), 1.0, ratio)
        small = np.where(m.numel[out] < SMALL, np.clip(ratio, 1.0, 1e6), 1.0)
        constants = np.array([CONSTANT.get(f, 2.0) for f in Family])
        gain = constants[kind] * small
        sums = kind == Family.SUM
        gain[sums] = (np.maximum(ratio, 0.5) * np.where(small > ratio, small, 1.0))[sums]
        products = np.flatnonzero((kind == Family.MATMUL) & (count > 1))
        x, w = among[begin[products]], among[begin[products] + 1]
        of = rms_out[products]
        lost = np.where(of != 0, m.rms[x] * m.rms[w] * np.sqrt(np.maximum(last[x], 1)) / of, 1.0)
        gain[products] = np.where(lost > 1.0, lost, 1.0) * small[products]
        softmax = kind == Family.SOFTMAX
        gain[softmax] = (math.sqrt(2) * _between(rms, 1e3))[softmax]
        exp = kind == Family.EXP
        inverse = np.where(rms_out != 0, 1 / rms_out, 1.0)
        gain[exp] = np.where(inverse > _between(rms, 1e3), inverse, _between(rms, 1e3))[exp]
        attention = kind == Family.ATTENTION
        gain[attention] = (2.0 * _between(ratio, 1e2))[attention]
        return gain

    # --- one stretch -------------------------------------------------------------------------------------------------

    def _block(self, begin: int, end: int) -> int:
        """Judge pairs from ``begin`` to ``end``, or to the first that is not plain: returns it."""
        hard = np.flatnonzero(self.hard[begin:end])
        if len(hard):
            end = begin + int(hard[0])
        rows = slice(int(self.first[begin]), int(self.first[end]))
        base = rows.start
        errors = self.m.error
        outs = base + np.flatnonzero(self.judged[rows])
        clean, expected, rho, levels, end = self._settled(outs, end)
        loud = ~((rho <= ERROR) & ((rho <= WARNING) | ~self.discrete[outs])) & ~((rho > WARNING) & self.random[outs])
        traced = base + np.flatnonzero(self.traced[rows])
        given = outs[clean & (errors[outs] > 0)]
        twice = 2 * np.maximum(self.before[traced], levels[np.searchsorted(given, traced)])
        with np.errstate(all="ignore"):
            expected_in = np.sqrt(self.least[traced] * self.least[traced] + twice * twice)
            rho_in = self._rho(traced, expected_in)
        wrong = np.concatenate(
            [outs[loud | ~np.isfinite(expected)], traced[~(rho_in <= ERROR) | ~np.isfinite(expected_in)]]
        )
        if len(wrong):
            end = min(end, int(self.pair[wrong].min()))
        if end <= begin:
            return begin
        self._note(begin, end, (outs, clean, expected, rho), (traced, expected_in, rho_in))
        return end

    def _settled(self, outs: Rows, end: int) -> tuple[Flags, Floats, Floats, Floats, int]:
        """Which outputs are clean, E and rho of all; the usual error after each number of clean ones; and the pair up to which
        that is settled."""
        errors = self.m.error[outs]
        clean = ~np.isnan(errors)
        for _ in range(ROUNDS):
            counts = clean & (errors > 0)
            levels = self._levels(errors[counts])
            before: Rows = np.cumsum(counts) - counts
            half = levels[before] / 2
            with np.errstate(all="ignore"):
                expected = np.sqrt(self.total[outs] + half * half)
                rho = self._rho(outs, expected)
            now = (rho <= WARNING) & ~np.isnan(errors)
            changed = np.flatnonzero(now != clean)
            if not len(changed):
                return clean, expected, rho, levels, end
            clean = now
        return clean, expected, rho, levels, min(end, int(self.pair[outs[changed[0]]]))

    def _levels(self, errors: Floats) -> Floats:
        """The median error of the last clean outputs, after none, one, two... of these."""
        before = list(self.book.expect.errors[False])
        every = np.concatenate([before, errors])
        found = np.empty(len(errors) + 1)
        short = max(min(CONTEXT - len(before), len(errors) + 1), 0)  # numbers of them that do not fill the window
        for k in range(short):
            window = sorted(every[: len(before) + k].tolist())
            found[k] = window[len(window) // 2] if window else 0.0
        if len(errors) + 1 > short:
            windows = sliding_window_view(every, CONTEXT)[len(before) + short - CONTEXT :]
            found[short:] = np.partition(windows, CONTEXT // 2, axis=1)[:, CONTEXT // 2]
        return found

    def _rho(self, rows: Rows, expected: Floats) -> Floats:
        """See :meth:`Expectation.rho`."""
        m = self.m
        share, stat = expected * self.book.expect.spreads[rows], m.stat[rows] / WARNING
        norm = _ratio(m.d_norm[rows], share + expected * expected / 2 + stat)
        mean = _ratio(m.d_mean[rows], share + stat)
        extreme = _ratio(m.d_extreme[rows], 2 * expected + m.bound[rows] / 4)
        return np.maximum(np.maximum(norm, mean), extreme)

    def _note(
        self,
        begin: int,
        end: int,
        outputs: tuple[Rows, Flags, Floats, Floats],
        inputs: tuple[Rows, Floats, Floats],
    ) -> None:
        """Write down what was found of the pairs from ``begin`` to ``end``."""
        book, m = self.book, self.m
        rows = slice(int(self.first[begin]), int(self.first[end]))
        base, size = rows.start, rows.stop - rows.start
        rho, expected = np.full(size, np.nan), np.full(size, np.nan)
        outs, clean, e_out, rho_out = outputs
        for of, e, r in ((outs, e_out, rho_out), inputs):
            here = of < rows.stop
            rho[of[here] - base], expected[of[here] - base] = r[here], e[here]
        parameters = self._new_parameters(rows)
        rho[parameters - base], expected[parameters - base] = self.parameter_rho[parameters], m.bound[parameters]
        book.rho[rows], book.expected[rows] = single(rho), single(expected)
        for row in (base + np.flatnonzero(rho > WARNING)).tolist():
            book.verdict[row] = WARN
            if self.output[row]:
                kind = self.family[self.pair[row]]
                book.status[row] = (
                    "random" if kind == Family.RANDOM else "uninitialised" if kind == Family.CREATE else "introduced"
                )
        alias = base + np.flatnonzero((self.alias[rows] >= 0) & ~self.quiet[self.pair[rows]])
        for row, other in zip(alias.tolist(), self.alias[alias].tolist(), strict=True):
            book.verdict[row], book.rho[row], book.expected[row] = (
                book.verdict[other],
                book.rho[other],
                book.expected[other],
            )
            status = book.status[other]
            book.status[row] = "contains" if status in ("introduced", "contains") else status
        self._note_clean(rows, outs[clean])
        noted = base + np.flatnonzero(self.noted[rows])
        for signatures, made in zip(book.signatures, book.made_rows, strict=True):
            known = noted[signatures[noted] >= 0]
            made[signatures[known]] = known
        book.compared_outputs += len(noted) - len(alias)
        closing = self.quiet[begin:end] | (np.bincount(self.pair[noted] - begin, minlength=end - begin) > 0)
        if closing.any():
            book.last = begin + int(np.flatnonzero(closing)[-1])

    def _new_parameters(self, rows: slice) -> Rows:
        """Parameters that were not seen before; from here on they are known."""
        found = rows.start + np.flatnonzero(self.parameter[rows] & ~self.quiet[self.pair[rows]])
        book = self.book
        signature = book.signatures[0][found]
        first = np.zeros(len(found), bool)
        first[np.unique(signature, return_index=True)[1]] = True
        known = np.array([s in book.known_parameters for s in signature.tolist()], bool)
        new = (signature < 0) | (first & ~known)
        book.known_parameters.update(dict.fromkeys(signature[new & (signature >= 0)].tolist(), -1))
        judged: Rows = found[new & ~np.isnan(self.parameter_rho[found])]
        return judged

    def _note_clean(self, rows: slice, clean: Rows) -> None:
        """The last clean outputs, for what comes after; see :meth:`Expectation.clean`."""
        expect, m = self.book.expect, self.m
        clean = clean[clean < rows.stop]
        quiet = rows.start + np.flatnonzero(self.noted[rows] & self.quiet[self.pair[rows]] & (m.by[rows] == FLOAT))
        last = np.union1d(clean[-CONTEXT:], quiet[-CONTEXT:])[-CONTEXT:]
        expect.cleaned[False].extend(last.tolist())
        expect.norms[False].extend(self.norm[last].tolist())
        given = m.error[clean]
        expect.errors[False].extend(given[given > 0][-CONTEXT:].tolist())
        expect.forget_context()


def _numbered(book: Ledger, records: Rows) -> tuple[Rows, list[OpName]]:
    """By pair, the number of a record that is like its own in kind, name and direction; and one of each."""
    numbers: dict[tuple[str, str, str, str], int] = {}
    ops: list[OpName] = []
    code = []
    every = book.target.ops
    for t in records.tolist():
        op = every[t] if t >= 0 else None
        key = (op.kind, op.prefix, op.api, op.direction) if op else ("", "", "", "")
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(ops)
            ops.append(op or OpName("", "other", "", "", "", "", -1))
        code.append(number)
    return np.array(code, np.int64), ops


def _made_before(signature: Rows, pair: Rows, noted: Flags) -> Rows:
    """By row, the last noted row of an earlier pair with the same signature; -1 if none."""
    width = int(pair[-1]) + 2 if len(pair) else 1
    key = signature * width + pair
    noted = noted & (signature >= 0)
    rows = np.flatnonzero(noted)
    rows = rows[np.argsort(key[rows], kind="stable")]
    at = np.searchsorted(key[rows], key) - 1
    if not len(rows):
        return np.full(len(pair), -1)
    found = rows[at]
    return np.where((at >= 0) & (signature >= 0) & (signature[found] == signature), found, -1)


def _out_of_order(pair: Rows, is_input: Flags) -> Flags:
    """Inputs behind an output or a parameter of their call: they are looked at first."""
    if not len(pair):
        return np.zeros(0, bool)
    later = ~is_input
    begins = np.concatenate([[True], pair[1:] != pair[:-1]])
    seen: Rows = np.cumsum(later) - later
    at_begin = np.maximum.accumulate(np.where(begins, seen, 0))
    return is_input & (seen > at_begin)


def _last_dims(book: Ledger) -> Floats:
    golden = book.golden.values
    dims = np.array([shape[-1] if shape else 1 for shape in golden.shapes], np.float64)
    return dims[golden.shape[book.leaves.golden]] if len(golden) else np.ones(len(book.leaves))


def _ratio(distance: Floats, unit: Floats) -> Floats:
    return np.where(distance > 0, np.where(unit != 0, distance / unit, np.inf), 0.0)


def _between(value: Floats, high: float) -> Floats:
    """At least 1, which stands for what is not known too."""
    return np.where(np.isnan(value), 1.0, np.clip(value, 1.0, high))
