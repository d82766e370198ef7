"""The heat map: parts of a layer down, layers across, one map a phase."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from numprobe.compare.rank import WORST, place_in_layer
from numprobe.compare.result import Cell, CompareResult, Finding
from numprobe.record.names import parse_name

MOST_PARTS = 40  # with more of them, numbered parts (experts) are put together
MOST_ROWS = 120


@dataclass(frozen=True)
class HeatRow:
    """A part of the layers, or one outside of them. ``cells``: first outside of layers, then one a layer; None: no record.

    ``marks``: by cell, the number of the first finding there, from 1; 0 where there is none.
    """

    part: str
    cells: tuple[Cell | None, ...]
    marks: tuple[int, ...]


@dataclass(frozen=True)
class HeatMap:
    """The map of a phase. ``left_out``: how many parts with better verdicts are not in it."""

    phase: str
    layers: tuple[int, ...]
    rows: tuple[HeatRow, ...]
    left_out: int


def heat_maps(result: CompareResult) -> list[HeatMap]:
    """One map a phase, in the order of execution, with the same layers across and the same order of parts."""
    cells = _folded(result.heat)
    layers = tuple(sorted({cell.layer for cell in cells if cell.layer is not None}))
    parts = _in_order(cells)
    by_place = {(cell.phase, cell.part, cell.layer): cell for cell in cells}
    marks = _marks(result.findings, {cell.part for cell in cells})
    maps = []
    for phase in dict.fromkeys(cell.phase for cell in cells):
        places = [[(phase, part, layer) for layer in (None, *layers)] for part in parts]
        rows = [
            HeatRow(row[0][1], tuple(by_place.get(key) for key in row), tuple(marks.get(key, 0) for key in row))
            for row in places
            if any(key in by_place for key in row)
        ]
        shown = _worst(rows)
        maps.append(HeatMap(phase, layers, tuple(shown), len(rows) - len(shown)))
    return maps


def _folded(cells: Sequence[Cell]) -> list[Cell]:
    """Cells as they are, or with all numbers inside a layer as ``*`` where there would be too many rows."""
    if len({cell.part for cell in cells}) <= MOST_PARTS:
        return list(cells)
    worst: dict[tuple[str, int | None, str], Cell] = {}
    for cell in cells:
        key = (_starred(cell.part), cell.layer, cell.phase)
        if key not in worst or WORST[cell.verdict] > WORST[worst[key].verdict]:
            worst[key] = Cell(key[0], cell.layer, cell.phase, cell.verdict, cell.status, cell.rho)
    return list(worst.values())


def _starred(part: str) -> str:
    return re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", part)


def _in_order(cells: Sequence[Cell]) -> list[str]:
    """Parts as they are executed: those before the layers, those of a layer, those after.

    Layers that differ (dense and expert layers) are merged: a part that earlier layers lack goes behind the one before it.
    """
    sequences: dict[tuple[str, int | None], list[str]] = {}
    outside: dict[str, bool] = {}  # part outside of layers -> whether it comes before them
    inside = False
    for cell in cells:
        if cell.layer is None:
            outside.setdefault(cell.part, not inside)
        else:
            inside = True
            sequences.setdefault((cell.phase, cell.layer), []).append(cell.part)
    order: list[str] = []
    known: set[str] = set()
    for sequence in sequences.values():
        at = 0
        for part in sequence:
            if part in known:
                at = order.index(part) + 1
            else:
                known.add(part)
                order.insert(at, part)
                at += 1
    before = [part for part, first in outside.items() if first and part not in known]
    after = [part for part, first in outside.items() if not first and part not in known]
    return [*before, *order, *after]


def _marks(findings: Iterable[Finding], parts: set[str]) -> dict[tuple[str, str, int | None], int]:
    """(phase, part, layer) -> number of the first finding there."""
    marks: dict[tuple[str, str, int | None], int] = {}
    for number, finding in enumerate(findings, 1):
        names = (finding.op or finding.golden_op or "", *finding.inside[:1])
        module = next((op for name in names if (op := parse_name(name)).is_module), None)
        if module is not None:
            layer, part = place_in_layer(module)
            marks.setdefault((finding.phase, part if part in parts else _starred(part), layer), number)
    return marks


def _worst(rows: list[HeatRow]) -> list[HeatRow]:
    """All rows, or those with the worst verdicts, in their order."""
    if len(rows) <= MOST_ROWS:
        return rows
    worst = sorted(rows, key=lambda row: max(WORST[cell.verdict] for cell in row.cells if cell), reverse=True)
    kept = set(map(id, worst[:MOST_ROWS]))
    return [row for row in rows if id(row) in kept]
