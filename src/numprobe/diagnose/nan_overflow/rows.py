"""Tables over all ranks: coordinates, roles, and how the dirt spread."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from numprobe.diagnose.nan_overflow.complete import NAMED, STOPS
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.join import Joined
from numprobe.diagnose.nan_overflow.result import Citation, Excluded, Params, RankRow, Spread, Values
from numprobe.diagnose.nan_overflow.sources import Verdicts
from numprobe.record.names import parse_name
from numprobe.record.nonfinite import Kinds

CiteOne: TypeAlias = Callable[[RankDigest, int, str], Citation]

# digest reason -> catalogue reason
REASONS = {
    "fill": "mask_fill",
    "allocation": "allocation_overwritten",
    "allocation_copied": "carried",
    "copied_unread": "allocation_unread",
    "absorbed": "absorbed",
    "unused": "unused",
    "placeholder_output": "placeholder",
    "mask_input": "passed_through",
}


def coordinates(joined: Joined, world: Iterable[int]) -> dict[int, dict[str, int]]:
    """Pipeline stage, tensor-, expert- and data-parallel index of every rank, as far as communication shows them.

    Deduced, not recorded: stages from who sends to whom, TP from groups of consecutive ranks, EP from all_to_all groups,
    DP from gradient groups.
    """
    ranks = sorted(world)
    coords: dict[int, dict[str, int]] = {r: {} for r in ranks}
    edges: dict[int, set[int]] = defaultdict(set)
    users: dict[str, Counter[tuple[int, ...]]] = {"tp": Counter(), "ep": Counter(), "dp": Counter()}
    for instance in joined.instances:
        group = instance.group
        if instance.api == "p2p" and isinstance(group, tuple):
            edges[min(group)].add(max(group))
        elif isinstance(group, tuple) and 1 < len(group) < len(ranks):
            consecutive = group[-1] - group[0] + 1 == len(group) and len(group) <= 16
            if instance.api.startswith("all_to_all"):
                users["ep"][group] += 1
            elif consecutive:
                users["tp"][group] += 1
            else:
                users["dp"][group] += 1
    ends = set(edges) | {r for to in edges.values() for r in to}
    if len(ends) * 2 > len(ranks):  # a single transfer makes no pipeline
        stage = dict.fromkeys(ranks, 0)
        for rank in ranks:
            for other in edges.get(rank, ()):
                if other in stage:
                    stage[other] = max(stage[other], stage[rank] + 1)
        for rank, s in stage.items():
            coords[rank]["pp"] = s
    for axis, groups in users.items():
        for group in sorted(groups, key=lambda g: (-groups[g], g)):
            for i, rank in enumerate(group):
                if rank in coords:
                    coords[rank].setdefault(axis, i)
    return coords


def rank_rows(
    digests: Sequence[RankDigest],
    verdicts: Verdicts,
    coords: dict[int, dict[str, int]],
    source_ranks: set[int],
    source_keys: set[str],
    depends: dict[str, bool],
    clean: bool,
) -> list[RankRow]:
    """One row a rank, in rank order. ``clean``: the verdict is that nothing overflowed, so look-alikes count as clean."""
    gave = {g for r in verdicts.received.values() for g in r.givers}
    rows: list[RankRow] = []
    for digest in digests:
        rank = digest.rank
        first_name, first_index, via, givers = "", -1, "", list[int]()
        role = "clean"
        events = [e for e in digest.events if not verdicts.user_excluded.get(e.name)]
        received = verdicts.received.get(rank) if rank is not None else None
        hidden = verdicts.hidden.get(rank) if rank is not None else None
        if not clean:
            if events and (received is None or events[0].index < received.call.index):
                first_name, first_index = events[0].name, events[0].index
                role = "victim"
            elif received is not None:
                first_name, first_index = received.call.name, received.call.index
                via, givers = received.instance.id, received.givers
                role = "victim"
            if hidden is not None and (first_index < 0 or hidden.index <= first_index):
                first_name, first_index = hidden.name, hidden.index
            if role == "victim" and rank in gave:
                role = "relay"
            if (rank is not None and rank in source_ranks) or digest.key in source_keys:
                role = "source"
        if digest.status in ("missing", "unreadable"):
            role = "missing"
        elif digest.status == "partial" and role == "clean":
            role = "partial"
        rows.append(
            RankRow(
                digest.key,
                rank,
                role,
                digest.status,
                coords.get(rank, {}) if rank is not None else {},
                digest.records,
                first_name,
                first_index,
                via,
                givers,
                depends.get(digest.key, False),
                read_note(digest),
            )
        )
    return rows


def read_note(digest: RankDigest) -> Params | None:
    """What was read of a rank that is not whole; None for one that is, and for ranks that are known by name alone."""
    if digest.status == "missing" and digest.reason == NAMED:
        return None  # there may be hundreds of them: one note names them all
    if digest.status == "missing":
        return Params("row.no_dump" if digest.reason == "no_dump" else "row.missing", {"folder": digest.key})
    if digest.status == "unreadable":
        return Params("row.unreadable", {"error": digest.reason})
    if digest.status != "partial":
        return None
    read: Values = {"records": digest.records, "offset": digest.reason_at}
    if digest.reason == STOPS:
        return Params(
            "row.stops", {"records": digest.records, **({"last": digest.last_record} if digest.records else {})}
        )
    if digest.reason == "truncated":
        return Params("row.partial", {**read, "index": digest.records})
    return Params("row.damaged", {**read, "reason": digest.reason})


def spread_rows(
    digests: Sequence[RankDigest], verdicts: Verdicts, first_op: str, source_ranks: list[int]
) -> list[Spread]:
    """Instances of one position, in happened-before order: who became dirty when, through what.

    A rank's place in the order is the way that led to it: the places of the calls, giver by giver. So what a giver passed
    on earlier comes earlier, and what a rank passed on comes after what it got.
    """
    backward = {d.rank: d.backward_from for d in digests}
    way: dict[int, tuple[int, ...]] = dict.fromkeys(source_ranks, ())
    pending = {r: got for r, got in verdicts.received.items() if r not in way}
    while pending:
        ready = {r: [g for g in got.givers if g in way] for r, got in pending.items()}
        ready = {r: givers for r, givers in ready.items() if givers} or {
            r: [] for r in pending
        }  # from outside the view
        for rank, givers in ready.items():
            calls = pending.pop(rank).instance.calls
            way[rank] = min(((*way[g], calls[g].index) for g in givers if g in calls), default=(0,))
    position: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for rank, got in verdicts.received.items():
        if rank not in source_ranks:
            position[len(way[rank]), got.call.name, got.instance.api].append(rank)
    rows = [
        Spread(
            0, "", first_op, "", parse_name(first_op).direction or "forward", 0, "", source_ranks, [], len(source_ranks)
        )
    ]
    total = len(source_ranks)
    for order, key in enumerate(sorted(position, key=lambda k: (min(way[r] for r in position[k]), k)), 1):
        ranks = sorted(position[key])
        received = [verdicts.received[r] for r in ranks]
        total += len(ranks)
        joins = [r.instance.join for r in received]
        worst = next(j for j in ("contradicted", "assumed", "consistent", "verified") if j in joins)
        rows.append(
            Spread(
                order,
                received[0].instance.id,
                key[1],
                key[2],
                "forward" if received[0].call.index < backward[ranks[0]] or backward[ranks[0]] < 0 else "backward",
                len({id(r.instance) for r in received}),
                worst,
                ranks,
                sorted({g for r in received for g in r.givers}),
                total,
            )
        )
    names: dict[str, list[int]] = defaultdict(list)
    for rank, event in verdicts.hidden.items():
        if rank not in source_ranks and rank not in verdicts.received:
            names[event.name].append(rank)
    for name, ranks in names.items():
        total += len(ranks)
        phase = verdicts.hidden[ranks[0]].phase
        rows.append(Spread(len(rows), "", name, "", phase, 0, "hidden", sorted(ranks), [], total))
    return rows


def excluded_rows(digests: Sequence[RankDigest], cite: CiteOne, user: Counter[str]) -> list[Excluded]:
    """Look-alikes of all ranks, by operator and reason, the most frequent first."""
    table: dict[tuple[str, str, int, str], list[tuple[RankDigest, int, int, str]]] = defaultdict(list)
    for digest in digests:
        for look in digest.look_alikes:
            table[look.op, look.reason, look.kinds, look.lineage].append((digest, look.count, look.index, look.name))
        for event in digest.events:
            if user.get(event.name):
                table[event.name, "user", event.kinds, "name"].append((digest, 1, event.index, event.name))
    rows = []
    for (op, reason, kinds, lineage), found in table.items():
        digest, _, index, name = found[0]
        rows.append(
            Excluded(
                op,
                sum(n for _, n, _, _ in found),
                len({d.key for d, _, _, _ in found}),
                Kinds(kinds).words(),
                REASONS.get(reason, reason),
                lineage,
                cite(digest, index, name),
            )
        )
    return sorted(rows, key=lambda e: (-e.count, e.op, e.reason, e.kinds))


def unread_limits(digests: Sequence[RankDigest], left_out: Sequence[int]) -> list[Params]:
    """What was not read, as limits of the conclusion."""
    limits: list[Params] = []
    for status in ("missing", "partial", "unreadable"):
        ranks = sorted(d.rank for d in digests if d.status == status and d.reason != STOPS and d.rank is not None)
        if ranks:
            limits.append(Params(f"limit.rank_{status}", {"ranks": ranks}))
    stopped = [d for d in digests if d.reason == STOPS]
    if stopped:
        values: Values = {"ranks": sorted(d.rank for d in stopped if d.rank is not None)}
        if len(stopped) == 1:
            values["records"] = stopped[0].records
        limits.append(Params("limit.rank_stops", values))
    if left_out:
        limits.append(Params("limit.left_out", {"ranks": list(left_out)}))
    return limits
