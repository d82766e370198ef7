"""Stage 5: the verdict on one step, with its candidates, evidence, notes and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from numprobe.diagnose.nan_overflow.bound import magnitude
from numprobe.diagnose.nan_overflow.complete import NAMED
from numprobe.diagnose.nan_overflow.conclude import (
    View,
    candidate,
    confidence_terms,
    dirty_slot,
    evidence_for,
    next_checks,
    state_of,
    total,
)
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.result import Candidate, NanResult, Params, Values
from numprobe.diagnose.nan_overflow.rows import coordinates, excluded_rows, rank_rows, spread_rows, unread_limits
from numprobe.diagnose.nan_overflow.sources import Origin, is_excluded
from numprobe.formats.dump import RankDump
from numprobe.record.dtypes import short_dtype
from numprobe.record.nonfinite import Kinds
from numprobe.record.trace import INPUT, OUTPUT

LOSS_SCALE = 2.0**8  # gradients of the loss of at least this size are scaled on purpose
SCALED_GRADIENT = 2.0**4  # where the loss is not recorded: gradients of logits are at most 1 without a scale
MAX_LOSS_RANKS = 16
_NAN = int(Kinds.NAN)


def fill(result: NanResult, view: View, exclude: Sequence[str], top: int, *, scaling_is_fault: bool) -> None:
    """Enter everything that is known about one step in ``result``.

    ``exclude``: what the user left out; ``top``: how many independent sources to list at least; ``scaling_is_fault``: an
    overflow that loss scaling may cause has happened too often to be one.
    """
    result.join = view.joined.summary
    result.limits = unread_limits(view.digests, view.left_out) + _limits(view)
    result.notes = _notes(view.digests)
    excluded = view.verdicts.user_excluded
    unused = [e for e in exclude if not any(is_excluded(name, (e,)) for name in excluded)]
    if unused:
        result.notes.append(Params("note.exclude_unused", {"names": ", ".join(unused)}))
    result.user_excluded = sorted(excluded)
    sources = _decide(result, view, scaling_is_fault)
    if sources:
        _candidates(result, view, top)
    _tables(result, view, sources)


def _decide(result: NanResult, view: View, scaling_is_fault: bool) -> list[Origin]:
    """Enter the verdict; the sources that the user should see."""
    sources = view.verdicts.sources
    scaling = None if scaling_is_fault else _loss_scaling(view)
    if not sources or scaling is not None:
        _clean(result, view, scaling)
        return []
    if _dirty_from_start(view):
        result.verdict = "inconclusive"
        dirty = sum(1 for d in view.digests if d.dirty_records)
        result.headline = Params("headline.dirty_from_start", {"ranks": dirty})
        result.next_checks = [Params("check.earlier_step", {} if view.step is None else {"step": view.step})]
    elif sources[0].kind == "outside" or view.verdicts.undecided or view.unseen_could_be(sources[0]):
        result.verdict = "inconclusive"
    else:
        result.verdict = "overflow_found"
    return sources


def _tables(result: NanResult, view: View, sources: list[Origin]) -> None:
    """Rows by rank, the spread over collectives, and what looked like an origin and is none."""
    verdicts, digests = view.verdicts, view.digests
    found, undecided = result.verdict == "overflow_found", result.verdict == "inconclusive"
    first = result.first or (result.alternatives[0] if result.alternatives else None)
    own = {r for c in result.sources for r in c.ranks} | (set(first.ranks) if first and found else set())
    keys = {d.key for o in verdicts.sources[: verdicts.minimal] for d in o.digests} if found else set()
    depends = {d.key: undecided or (bool(sources) and view.could_precede(d.rank, sources[0])) for d in view.unread()}
    world = sorted(d.rank for d in digests if d.rank is not None)
    places = coordinates(view.joined, world)
    result.ranks = rank_rows(digests, verdicts, places, own, keys, depends, result.verdict == "no_overflow")
    if first is not None:
        result.spread = spread_rows(digests, verdicts, first.op_name, sorted(own))
    result.excluded = excluded_rows(digests, view.cite, verdicts.user_excluded)


def _candidates(result: NanResult, view: View, top: int) -> None:
    verdicts = view.verdicts
    listed = verdicts.sources[: max(verdicts.minimal, top)]
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
    values: Values = {
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
        if origin.through is not None:
            return Params("headline.outside_behind", {**values, "receive": origin.through.name})
        return Params("headline.outside", values)
    if first.kind == "uninitialised":
        return Params("headline.uninitialised", {**values, "allocation": origin.event.after_name})
    if first.clazz == "recompute_differs":
        return Params("headline.recompute", values)
    if first.layer is not None:
        values["layer"] = first.layer
    if slot:  # an infinity goes in that no record has made, and NaN comes out
        return Params("headline.from_infinite", {**values, "slot": slot, "given": state_of(first, slot)})
    return Params("headline.introduced", values)


def _clean(result: NanResult, view: View, scaling: Params | None) -> None:
    """Nothing overflowed, or only what loss scaling lets overflow; or what was not read could hide a source."""
    hiding = view.unread()
    clean = _ending_clean(view, {d.rank for d in hiding if d.rank is not None}) if hiding else set()
    unread = [d for d in hiding if d.rank not in clean]
    ranks = sum(1 for d in view.digests if d.status in ("ok", "partial"))
    if view.verdicts.user_excluded and scaling is None:
        result.verdict = "inconclusive"
        names = ", ".join(sorted(view.verdicts.user_excluded)[:3])
        result.headline = Params("headline.all_excluded", {"count": len(view.verdicts.user_excluded), "names": names})
        result.next_checks = [Params("check.exclude_less")]
        return
    if unread and scaling is None:
        result.verdict = "inconclusive"
        unread_ranks = sorted(d.rank for d in unread if d.rank is not None)
        result.headline = Params("headline.unread", {"ranks": unread_ranks})
        result.next_checks = [Params("check.read_rank", {"ranks": unread_ranks})]
        return
    result.verdict = "no_overflow"
    if scaling is not None:
        result.headline = Params("headline.loss_scaling")
        result.notes.append(scaling)
        result.next_checks = [Params("check.loss_scale")]
    else:
        result.headline = nothing_found(result.records, abnormal(view.digests), ranks)
        result.next_checks = [Params("check.coverage")]


def nothing_found(records: int, abnormal: int, ranks: int) -> Params:
    values: Values = {"records": records, "ranks": ranks}
    return (
        Params("headline.look_alikes", {**values, "count": abnormal})
        if abnormal
        else Params("headline.no_overflow", values)
    )


def abnormal(digests: Sequence[RankDigest]) -> int:
    """Records with a value that is not finite, whatever its reason."""
    return sum(max(d.dirty_records, sum(look.count for look in d.look_alikes)) for d in digests)


def _ending_clean(view: View, ranks: set[int]) -> set[int]:
    """Those whose groups all end with clean data in the readable members, so that dirt of their own would show."""
    last: dict[int, dict[object, bool]] = {r: {} for r in ranks}
    for instance in view.joined.instances:
        dirty = {r for r, c in instance.calls.items() if c.got & _NAN}
        for rank in ranks.intersection(instance.members):
            if instance.calls.keys() - {rank}:
                last[rank][instance.group] = not dirty - {rank}
    return {rank for rank, groups in last.items() if groups and all(groups.values())}


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
        ranks: Values = {}
        if dump.place.rank is not None:
            ranks["ranks"] = [dump.place.rank]
        if dump.stacks.problem:
            limits.append(Params("limit.stack_unreadable", {**ranks, "reason": dump.stacks.problem}))
        elif not dump.stacks:
            limits.append(Params("limit.no_stack", ranks))
        if dump.tree.problem:
            limits.append(Params("limit.construct_unreadable", {**ranks, "reason": dump.tree.problem}))
        elif not dump.tree.present:
            limits.append(Params("limit.no_construct", ranks))
        limits.append(Params("limit.in_place"))
    else:
        limits.append(Params("limit.detection"))
    return limits


def _notes(digests: Sequence[RankDigest]) -> list[Params]:
    notes: list[Params] = []
    named = sorted(d.rank for d in digests if d.reason == NAMED and d.rank is not None)
    if named:
        notes.append(Params("note.named", {"ranks": named}))
    live = sorted(d.rank for d in digests if d.reason == "live" and d.rank is not None)
    if live:
        notes.append(Params("note.live", {"ranks": live}))
    repeated = Counter({d.rank: d.repeated for d in digests if d.repeated and d.rank is not None})
    if repeated:
        notes.append(Params("note.duplicates", {"count": sum(repeated.values()), "ranks": sorted(repeated)}))
    return notes
