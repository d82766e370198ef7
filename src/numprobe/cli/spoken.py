"""A language model's Markdown on a terminal: tables, lists and code as such, while they are being said."""

from __future__ import annotations

import re
import sys
import time

from markdown_it import MarkdownIt
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from numprobe.report.terminal import Style, printable

EVERY_S = 0.1  # between two drawings of one block
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def drawn(text: str) -> Markdown:
    """The text as rich draws it. Tags of HTML are text, links are shown with their address and cannot be clicked."""
    shown = "\n".join(printable(line.expandtabs(4)) for line in text.split("\n"))
    markdown = Markdown("", hyperlinks=False, code_theme="ansi_dark")
    markdown.parsed = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).parse(shown)
    return markdown


def finished(text: str) -> int:
    """How many characters of a text that goes on are whole blocks: those up to its last blank line outside of fenced code."""
    end = at = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        at += len(line)
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence and line.endswith("\n") and not line.strip():
            end = at
    return end


def console_of(style: Style) -> Console:
    """The terminal on stdout."""
    return Console(
        file=sys.stdout,
        width=style.width,
        color_system="standard" if style.colour else None,
        force_terminal=style.live,
        highlight=False,
    )


class Spoken:
    """Draws what is said piece by piece: whole blocks stay, the one that is being said is drawn again and again."""

    def __init__(self, style: Style) -> None:
        self._console = console_of(style)
        self._live: Live | None = None
        self._block = ""
        self._before = ""  # the last line that was drawn
        self._last = 0.0

    def say(self, piece: str) -> None:
        """The next piece."""
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._block += piece
        end = finished(self._block)
        whole, self._block = self._block[:end], self._block[end:]
        self._put(whole)
        if whole or time.monotonic() - self._last > EVERY_S:
            self._last = time.monotonic()
            self._live.update(drawn(self._block), refresh=True)

    def stop(self) -> None:
        """Draw what is left; what is said later begins anew."""
        if self._live is None:
            return
        live, self._live = self._live, None
        live.update("", refresh=True)
        live.stop()
        self._put(self._block)
        self._block, self._before = "", ""

    def _put(self, text: str) -> None:
        """Draw blocks that are whole, below a blank line; tables bring their own."""
        text = text.strip("\n")
        if not text.strip():
            return
        if self._before and not any(edge.lstrip().startswith("|") for edge in (self._before, text)):
            self._console.print()
        self._console.print(drawn(text))
        self._before = text.split("\n")[-1]
