"""The layout of a block that has one value a line, as msProbe writes it (``indent=1``).

Then the structure can be read off the line ends: a line that ends with a bracket opens, a line that is a bracket closes,
every other one holds one scalar. That this holds is proved by counting: all commas end lines, all brackets are accounted
for. (Brackets or commas inside strings break the count, and the block goes another way.) Depth is a running sum.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.reference import Stop, decode_name

_NEWLINE, _RETURN, _COMMA, _QUOTE, _SPACE, _COLON = 0x0A, 0x0D, 0x2C, 0x22, 0x20, 0x3A
_OPEN_BRACE, _CLOSE_BRACE, _OPEN_BRACKET, _CLOSE_BRACKET = 0x7B, 0x7D, 0x5B, 0x5D
_WORD = re.compile(rb'"(?:\\[tn]|[ \t\n])*[-+]?(nan|inf(?:inity)?)(?:\\[tn]|[ \t\n])*"', re.I)
_EXPONENT = re.compile(rb"[0-9][eE][-+]?[0-9]{3,}\Z")

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class LineLayout:
    """Members and sections of a block, and the places where a non-finite value may stand.

    ``section_key`` is where a section's key begins (behind its quote). ``candidates``: first letters of ``nan`` and
    ``inf`` in any spelling, and the digits before large exponents.
    """

    names: list[str]
    start: Positions
    end: Positions
    section_key: Positions
    section_start: Positions
    section_end: Positions
    section_row: Positions
    candidates: Positions


def line_layout(body: bytes) -> LineLayout | None:
    """Layout of the members in ``body``, or None where one value a line cannot be proved."""
    raw = np.frombuffer(body, np.uint8)
    newline = np.flatnonzero(raw == _NEWLINE)
    if not len(newline) or body[: newline[0]].strip() or body.find(b"\r", 0, int(newline[0]) + 200) >= 0:
        return None
    begin = newline + 1
    end = np.append(newline[1:], len(raw))
    if not body[int(begin[-1]) :].strip():
        begin, end = begin[:-1], end[:-1]
    if not len(begin) or (end <= begin).any():
        return None
    comma = raw[end - 1] == _COMMA
    at = end - 1 - comma  # the last character that is no comma
    last, previous = raw[at], raw[at - 1]
    if (last <= _SPACE).any():  # white space at the end of a line
        return None
    opens = (last == _OPEN_BRACE) | (last == _OPEN_BRACKET)
    shuts = (last == _CLOSE_BRACE) | (last == _CLOSE_BRACKET)
    empty = shuts & ((previous == _OPEN_BRACE) | (previous == _OPEN_BRACKET))
    closes = shuts & ~empty
    alone = (previous[closes] == _SPACE) | (previous[closes] == _NEWLINE)
    pairs = int(np.count_nonzero(empty))
    if (
        not alone.all()
        or np.count_nonzero(raw == _COMMA) != np.count_nonzero(comma)
        or _count(raw, _OPEN_BRACE) + _count(raw, _OPEN_BRACKET) != np.count_nonzero(opens) + pairs
        or _count(raw, _CLOSE_BRACE) + _count(raw, _CLOSE_BRACKET) != np.count_nonzero(closes) + pairs
    ):
        return None
    depth = np.cumsum(opens.astype(np.int32) - closes)
    before = depth - opens + closes
    if depth[-1] != 0 or depth.min() < 0:
        return None
    return _assemble(body, raw, begin, at, opens | empty, empty, closes, depth, before, last)


def _count(raw: NDArray[np.uint8], byte: int) -> int:
    return int(np.count_nonzero(raw == byte))


def _assemble(
    body: bytes,
    raw: NDArray[np.uint8],
    begin: Positions,
    at: Positions,
    holds: NDArray[np.bool_],
    empty: NDArray[np.bool_],
    closes: NDArray[np.bool_],
    depth: NDArray[np.int64],
    before: NDArray[np.int64],
    last: NDArray[np.uint8],
) -> LineLayout | None:
    key_line = np.flatnonzero((before == 0) & ~closes)
    if not holds[key_line].all():  # a member that is a scalar
        return None
    keys = _keys(body, raw, begin[key_line], at[key_line] - empty[key_line])
    if keys is None:
        return None
    first, close = keys
    names = _names(body, first, close)
    if names is None:
        return None
    start = at[key_line] - empty[key_line]
    end_line = np.flatnonzero((depth == 0) & (closes | (empty & (before == 0))))
    if len(end_line) != len(key_line):
        return None
    end = at[end_line] + 1
    section_line = np.flatnonzero((before == 1) & ~closes)
    row = np.searchsorted(key_line, section_line, "right") - 1
    # a section ends where the next one, or its member, does; what lies between holds no value
    section_end = np.append(begin[section_line][1:], len(raw))
    section_end = np.minimum(section_end, end[row])
    indent = _indent(raw, begin[section_line])
    section_key = begin[section_line] + indent + 1
    return LineLayout(
        names,
        start,
        end,
        section_key,
        begin[section_line],
        section_end,
        row,
        _candidates(body, raw, at, last),
    )


def _indent(raw: NDArray[np.uint8], begin: Positions) -> int:
    """Number of spaces before the first of these lines; lines that differ are found by what stands there."""
    if not len(begin):
        return 0
    line = raw[begin[0] : begin[0] + 64]
    ink = np.flatnonzero(line != _SPACE)
    return int(ink[0]) if len(ink) else 0


def _keys(
    body: bytes, raw: NDArray[np.uint8], begin: Positions, value: Positions
) -> tuple[Positions, Positions] | None:
    """First character and closing quote of the key on lines ``   "key": {``; ``value`` is where the value begins."""
    if not len(begin):
        return begin, begin
    first = begin + _indent(raw, begin)
    colon = value - 1 - (raw[value - 1] == _SPACE)
    good = (raw[first] == _QUOTE) & (raw[colon] == _COLON) & (raw[colon - 1] == _QUOTE) & (colon - 1 > first)
    return (first + 1, colon - 1) if good.all() else None


def _names(body: bytes, first: Positions, close: Positions) -> list[str] | None:
    ranges = zip(first.tolist(), close.tolist(), strict=True)
    if body.isascii() and b"\\" not in body:
        text = body.decode("ascii")
        names = [text[a:b] for a, b in ranges]
        return names if not any('"' in n for n in names) else None
    try:
        return [decode_name(b'"' + body[a:b] + b'"') for a, b in ranges]
    except Stop:
        return None


def _candidates(body: bytes, raw: NDArray[np.uint8], at: Positions, last: NDArray[np.uint8]) -> Positions:
    bare = [at[last == 0x4E] - 2, at[last == 0x79] - 7]  # ...NaN, ...Infinity
    text = at[last == _QUOTE]
    end, before_end = raw[text - 1], raw[text - 2]
    number = np.concatenate([at[last - 0x30 < 10], text[end - 0x30 < 10] - 1])
    exponent = np.zeros(len(number), bool)
    behind = raw[number - 2]
    for back in range(3, 9):  # three digits and more behind an e: 1e400, 1e+308
        here = raw[number - back]
        sign = (behind == 0x2B) | (behind == 0x2D)
        many = (behind - 0x30 < 10) | sign if back > 3 else behind - 0x30 < 10
        exponent |= (here | 0x20 == 0x65) & many
        behind = here
    number = number[exponent]
    number = number[raw[number - 1] - 0x30 < 10]
    large = [match.start() for n in number.tolist() if (match := _EXPONENT.search(body, max(0, n - 400), n + 1))]
    last_letter, before_last = end | 0x20, before_end | 0x20
    special = ((last_letter == 0x6E) & (before_last == 0x61)) | ((last_letter == 0x66) & (before_last == 0x6E))
    special |= ((last_letter == 0x79) & (before_last == 0x74)) | (before_end == 0x5C) | (end == _SPACE)
    quoted = large
    for close in text[special].tolist():
        opening = body.rfind(b'"', 0, close)
        word = _WORD.match(body, opening, close + 1)
        if word is not None:
            quoted.append(word.start(1))
    found = np.concatenate([*bare, np.array(quoted, np.int64)])
    return np.sort(found[found >= 0])
