"""Showing the progress of a job: rewritten lines on a terminal, single lines on a pipe, JSON lines for programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

from numprobe.execution.progress import Progress
from numprobe.report import numbers
from numprobe.report.json_text import json_text
from numprobe.report.language import is_utf8
from numprobe.report.messages import Catalogue
from numprobe.report.terminal import Style, columns, pad, printable, wrap

LIVE_EVERY_S = 0.1
LINE_EVERY_S = 10.0
ETA_FROM_S = 5.0
BAR_FROM_COLUMNS = 100
BAR_CELLS = 20


def json_line(value: object, stream: IO[str]) -> str:
    """One line of strict JSON: in UTF-8, or in ASCII where the stream has another encoding."""
    return json_text(value, ascii_only=not is_utf8(getattr(stream, "encoding", None)))


@dataclass
class JsonProgress:
    """One JSON object a line; running events at most ten times a second."""

    stream: IO[str]
    clock: Callable[[], float] = time.monotonic
    _last: float = field(default=float("-inf"), init=False)

    def __call__(self, event: Progress) -> None:
        now = self.clock()
        if event.state == "running" and now - self._last < LIVE_EVERY_S:
            return
        self._last = now
        self.stream.write(json_line(event, self.stream) + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Nothing is pending."""


@dataclass
class LineProgress:
    """One line when a stage ends, and while it runs at most one every ten seconds."""

    stream: IO[str]
    catalogue: Catalogue
    lang: str
    style: Style
    quiet: bool = False
    clock: Callable[[], float] = time.monotonic
    _last: float = field(default=float("-inf"), init=False)

    def __call__(self, event: Progress) -> None:
        now = self.clock()
        if event.state == "running":
            if self.quiet or event.done <= 0 or now - self._last < LINE_EVERY_S:
                return
        elif self.quiet and event.state == "done":
            return
        self._last = now
        name = self.catalogue.say(self.lang, event.name)
        if event.state == "running":
            text = ", ".join(part for part in (_amount(event), printable(event.note)) if part)
        else:
            text = printable(event.note)
        line = f"{self.style.symbol(event.state)} {event.stage}/{event.of} {name}"
        line += f": {text}" if text else ""
        self.stream.write(line + (f" ({numbers.duration(event.elapsed_s)})\n" if event.state != "running" else "\n"))
        self.stream.flush()

    def close(self) -> None:
        """Nothing is pending."""


@dataclass
class LiveProgress:
    """A line for each stage, rewritten in place."""

    stream: IO[str]
    catalogue: Catalogue
    lang: str
    style: Style
    names: Sequence[str]  # message keys of all stages, so that those that wait can be shown
    clock: Callable[[], float] = time.monotonic
    _events: dict[int, Progress] = field(default_factory=dict, init=False)
    _drawn: int = field(default=0, init=False)
    _last: float = field(default=float("-inf"), init=False)
    _pending: bool = field(default=False, init=False)

    def __call__(self, event: Progress) -> None:
        before = self._events.get(event.stage)
        self._events[event.stage] = event
        now = self.clock()
        news = before is None or before.state != event.state
        if not news and now - self._last < LIVE_EVERY_S:
            self._pending = True
            return
        self._last = now
        self._draw()

    def close(self) -> None:
        """Show what was held back."""
        if self._pending:
            self._draw()

    def _draw(self) -> None:
        lines = stage_lines(self._events, self.names, self.catalogue, self.lang, self.style)
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self.stream.write(up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        self.stream.flush()
        self._drawn, self._pending = len(lines), False


def stage_lines(
    events: dict[int, Progress], names: Sequence[str], catalogue: Catalogue, lang: str, style: Style
) -> list[str]:
    """The stages as they stand: symbol, n/5, name, counts in the words of the stage, time."""
    words = [catalogue.say(lang, name) for name in names]
    name_width = max(map(columns, words), default=0)
    width = style.width or 120
    lines: list[str] = []
    for number, word in enumerate(words, 1):
        event = events.get(number)
        state = event.state if event else "waiting"
        symbol = style.symbol(state)
        if not symbol:
            continue  # ASCII: a stage that waits is not shown
        head = f"{symbol} {number}/{len(words)} {pad(word, name_width)}"
        if event is None:
            lines.append(head.rstrip())
            continue
        elapsed = numbers.duration(event.elapsed_s)
        room = width - columns(elapsed) - 2
        text = (
            _running_text(event, catalogue, lang, room - columns(head) - 2, width) if state == "running" else event.note
        )
        rows = wrap(printable(text), room, head + "  ", " " * (columns(head) + 2)) if text else [head]
        lines.append(pad(rows[0], width - columns(elapsed)) + elapsed)
        lines += rows[1:]
    return lines


def _running_text(event: Progress, catalogue: Catalogue, lang: str, room: int, width: int) -> str:
    """As many of amount, note, remaining time and bar as one line holds; the amount always."""
    left = ""
    if event.eta_s is not None and event.elapsed_s >= ETA_FROM_S:
        left = catalogue.say(lang, "progress.left", time=numbers.duration(event.eta_s))
    comma = catalogue.say(lang, "list.comma")
    amount = _amount(event)
    if event.total > 0 and width >= BAR_FROM_COLUMNS:
        filled = BAR_CELLS * min(event.done, event.total) // event.total
        amount = f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}] {amount}"
    for rest in (comma.join(part for part in (event.note, left) if part), left, event.note):
        text = "  ".join(part for part in (amount, rest) if part)
        if columns(text) <= room:
            return text
    return amount


def _amount(event: Progress) -> str:
    if event.total > 0:
        return f"{event.done}/{event.total}"
    return numbers.count(event.done) if event.done else ""


def progress_display(
    mode: str,
    stream: IO[str],
    names: Sequence[str],
    catalogue: Catalogue,
    lang: str,
    style: Style,
    *,
    quiet: bool = False,
) -> JsonProgress | LineProgress | LiveProgress:
    """The display for a run: ``mode`` is ``json`` or ``auto``. Call it with every event, and ``close`` it at the end."""
    if mode == "json":
        return JsonProgress(stream)
    if style.live and not quiet:
        return LiveProgress(stream, catalogue, lang, style, names)
    return LineProgress(stream, catalogue, lang, style, quiet)
