"""From distances to verdicts: which call brought a difference in, and which only hand it on.

Every call is asked: do its outputs differ by more than the differences at its inputs, its parameters and its rounding explain?
The expected error E comes from the measured error of every input (:mod:`numprobe.metrics.gains`); rho is what was found over
what was expected, the worst of all figures. Up to 4 is noise (pass), up to 16 a warning, above it an error: *introduced* here.
Calls whose input is that output hand it on (*propagated*). Inputs are traced to the call that made them by their figures or
digests; where nothing recorded made an input, the step from the last recorded call to this one is a *gap*, and judged as a call
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numprobe.align.calls import RECOMPUTE, Calls
from numprobe.align.leaves import LeafPairs
from numprobe.align.records import RecordPairs
from numprobe.compare.expected import ERROR, NOTHING_ALLOWED, WARNING, Allowed, Expectation
from numprobe.compare.inputs import shape_differs, trace_inputs
from numprobe.compare.ledger import (
    CLEAN,
    FAIL,
    FLIPPED,
    INCOMPARABLE,
    PASS,
    TAINTED,
    UNMATCHED,
    WARN,
    Finding,
    Ledger,
    forward_name,
)
from numprobe.compare.many import Many
from numprobe.compare.measure import DIGEST, FLOAT, INTEGER, NOTHING, PLAIN, REASON, Measures
from numprobe.metrics.gains import Family, bends, family
from numprobe.record.names import BACKWARD, PARAMETERS_GRAD, OpName
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER


@dataclass
class Judgement:
    """By leaf row: ``verdict``, ``rho`` (found over expected; NaN where nothing was expected), ``expected`` (E), ``status``
    (introduced | parameter | propagated | tie | "") and the finding that explains it (-1: none)."""

    verdict: list[str]
    status: list[str]
    rho: Sequence[float]
    expected: Sequence[float]
    cause: list[int]
    findings: list[Finding]


def judge(
    target: Calls,
    golden: Calls,
    records: RecordPairs,
    leaves: LeafPairs,
    measures: Measures,
    allowed: Allowed = NOTHING_ALLOWED,
    *,
    foreign: bool = False,
) -> Judgement:
    """Judge every row. ``foreign``: the two are different programs for one model, so that a call that only one of them has says
    nothing, and records are so few that less than the usual limit is no chance."""
    expect = Expectation(measures, leaves, golden.values, allowed)
    book = Ledger(target, golden, records, leaves, measures, expect, foreign)
    _run(book, Many(book, measures))
    for what, rows in (("dtype", measures.other_dtype), ("squeezed", measures.squeezed)):
        for row in np.flatnonzero(rows).tolist():
            book.status[row] = book.status[row] or what
    for row in measures.problems:  # figures that agree do not make up for a tensor that cannot be read
        if book.verdict[row] == PASS:
            book.verdict[row], book.reason[row] = INCOMPARABLE, REASON["file"]
    measures.reason[:] = book.reason
    return Judgement(book.verdict, book.status, book.rho, book.expected, book.cause, book.findings)


def _run(book: Ledger, many: Many) -> None:
    alone: list[int] = []
    pair = 0
    while (pair := many.judge(pair)) < len(book.records):
        t, g = book.records.target[pair], book.records.golden[pair]
        op = book.target.ops[t] if t >= 0 else book.golden.ops[g]
        book.expect.backward = t >= 0 and op.direction == BACKWARD
        if t < 0 or g < 0:
            for row in book.rows(pair):
                book.verdict[row] = UNMATCHED
            book.missing.append(pair)
            alone.append(pair)
        elif book.quiet[pair]:
            _nothing_differs(book, pair)
        elif op.kind == PARAMETERS_GRAD:
            _parameter_gradients(book, pair)
        else:
            _call(book, pair, t)
        many.looked_at(pair)
        pair += 1
    _report_alone(book, alone)


def _nothing_differs(book: Ledger, pair: int) -> None:
    for row in book.rows(pair):
        if book.role[row] == OUTPUT:
            book.compared_outputs += 1
            if book.by[row] == FLOAT:
                book.expect.clean(row)
            book.note_made(row)
    book.last = pair
    book.missing.clear()


def _call(book: Ledger, pair: int, t: int) -> None:
    op = book.target.ops[t]
    backward = op.direction == BACKWARD
    inputs: list[int] = []
    parameters: list[int] = []
    outputs: list[int] = []
    of_role = {INPUT: inputs, PARAMETER: parameters}
    for row in book.rows(pair):
        of_role.get(book.role[row], outputs).append(row)
    inside = bool(book.target.children[t])
    source = trace_inputs(book, pair, [*inputs, *parameters])
    saved = _saved(book, op) if backward else []
    if source < 0:
        source = next((book.cause[r] for r in saved if book.state[r] == TAINTED), -1)
    inner = _inner(book, pair) if inside and not backward else []
    if source < 0:
        source = next((book.cause[r] for r in inner if book.state[r] == TAINTED), -1)
    if source >= 0:  # its outputs hand that on, whatever else they were computed from
        call = _Call(pair, op, Family.UNKNOWN, [], source, [], False, backward, inside)
    else:
        among = [*inputs, *parameters, *saved, *inner]
        flipped = [r for r in among if book.state[r] == FLIPPED and book.role[r] != PARAMETER]
        argument = any(book.by[r] == PLAIN and book.differs[r] for r in inputs)
        call = _Call(pair, op, family(op), among, source, flipped, argument, backward, inside)
    for out in outputs:
        _output(book, call, out)
    for out in outputs:
        book.note_made(out)
    if outputs:
        book.last = pair
        book.missing.clear()


class _Call(NamedTuple):
    """A call whose inputs are judged: ``among`` has the rows that its outputs were computed from, ``source`` the finding that has
    reached it (-1: none), ``flipped`` those rows where a near-tie went the other way; ``argument``: it was called with another
    argument; ``inside``: calls inside it are recorded."""

    pair: int
    op: OpName
    kind: Family
    among: list[int]
    source: int
    flipped: list[int]
    argument: bool
    backward: bool
    inside: bool


def _saved(book: Ledger, op: OpName) -> list[int]:
    """Leaf rows of the forward call of a backward record: what it was computed from too."""
    pair = book.pair_of[book.target.position.get(forward_name(op), -1)]
    if pair < 0 or book.records.golden[pair] < 0:
        return []
    return list(book.rows(pair))


def _inner(book: Ledger, pair: int) -> list[int]:
    """Leaf rows of the outputs of the calls inside a module: what its own output was computed from."""
    rows: list[int] = []
    for child in book.target.children[book.records.target[pair]]:
        inner = book.pair_of[child]
        if 0 <= inner < pair and book.records.golden[inner] >= 0:  # judged by now
            rows += [r for r in book.rows(inner) if book.role[r] == OUTPUT]
    return rows


def _output(book: Ledger, call: _Call, out: int) -> None:
    if not book.both(out) or book.reason[out] == REASON["kind"]:
        _one_sided(book, call, out)
        return
    alias = book.made[book.signature[out]] if call.inside else -1
    if alias >= 0 and book.g[alias] >= 0 and _same_on_golden(book, alias, out):
        _same_event(book, call.pair, out, alias)
        return
    if call.source >= 0:
        equal = book.error[out] == 0 and not book.differs[out] and not book.nonfinite[out]
        if equal and book.expect.is_fine(out):
            book.status[out] = "recovered"  # what came in makes no difference to what goes out
        else:
            book.hand_on(out, call.source)
        return
    chooses = call.kind is Family.DISCRETE
    if book.reason[out]:
        if book.reason[out] == REASON["shape"] and not call.flipped and not chooses:
            shape_differs(book, call.pair, out, -1)
        else:
            book.verdict[out] = INCOMPARABLE
            book.state[out] = FLIPPED if call.flipped or chooses else CLEAN
        return
    book.compared_outputs += 1
    if book.by[out] in (INTEGER, PLAIN, NOTHING):
        _exact_output(book, call, out)
        return
    if call.kind is Family.CREATE and not book.differs[out] and book.error[out] == 0:
        return
    if book.nonfinite[out] and call.backward and (before := _not_finite(book)) >= 0:
        book.hand_on(out, before)  # whatever was computed from it on the way forward
        return
    if book.nonfinite[out]:
        book.new_output("nonfinite", _reason(book, call, out), call.pair, out, FAIL, math.inf)
        return
    _float_output(book, call, out)


def _not_finite(book: Ledger) -> int:
    """The first finding of numbers that are not finite, -1 if none."""
    return next((n for n, f in enumerate(book.findings) if f.cause == "nonfinite"), -1)


def _float_output(book: Ledger, call: _Call, out: int) -> None:
    kind = Family.CONTAINER if call.inside else call.kind
    expected = book.expect.output(kind, call.among, out, call.backward)
    rho = book.rate(out, expected, bool(call.flipped))
    if call.kind in (Family.RANDOM, Family.CREATE) and rho > WARNING:
        book.verdict[out] = WARN
        book.status[out] = "random" if call.kind is Family.RANDOM else "uninitialised"
        return
    if call.flipped:
        book.state[out] = FLIPPED
    if rho <= WARNING:
        if not call.flipped and book.error[out] == book.error[out]:
            book.expect.clean(out)
    elif _tie(book, call, out, expected):
        book.flip(out)
    elif book.is_error(out, call.argument):
        book.new_output("introduced", _reason(book, call, out), call.pair, out, FAIL, rho)
    else:
        book.verdict[out], book.status[out] = WARN, "introduced"


def _tie(book: Ledger, call: _Call, out: int, expected: float) -> bool:
    """May all that differs be elements that went the other way: here at a kink, or before, where others were chosen?"""
    if call.flipped and book.by[out] == DIGEST:
        return True
    chosen = any(book.by[r] in (INTEGER, NOTHING) or book.reason[r] for r in call.flipped)  # indices, other tokens
    if chosen and not book.expect.everywhere(out, expected):
        return True
    here = bends(call.op) if call.backward else call.kind is Family.DISCRETE
    return (here or call.inside) and book.by[out] == FLOAT and not book.expect.more_than_kinks(out, expected)


def _reason(book: Ledger, call: _Call, out: int) -> str:
    """What more is known of an output that is wrong."""
    if call.kind is Family.COMMUNICATION:
        return "received"
    if book.nonfinite[out]:
        return ""
    return "digest" if book.by[out] == DIGEST else "argument" if call.argument else ""


def _one_sided(book: Ledger, call: _Call, out: int) -> None:
    """An output that is a tensor on one side, and missing, None or a plain value on the other."""
    book.verdict[out] = INCOMPARABLE if book.both(out) else UNMATCHED
    recomputed = book.target.phase[book.records.target[call.pair]] == RECOMPUTE  # it may end early
    if recomputed or call.source >= 0 or book.first_flip < call.pair or not book.lacks_tensor(out):
        return
    others = [r for r in book.rows(call.pair) if book.role[r] == book.role[out] and r != out]
    if any(not book.both(r) and book.side_of(r) != book.side_of(out) and book.is_tensor(r) for r in others):
        return  # other names for what may be the same
    ended = _ended_gradient(book)
    if call.backward and ended >= 0:
        book.mark(out, ended, book.verdict[out], "propagated")
        book.findings[ended].consequences += 1
    elif call.backward or not any(book.both(r) and book.is_tensor(r) for r in others):
        book.new_output("layout", "kind", call.pair, out, FAIL, math.inf)
        book.verdict[out] = FAIL if book.both(out) else UNMATCHED
    else:
        book.odd.append((call.pair, out))  # attention weights, that one implementation gives and another does not


def _ended_gradient(book: Ledger) -> int:
    """The finding of the call where a gradient ends that goes on on the other side: all before it lack theirs; -1 if none."""
    found = (n for n, f in enumerate(book.findings) if f.reason == "kind" and _op(book, f.pair).direction == BACKWARD)
    return next(found, -1)


def _same_on_golden(book: Ledger, one: int, other: int) -> bool:
    """Are the two rows one tensor on the golden side as well? Not where only the file of one has another shape."""
    if (book.reason[one] == REASON["shape"]) != (book.reason[other] == REASON["shape"]):
        return False
    return book.error[one] == book.error[other] or (
        book.error[one] != book.error[one] and book.error[other] != book.error[other]
    )


def _same_event(book: Ledger, pair: int, out: int, alias: int) -> None:
    book.state[out], book.cause[out] = book.state[alias], book.cause[alias]
    book.verdict[out], book.rho[out], book.expected[out] = (
        book.verdict[alias],
        book.rho[alias],
        book.expected[alias],
    )
    book.reason[out] = book.reason[alias]
    book.status[out] = "contains" if book.status[alias] in ("introduced", "contains") else book.status[alias]


def _exact_output(book: Ledger, call: _Call, out: int) -> None:
    if not book.differs[out]:
        return
    inputs, flipped = call.among, bool(call.flipped)
    exact = all(
        book.from_tensors[r] or book.by[r] in (DIGEST, PLAIN) for r in inputs
    )  # else figures of integers hide much
    noisy = any(book.error[r] > 0 for r in inputs if book.error[r] == book.error[r]) or (
        not exact and book.expect.context() > 0
    )
    if not exact and book.findings and not flipped:  # what cannot be seen at the inputs may have come with them
        book.hand_on(out, len(book.findings) - 1)
        return
    if flipped or noisy or call.kind in (Family.RANDOM, Family.CREATE):
        book.flip(out, "random" if call.kind is Family.RANDOM else "tie")
        book.first_flip = min(book.first_flip, call.pair)
    else:
        reason = "received" if call.kind is Family.COMMUNICATION else ""
        book.new_output("introduced", reason, call.pair, out, FAIL, math.inf)


def _parameter_gradients(book: Ledger, pair: int) -> None:
    """Sums over everything that happened in backward: judged against the noise around them."""
    for row in book.rows(pair):
        if not book.both(row):
            book.verdict[row] = UNMATCHED
        elif book.reason[row]:
            book.verdict[row] = INCOMPARABLE
        elif book.findings:
            book.hand_on(row, len(book.findings) - 1)
        elif book.error[row] == book.error[row] or book.nonfinite[row] or book.differs[row]:
            gradient = _gradient_of_output(book, pair)
            base = book.expect.context()
            if gradient >= 0 and book.error[gradient] > base:  # elements that went the other way before
                base = book.error[gradient]
            base *= book.expect.bias_gain(row, gradient)
            expected = book.expect.handed_on(row, 1.5 * base)
            rho = math.inf if book.nonfinite[row] else book.expect.rho(row, expected)
            book.rho[row], book.expected[row] = rho, expected
            if rho > ERROR and book.first_flip == len(book.records):
                book.new("nonfinite" if book.nonfinite[row] else "introduced", "gradient", pair, row, FAIL, rho)
            elif rho > WARNING:
                book.verdict[row] = WARN


def _gradient_of_output(book: Ledger, pair: int) -> int:
    """The leaf row with the gradient of the module's output, of a record of parameter gradients; -1 if not recorded."""
    backward = book.pair_of[book.target.parent[book.records.target[pair]]]
    if backward < 0 or book.records.golden[backward] < 0:
        return -1
    return next((r for r in book.rows(backward) if book.role[r] == INPUT and book.both(r)), -1)


def _report_alone(book: Ledger, alone: list[int]) -> None:
    """Records without partner that explain no finding: one finding for each stretch of them, one for all gradients that one side
    lacks."""
    explained = {pair for finding in book.findings for pair in finding.unmatched}
    left = [p for p in alone if p not in explained and _is_news(book, p)]
    gradients = [p for p in left if _op(book, p).direction == BACKWARD]
    _report_gradients(book, gradients)
    before = -2
    for pair in (p for p in left if _op(book, p).direction != BACKWARD):
        if pair != before + 1 or book.side(pair) != book.side(before):
            _report(book, pair, book.first[pair], f"only_{book.side(pair)}")
        book.findings[-1].unmatched.append(pair)
        before = pair
    said = set()
    for pair, row in book.odd:
        key = (_op(book, pair).api, book.path[row])
        if key not in said:
            said.add(key)
            _report(book, pair, row, "kind")


def _report(book: Ledger, pair: int, row: int, reason: str) -> None:
    """A finding that is no error."""
    book.new("layout" if reason == "kind" else "unmatched", reason, pair, row, WARN, math.nan, mark=False)


def _report_gradients(book: Ledger, pairs: list[int]) -> None:
    """A gradient that ends at a call takes all those before it along."""
    ended = _ended_gradient(book)
    for side in ("target", "golden"):
        missing = [p for p in pairs if book.side(p) == side]
        if missing and ended < 0:
            _report(book, missing[0], book.first[missing[0]], f"only_{side}")
        if missing:
            book.findings[ended].unmatched += missing


def _op(book: Ledger, pair: int) -> OpName:
    t, g = book.records.target[pair], book.records.golden[pair]
    return book.target.ops[t] if t >= 0 else book.golden.ops[g]


def _is_news(book: Ledger, pair: int) -> bool:
    """Not so the backward of a call that has no partner either, calls after a routing decision went the other way, and records
    of a kind that the other side does not have at all: at level L0 there are no API calls, at L1 no modules."""
    op = _op(book, pair)
    if (
        book.first_flip < pair
        or (op.kind, op.direction) not in book.kinds["golden" if book.side(pair) == "target" else "target"]
    ):
        return False
    return op.direction != BACKWARD or (book.has_forward(pair) and book.same_gradients)
