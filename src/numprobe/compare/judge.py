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
from dataclasses import dataclass, field

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.leaves import LeafPairs
from numprobe.align.records import RecordPairs
from numprobe.compare.expected import ERROR, NOTHING_ALLOWED, WARNING, Allowed, Expectation
from numprobe.compare.measure import DIGEST, FLOAT, INTEGER, NOTHING, PLAIN, REASON, Measures
from numprobe.formats.msprobe.values import GIVEN
from numprobe.metrics.gains import PARAMETER_NAMES, PARAMETER_SLOTS, Family, family
from numprobe.record.names import BACKWARD, PARAMETERS_GRAD
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

PASS, WARN, FAIL, INCOMPARABLE, UNMATCHED = "pass", "warning", "error", "incomparable", "unmatched"
CLEAN, FLIPPED, TAINTED = 0, 1, 2
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
    return _Judge(target, golden, records, leaves, measures, expect).run()


def _spelled(*figures: float) -> tuple[object, ...]:
    """Figures among which are NaN, so that they are equal to themselves."""
    return tuple("nan" if f != f else f for f in figures)


class _Judge:
    def __init__(
        self,
        target: Calls,
        golden: Calls,
        records: RecordPairs,
        leaves: LeafPairs,
        measures: Measures,
        expect: Expectation,
    ) -> None:
        self.target, self.golden, self.records, self.leaves = target, golden, records, leaves
        n = len(leaves)
        self.t, self.g = leaves.target.tolist(), leaves.golden.tolist()
        self.by, self.reason = measures.by.tolist(), measures.reason.tolist()
        self.error, self.rounding, self.numel = expect.error, expect.rounding, expect.numel
        self.differs, self.nonfinite = measures.differs.tolist(), measures.nonfinite.tolist()
        self.from_tensors = measures.from_tensors.tolist()
        self.expect = expect
        self.noted = {
            "dtype": np.flatnonzero(measures.other_dtype).tolist(),
            "squeezed": np.flatnonzero(measures.squeezed).tolist(),
        }
        self.role, self.path = self._slots()
        self.signature = self._all_signatures()
        self.quiet = self._quiet_pairs(measures)
        self.verdict = [PASS] * n
        self.status = [""] * n
        self.rho = [math.nan] * n
        self.expected = [math.nan] * n
        self.state = [CLEAN] * n
        self.cause = [-1] * n
        self.findings: list[Finding] = []
        self.made: dict[object, int] = {}  # signature of a tensor of the target -> the leaf row that made it last
        self.parameters = self._parameter_signatures()
        self.known_parameters: dict[object, int] = {}  # signature -> finding
        self.kinds = {name: {op.kind for op in side.ops} for name, side in (("target", target), ("golden", golden))}
        self.alone: list[int] = []  # record pairs without partner
        self.first_flip = len(records)  # the record pair where a near-tie first went the other way
        self.missing: list[int] = []  # record pairs without partner since the last compared call
        self.last = -1  # the last compared record pair
        self.pair_of = {p: i for i, p in enumerate(records.target) if p >= 0}
        self.compared_outputs = 0

    def run(self) -> Judgement:
        first = self.leaves.first.tolist()
        for pair, (t, g) in enumerate(zip(self.records.target, self.records.golden, strict=True)):
            self.expect.backward = t >= 0 and self.target.ops[t].direction == BACKWARD
            rows = range(first[pair], first[pair + 1])
            if t < 0 or g < 0:
                self._alone(pair, rows)
            elif self.quiet[pair]:
                self._nothing_differs(pair, rows)
            elif self.target.ops[t].kind == PARAMETERS_GRAD:
                self._parameter_gradients(pair, rows)
            else:
                self._call(pair, t, rows)
        self._report_alone()
        for what, noted in self.noted.items():
            for row in noted:
                self.status[row] = self.status[row] or what
        return Judgement(self.verdict, self.status, self.rho, self.expected, self.cause, self.findings)

    # --- what the rows are ---------------------------------------------------------------------------------------

    def _slots(self) -> tuple[list[str], list[str]]:
        slots_t, slots_g = self.target.values.slots, self.golden.values.slots
        number_t, number_g = self.target.values.slot.tolist(), self.golden.values.slot.tolist()
        pairs = [slots_t[number_t[t]] if t >= 0 else slots_g[number_g[g]] for t, g in zip(self.t, self.g, strict=True)]
        return [role for role, _ in pairs], [path for _, path in pairs]

    def _all_signatures(self) -> list[object]:
        """By row, what tells a tensor of the target from others: its digest, else its figures and size; None where they say
        nothing, as those of a tensor of zeros."""
        values = self.target.values
        figures = zip(*values.figures[:, (0, 1, 3)].T.tolist(), values.numel.tolist(), strict=True)
        signatures: list[object] = [
            None
            if high == low and high in EVERYWHERE
            else (high, low, norm, size)
            if norm == norm and high == high
            else _spelled(high, low, norm, size)
            for high, low, norm, size in figures
        ]
        for row in np.flatnonzero(values.status[:, 0] != GIVEN).tolist():
            signatures[row] = None
        for row, digest in values.digests.items():
            signatures[row] = digest
        return [signatures[t] if t >= 0 else None for t in self.t]

    def _quiet_pairs(self, measures: Measures) -> list[bool]:
        """Record pairs in which nothing differs at all."""
        quiet = self.leaves.both & (measures.reason == 0) & ~measures.differs & ~measures.nonfinite
        quiet &= (measures.error == 0) | ((measures.by != FLOAT) & (measures.by != NOTHING))
        loud = (
            np.add.reduceat(np.r_[~quiet, False], self.leaves.first[:-1]) if len(quiet) else np.zeros(len(self.records))
        )
        loud[self.leaves.first[1:] == self.leaves.first[:-1]] = 0
        return [count == 0 for count in loud.tolist()]

    def _parameter_signatures(self) -> dict[object, int]:
        """Signatures of what module records call parameters -> the leaf row there."""
        found: dict[object, int] = {}
        for row, role in enumerate(self.role):
            if role == PARAMETER and self.t[row] >= 0 and self.g[row] >= 0:
                found.setdefault(self.signature[row], row)
        found.pop(None, None)
        return found

    # --- one call ------------------------------------------------------------------------------------------------

    def _nothing_differs(self, pair: int, rows: range) -> None:
        for row in rows:
            if self.role[row] == OUTPUT:
                self.compared_outputs += 1
                if self.by[row] == FLOAT:
                    self.expect.clean(row)
                if self.signature[row] is not None:
                    self.made[self.signature[row]] = row
        self.last = pair
        self.missing.clear()

    def _call(self, pair: int, t: int, rows: range) -> None:
        op = self.target.ops[t]
        backward = op.direction == BACKWARD
        inputs = [r for r in rows if self.role[r] == INPUT]
        parameters = [r for r in rows if self.role[r] == PARAMETER]
        outputs = [r for r in rows if self.role[r] not in (INPUT, PARAMETER)]
        kind = family(op)
        inside = bool(self.target.children[t])
        source = self._inputs(pair, kind, [*inputs, *parameters], backward)
        saved = self._saved(t) if backward else []
        if source < 0:
            source = next((self.cause[r] for r in saved if self.state[r] == TAINTED), -1)
        inner = self._inner(pair) if inside and not backward else []
        if source < 0:
            source = next((self.cause[r] for r in inner if self.state[r] == TAINTED), -1)
        flipped = [r for r in (*inputs, *saved, *inner) if self.state[r] == FLIPPED]
        scalars = [r for r in inputs if self.by[r] == PLAIN and self.differs[r]]
        for out in outputs:
            self._output(
                pair, kind, out, [*inputs, *parameters, *saved, *inner], source, flipped, scalars, backward, inside
            )
        for out in outputs:
            signature = self.signature[out]
            if signature is not None:
                self.made[signature] = out
        if outputs:
            self.last = pair
            self.missing.clear()

    def _saved(self, t: int) -> list[int]:
        """Leaf rows of the forward call of a backward record: what it was computed from too."""
        op = self.target.ops[t]
        name = (
            op.name.replace(f".{BACKWARD}.", ".forward.")
            if op.is_module
            else op.name.removesuffix(BACKWARD) + "forward"
        )
        forward = self.target.position.get(name, -1)
        pair = self.pair_of.get(forward, -1)
        if pair < 0 or self.records.golden[pair] < 0:
            return []
        first = self.leaves.first
        return list(range(int(first[pair]), int(first[pair + 1])))

    def _inputs(self, pair: int, kind: Family, inputs: list[int], backward: bool) -> int:
        """Trace and judge the inputs of a call. Returns the finding that has reached it, -1 if none."""
        source = -1
        for number, row in enumerate(inputs):
            if self.t[row] < 0 or self.g[row] < 0:
                self._one_sided(row)
                continue
            signature = self.signature[row]
            if self.role[row] == PARAMETER or self._is_parameter(pair, row, signature, number):
                found = self._parameter(pair, row, signature)
            else:
                found = self._traced(pair, row, signature, source)
            source = found if source < 0 else source
        return source

    def _is_parameter(self, pair: int, row: int, signature: object, number: int) -> bool:
        if signature in self.made:
            return False
        if signature in self.parameters:
            return True
        op = self.target.ops[self.records.target[pair]]
        name = self.path[row].rsplit(".", 1)[-1]
        slots = PARAMETER_SLOTS.get(op.api.strip("_"), ())
        return op.kind == "api" and (
            name in PARAMETER_NAMES or (name.isdecimal() and int(name) in slots and number > 0)
        )

    def _parameter(self, pair: int, row: int, signature: object) -> int:
        """A weight: equal up to its dtypes' rounding, or a finding of its own."""
        if signature in self.known_parameters:
            known = self.known_parameters[signature]
            if known >= 0:
                self._mark(row, known, FAIL, "parameter")
            return known
        known = -1
        if self.reason[row]:
            self._incomparable(row)
        elif self.nonfinite[row]:
            known = self._new("parameter", "nonfinite", pair, row, FAIL, math.inf)
        elif self.differs[row] or self.error[row] == self.error[row]:
            rho = self.expect.parameter_rho(row)
            self.rho[row], self.expected[row] = rho, self.expect.bound[row]
            if rho > ERROR:
                known = self._new("parameter", "", pair, row, FAIL, rho)
            elif rho > WARNING:
                self.verdict[row] = WARN
        if signature is not None:
            self.known_parameters[signature] = known
        return known

    def _traced(self, pair: int, row: int, signature: object, source: int) -> int:
        """An activation or gradient at an input: where it comes from, and whether something happened on the way."""
        maker = self.made.get(signature, -1) if signature is not None else -1
        if maker >= 0 and self.state[maker] == TAINTED:
            self._hand_on(row, self.cause[maker])
            return self.cause[maker]
        if self.reason[row] == REASON["shape"] or self.reason[row] == REASON["kind"]:
            return self._shape(pair, row, maker)
        if self.reason[row]:
            self._incomparable(row)
            return -1
        if self.by[row] in (INTEGER, NOTHING, PLAIN) or (self.by[row] == DIGEST and self.error[row] != self.error[row]):
            return self._discrete_input(pair, row, maker)
        if self.nonfinite[row]:
            if self.findings:
                self._hand_on(row, len(self.findings) - 1)
                return self.cause[row]
            return self._gap(pair, row, "nonfinite", math.inf)
        if maker >= 0 and self.state[maker] == FLIPPED:
            self.state[row] = FLIPPED
        base = max(
            self.error[maker] if maker >= 0 and self.error[maker] == self.error[maker] else 0.0, self.expect.context()
        )
        expected = self.expect.handed_on(row, base)
        rho = self.expect.rho(row, expected)
        self.rho[row], self.expected[row] = rho, expected
        if (
            maker < 0 and self.findings and self.error[row] > 0
        ):  # behind a finding, through something that was not recorded
            self._hand_on(row, len(self.findings) - 1)
            return self.cause[row]
        if rho <= WARNING:
            return -1
        if rho <= ERROR:
            self.verdict[row] = WARN
            return -1
        if self.state[row] == FLIPPED or (self.first_flip < pair and not self.expect.everywhere(row, expected)):
            self.state[row], self.verdict[row], self.status[row] = FLIPPED, WARN, "tie"
            return -1
        return self._gap(pair, row, "introduced", rho)

    def _discrete_input(self, pair: int, row: int, maker: int) -> int:
        if not self.differs[row]:
            return -1
        if self.by[row] == PLAIN:
            self.verdict[row], self.status[row] = WARN, "argument"
            return -1
        if self.nonfinite[row] and not self.findings:
            return self._gap(pair, row, "nonfinite", math.inf)
        if (maker >= 0 and self.state[maker] == FLIPPED) or self.first_flip < len(self.records):
            self.state[row], self.verdict[row], self.status[row] = FLIPPED, WARN, "tie"
            return -1
        if self.findings:
            self._hand_on(row, len(self.findings) - 1)
            return self.cause[row]
        if self.by[row] == DIGEST and self.compared_outputs:
            return self._gap(pair, row, "introduced", math.inf)
        return self._new("input", "", pair, row, FAIL, math.inf)

    def _gap(self, pair: int, row: int, cause: str, rho: float) -> int:
        """Something between the recorded calls changed this input: an operator that only one side has, or none recorded."""
        if not self.compared_outputs and cause == "introduced":
            return self._new("input", "", pair, row, FAIL, rho)
        sides = {self._side(p) for p in self.missing}
        reason = "operator_missing" if sides == {"golden"} else "operator_extra" if sides == {"target"} else "gap"
        if len(sides) == 2:
            reason = "operator_differs"
        found = self._new(cause, reason, pair, row, FAIL, rho)
        signature = self.signature[row]
        if signature is not None:
            self.made[signature] = row  # the modules around get the same tensor
        self.findings[found].after = self.last
        self.findings[found].unmatched = list(self.missing)
        self.missing.clear()
        return found

    def _side(self, pair: int) -> str:
        return "golden" if self.records.target[pair] < 0 else "target"

    def _shape(self, pair: int, row: int, maker: int) -> int:
        if (maker >= 0 and self.state[maker] == FLIPPED) or self.first_flip < len(self.records):
            self.state[row] = FLIPPED
            self.reason[row] = REASON["routing"]
            self._incomparable(row)
            return -1
        if self.findings:
            self._hand_on(row, len(self.findings) - 1)
            return self.cause[row]
        cause = "layout" if self.compared_outputs or self.role[row] != INPUT else "input"
        found = self._new(cause, "shape", pair, row, FAIL, math.inf)
        self.verdict[row] = FAIL
        return found

    # --- outputs -------------------------------------------------------------------------------------------------

    def _output(
        self,
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
        if self.t[out] < 0 or self.g[out] < 0:
            self._one_sided(out)
            return
        alias = self.made.get(self.signature[out], -1) if inside else -1
        if alias >= 0 and self.g[alias] >= 0 and self._same_on_golden(alias, out):
            self._same_event(pair, out, alias)
            return
        if source >= 0:
            self._hand_on(out, source)
            return
        if self.reason[out]:
            if self.reason[out] == REASON["shape"] and not flipped and kind is not Family.DISCRETE:
                self._shape(pair, out, -1)
            else:
                self._incomparable(out)
                self.state[out] = FLIPPED if flipped or kind is Family.DISCRETE else CLEAN
            return
        self.compared_outputs += 1
        if self.by[out] in (INTEGER, PLAIN, NOTHING):
            self._exact_output(pair, kind, out, bool(flipped), among)
            return
        if kind is Family.CREATE and not self.differs[out] and self.error[out] == 0:
            return
        received = kind is Family.COMMUNICATION
        if self.nonfinite[out]:
            self._new("nonfinite", "received" if received else "", pair, out, FAIL, math.inf)
            return
        expected = self.expect.output(Family.CONTAINER if inside else kind, among, out, backward)
        rho = self.expect.rho(out, expected)
        self.rho[out], self.expected[out] = rho, expected
        if kind in (Family.RANDOM, Family.CREATE) and rho > WARNING:
            self.verdict[out], self.status[out] = WARN, "random" if kind is Family.RANDOM else "uninitialised"
            return
        if flipped:
            self.state[out] = FLIPPED
        if rho > ERROR:
            reason = "digest" if self.by[out] == DIGEST else "argument" if scalars else ""
            reason = "received" if received else reason
            choices = any(self.by[r] in (INTEGER, NOTHING) or self.reason[r] for r in flipped)  # indices, other tokens
            if flipped and (self.by[out] == DIGEST or (choices and not self.expect.everywhere(out, expected))):
                self.verdict[out], self.status[out] = WARN, "tie"
            else:
                self._new("introduced", reason, pair, out, FAIL, rho)
        elif rho > WARNING:
            self.verdict[out], self.status[out] = WARN, "introduced"
        elif not flipped and self.error[out] == self.error[out]:
            self.expect.clean(out)

    def _inner(self, pair: int) -> list[int]:
        """Leaf rows of the outputs of the calls inside a module: what its own output was computed from."""
        first, rows = self.leaves.first, []
        for child in self.target.children[self.records.target[pair]]:
            inner = self.pair_of.get(child, -1)
            if inner >= 0 and self.records.golden[inner] >= 0:
                rows += [r for r in range(int(first[inner]), int(first[inner + 1])) if self.role[r] == OUTPUT]
        return rows

    def _same_on_golden(self, one: int, other: int) -> bool:
        """Are the two rows one tensor on the golden side as well?"""
        return self.error[one] == self.error[other] or (
            self.error[one] != self.error[one] and self.error[other] != self.error[other]
        )

    def _same_event(self, pair: int, out: int, alias: int) -> None:
        self.state[out], self.cause[out] = self.state[alias], self.cause[alias]
        self.verdict[out], self.rho[out], self.expected[out] = (
            self.verdict[alias],
            self.rho[alias],
            self.expected[alias],
        )
        self.reason[out] = self.reason[alias]
        self.status[out] = "contains" if self.status[alias] in ("introduced", "contains") else self.status[alias]

    def _exact_output(self, pair: int, kind: Family, out: int, flipped: bool, inputs: list[int]) -> None:
        if not self.differs[out]:
            return
        exact = all(
            self.from_tensors[r] or self.by[r] in (DIGEST, PLAIN) for r in inputs
        )  # else figures of integers hide much
        noisy = any(self.error[r] > 0 for r in inputs if self.error[r] == self.error[r]) or (
            not exact and self.expect.context() > 0
        )
        if flipped or kind is Family.RANDOM or noisy or kind is Family.CREATE:
            self.state[out], self.verdict[out] = FLIPPED, WARN
            self.status[out] = "random" if kind is Family.RANDOM else "tie"
            self.first_flip = min(self.first_flip, pair)
        else:
            reason = "received" if kind is Family.COMMUNICATION else ""
            self._new("introduced", reason, pair, out, FAIL, math.inf)

    def _hand_on(self, row: int, source: int) -> None:
        self.state[row], self.cause[row] = TAINTED, source
        self.status[row] = "propagated"
        self.findings[source].consequences += 1
        if self.reason[row]:
            self._incomparable(row)
            return
        if self.nonfinite[row] or (self.differs[row] and self.by[row] in (INTEGER, DIGEST)):
            self.verdict[row] = FAIL
            return
        if self.error[row] == self.error[row]:
            expected = self.expect.handed_on(row, self.expect.context())
            rho = self.expect.rho(row, expected)
            self.rho[row], self.expected[row] = rho, expected
            self.verdict[row] = FAIL if rho > ERROR else WARN if rho > WARNING else PASS

    # --- rows of other kinds -------------------------------------------------------------------------------------

    def _parameter_gradients(self, pair: int, rows: range) -> None:
        """Sums over everything that happened in backward: judged against the noise around them."""
        for row in rows:
            if self.t[row] < 0 or self.g[row] < 0:
                self._one_sided(row)
            elif self.reason[row]:
                self._incomparable(row)
            elif self.findings:
                self._hand_on(row, len(self.findings) - 1)
            elif self.error[row] == self.error[row] or self.nonfinite[row] or self.differs[row]:
                base = self.expect.context() * self.expect.bias_gain(row, self._gradient_of_output(pair))
                expected = self.expect.handed_on(row, 1.5 * base)
                rho = math.inf if self.nonfinite[row] else self.expect.rho(row, expected)
                self.rho[row], self.expected[row] = rho, expected
                if rho > ERROR and self.first_flip == len(self.records):
                    self._new("nonfinite" if self.nonfinite[row] else "introduced", "gradient", pair, row, FAIL, rho)
                elif rho > WARNING:
                    self.verdict[row] = WARN

    def _gradient_of_output(self, pair: int) -> int:
        """The leaf row with the gradient of the module's output, of a record of parameter gradients; -1 if not recorded."""
        backward = self.pair_of.get(self.target.parent[self.records.target[pair]], -1)
        if backward < 0 or self.records.golden[backward] < 0:
            return -1
        first = self.leaves.first
        rows = range(int(first[backward]), int(first[backward + 1]))
        return next((r for r in rows if self.role[r] == INPUT and self.t[r] >= 0 and self.g[r] >= 0), -1)

    def _alone(self, pair: int, rows: range) -> None:
        for row in rows:
            self.verdict[row] = UNMATCHED
        self.missing.append(pair)
        self.alone.append(pair)

    def _report_alone(self) -> None:
        """Records without partner that explain no finding: one finding for each stretch of them."""
        explained = {pair for finding in self.findings for pair in finding.unmatched}
        left = [p for p in self.alone if p not in explained and not self._of_routing(p) and self._could_be_paired(p)]
        before = -2
        for pair in left:
            if pair != before + 1 or self._side(pair) != self._side(before):
                side = self._side(pair)
                self._new("unmatched", f"only_{side}", pair, int(self.leaves.first[pair]), WARN, math.nan, mark=False)
            self.findings[-1].unmatched.append(pair)
            before = pair

    def _of_routing(self, pair: int) -> bool:
        """Backward records of calls without partner, and calls after a routing decision went the other way."""
        t, g = self.records.target[pair], self.records.golden[pair]
        op = self.target.ops[t] if t >= 0 else self.golden.ops[g]
        return op.direction == BACKWARD or self.first_flip < pair

    def _could_be_paired(self, pair: int) -> bool:
        """Does the other side have records of this kind at all? At level L0 there are no API calls, at L1 no modules."""
        t, g = self.records.target[pair], self.records.golden[pair]
        kind = (self.target.ops[t] if t >= 0 else self.golden.ops[g]).kind
        return kind in self.kinds["golden" if t >= 0 else "target"]

    def _one_sided(self, row: int) -> None:
        self.verdict[row] = UNMATCHED

    def _incomparable(self, row: int) -> None:
        self.verdict[row] = INCOMPARABLE

    def _mark(self, row: int, finding: int, verdict: str, status: str) -> None:
        self.state[row], self.cause[row] = TAINTED, finding
        self.verdict[row], self.status[row] = verdict, status

    def _new(
        self, cause: str, reason: str, pair: int, row: int, severity: str, rho: float, *, mark: bool = True
    ) -> int:
        number = len(self.findings)
        self.findings.append(Finding(cause, reason, pair, row, severity, rho))
        if mark:
            self.rho[row] = rho
            self._mark(row, number, severity, cause if cause in ("parameter", "input") else "introduced")
        return number
