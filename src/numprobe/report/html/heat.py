"""A heat map: parts of a layer down in the order of execution, layers across, one map a phase.

``heat.html.j2`` draws it, ``heat.css`` and ``heat.js`` belong to it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from numprobe.report import numbers
from numprobe.report.messages import Catalogue
from numprobe.report.terminal import printable

MOST_PARTS = 40  # with more of them, numbered parts (experts) are put together
MOST_ROWS = 120
WORST = {verdict: rank for rank, verdict in enumerate(("pass", "incomparable", "unmatched", "warning", "error"))}
LETTERS = {"pass": "p", "warning": "w", "error": "e", "incomparable": "i", "unmatched": "u"}
ANCHOR = -1  # as a mark: the last place that agrees before the first finding
SCRIPT_WORDS = (
    *("page.cell", "page.cell.outside", "page.cell.ratio", "page.cell.none", "page.cell.finding"),
    *("page.cell.anchor", "page.cell.handed_on"),
)

Place = tuple[str, str, "int | None"]  # phase, part, layer


@dataclass(frozen=True)
class HeatCell:
    """The worst of what a part of a layer did in a phase. ``layer`` None: outside of layers. ``rho``: found over expected."""

    part: str
    layer: int | None
    phase: str
    verdict: str
    handed_on: bool
    rho: float | None


@dataclass(frozen=True)
class HeatRow:
    """A part of the layers, or one outside of them. ``cells``: first outside of layers, then one a layer; None: no record.

    ``marks``: by cell, the number of the first finding there, from 1, or :data:`ANCHOR`; 0 where there is none.
    """

    part: str
    cells: tuple[HeatCell | None, ...]
    marks: tuple[int, ...]


@dataclass(frozen=True)
class HeatMap:
    """The map of a phase. ``left_out``: how many parts with better verdicts are not in it."""

    phase: str
    layers: tuple[int, ...]
    rows: tuple[HeatRow, ...]
    left_out: int


# --- what stands where -----------------------------------------------------------------------------------------------


def heat_maps(cells: Sequence[HeatCell], marks: Mapping[Place, int]) -> list[HeatMap]:
    """One map a phase, in the order of execution, with the same layers across and the same order of parts.

    ``marks`` are of places as the cells name them.
    """
    folded = folding({cell.part for cell in cells})
    cells = _folded(cells, folded)
    marked: dict[Place, int] = {}
    for (phase, part, layer), mark in marks.items():
        marked.setdefault((phase, folded(part), layer), mark)
    layers = tuple(sorted({cell.layer for cell in cells if cell.layer is not None}))
    parts = _in_order(cells)
    by_place = {(cell.phase, cell.part, cell.layer): cell for cell in cells}
    maps = []
    for phase in dict.fromkeys(cell.phase for cell in cells):
        places = [[(phase, part, layer) for layer in (None, *layers)] for part in parts]
        rows = [
            HeatRow(row[0][1], tuple(by_place.get(key) for key in row), tuple(marked.get(key, 0) for key in row))
            for row in places
            if any(key in by_place for key in row)
        ]
        shown = _worst(rows)
        maps.append(HeatMap(phase, layers, tuple(shown), len(rows) - len(shown)))
    return maps


def folding(parts: set[str]) -> Callable[[str], str]:
    """What a part is called on the map: itself, or with all numbers inside as ``*`` where there would be too many rows."""
    if len(parts) <= MOST_PARTS:
        return lambda part: part
    return lambda part: re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", part)


def _folded(cells: Sequence[HeatCell], folded: Callable[[str], str]) -> list[HeatCell]:
    """One cell a place: the worst of those that share it."""
    worst: dict[Place, HeatCell] = {}
    for cell in cells:
        key = (cell.phase, folded(cell.part), cell.layer)
        if key not in worst or WORST[cell.verdict] > WORST[worst[key].verdict]:
            worst[key] = HeatCell(key[1], cell.layer, cell.phase, cell.verdict, cell.handed_on, cell.rho)
    return list(worst.values())


def _in_order(cells: Sequence[HeatCell]) -> list[str]:
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


def _worst(rows: list[HeatRow]) -> list[HeatRow]:
    """All rows, or those with the worst verdicts, in their order."""
    if len(rows) <= MOST_ROWS:
        return rows
    worst = sorted(rows, key=lambda row: max(WORST[cell.verdict] for cell in row.cells if cell), reverse=True)
    kept = set(map(id, worst[:MOST_ROWS]))
    return [row for row in rows if id(row) in kept]


# --- how it is drawn -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A map with what the template needs: the cells of each row as elements, and the legend."""

    heat: HeatMap
    rows: list[Markup]
    legend: list[tuple[str, str, int]]


def drawn(heat: HeatMap) -> Drawn:
    """One element a cell, as short as it can be: there may be thousands."""
    rows = [
        Markup("").join(_cell(cell, mark) for cell, mark in zip(row.cells, row.marks, strict=True)) for row in heat.rows
    ]
    return Drawn(heat, rows, _legend(heat))


def heat_values(maps: Sequence[HeatMap]) -> dict[str, object]:
    """For the script, by phase: parts, layers, and row by row the ratio of each cell as text (0: none) and its mark."""
    return {
        heat.phase: {
            "parts": [printable(row.part) for row in heat.rows],
            "layers": heat.layers,
            "ratio": [
                ratio(cell.rho) if cell and cell.rho is not None else 0 for row in heat.rows for cell in row.cells
            ],
            "marks": {n: mark for n, mark in enumerate(mark for row in heat.rows for mark in row.marks) if mark},
        }
        for heat in maps
    }


def script_words(catalogue: Catalogue, keys: Sequence[str]) -> dict[str, list[str]]:
    """The templates of both languages by key, for ``data.words``."""
    return {key: [catalogue.templates(lang).get(key, key) for lang in ("en", "zh")] for key in dict.fromkeys(keys)}


def ratio(rho: float | None) -> str:
    """Found over expected: one decimal, two below 1."""
    if rho is None:
        return "—"
    return numbers.stat(rho) if rho >= 1000 else f"{rho:.1f}" if rho >= 1 else f"{rho:.2f}"


def wrapped(name: str) -> Markup:
    """A name that wraps after dots and underscores, in a narrow column."""
    return Markup("<wbr>").join(escape(piece) for piece in re.split(r"(?<=[._])(?=[^._])", printable(name)))


def _kind(cell: HeatCell) -> str:
    letter = LETTERS[cell.verdict]
    return f"{letter} h" if cell.handed_on and letter != "p" else letter


def _cell(cell: HeatCell | None, mark: int) -> Markup:
    if cell is None:
        return Markup("<b></b>")
    kind = f"{_kind(cell)}{' first' if mark == 1 else ''}"
    attribute = f'"{kind}"' if " " in kind else kind
    shown = "A" if mark == ANCHOR else mark if 0 < mark < 10 else "•" if mark else ""
    return Markup(f"<b class={attribute}>{shown}</b>")


def _legend(heat: HeatMap) -> list[tuple[str, str, int]]:
    """Class, verdict and how many cells, in the order of severity; handed on (`` h`` behind the verdict) apart."""
    found = Counter(_kind(cell) for row in heat.rows for cell in row.cells if cell)
    names = [(letter + pale, name + pale) for name, letter in LETTERS.items() for pale in ("", " h")]
    return [(kind, name, found[kind]) for kind, name in names if found[kind] or kind == "p"]
