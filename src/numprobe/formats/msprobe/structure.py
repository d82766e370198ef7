"""construct.json and stack.json of one rank: who called whom, and from which line."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from numprobe.formats.msprobe.members import UndecodableMember, decode_member
from numprobe.formats.msprobe.reference import Stop, iterate_members, skip_space

_PLAIN = msgspec.json.Decoder(dict[str, str | None])
MICRO_STEP_KEY = "megatron_micro_step_number"


@dataclass(frozen=True)
class ModuleTree:
    """Parents by record name, as construct.json gives them; empty where the file is absent, unreadable or L1.

    ``micro_step`` holds the micro-batch of a record where the collector had patched the pipeline schedule.
    """

    parents: dict[str, str | None] = field(default_factory=dict)
    micro_step: dict[str, int] = field(default_factory=dict)
    present: bool = False

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
    try:
        return ModuleTree(_PLAIN.decode(path.read_bytes()), {}, True)  # as the collector writes it without Megatron
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    content = _object(path)
    if content is None:
        return ModuleTree()
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
    return ModuleTree(parents, micro, True)


def read_stacks(path: Path) -> dict[str, list[str]]:
    """Frames by record name, innermost first; both layouts (``{"0": [[names], [frames]]}`` and ``{name: [frames]}``).

    An absent or unreadable file gives no stacks.
    """
    content = _object(path)
    stacks: dict[str, list[str]] = {}
    for key, value in (content or {}).items():
        if not isinstance(value, list):
            continue
        if len(value) == 2 and all(isinstance(part, list) for part in value):
            frames = [f for f in value[1] if isinstance(f, str)]
            for name in value[0]:
                if isinstance(name, str):
                    stacks[name] = frames
        elif not key.isdecimal():  # a group that is no pair belongs to nothing
            stacks[key] = [f for f in value if isinstance(f, str)]
    return stacks


def _object(path: Path) -> dict[str, Any] | None:
    """The object in a file; of a damaged one the members before the damage. None where there is none."""
    try:
        if not path.is_file():
            return None
        raw = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError:
        return None
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _readable(raw)
    return content if isinstance(content, dict) else None


def _readable(raw: bytes) -> dict[str, Any] | None:
    text = raw.decode("latin-1")
    begin = skip_space(text, 0)
    if text[begin : begin + 1] != "{":
        return None
    found: dict[str, Any] = {}
    with contextlib.suppress(Stop, UndecodableMember):
        for member in iterate_members(text, begin + 1):
            found[member.name] = decode_member(raw[member.start : member.end])
    return found
