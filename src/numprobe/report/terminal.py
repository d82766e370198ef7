"""Plain text for terminals: what one can show, how wide text is, and how it wraps.

A Han character takes two columns. Operator names may wrap after a dot, marked by a zero-width space that
:func:`wrap` turns into a line break or drops; only those of more than 300 characters are cut, in the middle.
"""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from numprobe.report.language import can_encode
from numprobe.report.messages import Mark, Piece
from numprobe.report.names import pieces as name_pieces

SOFT = "\u200b"
HARD = "\u00a0"  # a space at which no line ends; written as a plain space
NARROWEST, WIDEST = 80, 120
NARROWEST_COLUMN = 6  # of text; figures are never broken

SYMBOLS = {  # meaning: Unicode, ASCII; all of them one column wide in CJK terminals too
    "done": ("✓", "[ok]"),
    "pass": ("✓", "[ok]"),
    "running": ("▸", "[..]"),
    "waiting": ("∙", ""),
    "warning": ("!", "[warn]"),
    "interrupted": ("!", "[warn]"),
    "error": ("✗", "[err]"),
    "failed": ("✗", "[err]"),
    "undecided": ("?", "[?]"),
}
_COLOURS = {
    "done": "32",
    "pass": "32",
    "running": "1",
    "waiting": "90",
    "warning": "33",
    "interrupted": "33",
    "error": "1;31",
    "failed": "1;31",
    "source": "1;7;35",
    "relay": "35",
    "victim": "34",
    "clean": "90",
    "partial": "36",
    "missing": "1",
    "bad": "1;35",
    "strong": "1",
}
_CLOSING = set("，。；：？！、）】》」』”’,.;:?!)]}%")
_OPENING = set("（【《「『“‘([{")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_SURROGATES = "\ud800-\udfff"  # bytes of a file's name that are no UTF-8, and halves of characters
_SURROGATE = re.compile(f"[{_SURROGATES}]")
UNPRINTABLE = re.compile(  # control, direction and line characters; what has no width and no look, as letters of tags
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    f"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff{_SURROGATES}]"
)
LONGEST_NAME, NAME_HEAD, NAME_TAIL = 300, 200, 90


@dataclass(frozen=True)
class Style:
    """What the output can show. ``width`` None: no limit. ``live``: lines may be rewritten in place."""

    colour: bool = False
    unicode: bool = True
    live: bool = False
    width: int | None = 80

    def paint(self, text: str, role: str) -> str:
        """The text in the colour of its role, if colours are on."""
        code = _COLOURS.get(role)
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code and text else text

    def symbol(self, meaning: str) -> str:
        """``✓`` or ``[ok]``, in its colour."""
        return self.paint(SYMBOLS[meaning][0 if self.unicode else 1], meaning)


def style_of(stream: IO[str], environ: Mapping[str, str], *, quiet: bool = False) -> Style:
    """The style that fits a stream: NO_COLOR, FORCE_COLOR, TERM=dumb, quiet and not being a terminal count."""
    tty = stream.isatty() and environ.get("TERM") != "dumb" and not quiet
    no_colour, forced = bool(environ.get("NO_COLOR")), environ.get("FORCE_COLOR", "") not in ("", "0")
    across = shutil.get_terminal_size().columns
    return Style(
        colour=not no_colour and (forced or tty),
        unicode=can_encode("✓▸∙✗", getattr(stream, "encoding", None) or "ascii"),
        live=tty and not no_colour and across >= NARROWEST,  # a line that the terminal wraps cannot be rewritten
        width=max(NARROWEST, min(across, WIDEST)) if tty else None,
    )


def printable(text: str) -> str:
    """Control, line-breaking, direction-changing and invisible characters as escapes: a name in a dump cannot drive the
    terminal, and shows all that it holds."""
    return UNPRINTABLE.sub(_escaped, text)


def encodable(text: str) -> str:
    """What UTF-8 has no bytes for as escapes: ``\\xff`` for a byte of a file's name that is no text."""
    return _SURROGATE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte that it cannot decode
        return f"\\x{code - 0xDC00:02x}"
    return found.group().encode("unicode_escape").decode("ascii")


def soft(name: str) -> str:
    """An operator name or path that :func:`wrap` may break after dots."""
    return SOFT.join(name_pieces(printable(shortened(name))))


def shortened(name: str) -> str:
    """A name as it is shown: one of more than 300 characters without its middle."""
    return name if len(name) <= LONGEST_NAME else f"{name[:NAME_HEAD]}...{name[-NAME_TAIL:]}"


def unbroken(text: str) -> str:
    """A text that :func:`wrap` keeps on one line if it fits."""
    return printable(text).replace(" ", HARD)


def joined(pieces: Iterable[Piece], style: Style | None = None) -> str:
    """A worded message for :func:`wrap`."""
    out = []
    for piece in pieces:
        if not isinstance(piece, Mark):
            out.append(printable(piece))
        elif piece.kind == "op":
            out.append(soft(piece.text))
        elif piece.kind == "path":  # to be copied: never cut
            out.append(SOFT.join(name_pieces(printable(piece.text))))
        elif piece.kind == "bad" and style is not None:
            out.append(style.paint(printable(piece.text), "bad"))
        else:
            out.append(printable(piece.text))
    return "".join(out)


def columns(text: str) -> int:
    """The width of a text: 2 for Han and other wide characters, 0 for marks, soft breaks and colours."""
    if text.isascii() and "\x1b" not in text:
        return len(text)
    return sum(map(_letter_columns, _ANSI.sub("", text)))


def pad(text: str, width: int, right: bool = False) -> str:
    """The text filled with spaces to a width in columns."""
    space = " " * max(width - columns(text), 0)
    return space + text if right else text + space


def wrap(text: str, width: int | None, indent: str = "", hanging: str | None = None) -> list[str]:
    """Lines of at most ``width`` columns; the first starts with ``indent``, the others with ``hanging``."""
    hanging = indent if hanging is None else hanging
    if width is None:
        return [indent + text.replace(SOFT, "").replace(HARD, " ")]
    lines: list[str] = []
    line, used, room = "", 0, width - columns(indent)
    for atom in _atoms(text):
        wide = columns(atom)
        if line and used + columns(atom.rstrip(" ")) > room:
            lines.append(line)
            line, used, room = "", 0, width - columns(hanging)
        while wide > room:  # one unbreakable run longer than a line: broken anywhere, but not lost
            head = _take(atom, room)
            lines.append(head)
            atom = atom[len(head) :]
            wide, room = columns(atom), width - columns(hanging)
        line, used = line + atom, used + wide
    lines.append(line)
    return [((indent if n == 0 else hanging) + line).replace(HARD, " ").rstrip(" ") for n, line in enumerate(lines)]


@dataclass(frozen=True)
class Cell:
    """A table cell with the role that colours it."""

    text: str
    role: str = ""


def table(
    head: Sequence[str], rows: Sequence[Sequence[str | Cell]], right: Iterable[int], style: Style, indent: str = "  "
) -> list[str]:
    """Columns two spaces apart under a row of hyphens; too wide, the widest columns of text wrap inside themselves.

    ``right`` are the columns of figures. Narrower than 80 columns, or with more columns than fit, each row becomes
    ``name: value`` lines, without its empty cells.
    """
    flush = set(right)
    cells = [[_printable_cell(cell) for cell in row] for row in rows]
    texts = [list(head), *([cell.text for cell in row] for row in cells)]
    widths = [max(columns(text) for text in column) for column in zip(*texts, strict=True)]
    if style.width is not None:
        room = style.width - len(indent) - 2 * (len(widths) - 1)
        texts_only = [n for n in range(len(widths)) if n not in flush]
        while sum(widths) > room and max((widths[n] for n in texts_only), default=0) > NARROWEST_COLUMN:
            widths[max(texts_only, key=widths.__getitem__)] -= 1
        if sum(widths) > room or style.width < NARROWEST:
            return [
                line
                for row in cells
                for name, cell in zip(head, row, strict=True)
                if cell.text
                for line in wrap(f"{name}: {cell.text}" if name else cell.text, style.width, indent, indent + "  ")
            ]
    lines = _row([Cell(text) for text in head], widths, flush, style, indent)
    lines.append(indent + "  ".join("-" * width for width in widths))
    for row in cells:
        lines += _row(row, widths, flush, style, indent)
    return lines


def _printable_cell(cell: str | Cell) -> Cell:
    text, role = (cell.text, cell.role) if isinstance(cell, Cell) else (cell, "")
    return Cell(SOFT.join(map(printable, text.split(SOFT))), role)


def _row(row: Sequence[Cell], widths: Sequence[int], right: set[int], style: Style, indent: str) -> list[str]:
    columns_of_lines = [wrap(cell.text, width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for n in range(max(map(len, columns_of_lines))):
        parts = []
        for index, (cell, width, texts) in enumerate(zip(row, widths, columns_of_lines, strict=True)):
            text = texts[n] if n < len(texts) else ""
            space = pad("", width - columns(text))
            painted = style.paint(text, cell.role) if cell.role else text
            parts.append(space + painted if index in right else painted + space)
        lines.append((indent + "  ".join(parts)).rstrip(" "))
    return lines


def _letter_columns(letter: str) -> int:
    if unicodedata.east_asian_width(letter) in "WF":
        return 2
    return 0 if unicodedata.category(letter) in ("Mn", "Me", "Cf") else 1


def _atoms(text: str) -> list[str]:
    """Runs that must stay on one line. Breaks: after a space, at a soft break, beside Han except before closing marks."""
    atoms: list[str] = []
    run = ""
    previous = ""
    for letter in text:
        if letter == SOFT:
            if run:
                atoms.append(run)
            run, previous = "", ""
            continue
        wide_pair = bool(previous) and (_letter_columns(letter) == 2 or _letter_columns(previous) == 2)
        breakable = previous == " " or (wide_pair and previous not in _OPENING)
        if breakable and run and letter not in _CLOSING and letter != " ":
            atoms.append(run)
            run = ""
        run += letter
        previous = letter
    return [*atoms, run] if run else atoms


def _take(text: str, width: int) -> str:
    """The longest start that fits, at least one character; preferably up to an underscore or slash."""
    used, end = 0, len(text)
    for index, letter in enumerate(text):
        used += _letter_columns(letter)
        if used > width:
            end = max(index, 1)
            break
    else:
        return text
    natural = max(text.rfind("_", 0, end), text.rfind("/", 0, end)) + 1
    return text[:natural] if natural > 0 else text[:end]
