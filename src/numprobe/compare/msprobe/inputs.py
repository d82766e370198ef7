"""What merging is given: result files, folders of them, folders of numprobe's runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from numprobe.compare.msprobe.results import RankResult, is_result, read_files, twice
from numprobe.compare.msprobe.run_results import TABLE, read_run
from numprobe.compare.msprobe.selection import Selection
from numprobe.record.errors import NumprobeError


def read_results(paths: Iterable[Path], selection: Selection, step: int | None = None) -> list[RankResult]:
    """The results of all ranks, by rank.

    A folder stands for the results in it: those of msProbe's names (parts of a split csv are joined), else the table of a run.

    Args:
        step: of a run that compared several.

    Raises:
        NumprobeError: E-CMP-031 not a result file by its name, E-CMP-032 a file cannot be read, E-CMP-033 it is no table of
            results, E-CMP-034 two results of one rank, or of different modes, E-CMP-035 fewer than two ranks, E-CMP-036 an index
            that the results do not have, E-CMP-038 which step is not said.
    """
    paths = list(paths)
    runs: list[Path] = []
    files: list[Path] = []
    for path in paths:
        inside = _inside(path) if path.is_dir() else [path]
        for file in inside:
            (runs if file.suffix == ".parquet" else files).append(file)
    results = read_files(files, selection)
    results += [result for file in runs for result in read_run(file, selection, step)]
    results.sort(key=lambda result: result.rank)
    _check(results, paths)
    return results


def _inside(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if is_result(path))
    table = folder / TABLE
    return found or ([table] if table.is_file() else [])


def _check(results: Sequence[RankResult], paths: Sequence[Path]) -> None:
    if len(results) < 2:
        raise NumprobeError(
            "E-CMP-035",
            "merging takes the results of two ranks or more",
            where=", ".join(map(str, paths)),
            found="{number} results of ranks",
            do="compare the step folders of several ranks first, and give the folder with their results",
            number=len(results),
        )
    for before, result in pairwise(results):
        if result.rank == before.rank:
            raise twice(result.rank, before.files[0], result.files[0])
        if result.mode is not before.mode or result.cells.keys() != before.cells.keys():
            raise NumprobeError(
                "E-CMP-034",
                "results of different modes: {one} and {other}",
                where=f"{before.files[0]}, {result.files[0]}",
                do="merge results of one mode",
                one=_mode(before),
                other=_mode(result),
            )


def _mode(result: RankResult) -> str:
    return f"{result.mode.value} ({result.files[0].suffix})"
