"""The inputs of a call: where each comes from, and whether something happened to it on the way."""

from __future__ import annotations

import math

from numprobe.compare.expected import ERROR, WARNING
from numprobe.compare.ledger import FAIL, FLIPPED, INCOMPARABLE, TAINTED, UNMATCHED, WARN, Ledger
from numprobe.compare.measure import DIGEST, INTEGER, NOTHING, PLAIN, REASON
from numprobe.metrics.gains import PARAMETER_NAMES, PARAMETER_SLOTS
from numprobe.record.trace import INPUT, PARAMETER

ADDENDS = ("addbmm", "addmm", "addmv", "addr", "baddbmm", "sspaddmm")  # beta * input + alpha * a b


def trace_inputs(book: Ledger, pair: int, inputs: list[int]) -> int:
    """Trace and judge the inputs of a call. Returns the finding that has reached it, -1 if none."""
    source = -1
    for number, row in enumerate(inputs):
        if not book.both(row):
            book.verdict[row] = UNMATCHED
            continue
        if number == 0 and _unread(book, pair, inputs):
            book.verdict[row], book.status[row] = INCOMPARABLE, "uninitialised"
            continue
        signature = book.signature[row]
        if book.role[row] == PARAMETER or _is_parameter(book, pair, row, signature, number):
            found = _parameter(book, pair, row, signature)
        else:
            found = _traced(book, pair, row)
        source = found if source < 0 else source
    return source


def _unread(book: Ledger, pair: int, inputs: list[int]) -> bool:
    """With beta=0 the addend of baddbmm and its like is not read: often memory that nobody had written."""
    if book.target.ops[book.records.target[pair]].api.rstrip("_") not in ADDENDS:
        return False
    beta = next((book.t[row] for row in inputs if book.path[row].endswith(".beta")), -1)
    return beta >= 0 and book.target.values.scalars.get(beta) == 0


def _is_parameter(book: Ledger, pair: int, row: int, signature: object, number: int) -> bool:
    if signature in book.made:
        return False
    if signature in book.parameters:
        return True
    op = book.target.ops[book.records.target[pair]]
    name = book.path[row].rsplit(".", 1)[-1]
    slots = PARAMETER_SLOTS.get(op.api.strip("_"), ())
    return op.kind == "api" and (name in PARAMETER_NAMES or (name.isdecimal() and int(name) in slots and number > 0))


def _parameter(book: Ledger, pair: int, row: int, signature: object) -> int:
    """A weight: equal up to its dtypes' rounding, or a finding of its own."""
    if signature in book.known_parameters:
        known = book.known_parameters[signature]
        if known >= 0:
            book.mark(row, known, FAIL, "parameter")
        return known
    known = -1
    if book.reason[row]:
        book.verdict[row] = INCOMPARABLE
    elif book.nonfinite[row]:
        known = book.new("parameter", "nonfinite", pair, row, FAIL, math.inf)
    elif book.differs[row] or book.error[row] == book.error[row]:
        rho = book.expect.parameter_rho(row)
        book.rho[row], book.expected[row] = rho, book.expect.bound[row]
        if rho > ERROR:
            known = book.new("parameter", "", pair, row, FAIL, rho)
        elif rho > WARNING:
            book.verdict[row] = WARN
    if signature is not None:
        book.known_parameters[signature] = known
    return known


def _traced(book: Ledger, pair: int, row: int) -> int:
    """An activation or gradient at an input: where it comes from, and whether something happened on the way."""
    maker = book.maker(row)
    if maker >= 0 and book.state[maker] == TAINTED:
        book.hand_on(row, book.cause[maker])
        return book.cause[maker]
    if book.reason[row] == REASON["shape"] or book.reason[row] == REASON["kind"]:
        return shape_differs(book, pair, row, maker)
    if book.reason[row]:
        if maker < 0 and book.findings and book.reason[row] == REASON["partial"]:
            book.hand_on(row, len(book.findings) - 1)  # other on every rank, and behind a finding
            return book.cause[row]
        book.verdict[row] = INCOMPARABLE
        return -1
    if book.by[row] in (INTEGER, NOTHING, PLAIN) or (book.by[row] == DIGEST and book.error[row] != book.error[row]):
        return _discrete_input(book, pair, row, maker)
    if book.nonfinite[row]:
        if book.findings:
            book.hand_on(row, len(book.findings) - 1)
            return book.cause[row]
        return _gap(book, pair, row, "nonfinite", math.inf)
    if maker >= 0 and book.state[maker] == FLIPPED:
        book.state[row] = FLIPPED
    base = max(
        book.error[maker] if maker >= 0 and book.error[maker] == book.error[maker] else 0.0, book.expect.context()
    )
    expected = book.expect.handed_on(row, base)
    rho = book.rate(row, expected)
    if maker < 0 and book.findings and book.error[row] > 0:  # behind a finding, through something that was not recorded
        book.hand_on(row, len(book.findings) - 1)
        return book.cause[row]
    if rho <= WARNING:
        return -1
    if rho <= ERROR:
        book.verdict[row] = WARN
        return -1
    if book.state[row] == FLIPPED or (book.first_flip < pair and not book.expect.everywhere(row, expected)):
        book.flip(row)
        return -1
    return _gap(book, pair, row, "introduced", rho)


def _discrete_input(book: Ledger, pair: int, row: int, maker: int) -> int:
    if not book.differs[row]:
        return -1
    if book.by[row] == PLAIN:
        book.verdict[row], book.status[row] = WARN, "argument"
        return -1
    if book.nonfinite[row] and not book.findings:
        return _gap(book, pair, row, "nonfinite", math.inf)
    if (maker >= 0 and book.state[maker] == FLIPPED) or book.first_flip < len(book.records):
        book.flip(row)
        return -1
    if book.findings:
        book.hand_on(row, len(book.findings) - 1)
        return book.cause[row]
    if book.by[row] == DIGEST and book.compared_outputs:
        return _gap(book, pair, row, "introduced", math.inf)
    return book.new("input", "", pair, row, FAIL, math.inf)


def _gap(book: Ledger, pair: int, row: int, cause: str, rho: float) -> int:
    """Something between the recorded calls changed this input: an operator that only one side has, or none recorded."""
    if not book.compared_outputs and cause == "introduced":
        return book.new("input", "", pair, row, FAIL, rho)
    sides = {book.side(p) for p in book.missing}
    reason = "operator_missing" if sides == {"golden"} else "operator_extra" if sides == {"target"} else "gap"
    if len(sides) == 2:
        reason = "operator_differs"
    found = book.new(cause, reason, pair, row, FAIL, rho)
    book.note_made(row)  # the modules around get the same tensor
    book.findings[found].after = book.last
    book.findings[found].unmatched = list(book.missing)
    book.missing.clear()
    return found


def shape_differs(book: Ledger, pair: int, row: int, maker: int) -> int:
    flipped = (maker >= 0 and book.state[maker] == FLIPPED) or book.first_flip < len(book.records)
    if flipped or _other_tokens(book, pair, row):
        book.first_flip = min(book.first_flip, pair)
        book.state[row] = FLIPPED
        book.reason[row] = REASON["routing"]
        book.verdict[row] = INCOMPARABLE
        return -1
    if book.findings:
        book.hand_on(row, len(book.findings) - 1)
        return book.cause[row]
    cause = "layout" if book.compared_outputs or book.role[row] != INPUT else "input"
    found = book.new(cause, "shape", pair, row, FAIL, math.inf)
    book.verdict[row] = FAIL
    return found


def _other_tokens(book: Ledger, pair: int, row: int) -> bool:
    """Has an expert been given another number of tokens? Where routing is not recorded, that is the first that shows of it."""
    t = book.records.target[pair]
    op = book.target.ops[t]
    inside = op if op.is_module else book.target.ops[book.target.parent[t]] if book.target.parent[t] >= 0 else None
    if inside is None or "expert" not in inside.path:
        return False
    one, other = (
        values.shapes[values.shape[i]]
        for values, i in ((book.target.values, book.t[row]), (book.golden.values, book.g[row]))
    )
    return one is not None and other is not None and one[1:] == other[1:]
