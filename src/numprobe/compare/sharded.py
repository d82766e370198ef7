"""Dumps of one model on different numbers of ranks: which ranks make up one side of a comparison, and what is told of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from numprobe.align.leaves import LeafPairs
from numprobe.align.shards.grid import sort_ranks
from numprobe.align.shards.joined import JoinedCalls
from numprobe.align.shards.likeness import replicas
from numprobe.align.shards.merged import MergedCalls
from numprobe.align.shards.signature import Signature, read_signature
from numprobe.align.shards.split import split_of
from numprobe.align.shards.spread import CASES, UNKNOWN
from numprobe.align.shards.unit import Group, Unit
from numprobe.compare import result as data
from numprobe.compare.measure import REASON
from numprobe.compare.problems import unpaired, unreadable
from numprobe.execution.executor import choose
from numprobe.formats.layout import RankFolder, StepFolder
from numprobe.formats.msprobe.values import ValueTable
from numprobe.record.errors import NumprobeError
from numprobe.record.trace import PARAMETER

Pairing = tuple[RankFolder, RankFolder, Unit | None]
OTHER_BATCH = "another batch than the golden run: parameters only"
NAMED = 4  # ranks of a group that its name lists
MOST_PARTS = 4096  # of one parameter


def same_size(a: StepFolder, b: StepFolder) -> bool:
    """Are there as many ranks on both sides?"""
    return len(_readable(a)) == len(_readable(b))


def fit_ranks(
    a: StepFolder, b: StepFolder, cache_to: Path | None, jobs: int | None
) -> tuple[list[Pairing], list[data.RankPair], list[data.Problem]] | None:
    """Ranks, or groups of ranks, that belong together in a step; those that have no partner; and what is told of these. None:
    nothing says that the ranks hold parts of each other, so that their numbers count.

    Raises:
        NumprobeError: E-CMP-004 the ranks hold parts of a model, and do not fit together.
    """
    sides = _readable(a), _readable(b)
    ranks = [*sides[0], *sides[1]]
    size = sum(rank.size for rank in ranks)
    found = dict(choose(jobs, len(ranks), size)(_try_signature, [(rank, cache_to) for rank in ranks]))
    known = {i: (rank, s) for i, rank in enumerate(ranks) if isinstance(s := found[i], Signature)}
    one, other = ([k for i, k in known.items() if (i < len(sides[0])) == first] for first in (True, False))
    unread, problems = [], []
    for i, rank in enumerate(ranks):
        if isinstance(error := found[i], NumprobeError):
            side, keys = ("target", (rank.key, "")) if i < len(sides[0]) else ("golden", ("", rank.key))
            unread.append(data.RankPair(a.step, rank.rank, *keys, "unreadable", str(error)))
            problems.append(unreadable(error, [(side, rank)], a.step, rank))
    if not one or not other or (grid := sort_ranks(one, other)).by_number:
        return None
    if not grid.units:
        raise NumprobeError(
            "E-CMP-004",
            "the ranks of the two dumps cannot be fitted together",
            where=", ".join(p.file for p in problems[:3]) or f"{a.folder}, {b.folder}",
            found="of {unread} ranks nothing could be read: {reason}"
            if unread
            else "{target} and {golden} ranks, whose parameters are no parts of each other, or some of their group are missing",
            do="give dumps of one model with all ranks of a group, whose tensors are cut alike where sequences or a batch are "
            "shared too",
            target=len(one),
            golden=len(other),
            unread=len(unread),
            reason=unread[0].note if unread else "",
        )
    alone = [data.RankPair(a.step, r.rank, r.key, "", "missing") for r in grid.alone[0]]
    alone += [data.RankPair(b.step, r.rank, "", r.key, "missing") for r in grid.alone[1]]
    for number, known_here in enumerate((one, other)):
        asked = (b, a)[number].asked
        named = [rank for rank in grid.alone[number] if asked is None or rank.rank in asked]
        left = {rank.key for rank in grid.alone[number]}
        used = [s for rank, s in known_here if rank.key not in left and s.parameters]
        copies = {rank.key for rank, s in known_here if rank.key in left and any(replicas(u, s) for u in used)}
        problems += unpaired("copy", number, a.step, (r for r in named if r.key in copies))
        problems += unpaired("unpaired", number, a.step, (r for r in named if r.key not in copies))
    return [_pairing(unit) for unit in grid.units], [*alone, *unread], problems


def _try_signature(place: tuple[RankFolder, Path | None]) -> Signature | NumprobeError:
    """The signature of a rank, or why it cannot be read."""
    try:
        return read_signature(place)
    except NumprobeError as error:
        return error


def refuse_other_runs(unit: Unit | None, *, given: bool) -> None:
    """Errors of a noise or baseline run are those of single golden ranks.

    Raises:
        NumprobeError: E-CMP-005 one is given, and the golden side is several ranks.
    """
    if given and unit is not None and not unit.golden.alone:
        raise NumprobeError(
            "E-CMP-005",
            "a noise or baseline run says nothing where several golden ranks make up one side",
            found="{ranks}",
            do="give a golden run on fewer ranks, or leave --noise and --baseline out",
            ranks=", ".join(rank.key for rank in unit.golden.ranks[:8]),
        )


def _readable(step: StepFolder) -> list[RankFolder]:
    return [r for r in step.ranks if not r.problem]


def _pairing(unit: Unit) -> Pairing:
    if unit.target.alone and unit.golden.alone:
        return unit.target.ranks[0], unit.golden.ranks[0], None
    return _labelled(unit.target), _labelled(unit.golden), unit


def _labelled(group: Group) -> RankFolder:
    """The first rank, under the name of the whole group."""
    keys = [rank.key for rank in group.ranks]
    name = "+".join(keys) if len(keys) <= NAMED else f"{keys[0]}+{len(keys) - 1}_more"
    return replace(group.ranks[0], key=name)


# --- what is told ----------------------------------------------------------------------------------------------------


def merge_notes(target: object, golden: object) -> list[str]:
    """``merged:target:rank0+rank1:replicated=295,split=178,partial=25`` for a side that was put together, and
    ``order:target:layers.#.mlp.linear_fc1.weight:2`` for parameters whose parts lie in groups."""
    notes = []
    for name, side in (("target", target), ("golden", golden)):
        if isinstance(side, JoinedCalls) and len(side.ranks.calls) > 1:
            ranks = "+".join(calls.dump.place.key for calls in side.ranks.calls)
            notes.append(f"merged:{name}:{ranks}:{_cases(side)}")
        if isinstance(side, MergedCalls):
            notes += [f"order:{name}:{parameter}:{groups}" for parameter, groups in side.orders().items()]
    return notes


def cases_by_row(leaves: LeafPairs, target: object, golden: object) -> NDArray[np.int64] | None:
    """By leaf row the index in :data:`~numprobe.align.shards.spread.CASES`, -1 where none was needed; None where no side was
    merged."""
    for side, rows in ((target, leaves.target), (golden, leaves.golden)):
        if isinstance(side, MergedCalls):
            cases: NDArray[np.int64] = side.spread.case.astype(np.int64)[rows]
            cases[(rows < 0) | (cases == UNKNOWN)] = -1
            return cases
    return None


def _cases(side: JoinedCalls) -> str:
    if not isinstance(side, MergedCalls):
        return ""
    counts = Counter(side.spread.case.tolist())
    told = [f"{CASES[case]}={n}" for case, n in sorted(counts.items()) if case != UNKNOWN]
    return ",".join([*told, f"averaged={side.averaged}"] if side.averaged > 1 else told)


def parts_of_each_other(leaves: LeafPairs, reason: NDArray[np.uint8], target: ValueTable, golden: ValueTable) -> bool:
    """Do most parameters of one rank have the shape of a part of the other's? Then nothing that differs can be blamed."""
    parameters = np.array([role == PARAMETER for role, _ in target.slots], bool)
    both = np.flatnonzero(leaves.both)
    rows = both[parameters[target.slot[leaves.target[both]]]] if len(both) else both
    votes: Counter[bool] = Counter()
    for row in rows.tolist():
        one, other = (v.shapes[v.shape[i]] for v, i in ((target, leaves.target[row]), (golden, leaves.golden[row])))
        if one is not None and other is not None and len(one) > 1:
            differs = reason[row] == REASON["shape"]
            votes[bool(differs and (_part(one, other) or _part(other, one)))] += 1
    return votes[True] > votes[False]


def _part(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    return any(
        split_of([small] * count, large) is not None
        for count in {n // max(m, 1) for m, n in zip(small, large, strict=False)}
        if 1 < count <= MOST_PARTS
    )


class Outcome(Protocol):
    """What a comparison of one pair of ranks leaves."""

    pair: data.RankPair
    findings: list[data.Finding]
    heat: list[data.Cell]
    recorded: int
    judged: int
    problems: list[data.Problem]


def settle_copies(outcomes: Sequence[Outcome]) -> None:
    """Of several copies of a model that are compared with one golden rank: a copy that worked on another batch than the golden
    run, where one worked on the same, is left with what it says of parameters; and what only some copies show, though all should
    agree, is a divergence of ranks."""
    copies: dict[tuple[int | None, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        copies[outcome.pair.step, outcome.pair.golden].append(outcome)
    for group in (g for g in copies.values() if len(g) > 1):
        other = [any(f.cause == "input" for f in o.findings) for o in group]
        if not all(other):
            for outcome in (o for o, is_other in zip(group, other, strict=True) if is_other):
                _leave_parameters(outcome)
        seen = Counter(key for o in group for key in {_event(f) for f in o.findings})
        for finding in (f for o in group for f in o.findings):
            if (
                finding.cause in ("parameter", "introduced")
                and not finding.reason
                and seen[_event(finding)] < len(group)
            ):
                finding.reason = "rank_divergence"


def _leave_parameters(outcome: Outcome) -> None:
    outcome.findings = [f for f in outcome.findings if f.cause == "parameter"]
    outcome.heat, outcome.recorded, outcome.judged = [], 0, 0
    outcome.problems = [p for p in outcome.problems if p.kind != "little"]
    outcome.pair = msgspec.structs.replace(outcome.pair, note=OTHER_BATCH, compared=0, counts={})


def _event(f: data.Finding) -> tuple[object, ...]:
    return f.cause, f.op, f.golden_op, f.slot
