"""Skills on the terminal: the list, and a run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numprobe.agent.skills.registry import CATALOGUE, Found
from numprobe.agent.skills.skill import Options, Pipeline, Screen
from numprobe.report.errors import error_object, render_error
from numprobe.report.language import is_utf8
from numprobe.report.progress import json_line, progress_display
from numprobe.report.run_folder import plain
from numprobe.report.running import print_conclusion
from numprobe.report.terminal import Style, columns, pad, printable, soft, table, wrap

say = CATALOGUE.say
_SENTENCE = re.compile(r"(?<=[.!?])\s|(?<=[。！？])")


def list_object(found: Sequence[Found], lang: str) -> dict[str, Any]:
    """``skills list --json``."""
    return {
        "skills": [
            {
                "name": one.name,
                "id": one.name.replace("-", "_"),
                "version": one.version,
                "from": one.origin,
                "place": one.place,
                "runs": one.runs,
                "about": one.about(lang),
            }
            for one in found
            if one.skipped is None
        ],
        "skipped": [
            {"name": one.name, "from": one.origin, "place": one.place, **_error(one, lang)}
            for one in found
            if one.skipped is not None
        ],
    }


def _error(one: Found, lang: str) -> dict[str, str]:
    assert one.skipped is not None
    return {key: text for key, text in error_object(one.skipped, lang).items() if key != "kind"}


def render_list(found: Sequence[Found], lang: str, style: Style) -> str:
    """A table of what can be used, then what was skipped and why."""
    used = [one for one in found if one.skipped is None]
    head = [say(lang, f"skills.column.{name}") for name in ("name", "from", "about")]
    rows = [[one.name, say(lang, f"skills.from.{one.origin}"), _about(one, lang)] for one in used]
    lines = table(head, rows, (), style)
    skipped = [one for one in found if one.skipped is not None]
    if skipped:
        lines += ["", say(lang, "skills.skipped", count=len(skipped))]
    for one in skipped:
        if one.skipped is not None:
            lines += render_error(one.skipped, lang, style, symbol="warning").splitlines()
    lines += ["", *wrap(say(lang, "skills.hint"), style.width)]
    return "\n".join(lines)


def _about(one: Found, lang: str) -> str:
    first = _SENTENCE.split(" ".join(one.about(lang).split()), maxsplit=1)[0]
    return first if one.runs else f"{first} {say(lang, 'skills.text_only')}".strip()


def run_and_show(
    name: str,
    pipeline: Pipeline,
    inputs: Mapping[str, str],
    asked: Options,
    out: Path | None,
    lang: str,
    screen: Screen,
) -> int:
    """Progress on stderr, the conclusion on stdout, the exit code of the verdict."""
    if pipeline.show is not None:
        return pipeline.show(inputs, asked, out, lang, screen)
    display = progress_display(
        screen.progress, sys.stderr, pipeline.stages, pipeline.catalogue, lang, screen.err, quiet=screen.quiet
    )
    try:
        done = pipeline.run(inputs, asked, out, lang, display)
    finally:
        display.close()
    if screen.as_json:
        print_conclusion(json_line(done.result, sys.stdout))
    else:
        state = {0: "done", 1: "failed"}.get(done.exit_code, "undecided")
        print_conclusion("\n".join(_lines(name, state, done.result, done.folder, lang, screen.out)))
    return done.exit_code


def _lines(name: str, state: str, result: Mapping[str, Any], folder: Path, lang: str, style: Style) -> list[str]:
    """What a result says that has no page of its own: its members, those with structure as JSON."""
    shown = {key: value for key, value in plain(result).items() if key not in ("verdict", "out")}
    verdict = str(result.get("verdict", ""))
    head = f"{name}{say(lang, 'list.colon')}{verdict}" if verdict else name
    lines = [f"{style.symbol(state)} {printable(head)}", ""]
    width = max((columns(printable(key)) for key in shown), default=0)
    for key, value in shown.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=not is_utf8(sys.stdout.encoding))
        lines += wrap(soft(text), style.width, f"  {pad(printable(key), width)}  ", " " * (width + 4))
    return [*lines, "", f"{say(lang, 'skills.folder')}  {printable(folder.as_posix())}"]
