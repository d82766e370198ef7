"""``numprobe chat``: questions and answers on a terminal, or line by line on a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from numprobe.cli import common
from numprobe.cli.ask import Llm, ShowSent
from numprobe.record.errors import NumprobeError

if TYPE_CHECKING:
    from numprobe.agent.ask import Asked
    from numprobe.agent.chat.commands import Shell
    from numprobe.agent.chat.trace import Trace
    from numprobe.agent.llm.brain import Brain
    from numprobe.cli.voice import Terminal


def chat(
    resume: str = typer.Option(None, "--resume", help="Take up a session: its id, or last.", metavar="SESSION"),
    out: Path = typer.Option(Path("numprobe_out"), "-o", "--out", help="Folder of the runs.", metavar="DIR"),
    lang: str = common.AnswerLang,
    llm: str = Llm,
    show_sent: bool = ShowSent,
    trace: Path = typer.Option(None, "--trace", help="Write what happens as JSON lines.", metavar="FILE"),
    no_session: bool = typer.Option(False, "--no-session", help="Keep nothing but the runs."),
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Ask, look at the answer, ask on. /help lists the commands; Ctrl-C ends a run and keeps what it has, Ctrl-D leaves."""
    from numprobe.agent.chat.commands import Shell
    from numprobe.agent.chat.conversation import Conversation
    from numprobe.agent.chat.sessions import Store, state_folder
    from numprobe.agent.chat.trace import Trace, Traced
    from numprobe.cli.voice import Terminal

    fixed = common.chosen_language(lang)
    language = common.language(lang)
    terminal = Terminal("auto", quiet)
    store = None if no_session else Store(state_folder() / "sessions.sqlite")
    with ExitStack() as open_ones:
        events = Trace(open_ones.enter_context(_new_file(trace)) if trace is not None else None)
        models = _Models(terminal, language, out, show_sent)
        open_ones.callback(models.close)
        shell = Shell(Conversation(Traced(terminal, events), out, fixed), language, store, models.choose)
        models.choose(llm or "auto")
        events.event("session_started", model=models.alias, cwd=str(Path.cwd()))
        _talk(shell, models, events, terminal, resume)
        events.event("session_finished")
    raise typer.Exit(0)


def _new_file(path: Path) -> Any:
    try:
        return path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise NumprobeError(
            "E-OUT-002",
            "the output cannot be written: {reason}",
            where=str(path),
            do="choose another --trace",
            reason=error.strerror or str(error),
        ) from None


class _Models:
    """The model that is on, if any."""

    def __init__(self, terminal: Terminal, lang: str, folder: Path, show_sent: bool) -> None:
        from numprobe.cli.voice import brain_of

        self._make: Callable[[str], Brain | None] = lambda name: brain_of(
            name, terminal, lang, [], show_sent=show_sent, folder=folder, servers=True
        )
        self.brain: Brain | None = None

    @property
    def alias(self) -> str:
        return self.brain.alias if self.brain else ""

    def choose(self, name: str) -> str:
        """Switch to an alias, to the settings' default (``auto``) or to none; without a name, say which one is on."""
        if name:
            found = self._make(name)
            self.close()
            self.brain = found
        return self.alias

    def close(self) -> None:
        if self.brain is not None:
            self.brain.close()
            self.brain = None


def _talk(shell: Shell, models: _Models, events: Trace, terminal: Terminal, resume: str | None) -> None:
    """Turn after turn. Whatever goes wrong in one of them, the conversation goes on."""
    from numprobe.agent.chat.commands import ENDS
    from numprobe.agent.messages import say
    from numprobe.report.terminal import wrap

    style = common.style(sys.stdout)
    welcome = say(shell.lang, "chat.welcome", model=models.alias or None)
    _print("\n".join(wrap(welcome, style.width)))
    if resume is not None:
        if shell.store is None:
            raise NumprobeError("E-USE-014", "--resume and --no-session exclude each other", do="leave one of them out")
        _print(shell.resume(resume).to_terminal(style))
    for line in _lines(shell, models):
        if line.lower() in ENDS:
            return
        try:
            _turn(line, shell, models, events, terminal)
        except NumprobeError as error:
            events.failed(error)
            common.show_error(error)
        except KeyboardInterrupt:
            events.event("interrupted")
            if common.ended():
                raise
            told = say(shell.lang, "chat.interrupted")
            _print("\n".join(wrap(told, style.width, f"{style.symbol('interrupted')} ", "  ")))
        except BrokenPipeError:  # the reader of our output has gone
            raise
        except Exception as error:
            events.text("error", f"{type(error).__name__}: {error}")
            common.tell_failure(error)
        if events.failure is not None:
            common.show_error(events.failure, symbol="warning")
            events.failure = None
        if shell.ended:
            return
        print(flush=True)


def _turn(line: str, shell: Shell, models: _Models, events: Trace, terminal: Terminal) -> None:
    """One line: a command or a question, its answer, and what a model says to it."""
    from numprobe.agent.answer import Answer
    from numprobe.agent.chat.commands import is_command
    from numprobe.cli.voice import Voice

    paths: Sequence[str] = ()
    asked: Answer | Asked
    if is_command(line):
        events.text("command", line)
        asked = shell.command(line)
    else:
        events.text("user_message", line)
        sentence = shell.conversation.heard(line)
        paths, shell.lang = sentence.paths, shell.conversation.lang or sentence.lang
        common.errors_in(shell.lang)
        asked = shell.conversation.turn(sentence)
    if isinstance(asked, Answer):
        _print(asked.to_terminal(common.style(sys.stdout)))
        return
    lang = shell.lang
    if models.brain is not None:
        models.brain.toolbox.lang = lang
        roots = models.brain.toolbox.roots or []
        roots += [Path(path) for path in (*paths, *(shell.conversation.run or "",)) if path]
    voice = Voice(models.brain, lang, False, terminal, hints=False)
    asked = voice.show(asked, line, paths)
    if asked.run is not None:
        shell.conversation.take_up(asked.run)
    events.answered(asked)
    shell.record(line, asked)


def _print(text: str) -> None:
    if text:
        print(text, flush=True)


def _lines(shell: Shell, models: _Models) -> Iterator[str]:
    """What the user writes: with editing, history and completion on a terminal, plain lines else."""
    from numprobe.report.terminal import printable

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        for line in sys.stdin:
            if text := line.strip():
                _print(f"> {printable(text)}")  # nobody else shows what was asked
                yield text
        return
    try:
        from numprobe.cli.prompt import prompts
    except ImportError:
        yield from _plain()
        return
    yield from prompts(shell, lambda: models.alias)


def _plain() -> Iterator[str]:
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if common.ended():
                raise
            print()
            continue
        if line:
            yield line
