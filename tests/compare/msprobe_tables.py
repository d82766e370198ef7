"""Help for the tests of msProbe's tables: ours and a stored one, cell by cell."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from numprobe.compare.msprobe.columns import STACK, Mode, header
from numprobe.compare.msprobe.figures import figures_for
from numprobe.compare.msprobe.rows import Row, cells, rows
from numprobe.formats.dump import RankDump, open_dump
from numprobe.formats.tensors import TensorFolder
from numprobe.record.trace import Record

from .by_name import pair_by_name

Table = tuple[list[str], list[list[str]]]


def only_rank(path: Path) -> RankDump:
    dump = open_dump(path, use_cache=False)
    return dump.rank(dump.steps[0].ranks[0])


def records(rank: RankDump) -> list[Record]:
    return rank.records(range(len(rank.index.names)))


def our_rows(target: Path, golden: Path, mode: Mode) -> Iterator[Row]:
    """The rows of two ranks, matched as msProbe does."""
    one, other = only_rank(target), only_rank(golden)
    ts, gs = records(one), records(other)
    pairs = pair_by_name([r.name for r in ts], [r.name for r in gs])
    folders = (TensorFolder(rank.place.folder / "dump_tensor_data") for rank in (one, other))
    figures = figures_for(mode, *folders)
    yield from rows(((ts[t], gs[g] if g is not None else None) for t, g in pairs), mode, figures, one.stacks)


def our_table(target: Path, golden: Path, mode: Mode, *, stack: bool) -> Table:
    lines = [cells(row, mode, stack=stack) for row in our_rows(target, golden, mode)]
    return list(header(mode, stack=stack)), [[text(cell) for cell in line] for line in lines]


def text(cell: object) -> str:
    """A cell as a csv has it."""
    if isinstance(cell, float) and math.isinf(cell):
        return f" {cell}"
    return str(cell)


def csv_table(path: Path) -> Table:
    with path.open(encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    return head, lines


def differences(ours: Table, theirs: Table) -> list[str]:
    """What differs, as lines of ``row: column: ours / theirs``; numbers to 1e-9, everything else exactly."""
    if ours[0] != theirs[0]:
        return [f"header: {ours[0]} / {theirs[0]}"]
    names = [line[0] for line in ours[1]], [line[0] for line in theirs[1]]
    if names[0] != names[1]:
        return [f"rows: {names[0]} / {names[1]}"]
    return [
        f"{theirs_line[0]}: {column}: {a} / {b}"
        for our_line, theirs_line in zip(ours[1], theirs[1], strict=True)
        for column, a, b in zip(ours[0], our_line, theirs_line, strict=True)
        if not same(a, b)
    ]


def same(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    try:
        a, b = float(ours.removesuffix("%")), float(theirs.removesuffix("%"))
    except ValueError:
        return False
    return ours.endswith("%") == theirs.endswith("%") and math.isclose(a, b, rel_tol=1e-9, abs_tol=0.0)


def compare_folder(folder: Path, mode: Mode, result: Path) -> list[str]:
    """Differences between a stored result and ours on ``folder/target`` and ``folder/golden``."""
    theirs = csv_table(result)
    return differences(our_table(folder / "target", folder / "golden", mode, stack=STACK in theirs[0]), theirs)


def the_csv(folder: Path) -> Path:
    (found,) = sorted(folder.glob("*.csv"))
    return found


def column(table: Table, name: str) -> Sequence[str]:
    i = table[0].index(name)
    return [line[i] for line in table[1]]
