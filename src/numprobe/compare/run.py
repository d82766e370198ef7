"""``compare(target, golden)``: every pair of ranks of every step, and one conclusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from numprobe.align.mapping import NO_MAPPING, Mapping
from numprobe.align.unknown import Unknown
from numprobe.compare import result as data
from numprobe.compare.msprobe.output import Compat, write_rank
from numprobe.compare.processing import NO_PROCESSING, Processing
from numprobe.compare.rank import WORST, RankOutcome, RankTask, compare_ranks, summarize
from numprobe.compare.sharded import Pairing, fit_ranks, refuse_other_runs, same_size, settle_copies
from numprobe.compare.table import table_of, write_parquet
from numprobe.execution.executor import choose
from numprobe.execution.stages import Listener, Stages, ignore
from numprobe.formats import cache
from numprobe.formats.dump import Dump, open_dump
from numprobe.formats.layout import RankFolder, StepFolder, choose_steps, link_error
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import writing
from numprobe.report.terminal import encodable

STAGES = ("open", "compare", "conclude")
ENOUGH = 0.5  # of what both sides recorded has to be compared for a verdict of pass


@dataclass(frozen=True)
class CompareOptions:
    """``noise``: a second run of the golden program; ``baseline``: a trusted run of low precision, whose distance from the golden
    one the target may exceed by ``factor``. ``by``: ``auto``, ``statistics``, ``tensor`` or ``digest``.
    ``merge``: put ranks together by what they hold also where both sides have as many."""

    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    mapping: Mapping = NO_MAPPING
    noise: str | Path | None = None
    baseline: str | Path | None = None
    factor: float = 2.0
    by: str = "auto"
    jobs: int | None = None
    use_cache: bool = True
    compat: Compat | None = None
    processing: Processing = NO_PROCESSING
    merge: bool = False


@dataclass
class Comparison:
    """The result, the files of the table, one a pair of ranks, and the names of the mapping that no rank knows."""

    result: data.CompareResult
    parts: list[Path] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)


def compare(
    target: str | Path,
    golden: str | Path,
    options: CompareOptions = CompareOptions(),
    *,
    parts: Path | None = None,
    listener: Listener = ignore,
) -> Comparison:
    """Compare two dumps. With ``parts`` the table of each pair of ranks is written there as it is ready.

    Raises:
        NumprobeError: nothing can be read at one of the two places, or nothing there belongs together (E-CMP-001, E-CMP-002).
    """
    stages = Stages(STAGES, listener)
    stages.begin("open")
    one, other = (open_dump(path, use_cache=options.use_cache) for path in (target, golden))
    tasks, alone = _tasks(one, other, options)
    stages.end()
    stages.begin("compare", len(tasks))
    outcomes: list[RankOutcome | None] = [None] * len(tasks)
    files: list[Path] = [_part(parts, task) for task in tasks] if parts else []
    work = [(task, files[i] if parts else None) for i, task in enumerate(tasks)]
    size = sum(task.target.size + task.golden.size for task in tasks)
    for done, (i, outcome) in enumerate(choose(options.jobs, len(tasks), size)(_work, work), 1):
        outcomes[i] = outcome
        stages.update(done, len(tasks))
    stages.end()
    stages.begin("conclude")
    result = conclude(one, other, [o for o in outcomes if o is not None], alone)
    stages.end()
    return Comparison(
        result, [f for f in files if f.exists()], _unknown_everywhere([o for o in outcomes if o is not None])
    )


def _unknown_everywhere(outcomes: Sequence[RankOutcome]) -> list[Unknown]:
    read = [outcome.unknown for outcome in outcomes if outcome.pair.status != "unreadable"]
    everywhere = (
        set.intersection(*({(u.option, u.side, u.name) for u in of_rank} for of_rank in read)) if read else set()
    )
    return [u for u in read[0] if (u.option, u.side, u.name) in everywhere] if read else []


class _Stored(msgspec.Struct):
    """An outcome beside its part of the table, with what the inputs were: a run that was interrupted need not do it again."""

    inputs: list[tuple[str, int, int]]
    outcome: RankOutcome


def _work(item: tuple[RankTask, Path | None]) -> RankOutcome:
    task, part = item
    if part is not None and (done := _done_before(task, part)) is not None:
        return done
    try:
        compared = compare_ranks(task)
    except NumprobeError as error:
        return _unreadable(task, error)
    outcome = summarize(compared)
    if task.compat is not None:
        write_rank(compared, task.compat)
    if part is not None:
        with writing(part.parent):
            write_parquet(table_of(compared), part)
            with suppress(OverflowError, UnicodeEncodeError):  # integers and texts that no msgpack holds: compared anew
                part.with_suffix(".msgpack").write_bytes(msgspec.msgpack.encode(_Stored(_inputs(task), outcome)))
    return outcome


def _done_before(task: RankTask, part: Path) -> RankOutcome | None:
    try:
        stored = msgspec.msgpack.decode(part.with_suffix(".msgpack").read_bytes(), type=_Stored)
    except (OSError, msgspec.MsgspecError):
        return None
    return stored.outcome if part.exists() and stored.inputs == _inputs(task) else None


def _inputs(task: RankTask) -> list[tuple[str, int, int]]:
    found = []
    members = (*task.unit.target.ranks, *task.unit.golden.ranks) if task.unit else (task.target, task.golden)
    for folder in (*members, task.noise, task.baseline):
        if folder is not None:
            state = folder.dump.stat()
            found.append((encodable(str(folder.dump)), state.st_size, state.st_mtime_ns))
    return found


def _part(folder: Path, task: RankTask) -> Path:
    step = f"step{task.step}_" if task.step is not None else ""
    return folder / f"{step}{task.target.key}.parquet"


def _unreadable(task: RankTask, error: NumprobeError) -> RankOutcome:
    pair = data.RankPair(task.step, task.target.rank, task.target.key, task.golden.key, "unreadable", str(error))
    return RankOutcome(pair, [], [], [], 0, ("", ""))


# --- what belongs together -------------------------------------------------------------------------------------------


def _tasks(one: Dump, other: Dump, options: CompareOptions) -> tuple[list[RankTask], list[data.RankPair]]:
    make = partial(
        RankTask,
        cache_to=cache.cache_folder() if options.use_cache else None,
        mapping=options.mapping,
        factor=options.factor,
        ignore_digests=options.by in ("statistics", "tensor") or options.processing != NO_PROCESSING,
        tensors=options.by in ("auto", "tensor"),
        compat=options.compat,
        processing=options.processing,
        target_root=one.root,
        golden_root=other.root,
    )
    noise = open_dump(options.noise, use_cache=options.use_cache) if options.noise else None
    baseline = open_dump(options.baseline, use_cache=options.use_cache) if options.baseline else None
    tasks: list[RankTask] = []
    alone: list[data.RankPair] = []
    for a, b in _step_pairs(one, other, options):
        fitted = None
        if options.merge or not same_size(a, b):
            fitted = fit_ranks(a, b, cache.cache_folder() if options.use_cache else None, options.jobs)
        ranks, unpaired = fitted or _rank_pairs(a, b)
        alone += [*_unreadable_ranks(a, b), *unpaired]
        for t, g, unit in ranks:
            refuse_other_runs(unit, given=noise is not None or baseline is not None)
            task = make(a.step, t, g, unit=unit)
            tasks.append(replace(task, noise=_same_rank(noise, a.step, g), baseline=_same_rank(baseline, a.step, g)))
    if not tasks:
        raise NumprobeError(
            "E-CMP-001",
            "no rank of one dump has a partner in the other",
            where=f"{one.root}, {other.root}",
            found="ranks {target} and {golden}",
            do="give dumps of the same ranks, or two rank folders directly",
            target=_listed(one.steps),
            golden=_listed(other.steps),
        )
    threads = max(1, 2 // len(tasks))
    return [replace(task, threads=threads) for task in tasks], alone


def _listed(steps: Sequence[StepFolder]) -> str:
    keys = sorted({r.key for s in steps for r in s.ranks})
    return ", ".join(keys[:6]) + (", ..." if len(keys) > 6 else "")


def _step_pairs(one: Dump, other: Dump, options: CompareOptions) -> list[tuple[StepFolder, StepFolder]]:
    """Steps of one number; two single steps whatever their numbers."""
    a = choose_steps(one.steps, options.steps, options.ranks)
    b = choose_steps(other.steps, options.steps, options.ranks)
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    by_number = {s.step: s for s in b}
    pairs = [(s, by_number[s.step]) for s in a if s.step in by_number]
    if not pairs:
        raise NumprobeError(
            "E-CMP-002",
            "the dumps have no step in common",
            where=f"{one.root}, {other.root}",
            found="steps {target} and {golden}",
            do="give two step folders directly, as in DUMP/step3",
            target=", ".join(str(s.step) for s in a[:6]),
            golden=", ".join(str(s.step) for s in b[:6]),
        )
    return pairs


def _unreadable_ranks(a: StepFolder, b: StepFolder) -> list[data.RankPair]:
    return [
        data.RankPair(a.step, r.rank, *_keys(r, side), "missing", "" if r.problem == "missing" else str(link_error(r)))
        for side, ranks in enumerate((a.ranks, b.ranks))
        for r in ranks
        if r.problem
    ]


def _rank_pairs(a: StepFolder, b: StepFolder) -> tuple[list[Pairing], list[data.RankPair]]:
    """Ranks by number; a process folder with the only other rank there is."""
    readable = [[r for r in side.ranks if not r.problem] for side in (a, b)]
    if len(readable[0]) == len(readable[1]) == 1:
        return [(readable[0][0], readable[1][0], None)], []
    partners = {r.rank: r for r in readable[1] if r.rank is not None}
    pairs: list[Pairing] = [(r, partners.pop(r.rank), None) for r in readable[0] if r.rank in partners]
    paired = {r.key for r, _, _ in pairs}
    alone = [data.RankPair(a.step, r.rank, r.key, "", "missing") for r in readable[0] if r.key not in paired]
    alone += [data.RankPair(b.step, r.rank, "", r.key, "missing") for r in partners.values()]
    return pairs, alone


def _keys(rank: RankFolder, side: int) -> tuple[str, str]:
    return (rank.key, "") if side == 0 else ("", rank.key)


def _same_rank(dump: Dump | None, step: int | None, like: RankFolder) -> RankFolder | None:
    if dump is None:
        return None
    steps = [s for s in dump.steps if s.step == step] or list(dump.steps[:1])
    ranks = [r for r in steps[0].ranks if not r.problem]
    return next((r for r in ranks if r.rank == like.rank), ranks[0] if len(ranks) == 1 else None)


# --- the conclusion --------------------------------------------------------------------------------------------------


def conclude(
    one: Dump, other: Dump, outcomes: Sequence[RankOutcome], alone: Sequence[data.RankPair]
) -> data.CompareResult:
    """One result of all ranks."""
    read = [o for o in outcomes if o.pair.status != "unreadable"]
    if not read:
        raise NumprobeError(
            "E-CMP-003",
            "no pair of ranks could be read",
            where=f"{one.root}, {other.root}",
            found="{reason}",
            do="check that both folders hold dump.json files that you may read",
            reason=outcomes[0].pair.note if outcomes else "",
        )
    settle_copies(read)
    counts: Counter[str] = Counter(dict.fromkeys(data.VERDICTS, 0))
    for outcome in read:
        counts.update(outcome.pair.counts)
    findings, later = _of_first_step(_collapsed(_without_received([f for o in read for f in o.findings])))
    compared, recorded = sum(o.pair.compared for o in read), sum(o.recorded for o in read)
    levels = {o.levels for o in read if o.levels[0] != o.levels[1]}
    notes = [f"levels:{a}:{b}" for a, b in sorted(levels)] + list(dict.fromkeys(n for o in read for n in o.notes))
    coverage = 2 * compared / recorded if recorded else 0.0
    premise = _premise(findings, compared, coverage, bool(levels))
    if any(o.parts for o in read):
        premise, findings = "parts", []
    failed = any(f.severity == "error" for f in findings)
    modes = {o.pair.mode for o in read}
    limits = [o.pair.detection_limit for o in read if o.pair.detection_limit is not None]
    return data.CompareResult(
        verdict="inconclusive" if premise else "fail" if failed else "pass",
        premise=premise,
        mode=modes.pop() if len(modes) == 1 else "mixed",
        target=str(one.root),
        golden=str(other.root),
        coverage=round(min(coverage, 1.0), 4),
        counts=dict(counts),
        findings=findings,
        ranks=sorted([*(o.pair for o in outcomes), *alone], key=lambda r: (r.step or 0, r.rank or 0, r.target)),
        heat=_heat(read),
        dtypes=list(dict.fromkeys(d for o in read for d in o.dtypes)),
        notes=notes,
        detection_limit=max(limits) if limits else None,
        more_findings=sum(o.more_findings for o in read) + later,
    )


def _premise(findings: Sequence[data.Finding], compared: int, coverage: float, levels: bool) -> str:
    """Why nothing can be blamed: the inputs of the two runs differ, or too little of them was compared."""
    if not compared:
        return "nothing_compared"
    first = next((f for f in findings if f.severity == "error"), None)
    if first is not None:
        return "inputs_differ" if first.cause == "input" else ""
    return "coverage" if coverage < ENOUGH and not levels else ""


def _without_received(findings: list[data.Finding]) -> list[data.Finding]:
    """What a collective brought in from another rank is that rank's finding, where it has one in the same step."""
    own = {f.step for f in findings if f.reason != "received" and f.severity == "error"}
    return [f for f in findings if f.reason != "received" or f.step not in own]


def _of_first_step(findings: list[data.Finding]) -> tuple[list[data.Finding], int]:
    """Without what differs in later steps, and how many that is: parameters updated from wrong gradients are no news."""
    wrong = [f.step for f in findings if f.severity == "error" and f.step is not None]
    if not wrong:
        return findings, 0
    kept = [f for f in findings if f.step is None or f.step <= min(wrong)]
    return kept, len(findings) - len(kept)


def _collapsed(findings: list[data.Finding]) -> list[data.Finding]:
    """The same event on several ranks once; in the order of execution."""
    found: dict[tuple[object, ...], data.Finding] = {}
    order: Callable[[data.Finding], tuple[object, ...]] = lambda f: (  # noqa: E731
        f.severity != "error",
        f.step if f.step is not None else -1,
        f.op_index,
        f.ranks,
    )
    for finding in sorted(findings, key=order):
        key = (finding.step, finding.cause, finding.reason, finding.op, finding.golden_op, finding.slot)
        if key in found:
            found[key].rank_keys += finding.rank_keys
            found[key].ranks += finding.ranks
            found[key].consequences += finding.consequences
        else:
            found[key] = finding
    return list(found.values())


def _heat(outcomes: Sequence[RankOutcome]) -> list[data.Cell]:
    worst: dict[tuple[str, int | None, str], data.Cell] = {}
    for cell in (c for o in outcomes for c in o.heat):
        key = (cell.part, cell.layer, cell.phase)
        if key not in worst or WORST[cell.verdict] > WORST[worst[key].verdict]:
            worst[key] = cell
    return list(worst.values())
