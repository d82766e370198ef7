"""Result files under msProbe's names: csv, split at a million rows, and xlsx.

A file appears whole or not at all, and never in the place of another.
"""

from __future__ import annotations

import csv
import datetime
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import writing
from numprobe.report.terminal import encodable

if TYPE_CHECKING:
    from xlsxwriter.worksheet import Worksheet  # type: ignore[import-untyped]

CSV_ROWS = 1_000_000  # a file
XLSX_ROWS = 1_048_500  # a sheet
XLSX_TEXT = 32_767  # characters a cell
EXACT_INTEGER = 1 << 53  # a spreadsheet holds numbers as doubles
LARGEST = 1.797693134862315e308  # rounded to 16 digits, a larger one is infinite
CREATED = datetime.datetime(2000, 1, 1)  # in every xlsx, so that equal results are equal files

Line: TypeAlias = Sequence[object]
Dress: TypeAlias = Callable[[Any, Any, int], None]

_BEGINS_FORMULA = "-+=%@\uff0b\uff0d\uff1d\uff05\uff20"
_SUSPICIOUS = frozenset(f";{_BEGINS_FORMULA}")
MAY_BE_FORMULA = f"^;?[{_BEGINS_FORMULA.replace('-', '')}-]"  # a regular expression, the same in Python and in polars
_FORMULA = re.compile(MAY_BE_FORMULA)


def timestamp(seconds: float | None = None) -> str:
    """``YYYYmmddHHMMSS``, local time: what the names of results end in."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(seconds))


def result_name(stamp: str, *, rank: str = "", debug: bool = False) -> str:
    """Name without suffix. ``rank``: key of a rank folder (``rank3``, ``proc1234``) where several are compared."""
    start = "debug_compare_result" if debug else "compare_result"
    return "_".join(part for part in (start, rank, stamp) if part)


def write_csv(folder: Path, name: str, head: Sequence[str], lines: Iterable[Line]) -> list[Path]:
    """Write ``<name>.csv``; more than a million rows go to ``<name>_part_1.csv``, ``<name>_part_2.csv``, ..., each with header.

    Infinities are `` inf`` and `` -inf``. A text that would be a formula in a spreadsheet has a ``'`` in front.

    Returns:
        The files, in order.

    Raises:
        NumprobeError: E-CMP-030 one of them exists, E-OUT-002 they cannot be written.
    """
    parts: list[Path] = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_existing(folder / f"{name}.csv")
        try:
            _write_parts(folder, name, head, lines, parts)
            several = len(parts) > 1
            paths = [folder / (f"{name}_part_{i}.csv" if several else f"{name}.csv") for i in range(1, len(parts) + 1)]
            for path in paths:
                _refuse_existing(path)
            return [_publish(part, path) for part, path in zip(parts, paths, strict=True)]
        finally:
            for part in parts:
                with suppress(OSError):
                    part.unlink(missing_ok=True)


def _write_parts(folder: Path, name: str, head: Sequence[str], lines: Iterable[Line], parts: list[Path]) -> None:
    lines = iter(lines)
    line = next(lines, None)
    while line is not None or not parts:
        parts.append(folder / f".{name}_part_{len(parts) + 1}.csv")
        with _text(parts[-1]) as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(head)
            for _ in range(CSV_ROWS):
                if line is None:
                    break
                out.writerow(_csv_line(line))
                line = next(lines, None)


def _text(path: Path) -> TextIOWrapper:
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")


@contextmanager
def new_text(path: Path) -> Iterator[TextIOWrapper]:
    """A text file that gets its name when it is whole.

    Raises:
        NumprobeError: E-CMP-030 it exists, E-OUT-002 it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_existing(path)
        try:
            with _text(part) as file:
                yield file
            _publish(part, path)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _csv_line(line: Line) -> list[object]:
    return [
        cell
        if (kind := cell.__class__) is bool
        or (kind is str and cell[:1] not in _SUSPICIOUS)  # type: ignore[index]
        or (kind is float and -math.inf < cell < math.inf)  # type: ignore[operator]
        else _csv_cell(cell)
        for cell in line
    ]


def _csv_cell(cell: object) -> object:
    if isinstance(cell, float):
        return f" {cell}" if math.isinf(cell) else cell
    if isinstance(cell, str):
        return f"'{cell}" if is_formula(cell) else cell
    return cell


def is_formula(text: str) -> bool:
    """Whether a spreadsheet would take a cell of this text for a formula."""
    return _FORMULA.match(text) is not None and not _is_number(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_xlsx(
    path: Path, sheets: Iterable[tuple[str, Sequence[str], Iterable[Line]]], dress: Dress | None = None
) -> Path:
    """Write a workbook of (sheet name, header, rows). Numbers stay numbers, every text is text, None is an empty cell.

    Args:
        dress: ``dress(workbook, worksheet, number of rows)`` gives every sheet its looks.

    Raises:
        NumprobeError: E-CMP-030 it exists, E-OUT-002 it cannot be written.
    """
    import xlsxwriter  # type: ignore[import-untyped]  # here: a tenth of a second, wanted by few
    from xlsxwriter.exceptions import FileCreateError  # type: ignore[import-untyped]

    options = {
        "constant_memory": True,
        "strings_to_formulas": False,
        "strings_to_urls": False,
        "strings_to_numbers": False,
    }
    part = path.with_name(f".{path.name}.part")
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_existing(path)
        try:
            book = xlsxwriter.Workbook(part, options)
            book.set_properties({"created": CREATED})
            for name, head, lines in sheets:
                sheet = book.add_worksheet(name)
                rows = -1
                for rows, line in enumerate(chain([head], lines)):
                    for j, cell in enumerate(line):
                        if cell is not None:
                            _xlsx_cell(sheet, rows, j, cell)
                if dress is not None:
                    dress(book, sheet, rows)
            try:
                book.close()
            except FileCreateError as error:
                raise OSError(*error.args) from None
            return _publish(part, path)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def result_sheets(head: Sequence[str], lines: Iterable[Line]) -> Iterator[tuple[str, Sequence[str], Sequence[Line]]]:
    """The sheets of one result: ``Sheet1``, or equal slices ``part_0``, ``part_1``, ... where one would be too long."""
    every = list(lines)
    number = -(-len(every) // XLSX_ROWS)
    if number <= 1:
        yield "Sheet1", head, every
        return
    short, longer = divmod(len(every), number)
    begin = 0
    for i in range(number):
        end = begin + short + (i < longer)
        yield f"part_{i}", head, every[begin:end]
        begin = end


def _xlsx_cell(sheet: Worksheet, row: int, column: int, cell: object) -> None:
    if isinstance(cell, bool):
        sheet.write_boolean(row, column, cell)
    elif isinstance(cell, (int, float)) and _is_exact(cell):
        sheet.write_number(row, column, cell)
    else:
        sheet.write_string(row, column, encodable(str(cell))[:XLSX_TEXT])


def _is_exact(number: int | float) -> bool:
    """Whether the 16 digits that xlsxwriter gives are (all but) the number."""
    return abs(number) <= (LARGEST if isinstance(number, float) else EXACT_INTEGER)


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise NumprobeError(
            "E-CMP-030",
            "a result of this name is there already",
            where=str(path),
            do="move it away, or choose another -o",
        )


def _publish(part: Path, path: Path) -> Path:
    """Give a finished file its name, which must be free."""
    try:
        os.link(part, path)
    except FileExistsError:
        _refuse_existing(path)
    except OSError:  # a file system without links
        _refuse_existing(path)
        part.replace(path)
    return path
