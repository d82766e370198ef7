"""An answer: sentences with citations, tables, commands. Drawn as Markdown and on a terminal from the same blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from numprobe.report import markdown
from numprobe.report.messages import Piece, plain
from numprobe.report.terminal import HARD, Cell, Style, columns, joined, pad, printable, soft, table, wrap


@dataclass(frozen=True)
class Text:
    """A paragraph, or a bullet. ``cites`` are the marks of the citations that it rests on."""

    pieces: Sequence[Piece]
    cites: tuple[str, ...] = ()
    bullet: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of text; ``right`` are the columns of figures."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    title: str = ""


@dataclass(frozen=True)
class Lines:
    """Text that is shown as it is: a call stack, commands."""

    lines: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Cite:
    """Where a claim can be checked: ``where`` is a record of a dump or a row of an artifact, ``figures`` what stands there."""

    mark: str  # E1
    where: str
    figures: str = ""


Block: TypeAlias = "Text | Table | Lines"


@dataclass
class Answer:
    """``known`` false: the data has no answer, and the text says so. ``files`` are paths that the answer made."""

    blocks: list[Block] = field(default_factory=list)
    cites: list[Cite] = field(default_factory=list)
    known: bool = True

    def say(self, text: str | Sequence[Piece], *cites: str, bullet: bool = False) -> None:
        self.blocks.append(Text([text] if isinstance(text, str) else text, cites, bullet))

    def cite(self, where: str, figures: str = "", mark: str = "") -> str:
        """Register a citation and return its mark: the same place twice is one."""
        for one in self.cites:
            if one.where == where and (one.mark == mark or not mark):
                return one.mark
        taken = {one.mark for one in self.cites}
        if not mark:
            mark = next(m for m in (f"R{n}" for n in range(1, 10_000)) if m not in taken)
        self.cites.append(Cite(mark, where, figures))
        return mark

    def to_markdown(self) -> str:
        """Text of dumps stays text: nothing in it is markup."""
        parts: list[str] = []
        for n, block in enumerate(self.blocks):
            if isinstance(block, Text):
                pieces, stop = _stop_apart(block)
                line = markdown.joined(pieces) + "".join(f" [{mark}]" for mark in block.cites) + stop
                follows = block.bullet and n and isinstance(before := self.blocks[n - 1], Text) and before.bullet
                parts.append(f"{'' if follows or not n else chr(10)}{'- ' if block.bullet else ''}{line}")
                continue
            parts.append("")
            if block.title:
                parts += [f"**{markdown.escape(block.title)}**", ""]
            if isinstance(block, Table):
                head, rows = list(map(markdown.escape, block.head)), [[_cell(c) for c in row] for row in block.rows]
                parts += markdown.table(head, rows, block.right)
            else:
                parts += markdown.block("\n".join(block.lines))
        if self.cites:
            parts.append("")
            parts += [
                f"- [{c.mark}] {markdown.code(c.where)} {markdown.escape(c.figures)}".rstrip() for c in self.cites
            ]
        return "\n".join(parts)

    def to_terminal(self, style: Style) -> str:
        """Wrapped to the width, without a line break at the end."""
        lines: list[str] = []
        for block in self.blocks:
            if isinstance(block, Text):
                pieces, stop = _stop_apart(block)
                marks = "".join(f"{HARD}[{mark}]" for mark in block.cites) + stop
                if not block.bullet and lines:
                    lines.append("")
                lines += wrap(
                    joined(pieces, style) + marks,
                    style.width,
                    "- " * block.bullet,
                    "  " * block.bullet,
                )
                continue
            lines += [""] if lines else []
            if block.title:
                lines += [style.paint(line, "strong") for line in wrap(soft(block.title), style.width)]
            if isinstance(block, Table):
                rows = [[Cell(soft(c)) for c in row] for row in block.rows]
                lines += table(list(block.head), rows, block.right, style)
            else:
                for line in block.lines:
                    lines += wrap(soft(line), style.width, "  ", "    ")
        if self.cites:
            lines.append("")
            wide = max(columns(c.mark) for c in self.cites) + 2
            for c in self.cites:
                lines += wrap(
                    f"{soft(c.where)}{'  ' if c.figures else ''}{printable(c.figures)}",
                    style.width,
                    f"  {pad(f'[{c.mark}]', wide)} ",
                    " " * (wide + 3),
                )
        return "\n".join(lines)

    def to_text(self) -> str:
        """The sentences alone, without markup: for logs and tests."""
        return "\n".join(plain(block.pieces) for block in self.blocks if isinstance(block, Text))


def _stop_apart(block: Text) -> tuple[Sequence[Piece], str]:
    """The pieces, and the stop of the sentence where marks of citations stand before it."""
    last = block.pieces[-1] if block.pieces else ""
    if not block.cites or not isinstance(last, str) or not last.endswith((".", ":", "。", "：")):
        return block.pieces, ""
    return [*block.pieces[:-1], last[:-1]], last[-1]


def _cell(text: str) -> str:
    if re.fullmatch(r"\[[ER][0-9]+\]", text):  # a mark
        return text
    return (
        markdown.code(text)
        if any(letter in text for letter in "._") and not _is_number(text)
        else markdown.escape(text)
    )


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").replace(" %", ""))
    except ValueError:
        return False
    return True
