"""Markdown that shows text from dumps as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from numprobe.report.messages import Mark, Piece
from numprobe.report.terminal import printable

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$@])")
_ADDRESS = re.compile(r"(?<=[A-Za-z])(:)(?=//)|(?<=\bwww)(\.)", re.IGNORECASE)  # many readers make links of bare ones


def escape(text: str) -> str:
    """Plain text: nothing in it is markup, and it stays on one line."""
    return _ADDRESS.sub(r"\\\g<0>", _SPECIAL.sub(r"\\\1", printable(text)))


def code(text: str) -> str:
    """An inline code span, whatever backticks and bars the text holds."""
    text = printable(text).replace("|", "\\|")
    if not text:
        return ""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    space = " " if text.startswith("`") or text.endswith("`") or text.strip() != text else ""
    return f"{fence}{space}{text}{space}{fence}"


def joined(pieces: Iterable[Piece]) -> str:
    """A worded message."""
    out = []
    for piece in pieces:
        if not isinstance(piece, Mark):
            out.append(escape(piece))
        else:
            out.append(f"**{escape(piece.text)}**" if piece.kind == "bad" else code(piece.text))
    return "".join(out)


def block(text: str, language: str = "") -> list[str]:
    """A fenced block that its own text cannot close."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", text)), 3)
    return [fence + language, *(printable(line) for line in text.splitlines()), fence]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """A pipe table of cells that are escaped already."""
    flush = set(right)
    rule = ["---:" if index in flush else "---" for index in range(len(head))]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
