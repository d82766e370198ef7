"""What the records of the other ranks say of those that were not read, or that end too early.

All members of a group take part in all of its calls. So a rank that a record names and that has no folder is missing, and one
whose calls end while the others have many more has not been recorded to the end, however whole its file looks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from numprobe.diagnose.nan_overflow.comm import CommCall
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.join import shift_of

NAMED, STOPS = "named", "stops"  # reasons of a digest
FEWER = 0.75  # of the calls and of the records of the other members: less than that is no difference of programs
AT_LEAST = 2  # calls that the others have more

Key: TypeAlias = "tuple[str, tuple[int, ...] | str]"  # API and group; p2p and (source, destination)


def partners_of(calls: Iterable[CommCall]) -> list[int]:
    """Every rank that these calls name."""
    groups = {id(c.group): c.group for c in calls if isinstance(c.group, tuple)}  # few, each in thousands of calls
    peers = {c.peer for c in calls if c.peer >= 0}
    return sorted(peers.union(*groups.values()))


def named_ranks(digests: Sequence[RankDigest]) -> set[int]:
    """Every rank that a record names, of those ranks whose own numbers are known."""
    return set[int]().union(*(d.partners for d in digests if d.rank is not None))


def mark_stopped(digests: Sequence[RankDigest]) -> None:
    """Set whole ranks to ``partial`` that have no records while others have, or that end long before their groups do."""
    readable = [d for d in digests if d.status in ("ok", "partial")]
    most = max((d.records for d in readable), default=0)
    ending = _ending([d for d in readable if d.rank is not None])
    for digest in readable:
        if digest.status == "ok" and ((most and not digest.records) or digest.rank in ending):
            digest.status, digest.reason = "partial", STOPS


def _ending(digests: Sequence[RankDigest]) -> set[int]:
    """Ranks whose calls end while other members of their groups have many more."""
    records = {d.rank: d.records for d in digests if d.rank is not None}
    sequences: dict[Key, dict[int, list[CommCall]]] = defaultdict(dict)
    for digest in digests:
        assert digest.rank is not None
        own: dict[Key, list[CommCall]] = defaultdict(list)
        for call in digest.calls:
            if call.api in ("send", "recv"):
                own["p2p", (digest.rank, call.peer) if call.api == "send" else (call.peer, digest.rank)].append(call)
            else:
                own[call.api, "world" if call.group is None else call.group].append(call)
        for (api, group), calls in own.items():
            sequences[api, tuple(sorted(group)) if isinstance(group, tuple) and api != "p2p" else group][
                digest.rank
            ] = calls
    have: Counter[int] = Counter()
    others_have: Counter[int] = Counter()
    longest: Counter[int] = Counter()
    late: set[int] = set()
    for (api, group), by_rank in sequences.items():
        members = [r for r in group if r in records] if isinstance(group, tuple) else list(records)
        if group != "world" and isinstance(group, str):
            members = list(by_rank)
        counts = {r: len(by_rank.get(r, ())) for r in members}
        top = max(counts.values(), default=0)
        fewer = [r for r, n in counts.items() if n < top]
        if group == "world" and (
            len(set(counts.values())) > 2 or len(fewer) > 1
        ):  # calls of groups that nobody recorded
            continue
        reference = max(by_rank, key=lambda r: (len(by_rank[r]), -r))
        size = max((records[r] for r in members if counts[r] == top), default=0)
        for rank in members:
            have[rank] += counts[rank]
            others_have[rank] += top
        for rank in fewer:
            longest[rank] = max(longest[rank], size)
            if rank in by_rank and shift_of(api, by_rank[reference], by_rank[rank]) > 0:
                late.add(rank)  # it began later: what it lacks is at the start
    return {
        rank
        for rank, size in longest.items()
        if rank not in late
        and others_have[rank] - have[rank] >= AT_LEAST
        and have[rank] <= FEWER * others_have[rank]
        and records[rank] <= FEWER * size
    }
