"""Two ranks that should agree: from two folders to findings, counts and a part of the table."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from numprobe.align.calls import Calls, read_calls
from numprobe.align.leaves import LeafPairs, pair_leaves
from numprobe.align.mapping import NO_MAPPING, Mapping, given_leaves, naming_of
from numprobe.align.records import RecordPairs, pair_records
from numprobe.align.shards.joined import JoinedCalls
from numprobe.align.shards.unit import Unit, read_unit
from numprobe.align.unknown import Unknown, unknown_names
from numprobe.compare import result as data
from numprobe.compare.blame import blamed
from numprobe.compare.expected import ERROR, WARNING, Allowed
from numprobe.compare.judge import Judgement, judge
from numprobe.compare.ledger import FAIL, INCOMPARABLE, UNMATCHED, WARN, Finding
from numprobe.compare.measure import DIGEST, FLOAT, NOTHING, REASON, REASONS, Measures, leave_out, measure
from numprobe.compare.msprobe.output import Compat
from numprobe.compare.problems import of_amount, of_dump, of_levels, of_mode, unreadable
from numprobe.compare.processing import NO_PROCESSING, Processing
from numprobe.compare.sharded import merge_notes, parts_of_each_other
from numprobe.compare.tensors import measure_tensors
from numprobe.formats.dump import RankDump
from numprobe.formats.layout import RankFolder
from numprobe.metrics.permutation import find_layouts
from numprobe.record.errors import NumprobeError
from numprobe.record.names import BACKWARD, FORWARD, OpName, parse_name
from numprobe.record.trace import OUTPUT

MOST_FINDINGS = 100  # of a pair of ranks; the table has all
WORST = {verdict: rank for rank, verdict in enumerate(("pass", INCOMPARABLE, UNMATCHED, WARN, FAIL))}


@dataclass(frozen=True)
class RankTask:
    """What a worker needs. The roots are the folders of the dumps, for paths relative to them.

    ``by`` is what was asked for; ``ignore_digests`` compares by figures where both are there.
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
    return Compared(task, target, golden, records, leaves, measures, judged, problems)


def _sides(task: RankTask) -> tuple[Calls, Calls]:
    if task.unit is not None:
        return read_unit(task.unit, task.cache_to, partial(_paired, task), tensors=task.tensors)
    target, golden = (read_calls(RankDump(folder, task.cache_to)) for folder in (task.target, task.golden))
    return target, golden


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
        measure_tensors(measures, leaves, target, golden, threads=task.threads)
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
        detection_limit=_detection_limit(compared) if "statistics" in modes and not tensors else None,
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
        *of_mode(task.by, pair, measures, files[0]),
    ]
    return RankOutcome(
        pair,
        [_finding(compared, f) for f in _first(judged.findings)],
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


def _detection_limit(compared: Compared) -> float | None:
    """The smallest uncorrelated relative error that the norms could show, median over the rows: e_min = sqrt(2 tol_norm)."""
    m, expected = compared.measures, np.array(compared.judgement.expected)
    rows = m.is_float & ~np.isnan(expected) & (m.numel > 1)
    if not rows.any():
        return None
    lever = np.sqrt(np.sqrt(m.numel[rows]))
    with np.errstate(over="ignore"):
        tolerance = ERROR * (expected[rows] / lever + expected[rows] ** 2 / 2) + m.stat[rows]
    return float(np.median(np.sqrt(2 * tolerance)))


def _dtypes(compared: Compared) -> list[str]:
    """``bf16 against fp32`` and the like, the most frequent first."""
    rows = np.flatnonzero(compared.measures.is_float)
    t, g = compared.target.values, compared.golden.values
    pairs = np.stack([t.kind[compared.leaves.target[rows]], g.kind[compared.leaves.golden[rows]]])
    found: Counter[str] = Counter()
    for (a, b), count in zip(*_unique_columns(pairs), strict=True):
        found[f"{t.kinds[a][2]}/{g.kinds[b][2]}"] += count
    return [name for name, _ in found.most_common()]


def _unique_columns(pairs: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> tuple[list[list[int]], list[int]]:
    columns, counts = np.unique(pairs, axis=1, return_counts=True)
    return columns.T.tolist(), counts.tolist()


def _heat(compared: Compared) -> list[data.Cell]:
    """The worst verdict by part of a layer and phase."""
    worst: dict[tuple[str, int | None, str], tuple[int, int]] = {}
    verdicts, first = compared.judgement.verdict, compared.leaves.first.tolist()
    for pair, (t, g) in enumerate(zip(compared.records.target, compared.records.golden, strict=True)):
        calls, i = (compared.target, t) if t >= 0 else (compared.golden, g)
        op = calls.ops[i]
        module = op if op.is_module else calls.ops[calls.parent[i]] if calls.parent[i] >= 0 else None
        if module is None:
            continue
        layer, part = place_in_layer(module)
        key = (part, layer, calls.phase[i])
        for row in range(first[pair], first[pair + 1]):
            rank = WORST[verdicts[row]]
            if key not in worst or rank > worst[key][0]:
                worst[key] = (rank, row)
    j = compared.judgement
    return [
        data.Cell(part, layer, phase, j.verdict[row], j.status[row], _number(j.rho[row]))
        for (part, layer, phase), (_, row) in worst.items()
    ]


def place_in_layer(module: OpName) -> tuple[int | None, str]:
    """Layer number and the path inside the layer (the whole path outside of layers; the class for the layer itself)."""
    layer = module.layer
    if layer is None:
        return None, module.path
    inside = module.path.split(f".{layer}.", 1) if f".{layer}." in module.path else [module.path, ""]
    return layer, inside[-1] or module.api


def _finding(compared: Compared, found: Finding) -> data.Finding:
    """A finding with everything that a reader needs to check it."""
    target, golden, pair, row = compared.target, compared.golden, found.pair, found.row
    t, g = compared.records.target[pair], compared.records.golden[pair]
    calls, i = (target, t) if t >= 0 else (golden, g)
    judged = compared.judgement
    rows = range(int(compared.leaves.first[pair]), int(compared.leaves.first[pair + 1]))
    names = [_name(compared, p) for p in found.unmatched]
    slot = _slot(compared, row)[1] if len(rows) else ""
    inside = calls.inside(i)
    dump, k = calls.recorded(i)
    ranks, diverged = _blamed(compared, t, row)
    if ranks and t >= 0:
        dump, k = ranks[0]
    return data.Finding(
        cause=found.cause,
        reason=found.reason or ("rank_divergence" if diverged else ""),
        severity=found.severity,
        op=dump.index.names[k] if t >= 0 else None,
        golden_op=recorded_name(golden, g) if g >= 0 else None,
        slot=slot,
        step=compared.task.step,
        rank_keys=[d.place.key for d, _ in ranks] or [compared.task.target.key],
        ranks=[r for r in ([d.place.rank for d, _ in ranks] or [compared.task.target.rank]) if r is not None],
        op_index=k,
        phase=calls.phase[i],
        layer=next((layer for n in [calls.ops[i].name, *inside] if (layer := _layer(n)) is not None), None),
        rho=_number(found.rho),
        error=_number(_apart(compared, row, found.cause == "parameter")) if len(rows) else None,
        expected=_number(judged.expected[row]) if len(rows) else None,
        after=_name(compared, found.after)[0] if found.after is not None and found.after >= 0 else None,
        parameter=_parameter(compared, row, inside) if found.cause == "parameter" else "",
        only_target=[name for name, side in names if side == "target"],
        only_golden=[name for name, side in names if side == "golden"],
        inside=inside,
        stack=list(dump.stacks.get(_with_stack(parse_name(dump.index.names[k]))) or [])[:12],
        leaves=[_leaf(compared, r) for r in rows],
        consequences=found.consequences,
        target_place=_place((dump, k), compared.task.target_root) if t >= 0 else None,
        golden_place=_place(golden.recorded(g), compared.task.golden_root) if g >= 0 else None,
        layout=_layout(compared, row) if found.cause in ("introduced", "parameter") else "",
    )


def _apart(compared: Compared, row: int, parameter: bool = False) -> float:
    """The relative error of a row as a reader would work it out: measured, or what the figures differ by where that alone is more
    than was expected. Else the estimate from them. Figures of a parameter show a cast or another tensor, nothing to estimate."""
    m = compared.measures
    expected = compared.judgement.expected[row]
    plain = float(np.fmax(m.d_norm[row], m.d_extreme[row]))
    if not m.from_tensors[row] and (parameter or plain > WARNING * expected):
        return plain
    return float(m.error[row])


def _layout(compared: Compared, row: int) -> str:
    """``block_swap axis 1, 16 each: 0, 1`` and the like, where the target holds the golden elements in another order."""
    if row not in compared.measures.details:
        return ""
    sides = ((compared.target, int(compared.leaves.target[row])), (compared.golden, int(compared.leaves.golden[row])))
    try:
        one, other = (calls.tensors.open(calls.values.files[i]) for calls, i in sides)
        found = find_layouts(one, other, tolerance=WARNING * max(compared.judgement.expected[row], 0.0))
    except (NumprobeError, KeyError):
        return ""
    if not found:
        return ""
    first = found[0]
    axes = f" axis {', '.join(map(str, first.axes))}" if first.axes else ""
    size = f", {first.size} each" if first.size else ""
    return f"{first.kind}{axes}{size}{': ' + ', '.join(map(str, first.blocks)) if first.blocks else ''}"


def _layer(name: str) -> int | None:
    return parse_name(name).layer


def _with_stack(op: OpName) -> str:
    """Stacks are recorded for forward calls only."""
    return op.name.replace(".backward", ".forward") if op.direction != FORWARD else op.name


def _name(compared: Compared, pair: int) -> tuple[str, str]:
    t, g = compared.records.target[pair], compared.records.golden[pair]
    return (recorded_name(compared.target, t), "target") if t >= 0 else (recorded_name(compared.golden, g), "golden")


def _slot(compared: Compared, row: int) -> tuple[str, str]:
    t, g = int(compared.leaves.target[row]), int(compared.leaves.golden[row])
    values, i = (compared.target.values, t) if t >= 0 else (compared.golden.values, g)
    slot: tuple[str, str] = values.slots[values.slot[i]]
    return slot


def _parameter(compared: Compared, row: int, inside: list[str]) -> str:
    """``layers.1.mlp.up_proj.weight``: the module around the call, and the name if the record gives it."""
    name = _slot(compared, row)[1].rsplit(".", 1)[-1]
    module = next((op.path for n in inside if (op := parse_name(n)).is_module), "")
    own = compared.target.ops[compared.records.target[int(compared.leaves.pair[row])]]
    if own.is_module:
        module = own.path
    known = {"1": "weight", "2": "bias" if own.api != "layer_norm" else "weight", "3": "bias"}
    return ".".join(p for p in (module, known.get(name, name)) if p)


def recorded_name(calls: Calls, i: int) -> str:
    """The name of a record in the dump that it lies in."""
    dump, k = calls.recorded(i)
    return dump.index.names[k]


def _blamed(compared: Compared, record: int, row: int) -> tuple[list[tuple[RankDump, int]], bool]:
    """Of a side that is several ranks: the dumps of those that a finding is about, with its record there; and whether they
    should have had what the others have."""
    side = compared.target
    if record < 0 or not isinstance(side, JoinedCalls):
        return [], False
    leaf = int(compared.leaves.target[row]) if row < len(compared.leaves) else -1
    if leaf < 0:
        return [side.recorded(record)], False
    partner = np.full(len(side.values), -1, np.int64)
    both = compared.leaves.both
    partner[compared.leaves.target[both]] = compared.leaves.golden[both]
    tensors = bool(compared.measures.from_tensors[row])
    blame = blamed(side, compared.golden, record, leaf, partner, compared.judgement.expected[row], tensors=tensors)
    return [side.recorded_by(record, column) for column in blame.columns], blame.diverged


def _place(where: tuple[RankDump, int], root: Path | None) -> data.Place:
    dump, k = where
    index, place = dump.index, dump.place
    begin, end = int(index.start[k]), int(index.end[k])
    file = place.dump.relative_to(root) if root and place.dump.is_relative_to(root) else Path(place.file)
    return data.Place(file.as_posix(), begin, end - begin)


def _leaf(compared: Compared, row: int) -> data.Leaf:
    judged, m = compared.judgement, compared.measures
    role, path = _slot(compared, row)
    details = m.details.get(row)
    return data.Leaf(
        role,
        path,
        _side(compared.target, int(compared.leaves.target[row])),
        _side(compared.golden, int(compared.leaves.golden[row])),
        judged.verdict[row],
        judged.status[row],
        REASONS[m.reason[row]],
        _number(_apart(compared, row, judged.status[row] == "parameter")),
        _number(judged.expected[row]),
        _number(judged.rho[row]),
        bool(m.from_tensors[row]),
        details.mismatching if details else None,
        list(details.max_abs_index) if details and details.max_abs_index else None,
    )


def _side(calls: Calls, row: int) -> data.Side | None:
    if row < 0:
        return None
    v = calls.values
    shape = v.shapes[v.shape[row]]
    given = [f if s == 2 else None for f, s in zip(v.figures[row].tolist(), v.status[row].tolist(), strict=True)]
    high, low, mean, norm = v.exact.get(row) or given
    scalar = v.scalars.get(row)
    return data.Side(
        v.kinds[v.kind[row]][2] or v.kinds[v.kind[row]][0],
        list(shape) if shape is not None else None,
        high,
        low,
        mean,
        norm,
        digest=v.digests.get(row, ""),
        scalar="" if scalar is None else str(scalar)[:200],
    )


def _number(value: float) -> float | None:
    return None if value != value else value
