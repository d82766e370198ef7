"""A comparison from start to end: folder, progress, screen, exit code."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from numprobe.align.mapping import NO_MAPPING
from numprobe.align.unknown import Unknown
from numprobe.compare.messages import CATALOGUE
from numprobe.compare.mixed import kinds_of, not_compared
from numprobe.compare.page.html import render_html
from numprobe.compare.page.markdown import render_markdown
from numprobe.compare.page.rows import custom_columns, page_rows
from numprobe.compare.page.screen import render_json_line, render_terminal
from numprobe.compare.processing import NO_PROCESSING
from numprobe.compare.result import EXIT_CODES, Problem
from numprobe.compare.run import STAGES, CompareOptions, Comparison, compare
from numprobe.compare.table import read_parquet, write_parquet, write_whole
from numprobe.execution.memory import polars_keeps_nothing, without_collector
from numprobe.execution.stages import Listener, ignore
from numprobe.formats.dump import Dump, open_dump
from numprobe.formats.layout import DumpLayout, choose_steps
from numprobe.record.errors import NumprobeError
from numprobe.report.errors import error_object, render_error
from numprobe.report.json_text import json_text
from numprobe.report.language import is_utf8
from numprobe.report.progress import json_line, progress_display
from numprobe.report.run_folder import OUT, RunFolder, default_folder, open_run, writing
from numprobe.report.running import Told, marked, print_conclusion, refuse_inside
from numprobe.report.terminal import Style, encodable

if TYPE_CHECKING:
    from numprobe.compare.kernels.found import KernelPair
    from numprobe.compare.msprobe.output import Compat

TABLE = "compare.parquet"
PARTS = "parts"
OWN = (TABLE, "result.json", "report.md", "report.html")  # files of every run
WRONG = ("error", "warning", "unmatched_target", "unmatched_golden")


@dataclass(frozen=True)
class Output:
    """What is written beside the report: ``tables`` of csv and xlsx; ``only_fail`` and ``filter`` choose their rows.

    ``compat``: msProbe's files too, ``xlsx`` instead of csv; with ``first_diff`` those of its ``-da``;
    with ``by_step`` in a folder a step, be it the only one.
    """

    tables: tuple[str, ...] = ()
    only_fail: bool = False
    filter: str = ""
    top: int = 5
    compat: bool = False
    xlsx: bool = False
    first_diff: bool = False
    by_step: bool = False


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
    dumps, kernels = _opened(paths, options.use_cache)
    for dump in dumps:  # a wrong path fails before an output folder is made
        refuse_inside(dump, out)
    told = Told(listener)
    inputs: dict[str, object] = {"target": str(Path(target).resolve()), "golden": str(Path(golden).resolve())}
    there = next(folder for folder in (out or OUT / "run").absolute().parents if folder.exists())
    run = open_run("compare", out, inputs, _manifest_options(options, output, lang))
    with discarded_if_empty(run, there), marked(run, told), without_collector():
        with writing(run.path):
            (run.path / PARTS).mkdir(exist_ok=True)
        if kernels is not None:
            comparison = _of_kernels(run, kernels, (target, golden), options, output, told)
        else:
            comparison = _of_dumps(run, dumps, (target, golden), options, output, told)
        _write(run, comparison, output, lang)
    run.finish("done")
    return comparison, run


def _opened(paths: Sequence[str | Path], use_cache: bool) -> tuple[list[Dump], KernelPair | None]:
    """The dumps at these places; where neither side has a dump.json, the kernels of a graph that lie there."""
    try:
        dumps = [open_dump(path, use_cache=use_cache) for path in paths]
        if any(not rank.problem for dump in dumps[:2] for step in dump.steps for rank in step.ranks):
            return dumps, None
        failure = None
    except NumprobeError as error:
        if error.code != "E-FMT-002":
            raise
        failure, dumps = error, []
    from numprobe.compare.kernels.found import kernel_pair

    kernels = kernel_pair(*paths[:2])
    if kernels is None and failure is not None:
        raise failure
    if kernels is not None:
        dumps = [Dump(DumpLayout(Path(path), ()), None) for path in paths[:2]]
    return dumps, kernels


def _of_dumps(
    run: RunFolder,
    dumps: Sequence[Dump],
    places: tuple[str | Path, str | Path],
    options: CompareOptions,
    output: Output,
    told: Told,
) -> Comparison:
    if output.compat:
        options = replace(options, compat=_compat(run.path, Path(places[0]), dumps[0], options, output))
    comparison = compare(*places, options, parts=run.path / PARTS, listener=told)
    if options.compat is not None:
        from numprobe.compare.msprobe.output import write_first_diff, written

        if output.first_diff:
            write_first_diff(comparison.result, options.compat, *dumps[:2])
        run.artifacts += written(options.compat)
    return comparison


def _of_kernels(
    run: RunFolder,
    kernels: KernelPair,
    places: tuple[str | Path, str | Path],
    options: CompareOptions,
    output: Output,
    told: Told,
) -> Comparison:
    """Kernels are made records first, which stay in the folder ``kernels`` of the run."""
    folder = run.path / "kernels"
    try:
        comparison = compare(*kernels.records(folder), options, parts=run.path / PARTS, listener=told)
    except NumprobeError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    result = comparison.result
    result.target, result.golden = (str(place) for place in places)
    result.problems = [problem for problem in result.problems if problem.kind != "linked"]  # that link is ours
    if Path(places[0]).resolve() == Path(places[1]).resolve():
        result.problems.append(Problem("same", "", None, "", encodable(result.target)))
    if output.compat:
        kernels.tables(run.path, options.ranks, options.steps, xlsx=output.xlsx)
        run.artifacts += sorted(path.name for path in run.path.glob("compare_result_*"))
    return comparison


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
    return compat_for(
        folder,
        target,
        by_step=len(steps) > 1 or output.by_step,
        xlsx=output.xlsx,
        first_diff=output.first_diff,
        data_mapping=mapped,
    )


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
    show = _Shown(style_out, style_err, lang, as_json, progress, quiet)
    kinds, alone = kinds_of(target, golden)
    if not kinds:
        comparison, run = _run_shown(target, golden, options, out, output, show)
        print_conclusion(_conclusion(comparison, run, output, show))
        return comparison.result.exit_code
    folder = out or default_folder("compare")
    found: dict[str, tuple[Comparison, RunFolder]] = {}
    for kind in kinds:
        found[kind] = _run_shown(
            Path(target, kind),
            Path(golden, kind),
            _of_kind(options, kind),
            folder / kind,
            replace(output, by_step=True),
            show,
        )
    for kind in alone:
        _warn(not_compared(target, golden, kind), show)
    verdicts = {comparison.result.verdict for comparison, _ in found.values()}
    verdict = "fail" if "fail" in verdicts else "inconclusive" if alone or len(verdicts) > 1 else verdicts.pop()
    texts = {kind: _conclusion(*one, output, show) for kind, one in found.items()}
    if as_json:
        content = {
            "verdict": verdict,
            "out": folder.as_posix(),
            "parts": {kind: json.loads(text) for kind, text in texts.items()},
            "not_compared": alone,
        }
        print_conclusion(json_text(content, ascii_only=not is_utf8(sys.stdout.encoding)))
    else:
        print_conclusion("\n\n".join(f"{style_out.paint(kind, 'strong')}\n{text}" for kind, text in texts.items()))
    return EXIT_CODES[verdict]


def _of_kind(options: CompareOptions, kind: str) -> CompareOptions:
    noise, baseline = (Path(path, kind) if path else None for path in (options.noise, options.baseline))
    return replace(options, noise=noise, baseline=baseline)


@dataclass(frozen=True)
class _Shown:
    """How a run is told."""

    style_out: Style
    style_err: Style
    lang: str
    as_json: bool
    progress: str
    quiet: bool


def _run_shown(
    target: str | Path, golden: str | Path, options: CompareOptions, out: Path | None, output: Output, show: _Shown
) -> tuple[Comparison, RunFolder]:
    """One run with its progress and warnings on stderr."""
    display = progress_display(
        show.progress, sys.stderr, STAGES, CATALOGUE, show.lang, show.style_err, quiet=show.quiet
    )
    try:
        comparison, run = run_to_folder(target, golden, options, out, output, lang=show.lang, listener=display)
    finally:
        display.close()
    for warning in map(_warning, comparison.unknown):
        _warn(warning, show)
    return comparison, run


def _warn(warning: NumprobeError, show: _Shown) -> None:
    if show.progress == "json":
        print(json_line({**error_object(warning, show.lang), "kind": "warning"}, sys.stderr), file=sys.stderr)
    else:
        print(render_error(warning, show.lang, show.style_err, symbol="warning"), file=sys.stderr)


def _conclusion(comparison: Comparison, run: RunFolder, output: Output, show: _Shown) -> str:
    folder = run.path.as_posix()
    if show.as_json:
        return render_json_line(comparison.result, folder, ascii_only=not is_utf8(sys.stdout.encoding))
    files = [f"{folder}/{name}" for name in run.artifacts if name not in OWN]
    report = f"{folder}/report.html"
    return render_terminal(comparison.result, show.lang, show.style_out, report, files=files, most=output.top)


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
