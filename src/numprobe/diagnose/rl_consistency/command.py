"""A run of the skill from start to end: folder, progress, screen, exit code."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import msgspec

from numprobe.diagnose.rl_consistency import slots
from numprobe.diagnose.rl_consistency.compat import compat_files
from numprobe.diagnose.rl_consistency.messages import CATALOGUE
from numprobe.diagnose.rl_consistency.next_dump import FILES, configurations
from numprobe.diagnose.rl_consistency.page.html import render_html
from numprobe.diagnose.rl_consistency.page.markdown import render_markdown
from numprobe.diagnose.rl_consistency.page.screen import render_json_line, render_terminal
from numprobe.diagnose.rl_consistency.result import RlResult
from numprobe.diagnose.rl_consistency.skill import STAGES, RlOptions, analyse_with_view
from numprobe.diagnose.rl_consistency.view import View
from numprobe.execution.memory import without_collector
from numprobe.execution.stages import Listener, ignore
from numprobe.formats.dump import open_dump
from numprobe.record.errors import NumprobeError
from numprobe.report.language import is_utf8
from numprobe.report.progress import progress_display
from numprobe.report.run_folder import RunFolder, open_run, plain
from numprobe.report.running import Told, marked, print_conclusion, refuse_inside
from numprobe.report.terminal import Style


def run_to_folder(
    train: str | Path,
    rollout: str | Path,
    options: RlOptions | None = None,
    out: Path | None = None,
    *,
    lang: str = "en",
    compat: bool = False,
    listener: Listener = ignore,
) -> tuple[RlResult, RunFolder]:
    """Analyse both dumps and write the run's folder; with ``compat`` the files of msProbe's skill too.

    Raises:
        NumprobeError: as :func:`~numprobe.diagnose.rl_consistency.skill.analyse`; E-RLC-003 both are one dump; ``out``
            holds something else.
    """
    options = options or RlOptions()
    dumps = [open_dump(path, use_cache=options.use_cache) for path in (train, rollout)]
    for dump in dumps:  # a wrong path fails before an output folder is made
        refuse_inside(dump, out)
    if dumps[0].root.resolve() == dumps[1].root.resolve():
        raise NumprobeError(
            "E-RLC-003",
            "both sides are the same dump",
            where=str(dumps[0].root),
            do="give the dump of training first and that of the engine second",
        )
    told = Told(listener)
    inputs: dict[str, object] = {"train": str(Path(train).resolve()), "rollout": str(Path(rollout).resolve())}
    asked: dict[str, object] = {
        "step": sorted(options.steps) if options.steps is not None else None,
        "rank": sorted(options.ranks) if options.ranks is not None else None,
        "lang": lang,
        **({"mapping": str(Path(options.mapping).resolve())} if options.mapping else {}),
        **({"as_given": True} if options.as_given else {}),
        **({"compat": "msprobe"} if compat else {}),
    }
    run = open_run("rl", out, inputs, asked)
    with marked(run, told), without_collector():
        result, view = analyse_with_view(train, rollout, options, told)
        for side, configuration in configurations(result).items():
            run.write_json(FILES[side], configuration)
            result.next[side] = FILES[side]
        _write_json(run, "result.json", result)
        head = ["place", "train", "rollout", "verdict", "error", "ratio"]
        rows = [
            [p.place, "; ".join(p.train), "; ".join(p.rollout), p.verdict, p.error, p.ratio] for p in result.mapping
        ]
        run.write_csv("mapping.csv", head, rows)
        run.write_text(slots.FILE, slots.table(view))
        if compat:
            _write_compat(run, view, result)
        run.write_text("report.md", render_markdown(result, lang))
        run.write_text("report.html", render_html(result, lang, artifacts=run.artifacts))
    run.finish("done")
    return result, run


def _write_json(run: RunFolder, name: str, value: object) -> None:
    """As :meth:`RunFolder.write_json`, for tens of thousands of rows."""
    run.write_text(name, msgspec.json.format(json.dumps(plain(value), ensure_ascii=False), indent=1) + "\n")


def _write_compat(run: RunFolder, view: View, result: RlResult) -> None:
    for name, content in compat_files(view, result, str(run.path)).items():
        if name.endswith(".csv"):  # as they are there: a layer that is none is "-", which write_csv would escape
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([content[0], *content[1]])
            run.write_text(name, text.getvalue())
        else:
            _write_json(run, name, content)


def run_command(
    train: str | Path,
    rollout: str | Path,
    options: RlOptions,
    *,
    style_out: Style,
    style_err: Style,
    lang: str,
    out: Path | None = None,
    compat: bool = False,
    as_json: bool = False,
    progress: str = "auto",
    quiet: bool = False,
) -> int:
    """The command: progress on stderr, the conclusion on stdout, the exit code of the verdict."""
    display = progress_display(progress, sys.stderr, STAGES, CATALOGUE, lang, style_err, quiet=quiet)
    try:
        result, run = run_to_folder(train, rollout, options, out, lang=lang, compat=compat, listener=display)
    finally:
        display.close()
    folder = run.path.as_posix()
    if as_json:
        print_conclusion(render_json_line(result, folder, ascii_only=not is_utf8(sys.stdout.encoding)))
    else:
        print_conclusion(render_terminal(result, lang, style_out, f"{folder}/report.html"))
    return result.exit_code
