"""Which kernels of which rank and step lie below a folder.

Tensors are ``<type>.<name>.<task>.<stream>.<time>.<input|output>.<slot>...npy``, or have such a name in ``mapping.csv`` beside
them; statistics are the rows of ``statistic.csv``. The folder is ``.../rank_<r>/<net>/<graph>/<step>``.
"""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from numprobe.formats.tensors.tensor import unreadable
from numprobe.record.errors import NumprobeError

STATISTICS = "statistic.csv"
MAPPING = "mapping.csv"
INPUT, OUTPUT = "input", "output"
FIGURES = ("maxvalue", "minvalue", "avgvalue", "l2normvalue")
_COLUMNS = ("optype", "opname", "taskid", "timestamp", "io", "slot", "datatype", "shape", *FIGURES)
_NAME = re.compile(
    r"(?P<type>[^.]+)\.(?P<name>.+)\.(?P<task>[0-9]+)\.(?P<stream>[0-9]+)\.(?P<time>[0-9]+)\."
    r"(?P<io>input|output)\.(?P<slot>[0-9]+)(?:\..*)?\.npy"
)
_NUMBERED = re.compile(r"(?:[a-z]+_?)?([0-9]{1,9})")
_RANK = re.compile(r"rank_?([0-9]{1,9})")


@dataclass(frozen=True)
class Kernel:
    """An input or output of a kernel. ``file`` is its tensor, or the table that has its ``figures`` (max, min, mean, norm)."""

    type: str
    name: str
    task: int
    time: int
    io: str
    slot: int
    file: Path
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    figures: tuple[float | None, ...] | None = None

    @property
    def key(self) -> str:
        """What pairs it with one of the other side, as msProbe spells it."""
        return f"{self.name}.{self.task}.{self.io}.{self.slot}"


def find_kernels(root: Path) -> dict[tuple[int, int], list[Path]]:
    """Folders of kernels by (rank, step); several graphs of one are joined. Empty where there are none."""
    found: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for folder, folders, names in os.walk(root):
        folders.sort()
        if not folders and any(name in (STATISTICS, MAPPING) or _NAME.fullmatch(name) for name in names):
            found[_rank_and_step(Path(folder).absolute())].append(Path(folder))
    return dict(sorted(found.items()))


def _rank_and_step(folder: Path) -> tuple[int, int]:
    """The step is the last part of the path, the rank the fourth from its end, or the last one called so; else 0."""
    parts = folder.parts
    step = _NUMBERED.fullmatch(parts[-1])
    rank = _NUMBERED.fullmatch(parts[-4]) if len(parts) > 3 else None
    for part in parts:
        rank = _RANK.fullmatch(part) or rank
    return int(rank[1]) if rank else 0, int(step[1]) if step else 0


def read_kernels(folders: Iterable[Path]) -> list[Kernel]:
    """The kernels in these folders, in the order of time.

    Raises:
        NumprobeError: E-FMT-010 a table cannot be read, E-CMP-020 it lacks a column or has something else in one.
    """
    found = [kernel for folder in folders for kernel in _in_folder(folder)]
    return sorted(found, key=lambda k: (k.time, k.name, k.task, k.io, k.slot))


def numbered(kernels: Iterable[Kernel]) -> Iterator[tuple[int, Kernel]]:
    """How many of the same key came before, and the kernel."""
    seen: dict[str, int] = defaultdict(int)
    for kernel in kernels:
        yield seen[kernel.key], kernel
        seen[kernel.key] += 1


def _in_folder(folder: Path) -> Iterator[Kernel]:
    names = _mapping(folder / MAPPING)
    tensors = [
        (path, match)
        for path in sorted(_inside(folder))
        if path.suffix == ".npy" and (match := _NAME.fullmatch(names.get(path.name, path.name)))
    ]
    if not tensors and (folder / STATISTICS).exists():
        yield from _table(folder / STATISTICS)
    for path, m in tensors:
        yield Kernel(m["type"], m["name"], int(m["task"]), int(m["time"]), m["io"], int(m["slot"]), path)


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, str(error)) from None


def _rows(path: Path) -> list[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            return list(csv.reader(file))
    except (OSError, csv.Error) as error:
        raise unreadable(path, str(error)) from None


def _mapping(path: Path) -> Mapping[str, str]:
    """The full names of files whose names would be too long."""
    return {row[0].strip(): row[1].strip() for row in _rows(path) if len(row) > 1} if path.exists() else {}


def _table(path: Path) -> Iterator[Kernel]:
    head, *rows = _rows(path) or [[]]
    columns = {re.sub(r"[ _]", "", name).lower(): i for i, name in enumerate(head)}
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise _unlike(path, 1, f"no column {missing[0]}")
    for line, row in enumerate(rows, 2):
        if not any(row):
            continue
        try:
            cells = {name: row[columns[name]].strip() for name in _COLUMNS}
            io = cells["io"].lower()
            if io not in (INPUT, OUTPUT):
                raise ValueError(io)
            yield Kernel(
                cells["optype"],
                cells["opname"],
                int(cells["taskid"]),
                int(cells["timestamp"]),
                io,
                int(cells["slot"]),
                path,
                cells["datatype"],
                tuple(int(n) for n in re.findall(r"[0-9]+", cells["shape"])),
                tuple(_figure(cells[name]) for name in FIGURES),
            )
        except (ValueError, IndexError) as error:
            raise _unlike(path, line, str(error)) from None


def _figure(cell: str) -> float | None:
    return None if cell.lower() in ("", "none", "null", "n/a") else float(cell)


def _unlike(path: Path, line: int, found: str) -> NumprobeError:
    return NumprobeError(
        "E-CMP-020",
        "{file} is no table of a graph's statistics: line {line}",
        where=str(path),
        found="{cell}",
        do="give it as MindSpore wrote it, or copy it again",
        file=path.name,
        line=line,
        cell=found[:200],
    )
