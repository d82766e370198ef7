"""Communication that nobody recorded: level L0, FSDP2, fused kernels, filtered dumps (refinement 1).

A rank that got dirt this way shows a gap (dirty input, no producer), a module that turns dirty though all its recorded
children are clean, or dirty "input data" at the start of a pipeline stage. Such an event is no origin if an event of
another rank stands behind it by its place in the model: seen from there, the record that turned dirty here comes later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from numprobe.diagnose.nan_overflow import apis
from numprobe.diagnose.nan_overflow.digest import Event, RankDigest
from numprobe.record.names import FORWARD, parse_name

WEAK = frozenset(("gap", "container"))  # may be the trace of communication that nobody recorded
EXPLAINABLE = WEAK | {"input_data"}  # what came in before explains it
PHASES = {"forward": 0, "recompute": 1, "backward": 1, "optimizer": 2}

PlaceOf: TypeAlias = Callable[[str, str], "int | None"]  # (rank key, record name) -> op_index there
Found: TypeAlias = "list[tuple[RankDigest, Event]]"


@dataclass
class _Place:
    """The same event on several ranks; the first rank speaks for all."""

    members: Found = field(default_factory=list)

    @property
    def digest(self) -> RankDigest:
        return self.members[0][0]

    @property
    def event(self) -> Event:
        return self.members[0][1]

    @property
    def keys(self) -> set[str]:
        return {d.key for d, _ in self.members}


def without_hidden(found: Found, place_of: PlaceOf, recorded: bool) -> tuple[Found, dict[int, Event]]:
    """The events that stay, and the others by rank. ``recorded``: the dump holds communication records at all.

    Without any, place in the model is the only order there is, and every event is looked at, not only weak ones.
    """
    places: dict[tuple[str, str, str], _Place] = {}
    for digest, event in found:
        places.setdefault((event.name, event.kind, event.phase), _Place()).members.append((digest, event))
    every = list(places.values())
    staged = len({p.digest.program for p in every}) > 1
    gone: list[_Place] = []
    for later in every:
        event = later.event
        if recorded and (not _weak(event) or event.kind == "input_data"):
            continue
        if _own(event):
            continue
        if any(_stands_behind(e, later, place_of, staged) for e in every if e is not later):
            gone.append(later)
    if len(gone) == len(every):  # each stands behind another one: nothing is decided
        return found, {}
    hidden: dict[int, Event] = {}
    for place in gone:
        for digest, event in place.members:
            if digest.rank is not None and (digest.rank not in hidden or event.index < hidden[digest.rank].index):
                hidden[digest.rank] = event
    lost = {id(e) for p in gone for _, e in p.members}
    return [(d, e) for d, e in found if id(e) not in lost], hidden


def _weak(event: Event) -> bool:
    return event.kind in EXPLAINABLE or apis.is_fused_communication(parse_name(event.name))


def _own(event: Event) -> bool:
    """Clean inputs and a dirty output of a plain operator: no communication lies between."""
    op = parse_name(event.name)
    return event.kind == "introduced" and op.kind == "api" and op.direction == FORWARD and not _weak(event)


def _stands_behind(earlier: _Place, later: _Place, place_of: PlaceOf, staged: bool) -> bool:
    """Can ``later`` have its dirt from ``earlier``? ``staged``: the ranks are pipeline stages."""
    a, b = earlier.event, later.event
    if earlier.keys & later.keys:  # on one rank the order of records decides
        return False
    in_time = _not_later(a, b)
    if a.kind == "input_data" and b.kind == "container" and staged and not earlier.digest.begins:
        return False  # what one stage gets from another does not reach a module with clean inputs
    if b.kind == "input_data":  # what a pipeline stage gets from another looks like input data
        return a.kind != "input_data" and in_time and _upstream(earlier, later)
    if earlier.digest.program != later.digest.program:
        return in_time and _upstream(earlier, later)
    if a.kind == "input_data" and not in_time:
        return False
    if not _comes_after(earlier.digest, a, b, place_of, unknown=PHASES[a.phase] <= PHASES[b.phase]):
        return False
    if _weak(b) and not _weak(a):  # clean inputs, dirty output: that one needs no other to stand behind it
        return True
    return not _comes_after(later.digest, b, a, place_of, unknown=False)


def _not_later(a: Event, b: Event) -> bool:
    """By micro-batch and phase; a micro-batch that is unknown (of a recompute, mostly) decides nothing."""
    if a.micro_batch is None or b.micro_batch is None:
        return PHASES[a.phase] <= PHASES[b.phase]
    return (a.micro_batch, PHASES[a.phase]) <= (b.micro_batch, PHASES[b.phase])


def _upstream(earlier: _Place, later: _Place) -> bool:
    """Does data flow from one rank's stage to the other's at that point: forward to later stages, backward to earlier ones?"""
    a, b = earlier.digest, later.digest
    if earlier.event.phase != later.event.phase:
        return True
    if earlier.event.phase == "forward":
        return not (b.begins or a.ends) or (a.begins and not b.begins) or (b.ends and not a.ends)
    return not (b.ends or a.begins) or (a.ends and not b.ends) or (b.begins and not a.begins)


def _comes_after(digest: RankDigest, event: Event, other: Event, place_of: PlaceOf, *, unknown: bool) -> bool:
    """Seen from the rank of ``event``: does the record of ``other`` come at or after it? ``unknown``: it is not there."""
    at = place_of(digest.key, other.name)
    return unknown if at is None else at >= event.index
