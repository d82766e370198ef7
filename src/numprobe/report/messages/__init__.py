"""The catalogue: every sentence and label, in English and Chinese, as data next to the code that needs it.

A catalogue is one or more folders with ``en.json`` and ``zh.json`` (flat: key to template); later folders go first.

A template holds fields, ``{name}`` or ``{name:format}``, and optional parts, ``[[...]]``, which appear only when each
field in them has a value. Formats:

======== ==============================================================================
(none)   text as it is; a float as a statistic; an int without comma groups (rank, step)
count    exact integer with comma groups
stat     4 significant digits
limit    limit of a dtype
percent  a share of 1
size     bytes
ranks    a rank or list of ranks: ``0, 3, 8-15``
op path code bad   marked up as operator name, file, code, non-finite value
t.X      the message ``X.<value>``
plural one|many    the word that fits a number or the length of a list; not the number itself
======== ==============================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeAlias

from numprobe.report import numbers

_PART = re.compile(r"\[\[(.*?)\]\]|\{(\w+)(?::([^{}]*))?\}", re.DOTALL)
_MARKS = ("op", "path", "code", "bad")


class Message(Protocol):
    """A message that is not worded yet."""

    @property
    def key(self) -> str: ...
    @property
    def values(self) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class Mark:
    """A part of a sentence that a rendering may set off: ``kind`` is op, path, code or bad."""

    kind: str
    text: str


Piece: TypeAlias = "str | Mark"


@dataclass(frozen=True)
class Catalogue:
    """The messages of one or more folders."""

    folders: tuple[Path, ...]

    def say(self, lang: str, key: str, /, **values: object) -> str:
        """The message as plain text. A key that is not in the catalogue is shown itself, with its values."""
        return plain(self.pieces(lang, key, values))

    def word(self, lang: str, message: Message) -> str:
        """The message as plain text."""
        return plain(self.pieces(lang, message.key, message.values))

    def pieces(self, lang: str, key: str, values: Mapping[str, object]) -> list[Piece]:
        """The message in parts, for a rendering with markup."""
        template = self.templates(lang).get(key)
        if template is None:
            listed = ", ".join(f"{name}={value}" for name, value in values.items())
            return [f"{key} ({listed})" if listed else key]
        return _fill(template, values, lambda key: self.say(lang, key))

    def templates(self, lang: str) -> dict[str, str]:
        """All templates of a language."""
        return _load(self.folders, lang)

    def problems(self, message: Message) -> list[str]:
        """What would go wrong with this message: unknown key, missing or unknown values. Empty if nothing."""
        template = self.templates("en").get(message.key)
        if template is None:
            return [f"{message.key}: no such key"]
        needed, optional = fields(template)
        given = {name for name, value in message.values.items() if _has(value)}
        found = [f"{message.key}: no value for {name}" for name in sorted(needed - given)]
        return found + [f"{message.key}: unknown value {name}" for name in sorted(given - needed - optional)]


GENERIC = Catalogue((Path(__file__).parent,))
say = GENERIC.say


def fields(template: str) -> tuple[set[str], set[str]]:
    """The fields a template needs, and those of its optional parts."""
    needed: set[str] = set()
    optional: set[str] = set()
    for part in _PART.finditer(template):
        if part.group(1) is not None:
            optional |= fields(part.group(1))[0]
        else:
            needed.add(part.group(2))
    return needed, optional - needed


def plain(pieces: Iterable[Piece]) -> str:
    """Pieces as text without markup."""
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)


@lru_cache(maxsize=16)
def _load(folders: tuple[Path, ...], lang: str) -> dict[str, str]:
    merged: dict[str, str] = {}
    for folder in reversed(folders):
        merged.update(json.loads((folder / f"{lang}.json").read_text(encoding="utf-8")))
    return merged


def _has(value: object) -> bool:
    return value is not None and value != "" and value != []


def _fill(template: str, values: Mapping[str, object], look_up: Callable[[str], str]) -> list[Piece]:
    pieces: list[Piece] = []
    end = 0
    for part in _PART.finditer(template):
        pieces.append(template[end : part.start()])
        end = part.end()
        optional, name, spec = part.groups()
        if optional is not None:
            if all(_has(values.get(field)) for field in fields(optional)[0]):
                pieces.extend(_fill(optional, values, look_up))
        elif _has(values.get(name)):
            pieces.extend(_formatted(values[name], spec or "", look_up))
        else:
            pieces.append("?")  # a figure that is missing must not cost the reader the rest of the page
    pieces.append(template[end:])
    return [piece for piece in pieces if piece]


def _formatted(value: object, spec: str, look_up: Callable[[str], str]) -> list[Piece]:
    """One piece; of a list of names one for each, so that each is broken, copied and shortened as a name."""
    if spec not in _MARKS or not isinstance(value, (list, tuple)):
        return [_format(value, spec, look_up)]
    between = look_up("list.numbers")
    return [piece for n, one in enumerate(value) for piece in ([between] if n else []) + [_format(one, spec, look_up)]]


def _format(value: object, spec: str, look_up: Callable[[str], str]) -> Piece:
    if spec in _MARKS:
        return Mark(spec, _text(value))
    if spec.startswith("t."):
        return look_up(f"{spec[2:]}.{value}")
    if spec.startswith("plural "):
        one, _, many = spec[7:].partition("|")
        amount = len(value) if isinstance(value, (list, tuple)) else 1 if isinstance(value, str) else value
        return one if amount == 1 else many
    if spec == "ranks":
        return numbers.ranges(value, look_up("list.numbers")) if isinstance(value, (list, tuple)) else _text(value)
    if isinstance(value, (int, float)) and spec:
        return _NUMBERS[spec](value)
    return _text(value)


_NUMBERS: dict[str, Callable[..., str]] = {
    "count": numbers.count,
    "stat": numbers.stat,
    "limit": numbers.limit,
    "percent": numbers.percent,
    "size": numbers.size,
    "signed": numbers.signed,
    "duration": numbers.duration,
}


def _text(value: object) -> str:
    if isinstance(value, float):
        return numbers.stat(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return str(value)
