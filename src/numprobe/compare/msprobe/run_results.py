"""The table of a numprobe run (``compare.parquet``) as the results of its ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from numprobe.align.items import place
from numprobe.compare.msprobe.columns import DIFFERENCES, STATISTICS, Mode
from numprobe.compare.msprobe.items import figure, items_of
from numprobe.compare.msprobe.results import COMMUNICATION, MAXIMA, Communication, RankResult
from numprobe.compare.msprobe.selection import Selection
from numprobe.compare.msprobe.workbook import Cell
from numprobe.formats.dump import RankDump, open_dump
from numprobe.metrics.reference import statistics_columns
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name
from numprobe.report.run_folder import MANIFEST

if TYPE_CHECKING:
    import polars as pl

TABLE = "compare.parquet"
INDICES = ("verdict", "rho", "error", "expected")
FIGURES = tuple(f"{side}_{name}" for side in ("target", "golden") for name in ("max", "min", "mean", "norm"))
_NEEDED = {"step", "rank", "target_op", "path", *INDICES, *FIGURES}


def read_run(file: Path, selection: Selection, step: int | None) -> list[RankResult]:
    """The results in a run's table, by rank, of one step.

    Args:
        selection: ``indices`` may be columns of the table, or msProbe's of a statistics comparison.
        step: None where the table has one step only.

    Raises:
        NumprobeError: E-CMP-032 the file cannot be read, E-CMP-033 it is no table of compare, E-CMP-036 an index that it does not
            have, E-CMP-038 it has several steps, or not that one.
    """
    frame = _one_step(file, _frame(file), step)
    indices = selection.indices or INDICES
    for index in indices:
        if index not in (*frame.columns, *DIFFERENCES):
            raise NumprobeError(
                "E-CMP-036",
                "the results have no column {index}",
                where=str(file),
                found="{columns}",
                do="choose among their columns",
                index=index,
                columns=", ".join((*frame.columns, *DIFFERENCES)),
            )
    dumps = _Dumps(file.parent)
    ranks = sorted(rank for rank in frame["rank"].unique().to_list() if rank is not None)
    return [_rank(file, rank, frame, indices, selection, dumps) for rank in ranks]


def _frame(file: Path) -> pl.DataFrame:
    import polars as pl

    try:
        frame = pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise NumprobeError(
            "E-CMP-032",
            "a result cannot be read: {reason}",
            where=str(file),
            do="compare again, or leave this rank out",
            reason=getattr(error, "strerror", None) or " ".join(str(error).split())[:200],
        ) from None
    if not {*frame.columns} >= _NEEDED:
        raise NumprobeError(
            "E-CMP-033",
            "not a table of results",
            where=str(file),
            found="the columns {columns}",
            do="give what compare wrote, with its header",
            columns=", ".join(frame.columns)[:300],
        )
    return frame.filter(pl.col("target_op").is_not_null())


def _one_step(file: Path, frame: pl.DataFrame, step: int | None) -> pl.DataFrame:
    import polars as pl

    steps = sorted(s for s in frame["step"].unique().to_list() if s is not None)
    if step is None and len(steps) < 2:
        return frame
    if step not in steps:
        raise NumprobeError(
            "E-CMP-038",
            "the results are of several steps" if step is None else "the results have no step {step}",
            where=str(file),
            found="steps {steps}",
            do="choose one with --step",
            step=step if step is not None else "",
            steps=", ".join(map(str, steps)),
        )
    return frame.filter(pl.col("step") == step)


def _rank(
    file: Path, rank: int, frame: pl.DataFrame, indices: Sequence[str], selection: Selection, dumps: _Dumps
) -> RankResult:
    import polars as pl

    of_rank = frame.filter(pl.col("rank") == rank)
    names = [_item(op, path) for op, path in of_rank.select("target_op", "path").iter_rows()]
    seen: Counter[str] = Counter()
    keys: list[tuple[str, int]] = []
    for name in names:
        keys.append((name, seen[name]))
        seen[name] += 1
    kept = [i for i, name in enumerate(names) if selection.selects(name)]
    figures = of_rank.select(FIGURES).rows()
    cells: dict[str, list[Cell]] = {MAXIMA[0]: [figures[i][0] for i in kept], MAXIMA[1]: [figures[i][4] for i in kept]}
    for index in indices:
        if index in of_rank.columns:
            column = of_rank[index].to_list()
            cells[index] = [column[i] for i in kept]
        else:
            cells[index] = [_difference(figures[i], DIFFERENCES.index(index)) for i in kept]
    step = of_rank["step"].item(0) if len(of_rank) else None
    communication = list(_communication(dumps.rank(step, rank), dict(zip(names, figures, strict=True))))
    counts = Counter(_COUNTED_AS.get(verdict, verdict) for verdict in of_rank["verdict"].to_list())
    return RankResult(rank, Mode.STATISTICS, keys, kept, cells, communication, (file,), counts)


_COUNTED_AS = {"unmatched_target": "warning", "incomparable": "warning"}


def _item(op: str, path: str) -> str:
    return f"{op}{place(parse_name(op), path)[2]}"


def _difference(figures: Sequence[float | None], column: int) -> Cell:
    target, golden = ([figure(value) for value in side] for side in (figures[:4], figures[4:]))
    return statistics_columns(tuple(target), tuple(golden))[column]


def _communication(dump: RankDump | None, figures: Mapping[str, Sequence[float | None]]) -> Iterator[Communication]:
    """What the ranks' collectives gave: of the target from its dump, which knows the groups too."""
    if dump is None:
        return
    positions = [i for i, name in enumerate(dump.index.names) if name.startswith(COMMUNICATION)]
    for record in dump.records(positions):
        for item in items_of(record):
            golden = figures.get(f"{record.name.name}{item.key}", (None,) * len(STATISTICS))[4:]
            yield Communication(
                f"{record.name.name}{item.key}",
                item.dtype,
                (item.max, item.min, item.mean, item.norm),
                tuple(figure(value) for value in golden) if any(value is not None for value in golden) else (),
            )


class _Dumps:
    """The target that a run compared, if it still lies where it was."""

    def __init__(self, run: Path) -> None:
        self._run = run

    @cached_property
    def _dump(self) -> dict[tuple[int | None, int | None], RankDump]:
        try:
            manifest = json.loads((self._run / MANIFEST).read_text(encoding="utf-8"))
            dump = open_dump(manifest["inputs"]["target"])
        except (OSError, ValueError, KeyError, TypeError, NumprobeError):
            return {}
        return {(s.step, r.rank): dump.rank(r) for s in dump.steps for r in s.ranks if not r.problem}

    def rank(self, step: int | None, rank: int) -> RankDump | None:
        return self._dump.get((step, rank))
