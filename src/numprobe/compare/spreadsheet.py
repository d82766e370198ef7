"""The table as csv and xlsx: to look at, filter and hand on. Parquet is what is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numprobe.compare.msprobe.files import MAY_BE_FORMULA, XLSX_ROWS, is_formula, write_xlsx
from numprobe.report.run_folder import writing

if TYPE_CHECKING:
    import polars as pl

COLOURS = {"error": "#F8D7DA", "warning": "#FFF3CD", "incomparable": "#E9ECEF", "unmatched": "#E9ECEF"}
_NARROWEST, _WIDEST = 8, 60  # characters
_OF_NUMBERS = 13


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write ``path`` by its suffix, .csv or .xlsx, in the place of what an earlier run left there.

    In csv a text that a spreadsheet would take for a formula has a ``'`` in front. In xlsx every text is text; NaN and infinities
    are texts, which no cell can hold as numbers; more rows than a sheet holds go to further sheets.

    Raises:
        NumprobeError: E-OUT-002 it cannot be written.
    """
    part = path.with_name(f".{path.name}.part{path.suffix}")
    with writing(path.parent):
        part.unlink(missing_ok=True)
        try:
            if path.suffix == ".csv":
                _write_csv(_as_plain_text(frame), part)
            else:
                write_xlsx(part, _sheets(frame), lambda book, sheet, rows: _dress(book, sheet, rows, frame))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _write_csv(frame: pl.DataFrame, path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:  # polars takes no such paths; through a file that Python opened it takes twice the time
        with path.open("wb") as file:
            frame.write_csv(file)
    else:
        frame.write_csv(path)


def _as_plain_text(frame: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    begin = frame.select(pl.col(name).str.contains(MAY_BE_FORMULA).any() for name in texts)
    found = {name: frame[name].unique().to_list() for name in texts if frame.height and begin[name].item()}
    changed = {
        name: {text: f"'{text}" for text in texts if text is not None and is_formula(text)}
        for name, texts in found.items()
    }
    return frame.with_columns(pl.col(name).replace(new) for name, new in changed.items() if new)


def _sheets(frame: pl.DataFrame) -> Iterator[tuple[str, Sequence[str], Iterable[Sequence[object]]]]:
    if frame.height <= XLSX_ROWS:
        yield "compare", frame.columns, _lines(frame)
        return
    for number, begin in enumerate(range(0, frame.height, XLSX_ROWS)):
        yield f"part_{number}", frame.columns, _lines(frame.slice(begin, XLSX_ROWS))


def _lines(frame: pl.DataFrame) -> Iterator[Sequence[object]]:
    for row in frame.iter_rows():
        yield [str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in row]


def _dress(book: Any, sheet: Any, rows: int, frame: pl.DataFrame) -> None:
    """A header that stays, a filter, columns as wide as what they hold, rows in the colour of their verdict."""
    from xlsxwriter.utility import xl_col_to_name  # type: ignore[import-untyped]

    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, max(rows, 1), frame.width - 1)
    for i, width in enumerate(_widths(frame)):
        sheet.set_column(i, i, width)
    if rows and "verdict" in frame.columns:
        letter = xl_col_to_name(frame.columns.index("verdict"))
        for verdict, colour in COLOURS.items():
            rule = {
                "type": "formula",
                "criteria": f'=LEFT(${letter}2,{len(verdict)})="{verdict}"',
                "format": book.add_format({"bg_color": colour}),
            }
            sheet.conditional_format(1, 0, rows, frame.width - 1, rule)


def _widths(frame: pl.DataFrame) -> Iterator[int]:
    import polars as pl

    for name, dtype in frame.schema.items():
        longest = frame[name].str.len_chars().max() if dtype == pl.String else _OF_NUMBERS
        needed = longest if isinstance(longest, int) else 0
        yield min(max(needed, len(name), _NARROWEST) + 2, _WIDEST)
