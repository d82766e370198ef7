"""Stage 4: of all unexplained events of all ranks, which made the first non-finite value?

Received dirt explains what follows it; what may be the trace of unrecorded communication is taken out (``hidden``); equal
records of ranks that compute the same are one origin; the origins that no other one can have reached are the sources.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from numprobe.diagnose.nan_overflow.comm import CommCall
from numprobe.diagnose.nan_overflow.digest import Event, RankDigest
from numprobe.diagnose.nan_overflow.hidden import EXPLAINABLE, PHASES, WEAK, PlaceOf, without_hidden
from numprobe.diagnose.nan_overflow.join import CONTRADICTED, Instance, Joined
from numprobe.diagnose.nan_overflow.order import NEVER, Order
from numprobe.record.names import parse_name
from numprobe.record.nonfinite import DIRTY, INFINITE, Kinds

_NAN, _INF, _DIRTY = int(Kinds.NAN), int(INFINITE), int(DIRTY)


@dataclass
class Received:
    """The first dirt that came to a rank through communication."""

    call: CommCall
    instance: Instance
    givers: list[int]


@dataclass
class Origin:
    """An event, or the same event on several ranks."""

    event: Event
    digests: list[RankDigest]
    events: list[Event]
    kind: str  # an event's kind, or communication | outside
    instance: Instance | None = None
    suspects: list[int] = field(default_factory=list)
    reach: dict[int, int] = field(default_factory=dict)
    explains: int = 0

    @property
    def digest(self) -> RankDigest:
        return self.digests[0]

    @property
    def ranks(self) -> list[int]:
        return sorted(d.rank for d in self.digests if d.rank is not None)

    @property
    def weak(self) -> bool:
        return self.kind in WEAK

    @property
    def through(self) -> CommCall | None:
        """Of dirt from outside of what was read: the receive that brought it, where another record is the first to show it."""
        if self.kind != "outside" or self.instance is None or self.digest.rank is None:
            return None
        call = self.instance.calls.get(self.digest.rank)
        return call if call is not None and call.index != self.event.index else None


@dataclass
class Verdicts:
    """Origins in order, what stays possible besides them, and how every rank got its first dirt."""

    sources: list[Origin]  # concurrent minimal ones first, in order, then later independent ones
    minimal: int  # how many of them nothing else precedes
    alternatives: list[Origin]
    received: dict[int, Received]
    hidden: dict[int, Event]  # ranks that got dirt through communication that was not recorded
    undecided: bool = False  # the minimal origins are gaps that every rank shows alike
    user_excluded: Counter[str] = field(default_factory=Counter)


def find_sources(
    digests: Sequence[RankDigest], joined: Joined, order: Order, place_of: PlaceOf, exclude: Sequence[str] = ()
) -> Verdicts:
    """Choose the origins. ``exclude``: names or prefixes of records that the user has ruled out."""
    skipped: Counter[str] = Counter()
    received = _received(digests, joined)
    found: list[tuple[RankDigest, Event]] = []
    recorded = any(d.calls for d in digests)
    for digest in digests:
        got = received.get(digest.rank) if digest.rank is not None else None
        for event in digest.events:
            if is_excluded(event.name, exclude):
                skipped[event.name] += 1
            elif event.kind not in EXPLAINABLE or got is None or got.call.index > event.index:
                found.append((digest, event))
    found, outside_view = _from_unread(found, joined)
    found, hidden = without_hidden(found, place_of, recorded)
    origins = _collapse(found, joined)
    if not origins:
        behind = {o.digest.rank for o in outside_view}  # what these got from a rank that nobody has read came earlier
        first = {rank: got for rank, got in received.items() if rank not in behind}
        origins = [*_from_communication(digests, first, order, strong=False), *outside_view]
    for origin in origins:
        origin.reach = order.reach(starts_of(origin))
    minimal = [o for o in origins if not any(_before(p, o) for p in origins if p is not o)]
    later = [o for o in origins if o not in minimal]
    first_dirt = _first_dirt(digests, received, hidden)
    for origin in origins:
        origin.explains = sum(
            1 for r, i in first_dirt.items() if r not in origin.ranks and origin.reach.get(r, NEVER) <= i
        )
    minimal.sort(key=lambda o: _rank_key(o, joined))
    later.sort(key=lambda o: _rank_key(o, joined))
    outside = _from_communication(digests, received, order, strong=True, origins=minimal) if minimal else []
    if any(o.kind != "outside" for o in minimal):  # what may have come from outside is no finding beside one
        outside = [o for o in minimal if o.kind == "outside"] + outside
        minimal = [o for o in minimal if o.kind != "outside"]
    later = [o for o in later if o.kind != "outside"]
    undecided = _undecided(minimal, digests, recorded)
    return Verdicts(minimal + later, len(minimal), outside, received, hidden, undecided, skipped)


def is_excluded(name: str, exclude: Sequence[str]) -> bool:
    """Does the user's choice (names or prefixes) rule this record out?"""
    return any(name.startswith(e) for e in exclude)


def starts_of(origin: Origin) -> dict[int, int]:
    """op_index of its events by rank, as far as ranks are known."""
    return {d.rank: e.index for d, e in zip(origin.digests, origin.events, strict=True) if d.rank is not None}


def _received(digests: Sequence[RankDigest], joined: Joined) -> dict[int, Received]:
    """Per rank the first call that turned clean data dirty.

    An infinity counts if it is positive, or if a giver has made it by something other than a mask.
    """
    makers = {d.rank: [e.index for e in d.events if e.kinds & _INF] for d in digests}
    first: dict[int, Received] = {}
    for rank, calls in joined.by_rank.items():
        for call, instance in calls:
            new = call.got & _DIRTY & ~call.given if not call.given & _NAN else 0
            if not instance.receives(rank) or instance.join == CONTRADICTED:
                continue
            givers = instance.dirty_givers()
            if call.api == "recv" and call.got & int(Kinds.UNKNOWN) and givers:  # recorded before the data came
                new = instance.calls[givers[0]].given & _DIRTY
            if not new:
                continue
            if not new & (_NAN | int(Kinds.POS_INF)):
                made = any(i <= instance.calls[g].index for g in givers for i in makers.get(g, ()))
                if not made:
                    continue  # a mask that is sent along
            first[rank] = Received(call, instance, [g for g in givers if g != rank])
            break
    return first


def _from_unread(
    found: list[tuple[RankDigest, Event]], joined: Joined
) -> tuple[list[tuple[RankDigest, Event]], list[Origin]]:
    """Take out the gaps behind a receive whose sender was not read: what came in there is unknown."""
    kept: list[tuple[RankDigest, Event]] = []
    outside: list[Origin] = []
    for digest, event in found:
        calls = joined.by_rank.get(digest.rank, []) if digest.rank is not None else []
        unread = [
            i
            for c, i in calls
            if c.index < event.index and c.api == "recv" and c.got & int(Kinds.UNKNOWN) and len(i.calls) < 2
        ]
        if unread and event.kind in EXPLAINABLE:
            suspects = sorted({r for i in unread for r in i.absent})
            outside.append(Origin(event, [digest], [event], "outside", unread[-1], suspects))
        else:
            kept.append((digest, event))
    return kept, outside


def _collapse(found: list[tuple[RankDigest, Event]], joined: Joined) -> list[Origin]:
    """The same record on ranks that compute the same, or that form one group, is one origin.

    Only the first event of a rank that stands at the same record is merged; a single rank's events stay apart.
    """
    by_record: dict[tuple[str, str, str, str], list[tuple[RankDigest, Event]]] = defaultdict(list)
    for digest, event in found:
        op = parse_name(event.name)  # not the call number: it counts all calls of the API on a rank
        by_record[op.prefix, event.module if op.is_module else op.api, op.direction, event.kind].append((digest, event))
    origins: list[Origin] = []
    groups = [set(g) for g in joined.groups]
    for (_, _, _, kind), members in by_record.items():
        clusters: list[list[tuple[RankDigest, Event]]] = []
        for digest, event in members:
            home = next((c for c in clusters if _replicated(digest, event, c, groups)), None)
            if home is None:
                clusters.append([(digest, event)])
            else:
                home.append((digest, event))
        for cluster in clusters:
            cluster.sort(key=lambda pair: (pair[0].rank is None, pair[0].rank or 0, pair[0].key))
            origins.append(Origin(cluster[0][1], [d for d, _ in cluster], [e for _, e in cluster], kind))
    return origins


def _replicated(
    digest: RankDigest, event: Event, cluster: list[tuple[RankDigest, Event]], groups: list[set[int]]
) -> bool:
    """The record of another rank: two of same name, same inputs and same group agree."""
    if any(d.key == digest.key for d, _ in cluster):
        return False
    return any(
        (e.name == event.name) + (e.slots_key == event.slots_key) + any({d.rank, digest.rank} <= g for g in groups) >= 2
        for d, e in cluster
    )


def _before(a: Origin, b: Origin) -> bool:
    """Can ``a`` have reached ``b``, and not the other way round?"""
    return _reaches(a, b) and not _reaches(b, a)


def _reaches(a: Origin, b: Origin) -> bool:
    starts = starts_of(b)
    if not starts:  # processes without rank: only order within one of them is known
        return any(
            d.key == o.key and e.index < f.index
            for d, e in zip(a.digests, a.events, strict=True)
            for o, f in zip(b.digests, b.events, strict=True)
        )
    own = starts_of(a)
    return any(own.get(r, NEVER) < i or (r not in own and a.reach.get(r, NEVER) <= i) for r, i in starts.items())


def _rank_key(origin: Origin, joined: Joined) -> tuple[object, ...]:
    """Order of concurrent origins: micro-batch, phase, collectives before it, place in the file, module, extent, rank."""
    event = origin.event
    rank = origin.digest.rank
    before = sum(1 for c, _ in joined.by_rank.get(rank, ()) if c.index < event.index) if rank is not None else 0
    return (
        event.micro_batch if event.micro_batch is not None else 0,
        PHASES[event.phase],
        before,
        event.index,
        event.module,
        -origin.explains,
        rank if rank is not None else 0,
        origin.digest.key,
    )


def _first_dirt(
    digests: Sequence[RankDigest], received: dict[int, Received], hidden: dict[int, Event]
) -> dict[int, int]:
    first: dict[int, int] = {}
    for digest in digests:
        rank = digest.rank
        if rank is None:
            continue
        places = [e.index for e in digest.events]
        if rank in received:
            places.append(received[rank].call.index)
        if rank in hidden:
            places.append(hidden[rank].index)
        if places:
            first[rank] = min(places)
    return first


def _from_communication(
    digests: Sequence[RankDigest],
    received: dict[int, Received],
    order: Order,
    *,
    strong: bool,
    origins: Sequence[Origin] = (),
) -> list[Origin]:
    """Calls whose output is dirty though no known member gave anything dirty.

    With unread members the dirt came from outside the view; with all members clean the communication itself is at fault.
    ``strong``: other origins exist, so only calls that none of them reaches are listed.
    """
    by_rank = {d.rank: d for d in digests}
    found: dict[int, list[tuple[int, Received]]] = defaultdict(list)
    for rank, first in received.items():
        if first.givers or first.instance.join == CONTRADICTED:
            continue
        if strong and any(o.reach.get(rank, NEVER) <= first.call.index for o in origins):
            continue
        found[id(first.instance)].append((rank, first))
    made: list[Origin] = []
    for members in found.values():
        members.sort(key=lambda pair: pair[0])
        first = members[0][1]
        instance = first.instance
        unknown = [r for r in instance.unknown_givers() if r not in {m for m, _ in members} or r not in instance.calls]
        if instance.api == "p2p" and not unknown and len(instance.calls) < 2:
            unknown = [r for r in instance.group if r not in instance.calls and isinstance(r, int)]
        kind = "outside" if unknown or len(instance.calls) < 2 else "communication"  # one call alone proves nothing
        chosen = [by_rank[r] for r, _ in members]
        events = [
            Event(f.call.index, f.call.name, kind, f.call.got & _DIRTY, f.call.given & _DIRTY, lineage="matched")
            for _, f in members
        ]
        origin = Origin(events[0], chosen, events, kind, instance, unknown)
        origin.reach = order.reach({r: f.call.index for r, f in members})
        made.append(origin)
    return made


def _undecided(minimal: list[Origin], digests: Sequence[RankDigest], recorded: bool) -> bool:
    """Does nothing tell which rank was first?

    All readable ranks show the same gap; or, where communication is not recorded, the same module turned dirty on ranks
    that compute different things: one of them made it, the others may have got it from inside that module.
    """
    if not minimal:
        return False
    readable = [d for d in digests if d.status in ("ok", "partial") and d.dirty_records]
    if all(o.weak for o in minimal) and len(readable) > 1 and sum(len(o.digests) for o in minimal) >= len(readable):
        return True
    events = [e for o in minimal for e in o.events]
    if recorded or not parse_name(events[0].name).is_module or events[0].kind == "parameter":
        return False
    same = [e for e in events if e.name == events[0].name]
    return len(same) > 1 and len({e.slots_key for e in same}) > 1
