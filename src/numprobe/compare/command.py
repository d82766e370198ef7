"""A comparison from start to end: folder, progress, screen, exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from numprobe.align.mapping import NO_MAPPING
from numprobe.align.unknown import Unknown
from numprobe.compare.messages import CATALOGUE
from numprobe.compare.page.html import render_html
from numprobe.compare.page.markdown import render_markdown
from numprobe.compare.page.rows import custom_columns, page_rows
from numprobe.compare.page.screen import render_json_line, render_terminal
from numprobe.compare.processing import NO_PROCESSING
from numprobe.compare.run import STAGES, CompareOptions, Comparison, compare
from numprobe.compare.table import read_parquet, write_parquet, write_whole
from numprobe.execution.memory import polars_keeps_nothing, without_collector
from numprobe.execution.stages import Listener, ignore
from numprobe.formats.dump import Dump, open_dump
from numprobe.formats.layout import choose_steps
from numprobe.record.errors import NumprobeError
from numprobe.report.errors import error_object, render_error
from numprobe.report.language import is_utf8
from numprobe.report.progress import json_line, progress_display
from numprobe.report.run_folder import OUT, RunFolder, open_run, writing
from numprobe.report.running import Told, marked, print_conclusion, refuse_inside
from numprobe.report.terminal import Style

if TYPE_CHECKING:
    from numprobe.compare.msprobe.output import Compat

TABLE = "compare.parquet"
WRONG = ("error", "warning", "unmatched_target", "unmatched_golden")


@dataclass(frozen=True)
class Output:
    """What is written beside the report: ``tables`` of csv and xlsx; ``only_fail`` and ``filter`` choose their rows.

    ``compat``: msProbe's files too, ``xlsx`` instead of csv; with ``first_diff`` those of its ``-da``.
    """

    tables: tuple[str, ...] = ()
    only_fail: bool = False
    filter: str = ""
    top: int = 5
    compat: bool = False
    xlsx: bool = False
    first_diff: bool = False


def run_to_folder(
    target: str | Path,
    golden: str | Path,
    options: CompareOptions | None = None,
    out: Path | None = None,
    output: Output | None = None,
    *,
    lang: str = "en",
    listener: Listener = ignore,
) -> tuple[Comparison, RunFolder]:
    """Compare and write the run's folder. An interrupted run keeps the pairs of ranks that were done, and goes on from there.

    Raises:
        NumprobeError: as :func:`~numprobe.compare.run.compare`, or ``out`` holds something else.
    """
    options, output = options or CompareOptions(), output or Output()
    paths = [target, golden, *(path for path in (options.noise, options.baseline) if path is not None)]
    dumps = [open_dump(path, use_cache=options.use_cache) for path in paths]
    for dump in dumps:  # a wrong path fails before an output folder is made
        refuse_inside(dump, out)
    told = Told(listener)
    inputs: dict[str, object] = {"target": str(Path(target).resolve()), "golden": str(Path(golden).resolve())}
    there = next(folder for folder in (out or OUT / "run").absolute().parents if folder.exists())
    run = open_run("compare", out, inputs, _manifest_options(options, output, lang))
    with discarded_if_empty(run, there), marked(run, told), without_collector():
        parts = run.path / "parts"
        with writing(run.path):
            parts.mkdir(exist_ok=True)
        if output.compat:
            options = replace(options, compat=_compat(run.path, Path(target), dumps[0], options, output))
        comparison = compare(target, golden, options, parts=parts, listener=told)
        if options.compat is not None:
            from numprobe.compare.msprobe.output import write_first_diff, written

            if output.first_diff:
                write_first_diff(comparison.result, options.compat, *dumps[:2])
            run.artifacts += written(options.compat)
        _write(run, comparison, output, lang)
    run.finish("done")
    return comparison, run


@contextmanager
def discarded_if_empty(run: RunFolder, there: Path) -> Iterator[None]:
    """Inside, an error of the input that comes before anything is written leaves no folder behind, below the one that was
    ``there`` before the run."""
    try:
        yield
    except NumprobeError:
        run.discard()
        with suppress(OSError):  # others write there too
            for folder in run.path.absolute().parents:
                if folder.is_relative_to(there) and folder != there:
                    folder.rmdir()
        raise


def _compat(folder: Path, target: Path, dump: Dump, options: CompareOptions, output: Output) -> Compat:
    from numprobe.compare.msprobe.output import compat_for

    steps = choose_steps(dump.steps, options.steps, options.ranks)
    mapped = options.mapping.layers is not None
    return compat_for(folder, target, len(steps), xlsx=output.xlsx, first_diff=output.first_diff, data_mapping=mapped)


def _manifest_options(options: CompareOptions, output: Output, lang: str) -> dict[str, object]:
    return {
        "step": sorted(options.steps) if options.steps is not None else None,
        "rank": sorted(options.ranks) if options.ranks is not None else None,
        "noise": str(options.noise) if options.noise else None,
        "baseline": str(options.baseline) if options.baseline else None,
        "factor": options.factor,
        "by": options.by,
        "merge": options.merge,
        "device": options.device,
        "metrics": str(options.metrics) if options.metrics is not None else None,
        "mapping": asdict(options.mapping) if options.mapping != NO_MAPPING else None,
        "processing": asdict(options.processing) if options.processing != NO_PROCESSING else None,
        "tables": list(output.tables),
        "only_fail": output.only_fail,
        "filter": output.filter,
        "compat": [name for name in ("compat", "xlsx", "first_diff") if getattr(output, name)],
        "lang": lang,
    }


def _write(run: RunFolder, comparison: Comparison, output: Output, lang: str) -> None:
    result = comparison.result
    _write_tables(run, comparison.parts, output)
    run.write_json("result.json", result)
    run.write_text("report.md", render_markdown(result, lang))
    table = run.path / TABLE
    rows, custom = page_rows(table), custom_columns(table)
    run.write_text("report.html", render_html(result, lang, artifacts=run.artifacts, rows=rows, custom=custom))


def _write_tables(run: RunFolder, parts: Sequence[Path], output: Output) -> None:
    """The parts as one table, and copies of it for spreadsheets."""
    import polars as pl

    from numprobe.compare.spreadsheet import write_table

    with writing(run.path):
        if len(parts) == 1:
            write_whole(run.path / TABLE, parts[0].read_bytes())
        else:  # those of tensors have more columns, and metrics may give texts
            write_parquet(pl.concat([read_parquet(part) for part in parts], how="diagonal_relaxed"), run.path / TABLE)
    run.artifacts.append(TABLE)
    if not output.tables:
        return
    shown = read_parquet(run.path / TABLE)
    if output.only_fail:
        shown = shown.filter(pl.col("verdict").is_in(WRONG))
    if output.filter:
        names = pl.concat_str(["target_op", "golden_op", "path"], separator=" ", ignore_nulls=True)
        shown = shown.filter(names.str.contains(output.filter, literal=True))
    for kind in output.tables:
        name = f"compare.{kind}"
        write_table(shown, run.path / name)
        run.artifacts.append(name)


def run_command(
    target: str | Path,
    golden: str | Path,
    options: CompareOptions,
    output: Output,
    *,
    style_out: Style,
    style_err: Style,
    lang: str,
    out: Path | None = None,
    as_json: bool = False,
    progress: str = "auto",
    quiet: bool = False,
) -> int:
    """The command: progress on stderr, the conclusion on stdout, the exit code of the verdict."""
    polars_keeps_nothing()
    display = progress_display(progress, sys.stderr, STAGES, CATALOGUE, lang, style_err, quiet=quiet)
    try:
        comparison, run = run_to_folder(target, golden, options, out, output, lang=lang, listener=display)
    finally:
        display.close()
    for warning in map(_warning, comparison.unknown):
        if progress == "json":
            print(json_line({**error_object(warning, lang), "kind": "warning"}, sys.stderr), file=sys.stderr)
        else:
            print(render_error(warning, lang, style_err, symbol="warning"), file=sys.stderr)
    folder = run.path.as_posix()
    if as_json:
        print_conclusion(render_json_line(comparison.result, folder, ascii_only=not is_utf8(sys.stdout.encoding)))
    else:
        print_conclusion(render_terminal(comparison.result, lang, style_out, f"{folder}/report.html", most=output.top))
    return comparison.result.exit_code


def _warning(unknown: Unknown) -> NumprobeError:
    """Not raised: a name in a mapping may be of a part of the model that was not recorded."""
    return NumprobeError(
        "E-CMP-014",
        "no record of the target is called {name}"
        if unknown.side == "target"
        else "no record of the golden run is called {name}",
        where=unknown.option,
        found="",
        do="check the mapping: the nearest is {nearest}" if unknown.nearest else "check the mapping",
        name=unknown.name,
        nearest=unknown.nearest,
    )
