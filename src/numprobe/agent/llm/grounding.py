"""Which numbers and names in a model's text stand in what it was given."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

_NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w])")
_LIST = re.compile(r"^\s*(?:\d{1,2}[.)、]|[-*•])\s", re.MULTILINE)
_NAME = re.compile(r"`([^`\n]{2,300})`")
_CITED = re.compile(r"\[[A-Z]\d+\]")
_SMALL = 3  # 0, 1, 2, 3 count things in a sentence: two sides, one rank


@dataclass(frozen=True)
class Checked:
    """``text`` is the model's, with a mark behind everything that was not found; ``unsupported`` lists those."""

    text: str
    unsupported: list[str]


def check(text: str, sources: Iterable[str], mark: str) -> Checked:
    """Mark the numbers and the names in backticks of ``text`` that none of ``sources`` holds.

    A number may be rounded: it is found where a number of the sources has the same digits as far as it goes, as a fraction or as
    a percentage. Numbers of list items and of citations, and 0 to 3, are not looked at.
    """
    given = "\n".join(sources)
    known = {value for found in _NUMBER.finditer(given) if (value := _value(found.group())) is not None}
    skipped = [m.span() for pattern in (_LIST, _CITED) for m in pattern.finditer(text)]
    names = list(_NAME.finditer(text))
    marks: list[tuple[int, str]] = []
    for name in names:
        if not _held(name.group(1), given):
            marks.append((name.end(), name.group(1)))
    inside = [name.span() for name in names]
    for found in _NUMBER.finditer(text):
        if any(start <= found.start() < end for start, end in (*skipped, *inside)):
            continue
        if not _supported(found.group(), known, percent=text[found.end() : found.end() + 2].strip().startswith("%")):
            marks.append((found.end(), found.group()))
    out, at = "", 0
    for end, _ in sorted(marks):
        out += text[at:end] + mark
        at = end
    return Checked(out + text[at:], [what for _, what in sorted(marks)])


def _held(name: str, given: str) -> bool:
    """A name, a path or a command: whole, or every word of it."""
    if name in given:
        return True
    words = [w for w in re.split(r"[\s,()\[\]{}:=]+", name) if w]
    return bool(words) and all(w in given or not re.search(r"[._\d]", w) for w in words)


def _supported(text: str, known: set[float], *, percent: bool) -> bool:
    value = _value(text)
    if value is None:
        return True
    if value.is_integer() and abs(value) <= _SMALL:
        return True
    digits = _digits(text)
    candidates = [known] if not percent else [known, {x * 100 for x in known}]
    return any(_same(value, x, digits) for numbers in candidates for x in numbers)


def _same(value: float, x: float, digits: int) -> bool:
    if value == x:
        return True
    if value == 0 or x == 0 or (value < 0) != (x < 0):
        return False
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return abs(value - x) <= 0.5000001 * step


def _digits(text: str) -> int:
    """How many digits were written: 4 of ``3.270``, 1 of ``400`` is taken as 3, since zeros may be exact."""
    plain = re.sub(r"[eE].*", "", text).replace(",", "").lstrip("+-−0.")
    return max(len(plain.replace(".", "")), 1)


def _value(text: str) -> float | None:
    try:
        value = float(text.replace(",", "").replace("−", "-"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
