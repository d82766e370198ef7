"""A comparison from start to end: folder, progress, screen, exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from numprobe.compare.messages import CATALOGUE
from numprobe.compare.page.html import render_html
from numprobe.compare.page.markdown import render_markdown
from numprobe.compare.page.rows import page_rows
from numprobe.compare.page.screen import render_json_line, render_terminal
from numprobe.compare.run import STAGES, CompareOptions, Comparison, compare
from numprobe.compare.table import write_parquet
from numprobe.execution.memory import without_collector
from numprobe.execution.stages import Listener, ignore
from numprobe.formats.dump import open_dump
from numprobe.report.language import is_utf8
from numprobe.report.progress import progress_display
from numprobe.report.run_folder import RunFolder, open_run, writing
from numprobe.report.running import Told, marked, print_conclusion, refuse_inside
from numprobe.report.terminal import Style

if TYPE_CHECKING:
    import polars as pl

TABLE = "compare.parquet"
WRONG = ("error", "warning", "unmatched_target", "unmatched_golden")


@dataclass(frozen=True)
class Output:
    """What is written beside the report: ``tables`` of csv and xlsx; ``only_fail`` and ``filter`` choose their rows."""

    tables: tuple[str, ...] = ()
    only_fail: bool = False
    filter: str = ""
    top: int = 5


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
    for path in (target, golden):  # a wrong path fails before an output folder is made
        refuse_inside(open_dump(path, use_cache=options.use_cache), out)
    told = Told(listener)
    inputs: dict[str, object] = {"target": str(Path(target).resolve()), "golden": str(Path(golden).resolve())}
    run = open_run("compare", out, inputs, _manifest_options(options, output, lang))
    with marked(run, told), without_collector():
        parts = run.path / "parts"
        with writing(run.path):
            parts.mkdir(exist_ok=True)
        comparison = compare(target, golden, options, parts=parts, listener=told)
        _write(run, comparison, output, lang)
    run.finish("done")
    return comparison, run


def _manifest_options(options: CompareOptions, output: Output, lang: str) -> dict[str, object]:
    return {
        "step": sorted(options.steps) if options.steps is not None else None,
        "rank": sorted(options.ranks) if options.ranks is not None else None,
        "noise": str(options.noise) if options.noise else None,
        "baseline": str(options.baseline) if options.baseline else None,
        "factor": options.factor,
        "by": options.by,
        "tables": list(output.tables),
        "only_fail": output.only_fail,
        "filter": output.filter,
        "lang": lang,
    }


def _write(run: RunFolder, comparison: Comparison, output: Output, lang: str) -> None:
    result = comparison.result
    _write_tables(run, comparison.parts, output)
    run.write_json("result.json", result)
    run.write_text("report.md", render_markdown(result, lang))
    run.write_text("report.html", render_html(result, lang, artifacts=run.artifacts, rows=page_rows(run.path / TABLE)))


def _write_tables(run: RunFolder, parts: Sequence[Path], output: Output) -> None:
    """The parts as one table, and copies of it for spreadsheets."""
    import polars as pl

    frame = pl.concat([pl.read_parquet(part) for part in parts])
    with writing(run.path):
        write_parquet(frame, run.path / TABLE)
    run.artifacts.append(TABLE)
    shown = frame
    if output.only_fail:
        shown = shown.filter(pl.col("verdict").is_in(WRONG))
    if output.filter:
        names = pl.concat_str(["target_op", "golden_op", "path"], separator=" ", ignore_nulls=True)
        shown = shown.filter(names.str.contains(output.filter, literal=True))
    for kind in output.tables:
        name = f"compare.{kind}"
        with writing(run.path):
            if kind == "csv":
                _plain_text(shown).write_csv(run.path / name)
            else:
                _workbook(_plain_text(shown), run.path / name)
        run.artifacts.append(name)


def _plain_text(frame: pl.DataFrame) -> pl.DataFrame:
    """Text that a spreadsheet would take for a formula gets a ``'`` in front."""
    import polars as pl

    text = pl.selectors.string() if hasattr(pl, "selectors") else pl.col(pl.String)
    return frame.with_columns(pl.when(text.str.contains(r"^[=+\-@]")).then("'" + text).otherwise(text).name.keep())


def _workbook(frame: pl.DataFrame, path: Path) -> None:
    from datetime import datetime

    import xlsxwriter  # type: ignore[import-untyped]

    with xlsxwriter.Workbook(str(path), {"nan_inf_to_errors": True}) as book:
        book.set_properties({"created": datetime(2000, 1, 1)})
        for number, piece in enumerate(frame.iter_slices(1_048_500)):
            piece.write_excel(book, worksheet=f"part_{number}", autofit=False)


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
    display = progress_display(progress, sys.stderr, STAGES, CATALOGUE, lang, style_err, quiet=quiet)
    try:
        comparison, run = run_to_folder(target, golden, options, out, output, lang=lang, listener=display)
    finally:
        display.close()
    folder = run.path.as_posix()
    if as_json:
        print_conclusion(render_json_line(comparison.result, folder, ascii_only=not is_utf8(sys.stdout.encoding)))
    else:
        print_conclusion(render_terminal(comparison.result, lang, style_out, f"{folder}/report.html", most=output.top))
    return comparison.result.exit_code
