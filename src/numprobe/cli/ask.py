"""``numprobe ask "SENTENCE"`` and ``numprobe follow RUN "QUESTION"``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from numprobe.cli import common

if TYPE_CHECKING:
    from numprobe.agent.ask import Asked
    from numprobe.agent.skills.skill import Pipeline
    from numprobe.execution.stages import Listener


@dataclass(frozen=True)
class Terminal:
    """Shows what was understood and the stages on stderr."""

    progress: str
    quiet: bool

    def chosen(self, line: str) -> None:
        from numprobe.report.terminal import printable, wrap

        if self.quiet or self.progress == "json":
            return
        width = common.style(sys.stderr).width
        for part in line.split("\n"):
            print("\n".join(wrap(printable(part), width, "", "  ")), file=sys.stderr)
        print(file=sys.stderr, flush=True)

    @contextmanager
    def stages(self, pipeline: Pipeline, lang: str) -> Iterator[Listener]:
        from numprobe.report.progress import progress_display

        style = common.style(sys.stderr, quiet=self.quiet)
        display = progress_display(
            self.progress, sys.stderr, pipeline.stages, pipeline.catalogue, lang, style, quiet=self.quiet
        )
        try:
            yield display
        finally:
            display.close()


def ask(
    sentence: str = typer.Argument(..., help="The problem in your words, in English or Chinese, with the paths."),
    paths: list[str] = typer.Argument(None, help="Paths that the sentence does not hold.", metavar="[PATH]..."),
    out: Path = common.Out,
    as_json: bool = common.Json,
    lang: str = common.Lang,
    progress: str = typer.Option(
        "auto", "--progress", help="auto or json (stderr holds JSON lines only).", metavar="HOW"
    ),
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Choose the skill for a sentence, run it, answer. Exit code of the skill; 2: something is missing, and what."""
    from numprobe.agent.ask import ask as answer

    common.one_of("--progress", progress, ("auto", "json"))
    chosen = common.language(lang) if lang is not None else None
    asked = answer(sentence, Terminal(progress, quiet), paths=paths or [], lang=chosen, out=out)
    raise typer.Exit(_shown(asked, as_json, chosen or _lang_of(sentence)))


def follow(
    run: str = typer.Argument(..., help="The folder of a run, as it was printed; or the word last.", metavar="RUN"),
    question: str = typer.Argument(..., help="What you want to know of it."),
    out: Path = common.Out,
    as_json: bool = common.Json,
    lang: str = common.Lang,
    progress: str = typer.Option(
        "auto", "--progress", help="auto or json (stderr holds JSON lines only).", metavar="HOW"
    ),
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Answer a question from what a run wrote. Exit 0: answered, 3: the data does not say; a new run: its own code."""
    from numprobe.agent.follow.answering import follow as answer
    from numprobe.agent.runs import latest_run
    from numprobe.record.errors import NumprobeError

    common.one_of("--progress", progress, ("auto", "json"))
    chosen = common.language(lang) if lang is not None else None
    folder: str | Path | None = run
    if run == "last" and not Path(run).exists():
        folder = latest_run(Path("numprobe_out"))
        if folder is None:
            raise NumprobeError(
                "E-AGT-003", "there is no run below numprobe_out", do="name the folder of a run", where="last"
            )
    asked = answer(str(folder), question, Terminal(progress, quiet), lang=chosen, out=out)
    raise typer.Exit(_shown(asked, as_json, chosen or _lang_of(question)))


def _lang_of(text: str) -> str:
    from numprobe.agent.sentence import read_sentence

    return read_sentence(text).lang


def _shown(asked: Asked, as_json: bool, lang: str) -> int:
    from numprobe.agent.messages import say
    from numprobe.report.language import is_utf8
    from numprobe.report.run_folder import plain
    from numprobe.report.running import print_conclusion
    from numprobe.report.terminal import printable

    if as_json:
        content = {
            "skill": asked.skill,
            "answer": asked.answer.to_markdown(),
            "result": asked.result,
            "missing": asked.missing,
            "citations": [{"mark": c.mark, "where": c.where, "figures": c.figures} for c in asked.answer.cites],
            "run": asked.run.as_posix() if asked.run else None,
        }
        print_conclusion(json.dumps(plain(content), ensure_ascii=not is_utf8(sys.stdout.encoding)))
        return asked.exit_code
    text = asked.answer.to_terminal(common.style(sys.stdout))
    if asked.run is not None and asked.result is not None:
        folder = printable(asked.run.as_posix())
        question = say(lang, f"ask.example.{asked.skill}")
        text += f'\n\n{say(lang, "ask.on")}\n  numprobe follow {folder} "{question}"'
        text += f"\n{say(lang, 'ask.report')}  {folder}/report.html"
    print_conclusion(text)
    return asked.exit_code
