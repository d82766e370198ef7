"""``numprobe ask "SENTENCE"`` and ``numprobe follow RUN "QUESTION"``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from numprobe.cli import common

if TYPE_CHECKING:
    from numprobe.agent.ask import Asked
    from numprobe.cli.voice import Terminal

Llm = typer.Option(None, "--llm", help="none, auto, or an alias of the settings; default: theirs.", metavar="NAME")
ShowSent = typer.Option(False, "--show-sent", help="Print all that goes to the language model, on stderr.")


def ask(
    sentence: str = typer.Argument(..., help="The problem in your words, in English or Chinese, with the paths."),
    paths: list[str] = typer.Argument(None, help="Paths that the sentence does not hold.", metavar="PATH"),
    out: Path = common.Out,
    as_json: bool = common.Json,
    lang: str = common.AnswerLang,
    llm: str = Llm,
    show_sent: bool = ShowSent,
    progress: str = common.Progress,
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Choose the skill for a sentence, run it, answer. Exit code of the skill; 2: something is missing, and what."""
    from numprobe.agent.ask import ask as answer
    from numprobe.agent.sentence import read_sentence
    from numprobe.cli.voice import Terminal

    chosen = common.chosen_language(lang)
    terminal = Terminal(progress, quiet)
    read = read_sentence(sentence, paths or [])
    language = chosen or read.lang
    common.errors_in(language)
    asked = answer(read, terminal, lang=language, out=out)
    raise typer.Exit(_shown(asked, sentence, language, llm, show_sent, as_json, terminal, read.paths))


def follow(
    run: str = typer.Argument(..., help="The folder of a run, as it was printed; or the word last.", metavar="RUN"),
    question: str = typer.Argument(..., help="What you want to know of it."),
    out: Path = common.Out,
    as_json: bool = common.Json,
    lang: str = common.AnswerLang,
    llm: str = Llm,
    show_sent: bool = ShowSent,
    progress: str = common.Progress,
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Answer a question from what a run wrote. Exit 0: answered, 3: the data does not say; a new run: its own code."""
    from numprobe.agent.follow.answering import follow as answer
    from numprobe.agent.runs import latest_run
    from numprobe.agent.sentence import read_sentence
    from numprobe.cli.voice import Terminal
    from numprobe.record.errors import NumprobeError

    chosen = common.chosen_language(lang)
    read = read_sentence(question)
    language = chosen or read.lang
    common.errors_in(language)
    folder: str | Path | None = run
    if run == "last" and not Path(run).exists():
        folder = latest_run(Path("numprobe_out"))
        if folder is None:
            raise NumprobeError(
                "E-AGT-003", "there is no run below numprobe_out", do="name the folder of a run", where="last"
            )
    terminal = Terminal(progress, quiet)
    asked = answer(str(folder), read, terminal, lang=language, out=out)
    raise typer.Exit(_shown(asked, question, language, llm, show_sent, as_json, terminal))


def _shown(
    asked: Asked,
    question: str,
    lang: str,
    llm: str | None,
    show_sent: bool,
    as_json: bool,
    terminal: Terminal,
    paths: Sequence[str] = (),
) -> int:
    from numprobe.cli.voice import Voice, brain_of

    roots = [*([asked.run] if asked.run else []), *map(Path, paths)]
    brain = brain_of(llm, terminal, lang, roots, show_sent=show_sent)
    try:
        return Voice(brain, lang, as_json, terminal).show(asked, question, paths).exit_code
    finally:
        if brain is not None:
            brain.close()
