"""The full-decode path: every member of a dump.json through the standard library, one after another.

Slow and simple. It reads what the byte scanner refuses (unusual layout, damage), and the tests hold the scanner to it.
The text is handled as latin-1 so that character offsets are byte offsets; JSON's structure is ASCII.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator
from dataclasses import dataclass

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.S)
_DECODER = json.JSONDecoder(strict=False)
_PATIENT_DECODER = json.JSONDecoder(strict=False, parse_int=lambda text: bounded_int(text))
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.S
)
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_NUMBER_CUT = re.compile(r"-|-?[0-9]+(?:\.|\.?[0-9]*[eE][-+]?)?")
_ESCAPE_CUT = re.compile(r"\\?u?[0-9a-fA-F]{0,4}")
TOO_DEEP = "nested too deeply"


@dataclass(frozen=True)
class Damage:
    """Where reading stopped: byte offset in the file, the record that was being read, and what was wrong."""

    offset: int
    record: str
    reason: str  # truncated | malformed | nested too deeply | live


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
    return decode_name(found.group().encode("latin-1"), pos), found.end()


def decode_name(quoted: bytes, pos: int = 0) -> str:
    """A JSON string with its quotes, as text that can be written again (no half characters).

    Raises:
        Stop: it holds an escape that JSON does not know.
    """
    try:
        return str(json.loads(whole_characters(quoted.decode("utf-8", "replace")), strict=False))
    except ValueError:
        raise Stop(Damage(pos, "", "malformed")) from None


def whole_characters(text: str) -> str:
    """JSON text in which halves of surrogate pairs that stand alone are replaced: no such string can be written to a file."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda m: "\\ufffd" if m.group(1) else m.group(), text)


def bounded_int(text: str) -> int | float:
    """An integer of any length; those of more than 400 digits are infinite, as 1e400 is."""
    if len(text) <= 400:
        return int(text)
    return -math.inf if text.startswith("-") else math.inf


def skip_value(text: str, pos: int, record: str) -> int:
    """Position after the JSON value at ``pos``.

    Raises:
        Stop: it is cut short or no JSON.
    """
    try:
        try:
            return _DECODER.raw_decode(text, pos)[1]
        except json.JSONDecodeError:
            raise
        except ValueError:  # an integer of more digits than int() takes
            return _PATIENT_DECODER.raw_decode(text, pos)[1]
    except RecursionError:
        raise Stop(Damage(pos, record, TOO_DEEP)) from None
    except (ValueError, IndexError) as error:
        at = getattr(error, "pos", pos)
        # an unterminated string is reported at its opening quote, long before the end of a truncated file
        cut = "Unterminated" in str(error) or _cut_short(text, at)
        raise Stop(Damage(at, record, "truncated" if cut else "malformed")) from None


def _cut_short(text: str, at: int) -> bool:
    """Could what stands at ``at``, the last thing in the text, be the beginning of something that JSON knows?"""
    if len(text) - at > 1000 and text[at : at + 1000].strip():
        return False
    rest = text[max(at - 1, 0) :].strip()
    if len(rest) <= 1:
        return True
    return any(
        any(word.startswith(part) for word in _WORDS) or _NUMBER_CUT.fullmatch(part) or _ESCAPE_CUT.fullmatch(part)
        for part in (rest, rest[1:].lstrip())
    )


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
                raise Stop(Damage(after, name, "truncated" if _cut_short(text, start) else "malformed"))
            if after >= len(text) and text[end - 1] not in '}]"':
                raise Stop(Damage(after, name, "truncated"))  # a number or literal cut short reads as a whole one
        except Stop as stop:
            d = stop.damage
            raise Stop(Damage(base + d.offset, d.record, d.reason)) from None
        yield Member(name, base + start, base + end)
        pos = end


def _reason(text: str, pos: int) -> str:
    rest = text[pos : pos + 1000].strip()
    return "truncated" if not rest or rest[0] == '"' else "malformed"  # at a quote: a string without an end
