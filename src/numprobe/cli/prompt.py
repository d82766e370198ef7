"""The input line of a conversation: editing, history, completion of commands and paths, a line of state below it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory

from numprobe.agent.chat.commands import NAMES, Shell
from numprobe.agent.chat.sessions import state_folder
from numprobe.agent.messages import say
from numprobe.cli.common import ended
from numprobe.report.terminal import columns, printable

_PATH = re.compile(r"(?:^|[\s\"'“‘「《，。：；在])([^\s\"'“‘「《，。：；在]*[/~.][^\s\"'“‘「《，。：；]*)$")


class _Completer(Completer):
    """Commands at the start of the line, paths wherever a word looks like one."""

    def __init__(self, lang: Callable[[], str]) -> None:
        self.lang = lang
        self.paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if re.fullmatch(r"/\w*", text):
            for name in NAMES:
                if name.startswith(text[1:]):
                    yield Completion(f"/{name}", -len(text), display_meta=say(self.lang(), f"chat.help.{name}"))
        found = _PATH.search(text)
        if found:
            yield from self.paths.get_completions(Document(found.group(1)), complete_event)


def prompts(shell: Shell, model: Callable[[], str]) -> Iterator[str]:
    """Lines until Ctrl-D; Ctrl-C clears the line, twice in a row leaves."""
    session: PromptSession[str] = PromptSession(
        history=_history(),
        completer=_Completer(lambda: shell.lang),
        complete_while_typing=False,
        bottom_toolbar=lambda: _state(shell, model()),
    )
    cleared = False
    while True:
        try:
            line = session.prompt("> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if ended():
                raise
            if cleared:
                return
            cleared = True
            continue
        cleared = False
        if line:
            yield line


class _History(FileHistory):
    """A history that costs no line: one that cannot be read is empty, and what cannot be written is kept for this session."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history() -> FileHistory | InMemoryHistory:
    folder = state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "history"
        if not file.exists():
            file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return _History(str(file))


def _state(shell: Shell, alias: str) -> str:
    """``run nan-20261130T100000Z | model none | /help``, cut to fit."""
    run: Path | None = shell.conversation.run
    text = say(shell.lang, "chat.state", run=run.name if run else None, model=alias or None)
    text = printable(text)
    while columns(text) > 78:
        text = text[:-1]
    return text
