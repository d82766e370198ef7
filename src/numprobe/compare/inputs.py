"""The inputs of a call: where each comes from, and whether something happened to it on the way."""

from __future__ import annotations

import math

from numprobe.compare.expected import ERROR, FLOOR, WARNING
from numprobe.compare.ledger import FAIL, FLIPPED, INCOMPARABLE, TAINTED, UNMATCHED, UNSIGNED, WARN, Ledger
from numprobe.compare.measure import DIGEST, INTEGER, NOTHING, PLAIN, REASON, REASONS
from numprobe.metrics.gains import PARAMETER_NAMES, PARAMETER_SLOTS
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

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


def _is_parameter(book: Ledger, pair: int, row: int, signature: int, number: int) -> bool:
    if book.made[signature] >= 0:
        return False
    if signature in book.parameters:
        return True
    op = book.target.ops[book.records.target[pair]]
    name = book.path[row].rsplit(".", 1)[-1]
    slots = PARAMETER_SLOTS.get(op.api.strip("_"), ())
    return op.kind == "api" and (name in PARAMETER_NAMES or (name.isdecimal() and int(name) in slots and number > 0))


def _parameter(book: Ledger, pair: int, row: int, signature: int) -> int:
    """A weight: equal up to its dtypes' rounding, or a finding of its own."""
    if signature in book.known_parameters:
        known = book.known_parameters[signature]
        if known >= 0:
            book.mark(row, known, FAIL, "parameter")
        return known
    known = -1
    if book.has_other_shape(row):
        known = book.new("parameter", REASONS[book.reason[row]], pair, row, FAIL, math.inf)
    elif book.reason[row]:
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
    if signature != UNSIGNED:
        book.known_parameters[signature] = known
    return known


def _traced(book: Ledger, pair: int, row: int) -> int:
    """An activation or gradient at an input: where it comes from, and whether something happened on the way."""
    maker = book.maker(row)
    if maker >= 0 and book.state[maker] == TAINTED:
        book.hand_on(row, book.cause[maker])
        return book.cause[maker]
    if book.weak[row] and book.findings:  # equal or not, that digest would be the same
        return len(book.findings) - 1
    if book.has_other_shape(row):
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
    base = max(_error_before(book, row, maker), book.expect.context())
    expected = book.expect.handed_on(row, base)
    rho = book.rate(row, expected)
    if maker < 0 and book.findings and book.error[row] > 0:  # behind a finding, through something that was not recorded
        book.hand_on(row, len(book.findings) - 1)
        return book.cause[row]
    if maker < 0 and not book.foreign and _changed_alone(book, row):
        return _gap(book, pair, row, "introduced", rho)
    if rho <= WARNING:
        return -1
    if book.state[row] == FLIPPED or (book.first_flip < pair and not book.expect.everywhere(row, expected)):
        book.flip(row)
        return -1
    if book.expect.backward and not book.expect.more_than_kinks(row, expected):  # behind a clamp that was not recorded
        book.flip(row)
        return -1
    if book.is_error(row):
        return _gap(book, pair, row, "introduced", rho)
    book.verdict[row] = WARN
    return -1


def _error_before(book: Ledger, row: int, maker: int) -> float:
    """The error that this tensor had when a call made it. Of a gradient that no recorded call made, that of what the
    last one made in this size: elements that went the other way there may have come through something not recorded."""
    made = [maker] if maker >= 0 else []
    if maker < 0 and book.last >= 0 and book.expect.backward:
        size = book.expect.numel[row]
        made = [r for r in book.rows(book.last) if book.role[r] == OUTPUT and book.expect.numel[r] == size]
    return max((e for r in made if (e := book.error[r]) == e and book.state[r] != TAINTED), default=0.0)


def _changed_alone(book: Ledger, row: int) -> bool:
    """Did the step to this input change the tensor of the target, while that of the golden run stayed what a recorded call had
    made? Inside of one run there is no noise: only a cast may lie between."""
    maker = book.made_golden[book.golden_signature[row]]
    if (
        maker < 0
        or not book.both(maker)
        or book.state[maker] == TAINTED
        or book.reason[maker]
        or book.expect.is_allowed(row)
    ):
        return False
    figures = book.target.values.figures
    before, now = float(figures[book.t[maker], 3]), float(figures[book.t[row], 3])
    if not before > 0 or not now > 0:
        return False
    change = abs(now - before) / before
    size = max(book.expect.numel[row], 1.0)
    allowed = ERROR * (max(book.rounding[row], book.rounding[maker], FLOOR) / size**0.25 + book.expect.stat[row])
    return change > allowed and book.expect.d_norm[row] > change / 2


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
    if (book.by[row] == DIGEST and book.compared_outputs) or _made_alone(book, row):
        return _gap(book, pair, row, "introduced", math.inf)
    return book.new("input", "", pair, row, FAIL, math.inf)


def _made_alone(book: Ledger, row: int) -> bool:
    """Did a call that only one side has make this tensor?"""
    ours, theirs = book.signature[row], book.golden_signature[row]
    return any(
        (ours != UNSIGNED and book.signature[r] == ours) or (theirs != UNSIGNED and book.golden_signature[r] == theirs)
        for pair in book.missing
        for r in book.rows(pair)
        if book.role[r] == OUTPUT
    )


def _gap(book: Ledger, pair: int, row: int, cause: str, rho: float) -> int:
    """Something between the recorded calls changed this input: an operator that only one side has, or none recorded."""
    if not book.compared_outputs and cause == "introduced" and not _made_alone(book, row):
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
    new = book.new if book.role[row] == INPUT else book.new_output
    found = new(cause, REASONS[book.reason[row]], pair, row, FAIL, math.inf)
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
