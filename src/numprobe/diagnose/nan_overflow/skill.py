"""The NaN-overflow skill: five stages from dump folders to the rank and the operator that made the first NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from numprobe.diagnose.nan_overflow.complete import NAMED, mark_stopped, named_ranks
from numprobe.diagnose.nan_overflow.conclude import View
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.join import join
from numprobe.diagnose.nan_overflow.local import digest_rank
from numprobe.diagnose.nan_overflow.messages import say
from numprobe.diagnose.nan_overflow.order import Order
from numprobe.diagnose.nan_overflow.result import NanResult, Params, StepRow
from numprobe.diagnose.nan_overflow.sources import find_sources
from numprobe.diagnose.nan_overflow.verdict import abnormal, fill, nothing_found
from numprobe.execution.executor import choose
from numprobe.execution.stages import Listener, Stages, ignore
from numprobe.formats import cache
from numprobe.formats.dump import Dump, RankDump, nothing_readable, open_dump
from numprobe.formats.layout import RankFolder, StepFolder, choose_steps, link_error
from numprobe.record.errors import NumprobeError

STAGES = ("nan.stage.discover", "nan.stage.scan", "nan.stage.join", "nan.stage.rank", "nan.stage.trace")
DIGEST_VERSION = 7
INDEX_FROM = 1 << 22  # bytes: the index of a smaller file is stored only when a later stage asks for it
LOSS_SCALE_STEPS = 3  # an overflow that repeats in more dumped steps than this is a fault


Words: TypeAlias = Callable[..., str]


@dataclass(frozen=True)
class NanOptions:
    """What the user may choose. ``top``: how many independent overflow nodes to list; ``exclude``: names or prefixes.

    Raises:
        NumprobeError: E-USE-007 an empty name in ``exclude``, with which every name begins.
    """

    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    jobs: int | None = None
    exclude: tuple[str, ...] = ()
    top: int = 1
    use_cache: bool = True

    def __post_init__(self) -> None:
        if not all(name.strip() for name in self.exclude):
            raise NumprobeError(
                "E-USE-007",
                "--exclude: an empty name",
                do="write the name of a record or the beginning of one, such as Torch.mul",
            )


@dataclass
class Analysis:
    """The result, with what the artifacts are written from."""

    result: NanResult
    view: View | None
    dump: Dump
    timings: dict[str, float]


@dataclass
class _Read:
    """What was read of all steps so far."""

    records: int = 0
    bytes: int = 0
    abnormal: int = 0
    ranks: set[str] = field(default_factory=set)

    def add(self, digests: Sequence[RankDigest]) -> None:
        self.records += sum(d.records for d in digests)
        self.bytes += sum(d.size for d in digests)
        self.abnormal += abnormal(digests)
        self.ranks |= {d.key for d in digests if d.status in ("ok", "partial")}


def analyse(
    what: str | Path | Dump, options: NanOptions | None = None, listener: Listener = ignore, *, lang: str = "en"
) -> Analysis:
    """Find out which rank and which operator made the first NaN or Inf. ``what``: a path, or a dump that is open already.

    Steps are read in order up to the first dirty one. Nothing is written but the per-rank cache. ``lang`` words the notes
    of the progress events.

    Raises:
        NumprobeError: nothing readable at ``what`` (E-FMT-001 to 003, 014), or a choice that leaves nothing (E-USE-005).
    """
    options = options or NanOptions()
    stages = Stages(STAGES, listener)
    words = partial(say, lang)
    stages.begin(STAGES[0])
    dump = what if isinstance(what, Dump) else open_dump(what, use_cache=options.use_cache)
    steps = choose_steps(dump.steps, options.steps, options.ranks)
    listed = [r for s in steps for r in s.ranks]
    missing = sum(bool(r.problem) for r in listed)
    stages.end(
        note=words("nan.note.ranks", count=len({r.key for r in listed}), missing=missing or None),
        done=len(listed),
        total=len(listed),
    )
    rows: list[StepRow] = []
    read = _Read()
    scaled: list[NanResult] = []
    undecided: list[tuple[NanResult, View | None]] = []
    for position, step in enumerate(steps):
        step, digests = _with_named(step, _scan(dump, step, options, stages, words))
        read.add(digests)
        last = position == len(steps) - 1
        result, view = _conclude(dump, step, digests, options, stages, words)
        rows.append(_step_row(step, digests, result))
        scaling = result.verdict == "no_overflow" and any(n.key == "note.loss_scaling" for n in result.notes)
        if scaling:
            scaled.append(result)
            if len(scaled) > LOSS_SCALE_STEPS:
                result, view = _conclude(dump, step, digests, options, stages, words, scaling_is_fault=True)
        if result.verdict == "inconclusive" and not result.alternatives:  # nothing dirty was read: a later step may be
            undecided.append((result, view))
        if result.verdict == "overflow_found" or result.alternatives or last:
            if result.verdict != "overflow_found" and not result.alternatives and undecided:
                result, view = undecided[0]
            elif result.verdict == "no_overflow" and scaled:
                result = scaled[0]
            if result.verdict == "no_overflow":
                result.step = None
                result.records, result.bytes = read.records, read.bytes
                if not scaled:
                    result.headline = nothing_found(read.records, read.abnormal, len(read.ranks))
            result.steps = rows + [
                StepRow(s.step, len(s.ranks), [], [], 0, 0, "not_scanned") for s in steps[position + 1 :]
            ]
            if position + 1 < len(steps):
                result.notes.append(Params("note.steps", {"step": step.step if step.step is not None else 0}))
            if dump.layout.ignored:
                result.limits.append(Params("limit.no_rank", {"folders": ", ".join(dump.layout.ignored)}))
            return Analysis(result, view, dump, stages.timings)
    raise AssertionError("a dump has at least one step")


# --- stage 2 -----------------------------------------------------------------------------------------------------


_WORDS = {"no_dump": "no dump.json", "missing": "no such folder"}


@dataclass(frozen=True)
class _Task:
    place: RankFolder
    cache_to: Path | None


def scan_rank(task: _Task) -> RankDigest:
    """One rank's digest, from the cache or from its files. A rank that cannot be read says so; it raises nothing."""
    place = task.place
    if place.problem:
        if place.problem != "missing":
            return RankDigest(place.key, place.rank, "unreadable", str(link_error(place)))
        reason = "no_dump" if place.folder.is_dir() else "missing"
        return RankDigest(place.key, place.rank, "missing", reason)
    files = [place.dump, place.construct]
    entry = cache.entry(task.cache_to, files, "digest", DIGEST_VERSION) if task.cache_to else None
    stored = cache.load(entry, RankDigest)
    if stored is not None:
        return stored
    try:
        digest = digest_rank(RankDump(place, task.cache_to if place.size >= INDEX_FROM else None))
    except NumprobeError as error:
        return RankDigest(place.key, place.rank, "unreadable", f"{error.code}  {error.what}")
    if digest.reason != "live":
        cache.store(entry, digest)
    return digest


def _scan(dump: Dump, step: StepFolder, options: NanOptions, stages: Stages, words: Words) -> list[RankDigest]:
    tasks = [_Task(r, dump.cache_to) for r in step.ranks]
    size = sum(r.size for r in step.ranks)
    digests: list[RankDigest | None] = [None] * len(tasks)
    done = read = 0
    try:
        stages.begin(STAGES[1], len(tasks))
        execute = choose(options.jobs, len(tasks), size)
        for i, digest in execute(scan_rank, tasks):
            digests[i] = digest
            done += 1
            read += digest.size
            stages.update(done, len(tasks), words("nan.note.read", size=read, of=size))
    except KeyboardInterrupt:
        stages.stop("interrupted", done=done, total=len(tasks))
        raise
    found = [d for d in digests if d is not None]
    if not any(d.status in ("ok", "partial") for d in found):
        reasons = [f"{d.key}: {_WORDS.get(d.reason, d.reason or d.status)}" for d in found]
        raise nothing_readable(step.folder, step.ranks, reasons)
    mark_stopped(found)
    cut = sum(d.status == "partial" for d in found)
    records = sum(d.records for d in found)
    note = words("nan.note.scanned", files=done, size=read, records=records, partial=cut or None)
    stages.end(note, done, len(tasks))
    return found


def _with_named(step: StepFolder, digests: list[RankDigest]) -> tuple[StepFolder, list[RankDigest]]:
    """The step with all ranks that its records name: those without a folder are missing, or left out if nobody asked for them."""
    whole = step.with_absent(named_ranks(digests))
    by_key = {d.key: d for d in digests}
    return whole, [by_key.get(r.key) or RankDigest(r.key, r.rank, "missing", NAMED) for r in whole.ranks]


# --- stages 3 to 5 -----------------------------------------------------------------------------------------------


def _conclude(
    dump: Dump,
    step: StepFolder,
    digests: list[RankDigest],
    options: NanOptions,
    stages: Stages,
    words: Words,
    *,
    scaling_is_fault: bool = False,
) -> tuple[NanResult, View | None]:
    """Join, rank and trace one step."""
    result = _empty_result(dump, step, digests)
    if not any(d.has_extrema for d in digests if d.status in ("ok", "partial")):
        result.verdict = "inconclusive"
        task = next((d.task for d in digests if d.task), "")
        result.headline = Params("headline.no_statistics", {"task": task} if task else {})
        result.next_checks = [Params("check.record_statistics")]
        return result, None
    stages.begin(STAGES[2])
    world = step.numbers.union(*(s.numbers for s in dump.steps))
    joined = join(digests, world)
    order = Order(joined)
    summary = joined.summary
    counts = {k: v for k in ("verified", "consistent", "assumed", "contradicted") if (v := getattr(summary, k))}
    note = (
        words("nan.note.joined", instances=summary.instances, **counts)
        if summary.instances
        else words("nan.note.no_calls")
    )
    stages.end(note)
    stages.begin(STAGES[3])
    dumps = {r.key: dump.rank(r) for r, d in zip(step.ranks, digests, strict=True) if d.status in ("ok", "partial")}
    verdicts = find_sources(digests, joined, order, lambda key, name: dumps[key].find(name), options.exclude)
    later = len(verdicts.sources) - verdicts.minimal
    stages.end(words("nan.note.sources", count=verdicts.minimal, later=later or None))
    stages.begin(STAGES[4])
    view = View(step.step, digests, dumps, joined, order, verdicts, _relative(dump, step), step.left_out)
    fill(result, view, options.exclude, options.top, scaling_is_fault=scaling_is_fault)
    looks = sum(e.count for e in result.excluded)
    stages.end(words("nan.note.traced", excluded=looks, alternatives=len(result.alternatives) or None))
    return result, view


def _empty_result(dump: Dump, step: StepFolder, digests: list[RankDigest]) -> NanResult:
    readable = [d for d in digests if d.status in ("ok", "partial")]
    first = readable[0] if readable else None
    return NanResult(
        "no_overflow",
        step.step,
        dump=dump.root.name or "dump",
        framework=first.framework if first else "",
        level=first.level if first else "",
        partial_ranks=sorted(d.rank for d in digests if d.status == "partial" and d.rank is not None),
        missing_ranks=sorted(d.rank for d in digests if d.status in ("missing", "unreadable") and d.rank is not None),
        records=sum(d.records for d in digests),
        bytes=sum(d.size for d in digests),
    )


def _relative(dump: Dump, step: StepFolder) -> dict[str, str]:
    relative = {}
    for place in step.ranks:
        try:
            relative[place.key] = place.dump.relative_to(dump.root).as_posix()
        except ValueError:
            relative[place.key] = f"{place.key}/{place.dump.name}"
    return relative


def _step_row(step: StepFolder, digests: list[RankDigest], result: NanResult) -> StepRow:
    dirty = sum(1 for d in digests if d.dirty_records)
    state = "clean" if not dirty else "dirty" if result.sources or result.alternatives else "look_alikes_only"
    return StepRow(step.step, len(step.ranks), result.partial_ranks, result.missing_ranks, result.records, dirty, state)


__all__ = ["STAGES", "Analysis", "NanOptions", "analyse"]
