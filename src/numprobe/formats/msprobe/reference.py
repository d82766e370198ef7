"""The full-decode path: every member of a dump.json through the standard library, one after another.

Slow and simple. It reads what the byte scanner refuses (unusual layout, damage), and the tests hold the scanner to it.
The text is handled as latin-1 so that character offsets are byte offsets; JSON's structure is ASCII.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True)
class Damage:
    """Where reading stopped: byte offset in the file, the record that was being read, and what was wrong."""

    offset: int
    record: str
    reason: str  # truncated | malformed


@dataclass(frozen=True)
class Member:
    """Name and byte range ``[start, end)`` of one member's value."""

    name: str
    start: int
    end: int


class Stop(Exception):
    """Raised at the first byte that cannot be read."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(damage.reason)
        self.damage = damage


def skip_space(text: str, pos: int) -> int:
    found = _SPACE.match(text, pos)
    return found.end() if found else pos


def read_string(text: str, pos: int) -> tuple[str, int]:
    """The JSON string at ``pos`` and the position after it.

    Raises:
        Stop: there is none.
    """
    found = _STRING.match(text, pos)
    if found is None:
        raise Stop(Damage(pos, "", _reason(text, pos)))
    try:
        value = json.loads(found.group().encode("latin-1").decode("utf-8", "replace"), strict=False)
    except ValueError:
        raise Stop(Damage(pos, "", "malformed")) from None
    return str(value), found.end()


def skip_value(text: str, pos: int, record: str) -> int:
    """Position after the JSON value at ``pos``.

    Raises:
        Stop: it is cut short or no JSON.
    """
    try:
        return _DECODER.raw_decode(text, pos)[1]
    except RecursionError:
        raise Stop(Damage(pos, record, "nested too deeply")) from None
    except (ValueError, IndexError) as error:
        at = getattr(error, "pos", pos)
        # an unterminated string is reported at its opening quote, long before the end of a truncated file
        cut = "Unterminated" in str(error) or at >= len(text.rstrip()) - 1
        raise Stop(Damage(at, record, "truncated" if cut else "malformed")) from None


def iterate_members(text: str, pos: int, base: int = 0) -> Generator[Member, None, int]:
    """Members of an object from ``pos`` (just behind its brace, or at a key) on; ``base`` is added to every offset.

    The generator's return value is the position of the closing brace.

    Raises:
        Stop: at damage, after all members before it were yielded.
    """
    while True:
        pos = skip_space(text, pos)
        if pos >= len(text):
            raise Stop(Damage(base + pos, "", "truncated"))
        if text[pos] == "}":
            return pos
        if text[pos] == ",":
            pos = skip_space(text, pos + 1)
        try:
            name, pos = read_string(text, pos)
            pos = skip_space(text, pos)
            if text[pos : pos + 1] != ":":
                raise Stop(Damage(pos, name, _reason(text, pos)))
            start = skip_space(text, pos + 1)
            end = skip_value(text, start, name)
            after = skip_space(text, end)
            if after < len(text) and text[after] not in ",}":
                raise Stop(Damage(after, name, "malformed"))
            if after >= len(text) and text[end - 1] not in '}]"':
                raise Stop(Damage(after, name, "truncated"))  # a number or literal cut short reads as a whole one
        except Stop as stop:
            d = stop.damage
            raise Stop(Damage(base + d.offset, d.record, d.reason)) from None
        yield Member(name, base + start, base + end)
        pos = end


def _reason(text: str, pos: int) -> str:
    rest = text[pos:].strip()
    return "truncated" if not rest or (rest[0] == '"' and rest.count('"') == 1) else "malformed"
