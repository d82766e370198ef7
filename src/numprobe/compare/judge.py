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
from dataclasses import dataclass

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.leaves import LeafPairs
from numprobe.align.records import RecordPairs
from numprobe.compare.expected import ERROR, NOTHING_ALLOWED, WARNING, Allowed, Expectation
from numprobe.compare.inputs import shape_differs, trace_inputs
from numprobe.compare.ledger import CLEAN, FAIL, FLIPPED, INCOMPARABLE, PASS, TAINTED, UNMATCHED, WARN, Finding, Ledger
from numprobe.compare.measure import DIGEST, FLOAT, INTEGER, NOTHING, PLAIN, REASON, Measures
from numprobe.metrics.gains import Family, family
from numprobe.record.names import BACKWARD, PARAMETERS_GRAD
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER


@dataclass
class Judgement:
    """By leaf row: ``verdict``, ``rho`` (found over expected; NaN where nothing was expected), ``expected`` (E), ``status``
    (introduced | parameter | propagated | tie | "") and the finding that explains it (-1: none)."""

    verdict: list[str]
    status: list[str]
    rho: list[float]
    expected: list[float]
    cause: list[int]
    findings: list[Finding]


def judge(
    target: Calls,
    golden: Calls,
    records: RecordPairs,
    leaves: LeafPairs,
    measures: Measures,
    allowed: Allowed = NOTHING_ALLOWED,
) -> Judgement:
    """Judge every row."""
    expect = Expectation(measures, leaves, golden.values, allowed)
    book = Ledger(target, golden, records, leaves, measures, expect)
    _run(book)
    for what, rows in (("dtype", measures.other_dtype), ("squeezed", measures.squeezed)):
        for row in np.flatnonzero(rows).tolist():
            book.status[row] = book.status[row] or what
    for row in measures.problems:  # figures that agree do not make up for a tensor that cannot be read
        if book.verdict[row] == PASS:
            book.verdict[row], book.reason[row] = INCOMPARABLE, REASON["file"]
    measures.reason[:] = book.reason
    return Judgement(book.verdict, book.status, book.rho, book.expected, book.cause, book.findings)


def _run(book: Ledger) -> None:
    alone: list[int] = []
    for pair, (t, g) in enumerate(zip(book.records.target, book.records.golden, strict=True)):
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
    inputs = [r for r in book.rows(pair) if book.role[r] == INPUT]
    parameters = [r for r in book.rows(pair) if book.role[r] == PARAMETER]
    outputs = [r for r in book.rows(pair) if book.role[r] not in (INPUT, PARAMETER)]
    kind = family(op)
    inside = bool(book.target.children[t])
    source = trace_inputs(book, pair, [*inputs, *parameters])
    saved = _saved(book, t) if backward else []
    if source < 0:
        source = next((book.cause[r] for r in saved if book.state[r] == TAINTED), -1)
    inner = _inner(book, pair) if inside and not backward else []
    if source < 0:
        source = next((book.cause[r] for r in inner if book.state[r] == TAINTED), -1)
    flipped = [r for r in (*inputs, *saved, *inner) if book.state[r] == FLIPPED]
    scalars = [r for r in inputs if book.by[r] == PLAIN and book.differs[r]]
    for out in outputs:
        _output(
            book, pair, kind, out, [*inputs, *parameters, *saved, *inner], source, flipped, scalars, backward, inside
        )
    for out in outputs:
        book.note_made(out)
    if outputs:
        book.last = pair
        book.missing.clear()


def _saved(book: Ledger, t: int) -> list[int]:
    """Leaf rows of the forward call of a backward record: what it was computed from too."""
    op = book.target.ops[t]
    name = op.name.replace(f".{BACKWARD}.", ".forward.") if op.is_module else op.name.removesuffix(BACKWARD) + "forward"
    forward = book.target.position.get(name, -1)
    pair = book.pair_of.get(forward, -1)
    if pair < 0 or book.records.golden[pair] < 0:
        return []
    return list(book.rows(pair))


def _inner(book: Ledger, pair: int) -> list[int]:
    """Leaf rows of the outputs of the calls inside a module: what its own output was computed from."""
    rows: list[int] = []
    for child in book.target.children[book.records.target[pair]]:
        inner = book.pair_of.get(child, -1)
        if 0 <= inner < pair and book.records.golden[inner] >= 0:  # judged by now
            rows += [r for r in book.rows(inner) if book.role[r] == OUTPUT]
    return rows


def _output(
    book: Ledger,
    pair: int,
    kind: Family,
    out: int,
    among: list[int],
    source: int,
    flipped: list[int],
    scalars: list[int],
    backward: bool,
    inside: bool,
) -> None:
    if not book.both(out):
        book.verdict[out] = UNMATCHED
        return
    alias = book.made.get(book.signature[out], -1) if inside else -1
    if alias >= 0 and book.g[alias] >= 0 and _same_on_golden(book, alias, out):
        _same_event(book, pair, out, alias)
        return
    if source >= 0:
        if book.error[out] == 0 and not book.differs[out] and not book.nonfinite[out]:
            book.status[out] = "recovered"  # what came in makes no difference to what goes out
        else:
            book.hand_on(out, source)
        return
    if book.reason[out]:
        if book.reason[out] == REASON["shape"] and not flipped and kind is not Family.DISCRETE:
            shape_differs(book, pair, out, -1)
        else:
            book.verdict[out] = INCOMPARABLE
            book.state[out] = FLIPPED if flipped or kind is Family.DISCRETE else CLEAN
        return
    book.compared_outputs += 1
    if book.by[out] in (INTEGER, PLAIN, NOTHING):
        _exact_output(book, pair, kind, out, bool(flipped), among)
        return
    if kind is Family.CREATE and not book.differs[out] and book.error[out] == 0:
        return
    received = kind is Family.COMMUNICATION
    if book.nonfinite[out]:
        book.new("nonfinite", "received" if received else "", pair, out, FAIL, math.inf)
        return
    expected = book.expect.output(Family.CONTAINER if inside else kind, among, out, backward)
    rho = book.rate(out, expected)
    if kind in (Family.RANDOM, Family.CREATE) and rho > WARNING:
        book.verdict[out], book.status[out] = WARN, "random" if kind is Family.RANDOM else "uninitialised"
        return
    if flipped:
        book.state[out] = FLIPPED
    if rho > ERROR:
        reason = "digest" if book.by[out] == DIGEST else "argument" if scalars else ""
        reason = "received" if received else reason
        choices = any(book.by[r] in (INTEGER, NOTHING) or book.reason[r] for r in flipped)  # indices, other tokens
        if flipped and (book.by[out] == DIGEST or (choices and not book.expect.everywhere(out, expected))):
            book.verdict[out], book.status[out] = WARN, "tie"
        else:
            book.new("introduced", reason, pair, out, FAIL, rho)
    elif rho > WARNING:
        book.verdict[out], book.status[out] = WARN, "introduced"
    elif not flipped and book.error[out] == book.error[out]:
        book.expect.clean(out)


def _same_on_golden(book: Ledger, one: int, other: int) -> bool:
    """Are the two rows one tensor on the golden side as well?"""
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


def _exact_output(book: Ledger, pair: int, kind: Family, out: int, flipped: bool, inputs: list[int]) -> None:
    if not book.differs[out]:
        return
    exact = all(
        book.from_tensors[r] or book.by[r] in (DIGEST, PLAIN) for r in inputs
    )  # else figures of integers hide much
    noisy = any(book.error[r] > 0 for r in inputs if book.error[r] == book.error[r]) or (
        not exact and book.expect.context() > 0
    )
    if not exact and book.findings and not flipped:  # what cannot be seen at the inputs may have come with them
        book.hand_on(out, len(book.findings) - 1)
        return
    if flipped or kind is Family.RANDOM or noisy or kind is Family.CREATE:
        book.state[out], book.verdict[out] = FLIPPED, WARN
        book.status[out] = "random" if kind is Family.RANDOM else "tie"
        book.first_flip = min(book.first_flip, pair)
    else:
        reason = "received" if kind is Family.COMMUNICATION else ""
        book.new("introduced", reason, pair, out, FAIL, math.inf)


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
            base = book.expect.context() * book.expect.bias_gain(row, _gradient_of_output(book, pair))
            expected = book.expect.handed_on(row, 1.5 * base)
            rho = math.inf if book.nonfinite[row] else book.expect.rho(row, expected)
            book.rho[row], book.expected[row] = rho, expected
            if rho > ERROR and book.first_flip == len(book.records):
                book.new("nonfinite" if book.nonfinite[row] else "introduced", "gradient", pair, row, FAIL, rho)
            elif rho > WARNING:
                book.verdict[row] = WARN


def _gradient_of_output(book: Ledger, pair: int) -> int:
    """The leaf row with the gradient of the module's output, of a record of parameter gradients; -1 if not recorded."""
    backward = book.pair_of.get(book.target.parent[book.records.target[pair]], -1)
    if backward < 0 or book.records.golden[backward] < 0:
        return -1
    return next((r for r in book.rows(backward) if book.role[r] == INPUT and book.both(r)), -1)


def _report_alone(book: Ledger, alone: list[int]) -> None:
    """Records without partner that explain no finding: one finding for each stretch of them."""
    explained = {pair for finding in book.findings for pair in finding.unmatched}
    left = [p for p in alone if p not in explained and not _of_routing(book, p) and _could_be_paired(book, p)]
    before = -2
    for pair in left:
        if pair != before + 1 or book.side(pair) != book.side(before):
            side = book.side(pair)
            book.new("unmatched", f"only_{side}", pair, book.first[pair], WARN, math.nan, mark=False)
        book.findings[-1].unmatched.append(pair)
        before = pair


def _of_routing(book: Ledger, pair: int) -> bool:
    """Backward records of calls without partner, and calls after a routing decision went the other way."""
    t, g = book.records.target[pair], book.records.golden[pair]
    op = book.target.ops[t] if t >= 0 else book.golden.ops[g]
    return op.direction == BACKWARD or book.first_flip < pair


def _could_be_paired(book: Ledger, pair: int) -> bool:
    """Does the other side have records of this kind at all? At level L0 there are no API calls, at L1 no modules."""
    t, g = book.records.target[pair], book.records.golden[pair]
    kind = (book.target.ops[t] if t >= 0 else book.golden.ops[g]).kind
    return kind in book.kinds["golden" if t >= 0 else "target"]
