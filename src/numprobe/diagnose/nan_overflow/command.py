"""A run of the skill from start to end: folder, progress, screen, exit code."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from typing import Any

from numprobe.diagnose.nan_overflow.artifacts import write_artifacts
from numprobe.diagnose.nan_overflow.messages import CATALOGUE, say
from numprobe.diagnose.nan_overflow.page.screen import render_json_line, render_rank_map, render_terminal
from numprobe.diagnose.nan_overflow.result import RankRow
from numprobe.diagnose.nan_overflow.skill import STAGES, Analysis, NanOptions, analyse
from numprobe.execution.memory import without_collector
from numprobe.execution.stages import Listener, ignore
from numprobe.formats.dump import open_dump
from numprobe.report.language import is_utf8
from numprobe.report.progress import json_line, progress_display
from numprobe.report.run_folder import RunFolder, open_run
from numprobe.report.running import Told, marked, print_conclusion, refuse_inside
from numprobe.report.terminal import Style, printable

MAX_WARNINGS = 8
CODES = {"missing": "E-FMT-020", "partial": "E-FMT-021"}  # an unreadable rank's reason has its own
REMEDIES = {"missing": "check.read_missing", "partial": "check.read_partial", "unreadable": "check.read_unreadable"}
_CODE = re.compile(r"E-[A-Z]{3}-[0-9]{3}")


def run_to_folder(
    dump: str | Path,
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
    refuse_inside(opened, out)
    told = Told(listener)
    run = open_run("nan", out, {"dump": str(Path(dump).resolve())}, _manifest_options(options, lang, compat))
    with marked(run, told), without_collector():
        analysis = analyse(opened, options, told, lang=lang)
        write_artifacts(run, analysis, lang, compat=compat)
    run.finish("done", timings=analysis.timings, input_files=_inputs(analysis, full_digest))
    return analysis, run


def run_command(
    dump: str | Path,
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
    if progress == "json":
        for warning in _warnings(analysis, lang):
            print(json_line(warning, sys.stderr), file=sys.stderr)
    else:
        for line in _unread(analysis, lang, style_err):
            print(line, file=sys.stderr)
    folder = run.path.as_posix()
    if as_json:
        print_conclusion(render_json_line(result, folder, ascii_only=not is_utf8(sys.stdout.encoding)))
    else:
        text = render_terminal(result, lang, style_out, "" if verbose else f"{folder}/report.html")
        if verbose:
            report = printable(f"{folder}/report.html")
            text += f"\n\n{render_rank_map(result, lang, style_out)}\n\n{say(lang, 'screen.report')}  {report}"
        print_conclusion(text)
    return result.exit_code


def _rows_not_whole(analysis: Analysis, lang: str) -> list[tuple[RankRow, str, str]]:
    """The ranks that were not read whole: row, code of the error, and what is wrong."""
    found = []
    for row in analysis.result.ranks:
        if row.note is not None:
            what = say(lang, row.note.key, **row.note.values)
            found.append((row, CODES.get(row.status, ""), what))
    return found


def _unread(analysis: Analysis, lang: str, style: Style) -> list[str]:
    """One line for each rank that was not read whole: what and where; then what to do."""
    rows = _rows_not_whole(analysis, lang)
    lines = [
        f"{style.symbol('warning')} {f'{code}  ' if code else ''}{printable(f'{row.rank_key}/dump.json: {what}')}"
        for row, code, what in rows
    ]
    if len(lines) > MAX_WARNINGS:
        lines[MAX_WARNINGS:] = [f"{style.symbol('warning')} +{len(lines) - MAX_WARNINGS}: report.md"]
    for status in REMEDIES:
        ranks = [row.rank for row, _, _ in rows if row.status == status and row.rank is not None]
        if ranks:
            lines.append(f"  {say(lang, REMEDIES[status], ranks=ranks)}")
    return lines


def _warnings(analysis: Analysis, lang: str) -> list[dict[str, str]]:
    """The same for programs: one object a rank, with the keys of an error."""
    return [
        {
            "kind": "warning",
            "code": code or (found.group() if (found := _CODE.search(what)) else ""),
            "what": what,
            "where": f"{row.rank_key}/dump.json",
            "do": say(lang, REMEDIES[row.status], ranks=[row.rank if row.rank is not None else row.rank_key]),
        }
        for row, code, what in _rows_not_whole(analysis, lang)
    ]


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
        entry: dict[str, object] = {"file": str(dump.place.dump), "edges_blake2b": digest.edges}
        files.append(entry)
        try:
            state = dump.place.dump.stat()
            entry |= {"size": state.st_size, "mtime_ns": state.st_mtime_ns}
            if full:
                with dump.place.dump.open("rb") as content:
                    whole = hashlib.blake2b(digest_size=32)
                    while block := content.read(1 << 22):
                        whole.update(block)
                entry["blake2b"] = whole.hexdigest()
        except OSError as error:  # it was there when it was read
            entry["gone"] = error.strerror or str(error)
    return files
