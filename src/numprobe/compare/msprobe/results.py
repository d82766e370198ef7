"""Result files of many ranks, read back: one :class:`RankResult` a rank."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from numprobe.compare.msprobe.columns import (
    BASIC,
    CHECKSUMS,
    CONSISTENT,
    DIFFERENCES,
    FIGURES,
    METRICS,
    STATISTICS,
    VERDICT,
    Mode,
)
from numprobe.compare.msprobe.selection import Selection
from numprobe.compare.msprobe.workbook import BadWorkbook, Cell, read_rows
from numprobe.metrics.reference import NOT_APPLICABLE
from numprobe.record.errors import NumprobeError

Reader: TypeAlias = Callable[[Path], Iterator[Sequence[Cell]]]

_NAME = re.compile(
    r"compare_result_rank(0|[1-9][0-9]{0,8})(?:-rank[0-9]+)?_([0-9]{14})(?:_part_([1-9][0-9]*))?\.[a-z]+"
)
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
COMMUNICATION = ("Distributed.", "MintDistributed.")
MAXIMA = ("NPU max", "Bench max")
_CELL_BYTES = 1 << 26  # a stack, at most


class Communication(NamedTuple):
    """A row of a communication call. ``target`` and ``golden`` hold max, min, mean and norm, or the checksum; ``golden`` is empty
    where the row has no partner."""

    name: str
    dtype: Cell
    target: tuple[Cell, ...]
    golden: tuple[Cell, ...]


@dataclass(frozen=True)
class RankResult:
    """What merging needs of the result of one rank. NaN is the text ``Nan``, infinities are ``inf`` and ``-inf``.

    ``keys`` has all rows, in order: the name, and how often it came before. ``cells[column]`` are those of the rows ``kept``
    (positions in ``keys``). ``counts``: of all rows, pass, warning and error.
    """

    rank: int
    mode: Mode
    keys: Sequence[tuple[str, int]]
    kept: Sequence[int]
    cells: Mapping[str, Sequence[Cell]]
    communication: Sequence[Communication]
    files: tuple[Path, ...]
    counts: Mapping[str, int]


def is_result(path: Path) -> bool:
    """Whether a file is a rank's result by its name."""
    return _NAME.fullmatch(path.name) is not None and path.suffix in READERS


def read_files(files: Iterable[Path], selection: Selection) -> list[RankResult]:
    """The results in msProbe's files, by rank; parts of a split csv are joined.

    Raises:
        NumprobeError: E-CMP-031 not a result file by its name, E-CMP-032 a file cannot be read, E-CMP-033 it is no table of
            results, E-CMP-034 two results of one rank, E-CMP-036 an index that the results do not have.
    """
    parts: dict[int, dict[int, Path]] = defaultdict(dict)
    for file in files:
        rank, stamp, part = _parts_of(file)
        of_rank = parts[rank]
        other = of_rank.get(part) or next((p for p in of_rank.values() if _parts_of(p)[1] != stamp), None)
        if other is not None:
            raise twice(rank, other, file)
        of_rank[part] = file
    texts: dict[str, str] = {}
    return [_read_rank(rank, [of[i] for i in sorted(of)], selection, texts) for rank, of in sorted(parts.items())]


def twice(rank: int, one: Path, other: Path) -> NumprobeError:
    """E-CMP-034: two results of one rank."""
    return NumprobeError(
        "E-CMP-034",
        "two results of rank {rank}",
        where=str(one),
        found="{file}",
        do="leave one of them in the folder",
        rank=rank,
        file=str(other),
    )


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


def _read_rank(rank: int, files: Sequence[Path], selection: Selection, texts: dict[str, str]) -> RankResult:
    """One rank. ``texts`` holds every text once, for all ranks."""
    head, lines = _rows(files[0])
    mode = next((m for m, needed in _NEEDED.items() if needed <= {*head}), None)
    if mode is None:
        raise _no_results(files[0], head)
    indices = selection.indices or default_indices(mode)
    for index in indices:
        if index not in head:
            raise NumprobeError(
                "E-CMP-036",
                "the results have no column {index}",
                where=str(files[0]),
                found="{columns}",
                do="choose among their columns",
                index=index,
                columns=", ".join(head),
            )
    wanted = [*indices, *(MAXIMA if mode is not Mode.MD5 else ())]
    build = _Builder(head, mode, wanted, selection, texts)
    build.add(lines)
    for file in files[1:]:
        further, lines = _rows(file)
        if further != head:
            raise _no_results(file, further)
        build.add(lines)
    return RankResult(rank, mode, build.keys, build.kept, build.cells, build.communication, tuple(files), build.counts)


def default_indices(mode: Mode) -> tuple[str, ...]:
    """What is merged if nothing is chosen: all figures, in md5 mode the result."""
    return (*(FIGURES[mode] or VERDICT[:1]), CONSISTENT)


_COMMON = {*BASIC, CONSISTENT, *VERDICT}
_NEEDED = {
    Mode.TENSOR: {*_COMMON, *METRICS, *STATISTICS},
    Mode.STATISTICS: {*_COMMON, *DIFFERENCES, *STATISTICS},
    Mode.MD5: {*_COMMON, *CHECKSUMS},
}


def _no_results(file: Path, head: Sequence[str]) -> NumprobeError:
    return NumprobeError(
        "E-CMP-033",
        "not a table of results",
        where=str(file),
        found="the columns {columns}",
        do="give what compare wrote, with its header",
        columns=", ".join(head)[:300],
    )


class _Builder:
    """Takes from the rows of one rank what is needed of them."""

    def __init__(
        self, head: Sequence[str], mode: Mode, wanted: Sequence[str], selection: Selection, texts: dict[str, str]
    ) -> None:
        self.keys: list[tuple[str, int]] = []
        self.kept: list[int] = []
        self.cells: dict[str, list[Cell]] = {column: [] for column in wanted}
        self.communication: list[Communication] = []
        self.counts: Counter[str] = Counter()
        self._selected, self._texts = selection.selects, texts
        self._seen: dict[str, int] = defaultdict(int)
        place = {column: i for i, column in enumerate(head)}
        numeric = frozenset((*METRICS, *STATISTICS) if mode is Mode.TENSOR else STATISTICS)
        self._wanted = [(of, place[c], c in numeric, c == CONSISTENT) for c, of in self.cells.items()]
        self._partner, self._dtype = place[BASIC[1]], place["NPU Dtype"]
        sides = (CHECKSUMS[:1], CHECKSUMS[1:]) if mode is Mode.MD5 else (STATISTICS[:4], STATISTICS[4:])
        self._target, self._golden = ([place[column] for column in side] for side in sides)
        self._columns, self._md5, self._verdict = len(head), mode is Mode.MD5, place[VERDICT[0]]

    def add(self, lines: Iterable[Sequence[Cell]]) -> None:
        for line in lines:
            if not line or line[0] in (None, "", BASIC[0]):
                continue  # a sheet repeats the header
            if len(line) < self._columns:
                line = [*line, *[None] * (self._columns - len(line))]
            name = self._shared(str(line[0]))
            self.counts[str(line[self._verdict])] += 1
            if self._selected(name):
                self.kept.append(len(self.keys))
                for cells, place, is_number, is_truth in self._wanted:
                    cell = line[place]
                    if isinstance(cell, str):  # all cells of a csv
                        cell = _number(cell) if is_number else cell == "True" if is_truth else self._shared(cell)
                    cells.append(cell)
            if name.startswith(COMMUNICATION):
                partner = line[self._partner] not in (None, NOT_APPLICABLE)
                target, golden = ([self._figure(line[i]) for i in side] for side in (self._target, self._golden))
                self.communication.append(
                    Communication(name, line[self._dtype], tuple(target), tuple(golden) if partner else ())
                )
            self.keys.append((name, self._seen[name]))
            self._seen[name] += 1

    def _figure(self, cell: Cell) -> Cell:
        return _number(cell) if isinstance(cell, str) and not self._md5 else cell

    def _shared(self, text: str) -> str:
        return self._texts.setdefault(text, text)


def _rows(file: Path) -> tuple[list[str], Iterator[Sequence[Cell]]]:
    """Header and rows."""
    lines = _readable(READERS[file.suffix](file), file)
    return [str(cell) for cell in next(lines, [])], lines


def _readable(lines: Iterator[Sequence[Cell]], file: Path) -> Iterator[Sequence[Cell]]:
    try:
        yield from lines
    except (OSError, BadWorkbook, csv.Error, UnicodeDecodeError) as error:
        raise NumprobeError(
            "E-CMP-032",
            "a result cannot be read: {reason}",
            where=str(file),
            do="compare again, or leave this rank out",
            reason=error.strerror if isinstance(error, OSError) and error.strerror else str(error),
        ) from None


def _csv_rows(path: Path) -> Iterator[list[str]]:
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_BYTES))
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.reader(file)


def _number(text: str) -> Cell:
    """The number in a cell of a csv; a text that is none as it is, without the blank before an infinity."""
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped):
        return stripped
    return int(stripped) if stripped.lstrip("-").isdecimal() else float(stripped)


# suffix -> rows of a file, the header first; another format is one more entry
READERS: dict[str, Reader] = {".csv": _csv_rows, ".xlsx": read_rows}
