"""Stage 3: put the communication records of all ranks together, and check by value that they belong together.

Calls are numbered per (group, API), transfers per ordered pair of ranks. Numbers alone are not trusted: after an
all_reduce all members hold the same values, what is sent is what is received, an all_to_all keeps the number of elements
and the sum of squares. A rank whose sequence does not fit is shifted until it does, or its calls are not used.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from numprobe.diagnose.nan_overflow.comm import (
    PARTIAL_RECEIVERS,
    REPLICATING,
    ROOTED,
    CommCall,
    Signature,
    keeps_squares,
)
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.result import JoinSummary, Params
from numprobe.record.nonfinite import DIRTY, Kinds

VERIFIED, CONSISTENT, ASSUMED, CONTRADICTED = "verified", "consistent", "assumed", "contradicted"
_MAX_SHIFT = 16
_SQUARE_TOLERANCE = 0.05  # norms recorded in bf16 are off by up to 2**-8 each
_DIRTY = int(DIRTY)

Group = "tuple[int, ...] | str"


@dataclass
class Instance:
    """One collective or one transfer: the call of every member that recorded it."""

    api: str
    group: tuple[int, ...] | str  # global ranks, "world", or an id without ranks; transfers: (source, destination)
    ordinal: int
    members: tuple[int, ...]  # ranks that take part, recorded or not; empty if unknown
    calls: dict[int, CommCall] = field(default_factory=dict)  # by rank
    join: str = ASSUMED
    progress: float = 0.0  # how far into the step: mean of op_index over records of the members read in full

    @property
    def id(self) -> str:
        if self.api == "p2p":
            return f"p2p@{self.group[0]}-{self.group[1]}#{self.ordinal}"
        return f"{self.api}@{group_label(self.group)}#{self.ordinal}"

    @property
    def root(self) -> int:
        """Root of a broadcast, scatter, reduce or gather; -1 where nobody recorded it."""
        return next((c.peer for c in self.calls.values()), -1)

    @property
    def absent(self) -> list[int]:
        """Members without a recorded call."""
        return [r for r in self.members if r not in self.calls]

    def gives(self, rank: int) -> bool:
        """Does what this rank puts in reach others?"""
        if self.api == "p2p":
            return rank == self.group[0]
        if self.api in ("broadcast", "scatter"):
            return rank == self.root
        return rank in self.calls or rank in self.members

    def receives(self, rank: int) -> bool:
        """Does this rank get anything that others put in?"""
        if self.api == "p2p":
            return rank == self.group[1]
        if self.api in ("reduce", "gather"):
            return rank == self.root
        if self.api in ("broadcast", "scatter"):
            return rank != self.root
        return True

    def dirty_givers(self, kinds: int = _DIRTY) -> list[int]:
        return sorted(r for r, c in self.calls.items() if c.given & kinds and self.gives(r))

    def unknown_givers(self) -> list[int]:
        """Members that give and whose input nobody recorded."""
        return [
            r
            for r in self.members
            if self.gives(r) and (r not in self.calls or self.calls[r].given & int(Kinds.UNKNOWN))
        ]


@dataclass
class Joined:
    """All instances, and for every rank its calls in program order with the instance of each."""

    instances: list[Instance]
    by_rank: dict[int, list[tuple[CommCall, Instance]]]
    summary: JoinSummary
    groups: dict[tuple[int, ...], int] = field(default_factory=dict)  # recorded groups and how often they are used


def group_label(group: tuple[int, ...] | str) -> str:
    """``world``, a group id, or the CRC-32 of the rank list that msProbe uses as group id."""
    return group if isinstance(group, str) else f"{zlib.crc32(str(list(group)).encode()):08x}"


def join(digests: Sequence[RankDigest], world: frozenset[int]) -> Joined:
    """Join the calls of all ranks that have a rank number. ``world``: the ranks of the job, recorded or missing."""
    known = [d for d in digests if d.rank is not None]
    sequences: dict[tuple[str, tuple[int, ...] | str], dict[int, list[CommCall]]] = defaultdict(
        lambda: defaultdict(list)
    )
    groups: dict[tuple[int, ...], int] = defaultdict(int)
    everyone = tuple(sorted(world))
    for digest in known:
        rank = digest.rank
        assert rank is not None
        for call in digest.calls:
            if call.api in ("send", "recv"):
                if call.peer < 0 or call.peer == rank:
                    continue
                pair = (rank, call.peer) if call.api == "send" else (call.peer, rank)
                sequences["p2p", pair][rank].append(call)
                continue
            group: tuple[int, ...] | str = "world" if call.group is None else call.group
            if isinstance(group, tuple):
                group = tuple(sorted(set(group)))
                groups[group] += 1
                if group == everyone:
                    group = "world"
            sequences[call.api, group][rank].append(call)
    instances: list[Instance] = []
    notes: list[Params] = []
    lengths = {d.rank: d.status for d in known}
    for (api, group), by_rank in sequences.items():
        members = everyone if group == "world" else group if isinstance(group, tuple) else tuple(sorted(by_rank))
        instances += _sequence(api, group, members, by_rank, lengths, notes)
    size = {d.rank: max(d.records, 1) for d in known}
    for instance in instances:
        whole = [r for r in instance.calls if lengths[r] == "ok"] or list(instance.calls)
        instance.progress = sum(instance.calls[r].index / size[r] for r in whole) / len(whole)
    table: dict[int, list[tuple[CommCall, Instance]]] = {d.rank: [] for d in known if d.rank is not None}
    for instance in instances:
        for rank, call in instance.calls.items():
            table[rank].append((call, instance))
    for calls in table.values():
        calls.sort(key=lambda pair: pair[0].index)
    summary = JoinSummary(len(instances), notes=notes)
    for instance in instances:
        setattr(summary, instance.join, getattr(summary, instance.join) + 1)
        summary.dangling += bool(instance.absent)
    return Joined(instances, table, summary, dict(groups))


def _sequence(
    api: str,
    group: tuple[int, ...] | str,
    members: tuple[int, ...],
    by_rank: dict[int, list[CommCall]],
    status: dict[int | None, str],
    notes: list[Params],
) -> list[Instance]:
    """Instances of one sequence of calls, aligned over its members."""
    longest = max(by_rank, key=lambda r: (status.get(r) == "ok", len(by_rank[r]), -r))
    shifts: dict[int, int] = {}
    for rank, calls in by_rank.items():
        shift = 0 if rank == longest else shift_of(api, by_rank[longest], calls)
        shifts[rank] = shift
        if shift:
            notes.append(
                Params("note.join.shifted", {"api": api, "group": group_label(group), "rank": rank, "shift": shift})
            )
    complete = [r for r in by_rank if status.get(r) == "ok"]
    if len({len(by_rank[r]) - shifts[r] for r in complete}) > 1:
        counts = sorted({len(by_rank[r]) for r in complete})
        notes.append(
            Params(
                "note.join.lengths", {"api": api, "group": group_label(group), "least": counts[0], "most": counts[-1]}
            )
        )
    low = min(-s if s < 0 else 0 for s in shifts.values())
    total = max(len(c) + max(shifts[r], 0) for r, c in by_rank.items()) - low
    instances = [Instance(api, group, n, members) for n in range(total)]
    for rank, calls in by_rank.items():
        for n, call in enumerate(calls):
            place = n + shifts[rank]
            if 0 <= place < total:
                instances[place].calls[rank] = call
    instances = [i for i in instances if i.calls]
    for instance in instances:
        instance.join = _grade(instance)
    # an instance that holds NaN cannot be checked by value: it stands or falls with its neighbours
    checked = [i.join for i in instances if i.join != ASSUMED]
    if checked and all(j != CONTRADICTED for j in checked):
        for instance in instances:
            if instance.join == ASSUMED and len(instance.calls) > 1:
                instance.join = CONSISTENT
    return instances


def shift_of(api: str, reference: list[CommCall], calls: list[CommCall]) -> int:
    """By how many places ``calls`` stands behind ``reference``; 0 unless the values say otherwise."""
    if api != "p2p" and api not in REPLICATING:
        return 0

    def score(shift: int) -> tuple[int, int]:
        same = compared = 0
        for n, call in enumerate(calls):
            if 0 <= n + shift < len(reference):
                a, b = _carried(reference[n + shift]), _carried(call)
                if a is not None and b is not None and a.finite and b.finite:
                    compared += 1
                    same += _equal(a, b)
        return same, compared

    same, compared = score(0)
    if not compared or same * 2 >= compared:
        return 0
    best, best_same = 0, same
    for shift in sorted(range(-_MAX_SHIFT, _MAX_SHIFT + 1), key=abs):
        got, of = score(shift)
        if got > best_same and got * 5 >= of * 4:
            best, best_same = shift, got
    return best


def _carried(call: CommCall) -> Signature | None:
    return call.given_signature if call.api == "send" else call.got_signature


def _grade(instance: Instance) -> str:
    calls = list(instance.calls.values())
    if len(calls) < 2:
        return ASSUMED
    if instance.api == "p2p" and isinstance(instance.group, tuple):
        sent, received = (instance.calls.get(rank) for rank in instance.group)
        if sent is None or received is None:
            return ASSUMED
        a, b = sent.given_signature, received.got_signature
        if received.got & int(Kinds.UNKNOWN) and a and b:  # recorded before the data came: the size is all there is
            return CONSISTENT if a.numel == b.numel else CONTRADICTED
        return _compare([a, b])
    if instance.api in REPLICATING:
        return _compare([c.got_signature for c in calls])
    if len(calls) < len(instance.members):
        return ASSUMED
    given, got = [c.given_signature for c in calls], [c.got_signature for c in calls]
    if any(s is None for s in given + got):
        return ASSUMED
    sent_n, got_n = sum(s.numel for s in given if s), sum(s.numel for s in got if s)
    if keeps_squares(instance.api):
        if sent_n != got_n:
            return CONTRADICTED
        squares = [[s.square for s in side if s and s.numel] for side in (given, got)]
        totals = [math.fsum(x for x in side if x is not None) for side in squares]
        if any(x is None or not math.isfinite(x) for side in squares for x in side):
            return CONSISTENT
        near = abs(totals[0] - totals[1]) <= _SQUARE_TOLERANCE * max(totals)
        return VERIFIED if near else CONTRADICTED
    if instance.api in PARTIAL_RECEIVERS and instance.api not in ROOTED:
        return CONSISTENT if sent_n == got_n * len(calls) else ASSUMED
    return CONSISTENT


def _compare(signatures: list[Signature | None]) -> str:
    """All equal: verified; a finite difference: contradicted; nothing finite to compare: assumed."""
    known = [s for s in signatures if s is not None]
    if len(known) < 2:
        return ASSUMED
    if len({s.numel for s in known}) > 1:
        return CONTRADICTED
    finite = [s for s in known if s.finite]
    if len(finite) == len(known):
        return VERIFIED if all(_equal(finite[0], s) for s in finite[1:]) else CONTRADICTED
    return ASSUMED


def _equal(a: Signature, b: Signature) -> bool:
    """The same values as far as extrema and number of elements tell; sums differ by order of summation."""
    return a.numel == b.numel and a.max == b.max and a.min == b.min
