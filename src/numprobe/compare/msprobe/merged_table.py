"""Merged results as one typed table: a row for each item and rank, a column an index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from numprobe.compare.msprobe.merge import Merged
from numprobe.compare.msprobe.workbook import Cell

if TYPE_CHECKING:
    import polars as pl


def merged_table(merged: Merged) -> pl.DataFrame:
    """Columns ``name``, ``rank`` and one an index, in execution order; what a rank does not have has no row.

    Percentages are ratios. An index of figures is a column of floats; where a cell has a text instead (``unsupported``) it is
    null, and ``remark`` has the text.
    """
    import polars as pl

    places = [
        (row, i)
        for row in range(len(merged.names))
        for i in range(len(merged.ranks))
        if any(table[row][i] is not None for table in merged.tables.values())
    ]
    columns: dict[str, pl.Series] = {
        "name": pl.Series([merged.names[row] for row, _ in places], dtype=pl.String),
        "rank": pl.Series([merged.ranks[i] for _, i in places], dtype=pl.Int64),
    }
    remarks: list[str | None] = [None] * len(places)
    for index, table in merged.tables.items():
        cells = [table[row][i] for row, i in places]
        kind = _kind(cells)
        if kind is bool:
            columns[index] = pl.Series(cells, dtype=pl.Boolean)
        elif kind is str:
            columns[index] = pl.Series([None if c is None else str(c) for c in cells], dtype=pl.String)
        else:
            numbers = [_number(cell) for cell in cells]
            columns[index] = pl.Series(numbers, dtype=pl.Float64)
            for place, (cell, value) in enumerate(zip(cells, numbers, strict=True)):
                if value is None and cell is not None:
                    remarks[place] = remarks[place] or str(cell)
    columns["remark"] = pl.Series(remarks, dtype=pl.String)
    return pl.DataFrame(columns)


def _kind(cells: Sequence[Cell]) -> type:
    if all(isinstance(cell, bool) for cell in cells if cell is not None):
        return bool
    return float if any(_number(cell) is not None for cell in cells) else str


def _number(cell: Cell) -> float | None:
    """The number in a cell: of a percentage its ratio, of ``Nan`` NaN; None where it is a text."""
    if isinstance(cell, bool) or cell is None:
        return None
    if isinstance(cell, (int, float)):
        return float(cell)
    text = cell.strip()
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
    return math.nan if value != value else value
