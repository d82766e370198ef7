"""The NaN-overflow skill: five stages from dump folders to the rank and the operator that made the first NaN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from numprobe.diagnose.nan_overflow.bound import magnitude
from numprobe.diagnose.nan_overflow.conclude import (
    View,
    candidate,
    confidence_terms,
    dirty_slot,
    evidence_for,
    next_checks,
    total,
)
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.join import join
from numprobe.diagnose.nan_overflow.local import digest_rank
from numprobe.diagnose.nan_overflow.messages import say
from numprobe.diagnose.nan_overflow.order import Order
from numprobe.diagnose.nan_overflow.result import Candidate, NanResult, Params, StepRow
from numprobe.diagnose.nan_overflow.rows import coordinates, excluded_rows, rank_rows, spread_rows, unread_limits
from numprobe.diagnose.nan_overflow.sources import Origin, find_sources, is_excluded
from numprobe.execution.executor import choose
from numprobe.execution.stages import Listener, Stages, ignore
from numprobe.formats import cache
from numprobe.formats.dump import Dump, RankDump, open_dump
from numprobe.formats.layout import RankFolder, StepFolder, choose_steps, none_readable
from numprobe.record.dtypes import short_dtype
from numprobe.record.errors import NumprobeError
from numprobe.record.nonfinite import Kinds
from numprobe.record.trace import INPUT, OUTPUT

STAGES = ("nan.stage.discover", "nan.stage.scan", "nan.stage.join", "nan.stage.rank", "nan.stage.trace")
DIGEST_VERSION = 4
LOSS_SCALE = 2.0**8  # gradients of the loss of at least this size are scaled on purpose
SCALED_GRADIENT = 2.0**4  # where the loss is not recorded: gradients of logits are at most 1 without a scale
MAX_LOSS_RANKS = 16
_INDEX_FROM = (
    1 << 22
)  # bytes: the index of a smaller file is stored when a later stage asks for it, which few files' are
LOSS_SCALE_STEPS = 3  # an overflow that repeats in more dumped steps than this is a fault
_NAN = int(Kinds.NAN)


Words: TypeAlias = Callable[..., str]


@dataclass(frozen=True)
class NanOptions:
    """What the user may choose. ``top``: how many independent overflow nodes to list; ``exclude``: names or prefixes."""

    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    jobs: int | None = None
    exclude: tuple[str, ...] = ()
    top: int = 1
    use_cache: bool = True


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
        self.abnormal += _abnormal(digests)
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
        digests = _scan(dump, step, options, stages, words)
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
                    result.headline = _nothing_found(read.records, read.abnormal, len(read.ranks))
            result.steps = rows + [
                StepRow(s.step, len(s.ranks), [], [], 0, 0, "not_scanned") for s in steps[position + 1 :]
            ]
            if position + 1 < len(steps):
                result.notes.append(Params("note.steps", {"step": step.step if step.step is not None else 0}))
            return Analysis(result, view, dump, stages.timings)
    raise AssertionError("a dump has at least one step")


# --- stage 2 -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    place: RankFolder
    cache_to: Path | None


def scan_rank(task: _Task) -> RankDigest:
    """One rank's digest, from the cache or from its files. A rank that cannot be read says so; it raises nothing."""
    place = task.place
    if place.problem:
        if place.problem != "missing":
            outside = NumprobeError("E-FMT-015", "a link that leads out of the dump folder")
            return RankDigest(place.key, place.rank, "unreadable", str(outside))
        reason = "no_dump" if place.folder.is_dir() else "missing"
        return RankDigest(place.key, place.rank, "missing", reason)
    files = [place.dump, place.construct]
    entry = cache.entry(task.cache_to, files, "digest", DIGEST_VERSION) if task.cache_to else None
    stored = cache.load(entry, RankDigest)
    if stored is not None:
        return stored
    try:
        digest = digest_rank(RankDump(place, task.cache_to if place.size >= _INDEX_FROM else None))
    except NumprobeError as error:
        return RankDigest(place.key, place.rank, "unreadable", f"{error.code}  {error.what}")
    if digest.reason != "live":
        cache.store(entry, digest)
    return digest


def _scan(dump: Dump, step: StepFolder, options: NanOptions, stages: Stages, words: Words) -> list[RankDigest]:
    tasks = [_Task(r, dump.cache_to) for r in step.ranks]
    size = sum(r.size for r in step.ranks)
    stages.begin(STAGES[1], len(tasks))
    execute = choose(options.jobs, len(tasks), size)
    digests: list[RankDigest | None] = [None] * len(tasks)
    done = read = 0
    try:
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
        reasons = [f"{d.key}: {d.reason or d.status}" for d in found]
        raise none_readable(step.folder, reasons)
    cut = sum(d.status == "partial" for d in found)
    records = sum(d.records for d in found)
    note = words("nan.note.scanned", files=done, size=read, records=records, partial=cut or None)
    stages.end(note, done, len(tasks))
    return found


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
    _fill(result, view, options, scaling_is_fault)
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


def _fill(result: NanResult, view: View, options: NanOptions, scaling_is_fault: bool) -> None:
    """Verdict, candidates, evidence and tables."""
    verdicts, digests = view.verdicts, view.digests
    result.join = view.joined.summary
    result.limits = unread_limits(digests, view.left_out) + _limits(view)
    result.notes = _notes(digests)
    unused = [e for e in options.exclude if not any(is_excluded(name, (e,)) for name in verdicts.user_excluded)]
    if unused:
        result.notes.append(Params("note.exclude_unused", {"names": ", ".join(unused)}))
    result.user_excluded = sorted(verdicts.user_excluded)
    sources = verdicts.sources
    scaling = None if scaling_is_fault else _loss_scaling(view)
    from_start = _dirty_from_start(view)
    if not sources or scaling is not None:
        _clean(result, view, scaling)
        sources = []
    elif from_start:
        result.verdict = "inconclusive"
        dirty = sum(1 for d in digests if d.dirty_records)
        result.headline = Params("headline.dirty_from_start", {"ranks": dirty})
        step = view.step
        result.next_checks = [Params("check.earlier_step", {} if step is None else {"step": step})]
    elif sources[0].kind == "outside" or verdicts.undecided or view.unseen_could_be(sources[0]):
        result.verdict = "inconclusive"
    else:
        result.verdict = "overflow_found"
    if sources:
        _candidates(result, view, options)
    first = result.first or (result.alternatives[0] if result.alternatives else None)
    own = set(first.ranks) if first and result.verdict == "overflow_found" else set()
    own |= {r for c in result.sources for r in c.ranks}
    keys = (
        {d.key for o in verdicts.sources[: verdicts.minimal] for d in o.digests}
        if result.verdict == "overflow_found"
        else set()
    )
    undecided = result.verdict == "inconclusive"
    depends = {d.key: undecided or (bool(sources) and view.could_precede(d.rank, sources[0])) for d in view.unread()}
    result.ranks = rank_rows(
        digests, verdicts, coordinates(view.joined, _world(view)), own, keys, depends, result.verdict == "no_overflow"
    )
    if first is not None:
        result.spread = spread_rows(digests, verdicts, first.op_name, sorted(own))
    result.excluded = excluded_rows(digests, view.cite, verdicts.user_excluded)


def _world(view: View) -> list[int]:
    return sorted(d.rank for d in view.digests if d.rank is not None)


def _candidates(result: NanResult, view: View, options: NanOptions) -> None:
    verdicts = view.verdicts
    listed = verdicts.sources[: max(verdicts.minimal, options.top)]
    made: list[Candidate] = []
    for position, origin in enumerate(listed):
        one, finding = candidate(view, origin, deep=True)
        one.terms = confidence_terms(view, origin, one, finding, verdicts.minimal)
        one.confidence = total(one.terms)
        one.concurrent_with = [
            o.event.name
            for o in verdicts.sources[: verdicts.minimal]
            if o is not origin and position < verdicts.minimal
        ]
        made.append(one)
        if position == 0:
            result.evidence = evidence_for(view, origin, one, finding, verdicts.minimal)
            if unseen := view.unseen_could_be(origin):
                result.next_checks.append(view.to_read(unseen))
            if not result.next_checks:
                result.next_checks = next_checks(view, one, finding)
    others = [_alternative(view, o) for o in verdicts.alternatives]
    if result.verdict == "overflow_found":
        result.sources, result.alternatives = made, others
    else:
        result.sources, result.alternatives = [], made + others
    first = made[0]
    result.clazz, result.confidence = first.clazz, first.confidence
    result.source_ranks = first.ranks if result.verdict == "overflow_found" else []
    result.rank = min(result.source_ranks) if result.source_ranks else None
    if result.headline is None:
        result.headline = _headline(first, listed[0], view, result.verdict)


def _alternative(view: View, origin: Origin) -> Candidate:
    one, finding = candidate(view, origin, deep=False)
    one.terms = confidence_terms(view, origin, one, finding, max(view.verdicts.minimal, 2))
    one.confidence = min(total(one.terms), 0.5)
    return one


def _headline(first: Candidate, origin: Origin, view: View, verdict: str) -> Params:
    values: dict[str, str | int | float | list[int]] = {
        "kinds": first.kinds,
        "ranks": first.ranks or first.rank_key,
        "op": first.op_name,
    }
    slot = dirty_slot(first)
    unseen = view.unseen_could_be(origin)
    if verdict == "inconclusive" and unseen:
        return Params("headline.unseen", {**values, "unseen": unseen})
    if verdict == "inconclusive" and origin.kind != "outside":
        return Params("headline.ambiguous", {"count": max(len(first.ranks), view.verdicts.minimal)})
    if first.kind in ("gap", "container"):
        if first.gap_after:
            values["after"] = first.gap_after
        return Params("headline.gap", values)
    if first.kind == "parameter":
        return Params("headline.parameter", {**values, "slot": slot})
    if first.kind == "input_data":
        return Params("headline.input_data", {**values, "slot": slot})
    if first.kind == "communication":
        members = len(origin.instance.calls) if origin.instance else 0
        return Params("headline.communication", {**values, "members": members})
    if first.kind == "outside":
        return Params("headline.outside", values)
    if first.kind == "uninitialised":
        return Params("headline.uninitialised", {**values, "allocation": origin.event.after_name})
    if first.clazz == "recompute_differs":
        return Params("headline.recompute", values)
    if first.layer is not None:
        values["layer"] = first.layer
    return Params("headline.introduced", values)


def _clean(result: NanResult, view: View, scaling: Params | None) -> None:
    """Nothing overflowed, or only what loss scaling lets overflow; or what was not read could hide a source."""
    unread = [d for d in view.unread() if not _ends_clean(view, d)]
    ranks = sum(1 for d in view.digests if d.status in ("ok", "partial"))
    if unread and scaling is None:
        result.verdict = "inconclusive"
        unread_ranks = sorted(d.rank for d in unread if d.rank is not None)
        result.headline = Params("headline.unread", {"ranks": unread_ranks})
        result.next_checks = [Params("check.read_rank", {"ranks": unread_ranks})]
        return
    if view.verdicts.user_excluded and scaling is None:
        result.verdict = "inconclusive"
        names = ", ".join(sorted(view.verdicts.user_excluded)[:3])
        result.headline = Params("headline.all_excluded", {"count": len(view.verdicts.user_excluded), "names": names})
        result.next_checks = [Params("check.exclude_less")]
        return
    result.verdict = "no_overflow"
    if scaling is not None:
        result.headline = Params("headline.loss_scaling")
        result.notes.append(scaling)
        result.next_checks = [Params("check.loss_scale")]
    else:
        result.headline = _nothing_found(result.records, _abnormal(view.digests), ranks)
        result.next_checks = [Params("check.coverage")]


def _nothing_found(records: int, abnormal: int, ranks: int) -> Params:
    values: dict[str, str | int | float | list[int]] = {"records": records, "ranks": ranks}
    return (
        Params("headline.look_alikes", {**values, "count": abnormal})
        if abnormal
        else Params("headline.no_overflow", values)
    )


def _abnormal(digests: Sequence[RankDigest]) -> int:
    """Records with a value that is not finite, whatever its reason."""
    return sum(max(d.dirty_records, sum(look.count for look in d.look_alikes)) for d in digests)


def _ends_clean(view: View, unread: RankDigest) -> bool:
    """Does every group of this rank end with clean data in its readable members, so that dirt of its own would show?"""
    if unread.rank is None:
        return False
    last: dict[object, bool] = {}
    for instance in view.joined.instances:
        if unread.rank in instance.members and instance.calls:
            others = [c for r, c in instance.calls.items() if r != unread.rank]
            if others:
                last[instance.group] = not any(c.got & _NAN for c in others)
    return bool(last) and all(last.values())


def _loss_scaling(view: View) -> Params | None:
    """Scaled fp16 gradients may overflow: the optimizer skips the step and nothing is wrong (refinement 13)."""
    origins = view.verdicts.sources[: view.verdicts.minimal]
    if not origins:
        return None
    if any(o.event.phase != "backward" or not o.digest.backward_only for o in view.verdicts.sources):
        return None
    if any(d.optimizer_records for d in view.digests) or not _scaled(view):
        return None
    for origin in view.verdicts.sources:
        digest = origin.digest
        record = view.dumps[digest.key].record(origin.event.index)
        own = {short_dtype(v.dtype) for v in record.values if v.kinds.dirty}
        if "fp16" not in own and not _half_in_backward(view.dumps[digest.key], digest):
            return None
    return Params("note.loss_scaling")


def _scaled(view: View) -> bool:
    """Is the loss multiplied before backward? By the gradients of scalars (the loss), else by the size of the first ones."""
    scalars: list[float] = []
    others: list[float] = []
    last_stage = [d for d in view.digests if d.key in view.dumps and d.backward_from >= 0]
    for digest in sorted(last_stage, key=lambda d: not d.ends)[:MAX_LOSS_RANKS]:
        begin = digest.backward_from
        dump = view.dumps[digest.key].fresh()
        for record in dump.records(range(begin, min(begin + 8, digest.records))):
            for v in record.of(INPUT, OUTPUT):
                size = magnitude(v) if v.is_tensor else None
                if size is not None:
                    (scalars if v.numel == 1 else others).append(size)
    return max(scalars) >= LOSS_SCALE if scalars else max(others, default=0.0) >= SCALED_GRADIENT


def _half_in_backward(dump: RankDump, digest: RankDigest) -> bool:
    """Are gradients fp16 at the beginning of backward? Under autocast the parameters' own are fp32."""
    begin = digest.backward_from
    records = dump.records(list(range(begin, min(begin + 8, len(dump.index)))))
    return any(short_dtype(v.dtype) == "fp16" for r in records for v in r.values)


def _dirty_from_start(view: View) -> bool:
    """Did the dump begin after the fault? Every rank is dirty at its first computing record, or most parameters are."""
    readable = [d for d in view.digests if d.status in ("ok", "partial") and d.records]
    sources = view.verdicts.sources[: view.verdicts.minimal]
    if sources and all(o.kind == "parameter" for o in sources):
        sampled = sum(d.parameters for o in sources for d in o.digests)
        dirty = sum(d.dirty_parameters for o in sources for d in o.digests)
        return sampled > 2 and dirty * 2 >= sampled
    first = [d.events[0] for d in readable if d.events]
    if not readable or len(first) < len(readable):
        return False
    at_start = all(
        e.kind in ("parameter", "gap", "input_data") and e.index <= max(d.first_computing, 0)
        for d, e in zip((d for d in readable if d.events), first, strict=True)
    )
    same = len({e.slots_key for e in first}) == 1
    return at_start and len(readable) > 1 and not same


def _limits(view: View) -> list[Params]:
    limits: list[Params] = []
    readable = [d for d in view.digests if d.status in ("ok", "partial")]
    level = readable[0].level if readable else ""
    if level == "L0":
        limits.append(Params("limit.level_l0"))
    elif level == "L1":
        limits.append(Params("limit.level_l1"))
    if len(readable) > 1 and not view.recorded:
        limits.append(Params("limit.no_communication"))
    first = view.verdicts.sources[0].digest.key if view.verdicts.sources else None
    if first is not None:
        dump = view.dumps[first]
        ranks: dict[str, str | int | float | list[int]] = {}
        if dump.place.rank is not None:
            ranks["ranks"] = [dump.place.rank]
        if not dump.stacks:
            limits.append(Params("limit.no_stack", ranks))
        if not dump.tree.present:
            limits.append(Params("limit.no_construct", ranks))
        limits.append(Params("limit.in_place"))
    else:
        limits.append(Params("limit.detection"))
    return limits


def _notes(digests: Sequence[RankDigest]) -> list[Params]:
    notes: list[Params] = []
    live = sorted(d.rank for d in digests if d.reason == "live" and d.rank is not None)
    if live:
        notes.append(Params("note.live", {"ranks": live}))
    repeated = Counter({d.rank: d.repeated for d in digests if d.repeated and d.rank is not None})
    if repeated:
        notes.append(Params("note.duplicates", {"count": sum(repeated.values()), "ranks": sorted(repeated)}))
    return notes


def _step_row(step: StepFolder, digests: list[RankDigest], result: NanResult) -> StepRow:
    dirty = sum(1 for d in digests if d.dirty_records)
    state = "clean" if not dirty else "dirty" if result.sources or result.alternatives else "look_alikes_only"
    return StepRow(step.step, len(step.ranks), result.partial_ranks, result.missing_ranks, result.records, dirty, state)


__all__ = ["STAGES", "Analysis", "NanOptions", "analyse"]
