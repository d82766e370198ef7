"""Two ranks that should agree: from two folders to findings, counts and a part of the table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from numprobe.align.calls import Calls, read_both, read_calls
from numprobe.align.leaves import LeafPairs, pair_leaves
from numprobe.align.mapping import NO_MAPPING, Mapping, given_leaves, naming_of
from numprobe.align.records import RecordPairs, pair_records
from numprobe.align.shards.unit import Unit, read_unit
from numprobe.align.unknown import Unknown, unknown_names
from numprobe.compare import result as data
from numprobe.compare.expected import WARNING, Allowed, detection_limit
from numprobe.compare.findings import finding_of, number
from numprobe.compare.judge import Judgement, judge
from numprobe.compare.ledger import FAIL, INCOMPARABLE, UNMATCHED, WARN, Finding
from numprobe.compare.measure import DIGEST, FLOAT, NOTHING, REASON, Measures, leave_out, measure
from numprobe.compare.problems import of_amount, of_dump, of_levels, of_metrics, of_mode, of_tensors, unreadable
from numprobe.compare.processing import NO_PROCESSING, Processing
from numprobe.compare.sharded import merge_notes, parts_of_each_other
from numprobe.compare.tensors import measure_tensors
from numprobe.formats.dump import RankDump
from numprobe.formats.layout import RankFolder
from numprobe.record.errors import NumprobeError
from numprobe.record.names import BACKWARD, OpName
from numprobe.record.trace import OUTPUT

if TYPE_CHECKING:
    from numprobe.compare.custom import Metrics, PairMetrics
    from numprobe.compare.msprobe.output import Compat

MOST_FINDINGS = 100  # of a pair of ranks; the table has all
WORST = {verdict: rank for rank, verdict in enumerate(("pass", INCOMPARABLE, UNMATCHED, WARN, FAIL))}


@dataclass(frozen=True)
class RankTask:
    """What a worker needs. The roots are the folders of the dumps, for paths relative to them.

    ``by`` is what was asked for; ``ignore_digests`` compares by figures where both are there. ``beside``: the two sides may be
    read at the same time. ``device``: where torch computes on tensors, numpy if empty.
    ``metrics``: further ones of the user's.
    """

    step: int | None
    target: RankFolder
    golden: RankFolder
    cache_to: Path | None = None
    mapping: Mapping = NO_MAPPING
    noise: RankFolder | None = None
    baseline: RankFolder | None = None
    factor: float = 2.0
    by: str = "auto"
    ignore_digests: bool = False
    tensors: bool = True
    threads: int = 1
    device: str = ""
    metrics: Metrics | None = None
    beside: bool = False
    compat: Compat | None = None
    processing: Processing = NO_PROCESSING
    target_root: Path | None = None
    golden_root: Path | None = None
    unit: Unit | None = None


@dataclass
class Compared:
    """Everything that is known of one pair of ranks."""

    task: RankTask
    target: Calls
    golden: Calls
    records: RecordPairs
    leaves: LeafPairs
    measures: Measures
    judgement: Judgement
    problems: list[data.Problem] = field(default_factory=list)
    custom: PairMetrics | None = None

    @cached_property
    def errors(self) -> NDArray[np.float64]:
        """The relative error of every row as a reader would work it out: measured, or what the figures differ by where that alone
        is more than was expected. Else the estimate from them. Figures of a parameter show a cast or another tensor, and behind
        unequal digests nothing is expected: there is nothing to estimate."""
        m, expected = self.measures, np.array(self.judgement.expected, np.float64)
        parameter = np.fromiter((status == "parameter" for status in self.judgement.status), bool, len(m))
        plain = np.fmax(m.d_norm, m.d_extreme)
        read_off = parameter | (m.by == DIGEST) | (plain > WARNING * expected)
        return np.where(~m.from_tensors & read_off, plain, m.error)


class RankOutcome(msgspec.Struct):
    """What goes on from a worker. ``recorded`` counts the leaves of both sides that are of a kind which both levels have,
    ``judged`` the pairs of them that were compared; ``unknown`` has names of the mapping."""

    pair: data.RankPair
    findings: list[data.Finding]
    heat: list[data.Cell]
    dtypes: list[str]
    recorded: int
    levels: tuple[str, str]
    unknown: list[Unknown] = []
    more_findings: int = 0
    notes: list[str] = []
    parts: bool = False
    judged: int = 0
    problems: list[data.Problem] = []


def compare_ranks(task: RankTask) -> Compared:
    """Align, measure and judge.

    Raises:
        NumprobeError: a dump cannot be read.
    """
    target, golden = _sides(task)
    if task.processing != NO_PROCESSING:
        target.tensors = task.processing.of("target", target.tensors)
        golden.tensors = task.processing.of("golden", golden.tensors)
    records = _paired(task, target, golden)
    given = given_leaves(task.mapping, records, target, golden)
    leaves = pair_leaves(records, target.values, golden.values, given)
    measures = _measured(task, leaves, target, golden)
    problems: list[data.Problem] = []
    allowed = Allowed(
        _errors_of(task, "noise", golden, leaves, problems), _errors_of(task, "baseline", golden, leaves, problems)
    )
    judged = judge(target, golden, records, leaves, measures, allowed)
    return Compared(
        task, target, golden, records, leaves, measures, judged, problems, _custom(task, leaves, target, golden)
    )


def _custom(task: RankTask, leaves: LeafPairs, target: Calls, golden: Calls) -> PairMetrics | None:
    if task.metrics is None:
        return None
    from numprobe.compare.custom import PairMetrics

    custom = PairMetrics(task.metrics, target.tensors, golden.tensors)
    custom.look_at(leaves, target, golden)
    return custom


def _sides(task: RankTask) -> tuple[Calls, Calls]:
    if task.unit is not None:
        return read_unit(task.unit, task.cache_to, partial(_paired, task), tensors=task.tensors)
    target, golden = (RankDump(folder, task.cache_to) for folder in (task.target, task.golden))
    return read_both(target, golden, at_once=task.beside)


def _paired(task: RankTask, target: Calls, golden: Calls) -> RecordPairs:
    return pair_records(target, golden, naming_of(task.mapping, target, golden))


def _measured(task: RankTask, leaves: LeafPairs, target: Calls, golden: Calls) -> Measures:
    measures = measure(leaves, target.values, golden.values, digests=not task.ignore_digests)
    if target.dump.index.info.grad_kind != golden.dump.index.info.grad_kind:
        _leave_out_gradients(measures, leaves, target)
    for calls, rows in ((target, leaves.target), (golden, leaves.golden)):
        for reason, chosen in calls.left_out.items():
            leave_out(measures, np.flatnonzero(leaves.both & np.isin(rows, chosen)), reason)
    if task.tensors:
        measure_tensors(measures, leaves, target, golden, threads=task.threads, device=task.device)
    return measures


def _leave_out_gradients(measures: Measures, leaves: LeafPairs, target: Calls) -> None:
    """Backward records of API calls hold the call's own gradients in one collector, those of its last autograd node in another:
    what they return cannot be compared."""
    values = target.values
    of_api = np.array([op.kind == "api" and op.direction == BACKWARD for op in values.ops], bool)
    returned = np.array([role == OUTPUT for role, _ in values.slots], bool)
    both = np.flatnonzero(leaves.both)
    rows = leaves.target[both]
    chosen = both[of_api[values.op_of()[rows]] & returned[values.slot[rows]]] if len(both) else both
    measures.reason[chosen] = REASON["gradient_definition"]
    measures.differs[chosen] = measures.nonfinite[chosen] = False
    measures.error[chosen] = np.nan


def _errors_of(
    task: RankTask, side: str, golden: Calls, leaves: LeafPairs, problems: list[data.Problem]
) -> dict[int, float]:
    """Relative errors of the noise or baseline run against the golden one, by the leaf rows of this comparison. What of that run
    cannot be read joins the ``problems``: its errors only allow more."""
    other, factor = (task.noise, 1.0) if side == "noise" else (task.baseline, task.factor)
    if other is None:
        return {}
    try:
        calls = read_calls(RankDump(other, task.cache_to))
    except NumprobeError as error:
        problems.append(unreadable(error, [(side, other)], task.step, other))
        return {}
    problems += of_dump(calls.dump, side, task.step, tensors=task.tensors)
    records = pair_records(calls, golden)
    rows = pair_leaves(records, calls.values, golden.values)
    measures = _measured(task, rows, calls, golden)
    by_golden = {g: factor * e for g, e in zip(rows.golden.tolist(), measures.error.tolist(), strict=True) if g >= 0}
    return {
        row: by_golden[g]
        for row, g in enumerate(leaves.golden.tolist())
        if g in by_golden and not math.isnan(by_golden[g])
    }


def summarize(compared: Compared) -> RankOutcome:
    """The findings and figures of a pair of ranks, without the tables."""
    task, judged, measures = compared.task, compared.judgement, compared.measures
    counts = Counter(judged.verdict)
    only_golden = int((compared.leaves.target < 0).sum())
    unmatched = counts.pop(UNMATCHED, 0)
    counts["unmatched_golden"] = only_golden
    counts["unmatched_target"] = unmatched - only_golden
    by = measures.by
    common = of_levels(compared.target, compared.golden)
    own = (len(compared.target.values), len(compared.golden.values))
    done = (by != NOTHING) & (measures.reason == 0)
    judged_of_common = int((done & common[compared.leaves.target] & compared.leaves.both).sum()) if len(common) else 0
    recorded = int(common.sum())
    floats = by[(by == FLOAT) | (by == DIGEST)]
    tensors = int(measures.from_tensors.sum())
    modes = (["tensor"] if tensors else []) + (["digest"] if (floats == DIGEST).any() else [])
    if (by == FLOAT).sum() > tensors:
        modes.append("statistics")
    pair = data.RankPair(
        task.step,
        task.target.rank,
        task.target.key,
        task.golden.key,
        _status(compared),
        records=len(compared.records),
        leaves=len(compared.leaves),
        compared=int(done.sum()),
        counts={v: counts.get(v, 0) for v in data.VERDICTS},
        mode=modes[0] if len(modes) == 1 or tensors else "mixed" if modes else "structure",
        detection_limit=detection_limit(measures, judged.expected) if "statistics" in modes and not tensors else None,
    )
    files = (str(task.target.dump), str(task.golden.dump))
    problems = [
        *(
            problem
            for name, side in (("target", compared.target), ("golden", compared.golden))
            for dump in side.dumps
            for problem in of_dump(dump, name, task.step, tensors=task.tensors)
        ),
        *compared.problems,
        *of_amount(pair, own, judged_of_common, recorded, files),
        *of_tensors(pair, measures, files[0]),
        *of_mode(task.by, pair, measures, files[0]),
        *of_metrics(pair, compared.custom, files[0]),
    ]
    return RankOutcome(
        pair,
        [finding_of(compared, f) for f in _first(judged.findings)],
        _heat(compared),
        _dtypes(compared),
        recorded,
        (compared.target.dump.index.info.level, compared.golden.dump.index.info.level),
        unknown_names(task.mapping, compared.target, compared.golden),
        max(len(judged.findings) - MOST_FINDINGS, 0),
        merge_notes(compared.target, compared.golden),
        parts_of_each_other(compared.leaves, measures.reason, compared.target.values, compared.golden.values),
        judged_of_common,
        problems,
    )


def _first(findings: list[Finding]) -> list[Finding]:
    """Those that are told of with all their figures: errors before warnings, in the order of execution."""
    return sorted(findings, key=lambda f: (f.severity != FAIL, f.pair))[:MOST_FINDINGS]


def _status(compared: Compared) -> str:
    damaged = any(dump.index.damage for side in (compared.target, compared.golden) for dump in side.dumps)
    return "partial" if damaged else "ok"


def _dtypes(compared: Compared) -> list[str]:
    """``bf16 against fp32`` and the like, the most frequent first."""
    rows = np.flatnonzero(compared.measures.is_float)
    t, g = compared.target.values, compared.golden.values
    width = max(len(g.kinds), 1)
    pairs = t.kind[compared.leaves.target[rows]].astype(np.int64) * width + g.kind[compared.leaves.golden[rows]]
    found: Counter[str] = Counter()
    for pair, count in zip(*(part.tolist() for part in np.unique(pairs, return_counts=True)), strict=True):
        found[f"{t.kinds[pair // width][2]}/{g.kinds[pair % width][2]}"] += count
    return [name for name, _ in found.most_common()]


def _heat(compared: Compared) -> list[data.Cell]:
    """The worst verdict by part of a layer and phase; of rows with the same verdict the first."""
    j = compared.judgement
    cells: dict[tuple[str, int | None, str], int] = {}
    cell_of_pair = np.fromiter(_cells(compared, cells), np.int64, len(compared.records))
    cell = cell_of_pair[compared.leaves.pair] if len(compared.leaves) else np.zeros(0, np.int64)
    n = len(cell)
    rank = np.fromiter(map(WORST.__getitem__, j.verdict), np.int64, n)
    worst = np.full(len(cells), -1)
    inside = cell >= 0
    np.maximum.at(worst, cell[inside], (rank * n + np.arange(n)[::-1])[inside])
    return [
        data.Cell(part, layer, phase, j.verdict[row], j.status[row], number(j.rho[row]))
        for (part, layer, phase), key in zip(cells, worst.tolist(), strict=True)
        if key >= 0 and (row := n - 1 - key % n) >= 0
    ]


def _cells(compared: Compared, cells: dict[tuple[str, int | None, str], int]) -> Iterator[int]:
    """The cell of every record pair, -1 where no module is known; ``cells`` gets their numbers."""
    places: dict[str, tuple[int | None, str]] = {}
    for t, g in zip(compared.records.target, compared.records.golden, strict=True):
        calls, i = (compared.target, t) if t >= 0 else (compared.golden, g)
        op = calls.ops[i]
        module = op if op.is_module else calls.ops[calls.parent[i]] if calls.parent[i] >= 0 else None
        if module is None:
            yield -1
            continue
        place = places.get(module.name)
        if place is None:
            place = places[module.name] = place_in_layer(module)
        yield cells.setdefault((place[1], place[0], calls.phase[i]), len(cells))


def place_in_layer(module: OpName) -> tuple[int | None, str]:
    """Layer number and the path inside the layer (the whole path outside of layers; the class for the layer itself)."""
    layer = module.layer
    if layer is None:
        return None, module.path
    inside = module.path.split(f".{layer}.", 1) if f".{layer}." in module.path else [module.path, ""]
    return layer, inside[-1] or module.api
