"""A run of the skill from start to end: folder, progress, screen, exit code."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from numprobe.diagnose.nan_overflow.artifacts import write_artifacts
from numprobe.diagnose.nan_overflow.messages import CATALOGUE, say
from numprobe.diagnose.nan_overflow.page.screen import render_json_line, render_rank_map, render_terminal
from numprobe.diagnose.nan_overflow.skill import STAGES, Analysis, NanOptions, analyse
from numprobe.execution.memory import without_collector
from numprobe.execution.stages import Listener, ignore
from numprobe.formats.dump import open_dump
from numprobe.record.errors import NumprobeError
from numprobe.report.progress import progress_display
from numprobe.report.run_folder import RunFolder, open_run
from numprobe.report.terminal import Style, printable

MAX_WARNINGS = 8
CODES = {"missing": "E-FMT-020", "partial": "E-FMT-021"}  # an unreadable rank's reason has its own


def run_to_folder(
    dump: Path,
    options: NanOptions | None,
    out: Path | None,
    *,
    lang: str = "en",
    compat: bool = False,
    full_digest: bool = False,
    listener: Listener = ignore,
) -> tuple[Analysis, RunFolder]:
    """Analyse ``dump`` and write the run's folder. An interrupted run keeps its manifest and the per-rank cache.

    Raises:
        NumprobeError: nothing readable at ``dump``, or ``out`` holds something else.
    """
    options = options or NanOptions()
    opened = open_dump(dump, use_cache=options.use_cache)  # a wrong path fails before an output folder is made
    _refuse_inside(opened.root, out)
    run = open_run("nan", out, {"dump": str(dump.resolve())}, _manifest_options(options, lang, compat))
    try:
        with without_collector():
            analysis = analyse(opened, options, listener, lang=lang)
            write_artifacts(run, analysis, lang, compat=compat)
    except KeyboardInterrupt:
        run.finish("interrupted")
        raise
    except BaseException:
        run.finish("failed")
        raise
    run.finish("done", timings=analysis.timings, input_files=_inputs(analysis, full_digest))
    return analysis, run


def run_command(
    dump: Path,
    options: NanOptions,
    *,
    style_out: Style,
    style_err: Style,
    lang: str,
    out: Path | None = None,
    as_json: bool = False,
    compat: bool = False,
    progress: str = "auto",
    full_digest: bool = False,
    verbose: bool = False,
    quiet: bool = False,
) -> int:
    """The command: progress on stderr, the conclusion on stdout, the exit code of the verdict."""
    display = progress_display(progress, sys.stderr, STAGES, CATALOGUE, lang, style_err, quiet=quiet)
    try:
        analysis, run = run_to_folder(
            dump, options, out, lang=lang, compat=compat, full_digest=full_digest, listener=display
        )
    finally:
        display.close()
    result = analysis.result
    for line in _unread(analysis, lang, style_err):
        print(line, file=sys.stderr)
    folder = run.path.as_posix()
    try:
        if as_json:
            print(render_json_line(result, folder))
        else:
            print(render_terminal(result, lang, style_out, "" if verbose else f"{folder}/report.html"))
            if verbose:
                print(
                    f"\n{render_rank_map(result, lang, style_out)}\n\n{say(lang, 'screen.report')}  {folder}/report.html"
                )
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone; the exit code still tells
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return result.exit_code


def _unread(analysis: Analysis, lang: str, style: Style) -> list[str]:
    """One line for each rank that was not read whole: what and where; then what to do."""
    lines: list[str] = []
    ranks: list[int] = []
    for row in analysis.result.ranks:
        if row.note is None:
            continue
        what = say(lang, row.note.key, **row.note.values)
        code = f"{CODES[row.status]}  " if row.status in CODES else ""
        lines.append(f"{style.symbol('warning')} {code}{printable(f'{row.rank_key}/dump.json: {what}')}")
        ranks += [row.rank] if row.rank is not None else []
    if len(lines) > MAX_WARNINGS:
        lines[MAX_WARNINGS:] = [f"{style.symbol('warning')} +{len(lines) - MAX_WARNINGS}: report.md"]
    return [*lines, f"  {say(lang, 'check.read_rank', ranks=ranks)}"] if ranks else lines


def _refuse_inside(root: Path, out: Path | None) -> None:
    """Fail on an output folder inside the dump."""
    root, folder = root.resolve(), (out or Path("numprobe_out")).resolve()
    if folder == root or root in folder.parents:
        raise NumprobeError(
            "E-OUT-003",
            "the output would lie inside the dump, which is never written to",
            where=str(out or folder),
            do="choose an -o outside of the dump",
        )


def _manifest_options(options: NanOptions, lang: str, compat: bool) -> dict[str, Any]:
    return {
        "step": sorted(options.steps) if options.steps is not None else None,
        "rank": sorted(options.ranks) if options.ranks is not None else None,
        "exclude": list(options.exclude),
        "top": options.top,
        "lang": lang,
        "compat": "msprobe" if compat else None,
    }


def _inputs(analysis: Analysis, full: bool) -> list[dict[str, object]]:
    """The files that were read: size, time of change, and a digest of their edges or of the whole."""
    files: list[dict[str, object]] = []
    if analysis.view is None:
        return files
    for digest in analysis.view.digests:
        dump = analysis.view.dumps.get(digest.key)
        if dump is None:
            continue
        state = dump.place.dump.stat()
        entry: dict[str, object] = {
            "file": str(dump.place.dump),
            "size": state.st_size,
            "mtime_ns": state.st_mtime_ns,
            "edges_blake2b": digest.edges,
        }
        if full:
            with dump.place.dump.open("rb") as content:
                whole = hashlib.blake2b(digest_size=32)
                while block := content.read(1 << 22):
                    whole.update(block)
            entry["blake2b"] = whole.hexdigest()
        files.append(entry)
    return files
