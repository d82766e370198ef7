"""The results of many ranks side by side: one table an index, and what the members of each process group make of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from numprobe.compare.msprobe.agreement import HEAD, Disagreement
from numprobe.compare.msprobe.columns import BASIC, Mode
from numprobe.compare.msprobe.files import Line, write_csv, write_xlsx
from numprobe.compare.msprobe.results import MAXIMA, RankResult
from numprobe.compare.msprobe.selection import Selection
from numprobe.compare.msprobe.workbook import Cell
from numprobe.metrics.reference import NAN, NOT_APPLICABLE, UNSUPPORTED
from numprobe.record.errors import NumprobeError

NAME = BASIC[0]
_SMALL_IS_BAD = frozenset(("Cosine", "One Thousandth Err Ratio", "Five Thousandths Err Ratio"))
_REPLACED = frozenset((NOT_APPLICABLE, UNSUPPORTED, NAN))
_OF_TEXT = {
    "error": 2.0,
    "warning": 1.0,
    "unmatched_target": 1.0,
    "incomparable": 0.5,
    "pass": 0.0,
    "Diff": math.inf,
    "shape unmatched": math.inf,
}
_SHEET_NAME = 31  # characters, at most


@dataclass(frozen=True)
class Merged:
    """``tables[index][row][i]`` is the cell of rank ``ranks[i]``; None where that rank has no such row.

    Rows are in execution order: that of the first rank, with what only others have at its place among them.
    """

    ranks: tuple[int, ...]
    names: tuple[str, ...]
    tables: Mapping[str, Sequence[Sequence[Cell]]]


def merge(results: Sequence[RankResult], selection: Selection) -> Merged:
    """Put the results of the ranks, read with the same selection, beside each other. Rows pair by name, repeated names in order.

    Raises:
        NumprobeError: E-CMP-036 no row that was asked for.
    """
    order = [key for key in interleave([result.keys for result in results]) if selection.selects(key[0])]
    if not order:
        raise NumprobeError(
            "E-CMP-036",
            "no row of the results belongs to an API that was asked for",
            where=str(results[0].files[0]),
            found="{apis}",
            do="write names as they stand in the column NPU Name, or their first parts",
            apis=", ".join(selection.apis)[:300],
        )
    places = [{result.keys[row]: i for i, row in enumerate(result.kept)} for result in results]
    tables: dict[str, list[list[Cell]]] = {}
    for index in selection.indices or [name for name in results[0].cells if name not in MAXIMA]:
        by_rank = list(zip(places, (_shown(result, index) for result in results), strict=True))
        tables[index] = [[column[of[key]] if key in of else None for of, column in by_rank] for key in order]
    return Merged(tuple(result.rank for result in results), tuple(name for name, _ in order), tables)


def interleave(orders: Sequence[Sequence[tuple[str, int]]]) -> list[tuple[str, int]]:
    """One order that holds all: that of the first, what is new in a later one directly behind its neighbour there."""
    behind: dict[tuple[str, int] | None, list[tuple[str, int]]] = defaultdict(list)
    known: set[tuple[str, int]] = set()
    for order in orders:
        last: tuple[str, int] | None = None
        new: list[tuple[tuple[str, int] | None, tuple[str, int]]] = []
        for key in order:
            if key not in known:
                new.append((last, key))
                known.add(key)
            last = key
        for place, key in reversed(new):
            behind[place].insert(0, key)
    merged: list[tuple[str, int]] = []
    waiting: list[tuple[str, int]] = list(reversed(behind.pop(None, [])))
    while waiting:
        key = waiting.pop()
        merged.append(key)
        waiting += reversed(behind.pop(key, []))
    return merged


def _shown(result: RankResult, index: str) -> list[Cell]:
    """A column with msProbe's reading aid: where there is no figure, the two maxima."""
    column = result.cells[index]
    if result.mode is Mode.MD5:
        return list(column)
    maxima = (result.cells[name] for name in MAXIMA)
    return [f"NPU:{t}  Bench:{g}" if cell in _REPLACED else cell for cell, t, g in zip(column, *maxima, strict=True)]


def by_group(merged: Merged, groups: Mapping[str, Sequence[int]]) -> tuple[list[str], list[Line]]:
    """Header and rows of the view by process group: for each row and group the worst figure of each index and its rank.

    Worst is NaN, then infinity, then the largest absolute figure (the smallest for Cosine and the ratios); a False before True.
    """
    head = [NAME, "group", "ranks"]
    for index in merged.tables:
        head += [index, f"{index}: rank"]
    place = {rank: i for i, rank in enumerate(merged.ranks)}
    lines: list[Line] = []
    for row, name in enumerate(merged.names):
        for group, ranks in groups.items():
            members = [rank for rank in ranks if rank in place]
            if members:
                line: list[Cell] = [name, group, " ".join(map(str, members))]
                for index, table in merged.tables.items():
                    line += _worst(index, {rank: table[row][place[rank]] for rank in members})
                lines.append(line)
    return head, lines


def _worst(index: str, cells: Mapping[int, Cell]) -> tuple[Cell, Cell]:
    """The worst cell and the lowest rank that has it; nothing where no rank has the row."""
    rank = max(sorted(cells), key=lambda rank: _badness(index, cells[rank]))
    return cells[rank], None if cells[rank] is None else rank


def _badness(index: str, cell: Cell) -> float:
    if cell is None:
        return -math.inf
    if isinstance(cell, bool):
        return float(not cell)
    text = str(cell).strip()
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        return _OF_TEXT.get(text, math.inf if text.startswith(f"NPU:{NAN}") or text.endswith(f":{NAN}") else -2.0)
    if value != value:
        return math.inf
    return -value if index in _SMALL_IS_BAD else abs(value)


def write_merged(
    folder: Path,
    stamp: str,
    merged: Merged,
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    disagreements: Sequence[Disagreement] = (),
    xlsx: bool = True,
) -> list[Path]:
    """Write ``multi_ranks_compare_merge_<time>``: one sheet an index; ``groups`` and ``disagreement`` where there is something.

    Without ``xlsx`` every sheet is a csv file of its own, ``..._<sheet>.csv``.

    Raises:
        NumprobeError: E-CMP-030 such a file exists, E-OUT-002 it cannot be written.
    """
    name = f"multi_ranks_compare_merge_{stamp}"
    sheets = list(_sheets(merged, groups or {}, disagreements))
    if xlsx:
        return [write_xlsx(folder / f"{name}.xlsx", sheets)]
    return [
        path
        for sheet, head, lines in sheets
        for path in write_csv(folder, f"{name}_{sheet.replace(' ', '_')}", head, lines)
    ]


def _sheets(
    merged: Merged, groups: Mapping[str, Sequence[int]], disagreements: Sequence[Disagreement]
) -> Iterator[tuple[str, Sequence[str], Sequence[Line]]]:
    head = [NAME, *(f"rank{rank}" for rank in merged.ranks)]
    for index, table in merged.tables.items():
        yield index[:_SHEET_NAME], head, [[name, *cells] for name, cells in zip(merged.names, table, strict=True)]
    if groups:
        yield ("groups", *by_group(merged, groups))
    if disagreements:
        yield "disagreement", HEAD, [one.line() for one in disagreements]
