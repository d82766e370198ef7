"""What ``--compat msprobe`` writes: the files of msProbe's ``compare``, from the records that were paired here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from numprobe.align.mapping import given_leaves
from numprobe.compare.msprobe.columns import Mode, header
from numprobe.compare.msprobe.diff_analyze import write_first, write_states
from numprobe.compare.msprobe.figures import statistics_figures
from numprobe.compare.msprobe.files import new_text, result_name, result_sheets, timestamp, write_csv, write_xlsx
from numprobe.compare.msprobe.rows import Row, cells, rows
from numprobe.compare.msprobe.tables import rank_rows
from numprobe.compare.result import CompareResult, Finding
from numprobe.formats.dump import Dump, RankDump
from numprobe.formats.layout import DUMP_FILES, RankFolder
from numprobe.metrics.reference import NOT_APPLICABLE
from numprobe.report.run_folder import writing

if TYPE_CHECKING:
    from numprobe.compare.rank import Compared

_RESULT = re.compile(r"(?:debug_)?compare_result(?:_[a-z]+[0-9]*)?_([0-9]{14})(?:_part_[0-9]+)?\.(?:csv|xlsx|json)")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_YAML_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))


@dataclass(frozen=True)
class Compat:
    """Where and what. ``stamp`` is in all names, the rank where ``by_rank``; where ``by_step``, every step has its own folder.
    ``first_diff``: what ``-da`` writes instead of tables. ``data_mapping``: also which leaf was compared with which."""

    folder: Path
    stamp: str
    xlsx: bool = False
    first_diff: bool = False
    by_rank: bool = False
    by_step: bool = False
    data_mapping: bool = False

    def place(self, step: int | None, rank: RankFolder) -> tuple[Path, str]:
        """The folder, and the name of a rank's result without its suffix."""
        folder = self.folder / f"step{step}" if self.by_step and step is not None else self.folder
        key = self.key(rank) if self.by_rank else ""
        return folder, result_name(self.stamp, rank=key, debug=rank.file == DUMP_FILES[1])

    def has(self, step: int | None, rank: RankFolder) -> bool:
        """Is the result of this rank there, from before?"""
        folder, name = self.place(step, rank)
        return any(folder.glob(f"{name}*"))

    def key(self, rank: RankFolder) -> str:
        """``rank3``, or the name of a process folder; a single file is rank 0."""
        if rank.rank is None:
            return rank.key if self.by_rank else "rank0"
        return f"rank{rank.rank}"


def compat_for(
    folder: Path, target: Path, *, by_step: bool, xlsx: bool, first_diff: bool, data_mapping: bool
) -> Compat:
    """How msProbe would name the results of this target. A run that is taken up again keeps the time in its names.

    Args:
        folder: of the run.
        by_step: each step in a folder of its own.
    """
    stamps = [found[1] for path in sorted(folder.rglob("*compare_result_*")) if (found := _RESULT.fullmatch(path.name))]
    single = target.is_file() or any((target / name).exists() for name in DUMP_FILES)
    stamp = stamps[0] if stamps else timestamp()
    return Compat(folder, stamp, xlsx, first_diff, not single, by_step, data_mapping)


def written(compat: Compat) -> list[str]:
    """The files that are there, relative to the run's folder."""
    every = (path for path in sorted(compat.folder.rglob("*")) if path.is_file())
    ours = ("compare_result", "debug_compare_result", "diff_analyze", "data_mapping")
    return [path.relative_to(compat.folder).as_posix() for path in every if path.name.startswith(ours)]


# --- one pair of ranks -----------------------------------------------------------------------------------------------


def write_rank(compared: Compared, compat: Compat) -> None:
    """Write the result of one pair of ranks. What an interrupted run left of it is replaced.

    Raises:
        NumprobeError: E-FMT-010 a dump.json cannot be read any more, E-OUT-002 it cannot be written.
    """
    task, target = compared.task, compared.target.dump
    folder, name = compat.place(task.step, task.target)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{name}*"):
            old.unlink()
    mode = _mode(compared)
    stack = target.place.stack.exists()
    lines = _rows(compared, Mode.STATISTICS if compat.first_diff and mode is Mode.TENSOR else mode, stack)
    if compat.first_diff:
        write_states(folder, name, lines, Mode.MD5 if mode is Mode.MD5 else Mode.STATISTICS, stack=stack)
        return
    mapped: list[tuple[str, str]] = []
    table = _cells(lines, mode, stack, mapped if compat.data_mapping else None)
    custom = task.metrics.columns if task.metrics is not None and mode is Mode.TENSOR else ()
    head = header(mode, stack=stack, custom=custom)
    if compat.xlsx:
        write_xlsx(folder / f"{name}.xlsx", result_sheets(head, table))
    else:
        write_csv(folder, name, head, table)
    if compat.data_mapping:
        _write_data_mapping(folder / f"{name.replace('compare_result', 'data_mapping')}.yaml", mapped)


def _mode(compared: Compared) -> Mode:
    """Tensors, if both sides are said to have them; checksums, if both have some; else statistics."""
    task, sides = compared.task, (compared.target, compared.golden)
    if task.tensors and all(side.dump.index.info.task == "tensor" for side in sides):
        return Mode.TENSOR
    digests = not task.ignore_digests and all(side.values.digests for side in sides)
    return Mode.MD5 if digests else Mode.STATISTICS


def _rows(compared: Compared, mode: Mode, stack: bool) -> Iterator[Row]:
    task, records, target = compared.task, compared.records, compared.target.dump
    pairs = [(t, g if g >= 0 else None) for t, g in zip(records.target, records.golden, strict=True) if t >= 0]
    given = given_leaves(task.mapping, records, compared.target, compared.golden)
    stacks = dict(target.stacks.every()) if stack else None
    return rank_rows(
        compared.target,
        compared.golden,
        pairs,
        mode,
        stacks,
        given=given,
        threads=task.threads,
        device=task.device,
        custom=compared.custom,
    )


def _cells(
    lines: Iterable[Row], mode: Mode, stack: bool, mapped: list[tuple[str, str]] | None
) -> Iterator[list[object]]:
    for row in lines:
        if mapped is not None:
            mapped.append((row.target.name, row.golden.name if row.golden else NOT_APPLICABLE))
        yield list(cells(row, mode, stack=stack))


def _write_data_mapping(path: Path, mapped: Iterable[tuple[str, str]]) -> None:
    path.unlink(missing_ok=True)
    with new_text(path) as file:
        file.writelines(f"{_scalar(one)}: {_scalar(other)}\n" for one, other in mapped)


def _scalar(text: str) -> str:
    """A text as YAML: plain where that means the same, else in quotes."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS else json.dumps(text)


# --- the first difference ---------------------------------------------------------------------------------------------


def write_first_diff(result: CompareResult, compat: Compat, one: Dump, other: Dump) -> Path | None:
    """Write the record of the first finding, on every rank that shows it. Nothing where nothing differs.

    Raises:
        NumprobeError: E-FMT-010 a dump.json cannot be read any more, E-OUT-002 it cannot be written.
    """
    with writing(compat.folder):
        for old in compat.folder.glob("diff_analyze_*.json"):
            old.unlink()
    first = next((f for f in result.findings if f.severity == "error" and f.op is not None), None)
    if first is None or first.op is None:
        return None
    found: dict[str, dict[str, list[Row]]] = {}
    mode = Mode.STATISTICS
    for pair in result.ranks:
        if pair.step == first.step and pair.target in first.rank_keys:
            target, golden = _rank(one, pair.step, pair.target), _rank(other, pair.step, pair.golden)
            if target is not None and golden is not None:
                of_rank, mode = _record_rows(first, target, golden)
                found[compat.key(target.place)] = {first.op: of_rank}
    return write_first(compat.folder, found, mode) if found else None


def _rank(dump: Dump, step: int | None, key: str) -> RankDump | None:
    """The rank of that name; of ranks that were put together, the first."""
    steps = [s for s in dump.steps if s.step == step] or dump.steps
    names = (key, key.partition("+")[0])
    return next((dump.rank(rank) for s in steps for rank in s.ranks if rank.key in names), None)


def _record_rows(first: Finding, target: RankDump, golden: RankDump) -> tuple[list[Row], Mode]:
    records = []
    for rank, op in ((target, first.op), (golden, first.golden_op)):
        position = rank.find(op) if op is not None else None
        records.append(rank.record(position) if position is not None else None)
    digests = all(r is not None and any("md5" in v.attributes for v in r.values) for r in records)
    mode = Mode.MD5 if digests else Mode.STATISTICS
    name = first.op or ""
    stack = target.stacks.get(name)
    return list(rows([(records[0], records[1])], mode, statistics_figures, {name: stack} if stack else None)), mode
