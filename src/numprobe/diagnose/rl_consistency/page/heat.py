"""The heat map of the mapping: roles of a layer down, layers across."""

from __future__ import annotations

import re
from collections.abc import Sequence

from numprobe.diagnose.rl_consistency.result import Finding, Key, Pair, RlResult
from numprobe.report.html import heat
from numprobe.report.html.heat import ANCHOR, HeatCell, HeatMap, Place

PHASE = "forward"  # rollout has no other
_IN_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


def heat_maps(result: RlResult) -> list[HeatMap]:
    """One map, or none where nothing was paired. What lies behind the first finding and starts nothing is handed on."""
    places = [_place(pair) for pair in result.mapping]
    starts = {place for f in result.findings for place in _shown_by(f, result.mapping, places)}
    suspects = [_of(f.suspect, result.mapping, places) for f in result.findings]
    first = next((places.index(place) for place in suspects if place), len(places))
    cells = [
        HeatCell(
            place[1],
            place[2],
            PHASE,
            pair.verdict,
            n > first and place not in starts and pair.verdict in ("warning", "error"),
            pair.ratio,
        )
        for n, (pair, place) in enumerate(zip(result.mapping, places, strict=True))
    ]
    marks: dict[Place, int] = {}
    for number, place in enumerate(suspects, 1):
        if place:
            marks.setdefault(place, number)
    anchor = _of(result.findings[0].anchor, result.mapping, places) if result.findings else None
    if anchor:
        marks.setdefault(anchor, ANCHOR)
    return heat.heat_maps(cells, marks)


def _place(pair: Pair) -> Place:
    """``layers.3.down #1`` -> part ``down`` of layer 3: later calls share the cell of the first."""
    path = pair.place.partition(" #")[0]
    found = _IN_LAYER.fullmatch(path)
    return (PHASE, found[2], int(found[1])) if found else (PHASE, path, None)


def _of(key: Key | None, mapping: Sequence[Pair], places: Sequence[Place]) -> Place | None:
    """Where a record of the dumps lies."""
    for pair, place in zip(mapping, places, strict=True):
        if key and (key.train in pair.train or key.rollout in pair.rollout):
            return place
    return None


def _shown_by(f: Finding, mapping: Sequence[Pair], places: Sequence[Place]) -> list[Place]:
    """The suspect's place, and the same in the other layers that show it."""
    place = _of(f.suspect, mapping, places)
    if place is None:
        return []
    phase, part, _ = place
    return [place, *((phase, part, layer) for layer in f.layers if place[2] is not None)]
