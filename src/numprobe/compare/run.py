"""``compare(target, golden)``: every pair of ranks of every step, and one conclusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from numprobe.align.mapping import NO_MAPPING
from numprobe.align.mapping import Mapping as Names
from numprobe.align.unknown import Unknown
from numprobe.compare import result as data
from numprobe.compare.parts import done_before, inputs_of, members, state, store
from numprobe.compare.problems import absent_ranks, lonely_ranks, premise_of, steps_apart, unreadable
from numprobe.compare.processing import NO_PROCESSING, Processing
from numprobe.compare.rank import WORST, RankOutcome, RankTask, compare_ranks, summarize
from numprobe.compare.sharded import Pairing, fit_ranks, refuse_other_runs, same_size, settle_copies
from numprobe.compare.table import table_of, write_parquet
from numprobe.compare.tensors import kernel_of
from numprobe.execution.executor import choose
from numprobe.execution.memory import release_freed_memory
from numprobe.execution.stages import Listener, Stages, ignore
from numprobe.formats import cache
from numprobe.formats.dump import Dump, open_dump
from numprobe.formats.layout import RankFolder, StepFolder, choose_steps
from numprobe.metrics.stream import default_threads
from numprobe.metrics.sums import DEVICE_FAILED
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import writing
from numprobe.report.terminal import encodable

if TYPE_CHECKING:
    from numprobe.compare.custom import Metrics
    from numprobe.compare.msprobe.output import Compat

STAGES = ("open", "compare", "conclude")


@dataclass(frozen=True)
class CompareOptions:
    """``noise``: a second run of the golden program; ``baseline``: a trusted run of low precision, whose distance from the golden
    one the target may exceed by ``factor``. ``by``: ``auto``, ``statistics``, ``tensor`` or ``digest``.
    ``merge``: put ranks together by what they hold also where both sides have as many.
    ``device``: where torch computes on tensors (``cuda``, ``cuda:1``, ``npu``, ``cpu``), all in this process; numpy if empty.
    ``metrics``: a folder of ``alg_<name>.py`` files, which are run (:mod:`numprobe.compare.custom`)."""

    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    mapping: Names = NO_MAPPING
    noise: str | Path | None = None
    baseline: str | Path | None = None
    factor: float = 2.0
    by: str = "auto"
    jobs: int | None = None
    use_cache: bool = True
    compat: Compat | None = None
    processing: Processing = NO_PROCESSING
    merge: bool = False
    device: str = ""
    metrics: str | Path | None = None


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
        NumprobeError: nothing can be read at one of the two places, or nothing there belongs together (E-CMP-001 to E-CMP-006);
            E-USE-012 the factor is none, E-CMP-016 and E-CMP-017 the device cannot be used or fails, E-CMP-018 and
            E-CMP-019 a metric of the user's is none.
    """
    if not (1 <= options.factor < inf):
        raise NumprobeError(
            "E-USE-012",
            "--factor {factor}: no finite number from 1 on",
            do="write 2, or 1.5",
            factor=str(options.factor),
        )
    if options.device:
        kernel_of(options.device)
        options = replace(options, jobs=1)  # each further process would start the device for itself
    stages = Stages(STAGES, listener)
    stages.begin("open")
    one, other = (open_dump(path, use_cache=options.use_cache) for path in (target, golden))
    tasks, alone, problems = _tasks(one, other, options)
    stages.end()
    stages.begin("compare", len(tasks))
    outcomes: list[RankOutcome | NumprobeError | None] = [None] * len(tasks)
    files: list[Path] = [_part(parts, task) for task in tasks] if parts else []
    work = [(task, files[i] if parts else None) for i, task in enumerate(tasks)]
    size = sum(task.target.size + task.golden.size for task in tasks)
    for done, (i, outcome) in enumerate(choose(options.jobs, len(tasks), size)(_work, work), 1):
        outcomes[i] = outcome
        stages.update(done, len(tasks))
    stages.end()
    stages.begin("conclude")
    read = [outcome for outcome in outcomes if isinstance(outcome, RankOutcome)]
    failed = [(t, o) for t, o in zip(tasks, outcomes, strict=True) if isinstance(o, NumprobeError)]
    if not read:
        raise _nothing_read([error for _, error in failed])
    for task, error in failed:
        keys = (task.step, task.target.rank, task.target.key, task.golden.key)
        alone.append(data.RankPair(*keys, "unreadable", str(error)))
        problems.append(unreadable(error, members(task), task.step, task.target))
    result = conclude(one, other, read, alone, problems)
    stages.end()
    whole = [f for f, outcome in zip(files, outcomes, strict=True) if isinstance(outcome, RankOutcome)] if parts else []
    return Comparison(result, whole, _unknown_everywhere(read))


def _nothing_read(errors: Sequence[NumprobeError]) -> NumprobeError:
    """The error of the only pair of ranks, or one for all."""
    if len(errors) == 1:
        return errors[0]
    return NumprobeError(
        "E-CMP-003",
        "none of {count} pairs of ranks could be read",
        where=", ".join(dict.fromkeys(error.where for error in errors[:3])),
        found="{codes}",
        do="check these files, or leave the ranks out with --rank; a comparison of one of them alone says more",
        count=len(errors),
        codes=", ".join(dict.fromkeys(error.code for error in errors)),
    )


def _unknown_everywhere(read: Sequence[RankOutcome]) -> list[Unknown]:
    everywhere = set.intersection(*({(u.option, u.side, u.name) for u in outcome.unknown} for outcome in read))
    return [u for u in read[0].unknown if (u.option, u.side, u.name) in everywhere]


def _work(item: tuple[RankTask, Path | None]) -> RankOutcome | NumprobeError:
    """The outcome, or why a dump cannot be read."""
    task, part = item
    inputs = inputs_of(task) if part is not None else ""
    if part is not None and (done := done_before(task, part, inputs)) is not None:
        return done
    before = _states(task)
    try:
        compared = compare_ranks(task)
        outcome = summarize(compared)
    except NumprobeError as error:
        if error.code == DEVICE_FAILED:
            raise
        return error
    if task.compat is not None:
        from numprobe.compare.msprobe.output import write_rank

        write_rank(compared, task.compat)
    outcome.problems += _growing(task, before, outcome.problems)
    if part is not None:
        for calls in (compared.target, compared.golden):
            calls.forget()
        release_freed_memory()
        table = table_of(compared)
        del compared, calls  # all that is left is written without it
        release_freed_memory()
        with writing(part.parent):
            write_parquet(table, part)
            if inputs == inputs_of(task):
                store(part, inputs, outcome)
    return outcome


def _states(task: RankTask) -> list[tuple[int, int] | None]:
    return [state(rank.dump) for _, rank in members(task)]


def _growing(
    task: RankTask, before: Sequence[tuple[int, int] | None], known: Sequence[data.Problem]
) -> list[data.Problem]:
    """Files that were written while they were read."""
    files = {problem.file for problem in known if problem.kind == "growing"}
    return [
        data.Problem("growing", side, task.step, rank.key, file)
        for (side, rank), old in zip(members(task), before, strict=True)
        if state(rank.dump) != old and (file := encodable(str(rank.dump))) not in files
    ]


def _part(folder: Path, task: RankTask) -> Path:
    step = f"step{task.step}_" if task.step is not None else ""
    return folder / f"{step}{task.target.key}.parquet"


# --- what belongs together -------------------------------------------------------------------------------------------


def _tasks(
    one: Dump, other: Dump, options: CompareOptions
) -> tuple[list[RankTask], list[data.RankPair], list[data.Problem]]:
    make = partial(
        RankTask,
        cache_to=cache.cache_folder() if options.use_cache else None,
        mapping=options.mapping,
        factor=options.factor,
        by=options.by,
        ignore_digests=options.by in ("statistics", "tensor") or options.processing != NO_PROCESSING,
        tensors=options.by in ("auto", "tensor"),
        compat=options.compat,
        processing=options.processing,
        device=options.device,
        metrics=_metrics(options.metrics),
        target_root=one.root,
        golden_root=other.root,
    )
    further = {
        side: open_dump(path, use_cache=options.use_cache)
        for side, path in (("noise", options.noise), ("baseline", options.baseline))
        if path
    }
    tasks: list[RankTask] = []
    alone: list[data.RankPair] = []
    steps, problems = _step_pairs(one, other, options)
    if one.root.resolve() == other.root.resolve():
        problems.append(data.Problem("same", "", None, "", encodable(str(one.root))))
    for name, dump in further.items():
        for side, judged in (("target", one), ("golden", other)):
            if dump.root.resolve() == judged.root.resolve():
                place = encodable(str(judged.root))
                problems.append(data.Problem("same_further", name, None, "", place, {"other": side}))
    for a, b in steps:
        fitted = None
        if options.merge or not same_size(a, b):
            fitted = fit_ranks(a, b, cache.cache_folder() if options.use_cache else None, options.jobs)
        ranks, unpaired, told = fitted or _rank_pairs(a, b)
        absent = absent_ranks(a, b)
        alone += [*absent[0], *unpaired]
        problems += [*absent[1], *told]
        for t, g, unit in ranks:
            refuse_other_runs(unit, given=bool(further))
            others = {side: _same_rank(dump, a.step, len(steps), g) for side, dump in further.items()}
            problems += [
                data.Problem("no_such_rank", side, a.step, g.key, encodable(str(further[side].root)))
                for side, rank in others.items()
                if rank is None
            ]
            tasks.append(make(a.step, t, g, unit=unit, noise=others.get("noise"), baseline=others.get("baseline")))
    if not tasks:
        _refuse_missing(steps)
        raise NumprobeError(
            "E-CMP-001",
            "no rank of one dump has a partner in the other",
            where=f"{one.root}, {other.root}",
            found="ranks {target} and {golden}",
            do="give dumps of the same ranks, or two rank folders directly",
            target=_listed(one.steps),
            golden=_listed(other.steps),
        )
    threads = default_threads() if options.device else max(1, 2 // len(tasks))
    _refuse_unused(tasks, further)
    together = len(tasks) == 1 and options.jobs != 1
    return [replace(task, threads=threads, beside=together) for task in tasks], alone, problems


def _metrics(folder: str | Path | None) -> Metrics | None:
    if folder is None:
        return None
    from numprobe.compare.custom import read_metrics

    return read_metrics(Path(folder))


def _refuse_missing(steps: Sequence[tuple[StepFolder, StepFolder]]) -> None:
    """Folders of ranks that have a partner, and no dump.json."""
    pairs = (
        (rank, partner) for a, b in steps for rank, partner in product(a.ranks, b.ranks) if rank.rank == partner.rank
    )
    for rank in (r for pair in pairs for r in pair if r.problem == "missing"):
        raise NumprobeError(
            "E-CMP-001",
            "no rank can be compared: {file} is missing",
            where=encodable(str(rank.dump)),
            do="copy it there, or record it again",
            file=rank.file,
        )


def _refuse_unused(tasks: Sequence[RankTask], further: Mapping[str, Dump]) -> None:
    """Fail on a noise or baseline run that has none of the ranks."""
    for side, dump in further.items():
        if all(getattr(task, side) is None for task in tasks):
            raise NumprobeError(
                "E-CMP-006",
                "--{side} has no rank or step that is compared",
                where=str(dump.root),
                found="steps {steps}, ranks {ranks}",
                do="give a run with the steps and ranks of the golden one",
                side=side,
                steps=", ".join(str(s.step) for s in dump.steps[:6]),
                ranks=_listed(dump.steps),
            )


def _listed(steps: Sequence[StepFolder]) -> str:
    keys = sorted({r.key for s in steps for r in s.ranks})
    return ", ".join(keys[:6]) + (", ..." if len(keys) > 6 else "")


def _step_pairs(
    one: Dump, other: Dump, options: CompareOptions
) -> tuple[list[tuple[StepFolder, StepFolder]], list[data.Problem]]:
    """Steps of one number, two single steps whatever their numbers; and those that only one side has."""
    a = choose_steps(one.steps, options.steps, options.ranks)
    b = choose_steps(other.steps, options.steps, options.ranks)
    if len(a) == len(b) == 1:
        return [(a[0], b[0])], []
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
    return pairs, steps_apart(a, b, {s.step for s, _ in pairs})


def _rank_pairs(a: StepFolder, b: StepFolder) -> tuple[list[Pairing], list[data.RankPair], list[data.Problem]]:
    """Ranks by number; a process folder with the only other rank there is."""
    readable = [[r for r in side.ranks if not r.problem] for side in (a, b)]
    if len(readable[0]) == len(readable[1]) == 1:
        return [(readable[0][0], readable[1][0], None)], [], []
    partners = {r.rank: r for r in readable[1] if r.rank is not None}
    pairs: list[Pairing] = [(r, partners.pop(r.rank), None) for r in readable[0] if r.rank in partners]
    paired = {r.key for r, _, _ in pairs}
    left = [r for r in readable[0] if r.key not in paired]
    right = [r for r in readable[1] if r.rank is None or r.rank in partners]
    alone = [data.RankPair(a.step, r.rank, r.key, "", "missing") for r in left]
    alone += [data.RankPair(b.step, r.rank, "", r.key, "missing") for r in right]
    return pairs, alone, [*lonely_ranks(0, left, b, a.step), *lonely_ranks(1, right, a, a.step)]


def _same_rank(dump: Dump, step: int | None, steps: int, like: RankFolder) -> RankFolder | None:
    """The rank of a further run: of the same step, or of its only one where one is compared."""
    found = next((s for s in dump.steps if s.step == step), None)
    if found is None and len(dump.steps) == steps == 1:
        found = dump.steps[0]
    ranks = [r for r in found.ranks if not r.problem] if found else []
    return next((r for r in ranks if r.rank == like.rank), ranks[0] if len(ranks) == 1 and like.rank is None else None)


# --- the conclusion --------------------------------------------------------------------------------------------------


def conclude(
    one: Dump,
    other: Dump,
    read: Sequence[RankOutcome],
    alone: Sequence[data.RankPair] = (),
    problems: Sequence[data.Problem] = (),
) -> data.CompareResult:
    """One result of all ranks: those that were compared, and what is known of the others."""
    settle_copies(read)
    counts: Counter[str] = Counter(dict.fromkeys(data.VERDICTS, 0))
    for outcome in read:
        counts.update(outcome.pair.counts)
    findings = _collapsed(_without_received([f for o in read for f in o.findings]))
    first_wrong = min((f.step for f in findings if f.severity == "error" and f.step is not None), default=None)
    findings, later = _up_to(first_wrong, findings)
    judged, recorded = sum(o.judged for o in read), sum(o.recorded for o in read)
    levels = {o.levels for o in read if o.levels[0] != o.levels[1]}
    notes = [f"levels:{a}:{b}" for a, b in sorted(levels)] + list(dict.fromkeys(n for o in read for n in o.notes))
    problems = [*problems, *(p for o in read for p in o.problems)]
    problems.sort(key=lambda p: list(data.PREMISES).index(p.premise) if p.premise else len(data.PREMISES))
    premise = _premise(findings, sum(o.pair.compared for o in read), problems)
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
        coverage=round(min(2 * judged / recorded if recorded else 0.0, 1.0), 4),
        counts=dict(counts),
        findings=findings,
        ranks=sorted([*(o.pair for o in read), *alone], key=lambda r: (r.step or 0, r.rank or 0, r.target)),
        heat=_heat([o for o in read if first_wrong is None or o.pair.step is None or o.pair.step <= first_wrong]),
        dtypes=list(dict.fromkeys(d for o in read for d in o.dtypes)),
        notes=notes,
        detection_limit=max(limits) if limits else None,
        more_findings=sum(o.more_findings for o in read),
        later_findings=later,
        problems=problems,
    )


def _premise(findings: Sequence[data.Finding], compared: int, problems: Sequence[data.Problem]) -> str:
    """Why nothing can be blamed, or said to agree: the inputs of the two runs differ, or something was not compared."""
    first = next((f for f in findings if f.severity == "error"), None)
    if first is not None and first.cause == "input":
        return "inputs_differ"
    if not compared:
        return "nothing_compared"
    if first is not None:
        return ""
    return premise_of(problems)


def _without_received(findings: list[data.Finding]) -> list[data.Finding]:
    """What a collective brought in from another rank is that rank's finding, where it has one in the same step."""
    own = {f.step for f in findings if f.reason != "received" and f.severity == "error"}
    return [f for f in findings if f.reason != "received" or f.step not in own]


def _up_to(step: int | None, findings: list[data.Finding]) -> tuple[list[data.Finding], int]:
    """Without what differs in later steps, and how many that is: parameters updated from wrong gradients are no news."""
    kept = [f for f in findings if step is None or f.step is None or f.step <= step]
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
