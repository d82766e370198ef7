"""Result files of many ranks, read back: one :class:`RankResult` a rank."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from numprobe.compare.msprobe.columns import (
    BASIC,
    CHECKSUMS,
    CONSISTENT,
    DIFFERENCES,
    METRICS,
    STATISTICS,
    VERDICT,
    Mode,
)
from numprobe.compare.msprobe.workbook import BadWorkbook, Cell, read_rows
from numprobe.record.errors import NumprobeError

Reader: TypeAlias = Callable[[Path], Iterator[Sequence[Cell]]]

_NAME = re.compile(
    r"compare_result_rank(0|[1-9][0-9]{0,8})(?:-rank[0-9]+)?_([0-9]{14})(?:_part_([1-9][0-9]*))?\.[a-z]+"
)
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_CELL_BYTES = 1 << 26  # a stack, at most


@dataclass(frozen=True)
class RankResult:
    """The result of one rank as columns of equal length. NaN is the text ``Nan``, infinities are ``inf`` and ``-inf``."""

    rank: int
    mode: Mode
    columns: Mapping[str, Sequence[Cell]]
    files: tuple[Path, ...]

    @property
    def names(self) -> Sequence[str]:
        return [str(name) for name in self.columns[BASIC[0]]]


def read_results(paths: Iterable[Path]) -> list[RankResult]:
    """The results of all ranks, by rank. A folder stands for the results in it; parts of a split csv are joined.

    Raises:
        NumprobeError: E-CMP-031 not a result file by its name, E-CMP-032 a file cannot be read, E-CMP-033 it is no table of
            results, E-CMP-034 two results of one rank, or of different modes, E-CMP-035 fewer than two ranks.
    """
    parts: dict[int, dict[int, Path]] = defaultdict(dict)
    for file in _files(paths):
        rank, stamp, part = _parts_of(file)
        of_rank = parts[rank]
        other = of_rank.get(part) or next((p for p in of_rank.values() if _parts_of(p)[1] != stamp), None)
        if other is not None:
            raise NumprobeError(
                "E-CMP-034",
                "two results of rank {rank}",
                where=str(other),
                found="{file}",
                do="leave one of them in the folder",
                rank=rank,
                file=str(file),
            )
        of_rank[part] = file
    results = [_read_rank(rank, [of[i] for i in sorted(of)]) for rank, of in sorted(parts.items())]
    if len(results) < 2:
        raise NumprobeError(
            "E-CMP-035",
            "merging takes the results of two ranks or more",
            where=", ".join(str(path) for path in paths),
            found="{number} compare_result_rank<N>_<time> files",
            do="compare the step folders of several ranks first",
            number=len(results),
        )
    for result in results[1:]:
        if result.mode is not results[0].mode:
            raise NumprobeError(
                "E-CMP-034",
                "results of different modes: {one} and {other}",
                where=f"{results[0].files[0]}, {result.files[0]}",
                do="merge results of one mode",
                one=results[0].mode.value,
                other=result.mode.value,
            )
    return results


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.iterdir() if _NAME.fullmatch(p.name) and p.suffix in READERS)
        else:
            yield path


def _parts_of(file: Path) -> tuple[int, str, int]:
    """Rank, time and part (0 where the result is not split)."""
    found = _NAME.fullmatch(file.name)
    if found is None or file.suffix not in READERS:
        raise NumprobeError(
            "E-CMP-031",
            "not the name of a rank's result",
            where=str(file),
            do="give files named compare_result_rank<N>_<14 digits>.csv or .xlsx, or a folder with such files",
        )
    return int(found[1]), found[2], int(found[3] or 0)


def _read_rank(rank: int, files: Sequence[Path]) -> RankResult:
    columns: dict[str, list[Cell]] = {}
    for file in files:
        for name, values in _read_file(file).items():
            columns.setdefault(name, []).extend(values)
    mode = next((m for m, needed in _NEEDED.items() if columns.keys() >= needed), None)
    if mode is None or len({len(values) for values in columns.values()}) != 1:
        raise NumprobeError(
            "E-CMP-033",
            "not a table of results",
            where=str(files[0]),
            found="the columns {columns}",
            do="give what compare wrote, with its header",
            columns=", ".join(columns)[:300],
        )
    return RankResult(rank, mode, columns, tuple(files))


_COMMON = {*BASIC, CONSISTENT, *VERDICT}
_NEEDED = {
    Mode.TENSOR: {*_COMMON, *METRICS, *STATISTICS},
    Mode.STATISTICS: {*_COMMON, *DIFFERENCES, *STATISTICS},
    Mode.MD5: {*_COMMON, *CHECKSUMS},
}


def _read_file(file: Path) -> dict[str, list[Cell]]:
    """Columns of one file; rows without a name, and headers that a sheet repeats, are left out."""
    try:
        lines = READERS[file.suffix](file)
        head = [str(cell) for cell in next(lines, [])]
        rows = [line for line in lines if line and line[0] not in (None, "", BASIC[0])]
    except (OSError, BadWorkbook, csv.Error, UnicodeDecodeError) as error:
        raise NumprobeError(
            "E-CMP-032",
            "a result cannot be read: {reason}",
            where=str(file),
            do="compare again, or leave this rank out",
            reason=error.strerror if isinstance(error, OSError) and error.strerror else str(error),
        ) from None
    return {name: [row[i] if i < len(row) else None for row in rows] for i, name in enumerate(head)}


def _csv_rows(path: Path) -> Iterator[list[Cell]]:
    """Texts, but numbers in the columns that hold numbers in an xlsx, and truth values in ``Requires_grad Consistent``."""
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_BYTES))
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file)
        head = next(lines, [])
        yield list(head)
        numeric = (*METRICS, *STATISTICS) if METRICS[0] in head else STATISTICS
        parsers = [_number if name in numeric else _truth if name == CONSISTENT else str for name in head]
        for line in lines:
            yield [parse(text) for parse, text in zip(parsers, line, strict=False)]


def _truth(text: str) -> bool:
    return text == "True"


def _number(text: str) -> Cell:
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped):
        return stripped
    return int(stripped) if stripped.lstrip("-").isdecimal() else float(stripped)


# suffix -> rows of a file, the header first; another format is one more entry
READERS: dict[str, Reader] = {".csv": _csv_rows, ".xlsx": read_rows}
