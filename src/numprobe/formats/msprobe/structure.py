"""construct.json and stack.json of one rank: who called whom, and from which line."""

from __future__ import annotations

import errno
import json
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from numprobe.formats.msprobe.members import UndecodableMember, decode_member
from numprobe.formats.msprobe.reference import TOO_DEEP, Stop, iterate_members, skip_space

_GROUPS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PLAIN = msgspec.json.Decoder(dict[str, str | None])
MICRO_STEP_KEY = "megatron_micro_step_number"
# of a file that is there: a link out of the dump, a ring of links, no permission, no file, no JSON object, too deep, cut short
PROBLEMS = ("outside", "ring", "denied", "file", "json", "deep", "cut")


@dataclass(frozen=True)
class ModuleTree:
    """Parents by record name, as construct.json gives them; empty where the file is absent, unreadable or L1.

    ``micro_step`` holds the micro-batch of a record where the collector had patched the pipeline schedule. ``problem`` is one
    of :data:`PROBLEMS` where the file is there and nothing of it could be read, ``damage`` one where some of it could.
    """

    parents: dict[str, str | None] = field(default_factory=dict)
    micro_step: dict[str, int] = field(default_factory=dict)
    present: bool = False
    problem: str = ""
    damage: str = ""

    def chain(self, name: str) -> list[str]:
        """The record and its ancestors, innermost first; ends at a root or where a name repeats."""
        names = [name]
        seen = {name}
        parent = self.parents.get(name)
        while parent is not None and parent not in seen:
            names.append(parent)
            seen.add(parent)
            parent = self.parents.get(parent)
        return names


def read_construct(path: Path) -> ModuleTree:
    """Parents from construct.json. An absent or unreadable file gives an empty tree: nothing depends on it alone."""
    raw, problem = _content(path)
    if raw is None:
        return ModuleTree(problem=problem, damage=problem)
    try:
        return ModuleTree(_PLAIN.decode(raw), {}, True)  # as the collector writes it without Megatron
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    content, damage = _object(raw)
    if damage and not content:
        return ModuleTree(problem=damage, damage=damage)
    parents: dict[str, str | None] = {}
    micro: dict[str, int] = {}
    for name, value in content.items():
        if name == MICRO_STEP_KEY:
            continue
        parent: Any = value
        if isinstance(value, list):
            parent = value[0] if value else None
            if len(value) > 1 and type(value[1]) is int:
                micro[name] = value[1]
        parents[name] = parent if isinstance(parent, str) and parent != name else None
    return ModuleTree(parents, micro, True, damage=damage)


class Stacks(Mapping[str, list[str]]):
    """Frames by record name, innermost first; both layouts (``{"0": [[names], [frames]]}`` and ``{name: [frames]}``).

    Looking up one name decodes the one group that holds it: files of a hundred megabytes are common, and few stacks are
    ever asked for. ``problem`` is one of :data:`PROBLEMS` where the file is there and nothing of it could be read,
    ``damage`` one also where some of it could.
    """

    def __init__(self, groups: dict[str, msgspec.Raw], damage: str = "") -> None:
        self._groups = groups
        self.damage = damage
        self.problem = "" if groups else damage

    def __getitem__(self, name: str) -> list[str]:
        spellings = [json.dumps(name, ensure_ascii=ascii_).encode("utf-8", "replace") for ascii_ in (True, False)]
        for key, raw in reversed(self._groups.items()):
            text = bytes(raw)
            if key == name or any(spelling in text for spelling in spellings):
                for found, frames in _stack_group(key, text):
                    if found == name:
                        return frames
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        seen = {name: None for key, raw in self._groups.items() for name, _ in _stack_group(key, bytes(raw))}
        return iter(seen)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def every(self) -> Iterator[tuple[str, list[str]]]:
        """All names with their frames, in one pass: for many looks."""
        for key, raw in self._groups.items():
            yield from _stack_group(key, bytes(raw))

    def names_where(self, holds: Callable[[list[str]], bool], hint: bytes) -> frozenset[str]:
        """Names whose frames satisfy ``holds``. Only groups whose text has ``hint`` in it are decoded."""
        texts = ((key, bytes(raw)) for key, raw in self._groups.items())
        return frozenset(
            name for key, text in texts if hint in text for name, frames in _stack_group(key, text) if holds(frames)
        )


def _stack_group(key: str, text: bytes) -> Iterator[tuple[str, list[str]]]:
    """Names and frames of one member of stack.json; none of one that is no group."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if not isinstance(value, list):
        return
    if len(value) == 2 and all(isinstance(part, list) for part in value):
        frames = [f for f in value[1] if isinstance(f, str)]
        yield from ((name, frames) for name in value[0] if isinstance(name, str))
    elif not key.isdecimal():  # a group that is no pair belongs to nothing
        yield key, [f for f in value if isinstance(f, str)]


def read_stacks(path: Path) -> Stacks:
    """The stacks in stack.json. An absent or unreadable file gives none."""
    raw, problem = _content(path)
    if raw is None:
        return Stacks({}, problem)
    try:
        return Stacks(_GROUPS.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        content, damage = _readable(raw)
        return Stacks({name: msgspec.Raw(msgspec.json.encode(group)) for name, group in content.items()}, damage)


def _object(raw: bytes) -> tuple[dict[str, Any], str]:
    """The object in a file, and the damage as of :func:`_readable`."""
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _readable(raw)
    return (content, "") if isinstance(content, dict) else ({}, "json")


def _content(path: Path) -> tuple[bytes | None, str]:
    """The bytes of a file without BOM; None with a problem, or without one where there is no file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            return None, "file"
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf"), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, "ring" if error.errno == errno.ELOOP else "denied"


def _readable(raw: bytes) -> tuple[dict[str, Any], str]:
    """The members before the damage, and which damage: one of :data:`PROBLEMS`."""
    text = raw.decode("latin-1")
    begin = skip_space(text, 0)
    if text[begin : begin + 1] != "{":
        return {}, "json"
    found: dict[str, Any] = {}
    damage = ""
    try:
        for member in iterate_members(text, begin + 1):
            found[member.name] = decode_member(raw[member.start : member.end])
    except Stop as stop:
        damage = {TOO_DEEP: "deep", "truncated": "cut"}.get(stop.damage.reason, "json")
    except UndecodableMember as error:
        damage = "deep" if str(error) == TOO_DEEP else "json"
    return found, damage
