"""The byte scanner: an index of a dump.json without decoding its records.

A file is read in blocks that are cut between two members. In a block, ``tokens`` finds where non-finite numbers may stand,
``blocks`` where every member and section lies, and only members whose flags these two cannot tell are decoded.

Whatever a step cannot prove (an unusual layout, a repeated key, damage) goes to the full-decode path of
:mod:`numprobe.formats.msprobe.reference`; both give the same index.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.blocks import Unusual, index_block
from numprobe.formats.msprobe.index import RankIndex
from numprobe.formats.msprobe.members import (
    UndecodableMember,
    decode_member,
    member_flags,
)
from numprobe.formats.msprobe.reference import TOO_DEEP, Damage, Member, Stop, iterate_members, skip_space
from numprobe.record.errors import NumprobeError
from numprobe.record.trace import RunInfo

BLOCK = 1 << 20
HEADER_LIMIT = 1 << 20
_MEMBER = re.compile(
    rb',\s*("(?:[^"\\]|\\.){1,4096}?\.(?:forward|backward|parameters_grad|debug)(?:\.\d+)?"\s*:\s*[{\[])',
)
_DATA = re.compile(rb'"data"\s*:\s*\{')
_EXTREMUM = re.compile(rb'"(?:Max|Min)"\s*:\s*[^n\s]')
_BOM = b"\xef\xbb\xbf"


@dataclass
class _Rows:
    names: list[str] = field(default_factory=list)
    start: list[NDArray[np.int64]] = field(default_factory=list)
    end: list[NDArray[np.int64]] = field(default_factory=list)
    flags: list[NDArray[np.uint8]] = field(default_factory=list)  # columns input, output, parameter

    def add(
        self, names: Iterable[str], start: NDArray[np.int64], end: NDArray[np.int64], flags: NDArray[np.uint8]
    ) -> None:
        self.names.extend(names)
        self.start.append(start)
        self.end.append(end)
        self.flags.append(flags)

    def extend(self, other: _Rows) -> None:
        self.names += other.names
        self.start += other.start
        self.end += other.end
        self.flags += other.flags


def scan_file(path: Path, block: int = BLOCK) -> RankIndex:
    """Index a dump.json (or debug.json).

    A damaged or truncated file gives the index of its readable prefix, with ``damage`` set.

    Raises:
        NumprobeError: no such file, no permission (E-FMT-010), no JSON object (E-FMT-011), no ``data`` (E-FMT-012).
    """
    return _scan(path, block, fast=True)


def scan_file_reference(path: Path) -> RankIndex:
    """The same index by full decode, for tests and as a yardstick."""
    return _scan(path, BLOCK, fast=False)


def _scan(path: Path, block: int, *, fast: bool) -> RankIndex:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise NumprobeError(
                "E-FMT-010",
                "{file} cannot be read: it is no file",
                where=str(path),
                do="point numprobe at a dump.json as the collector wrote it, or leave the rank out with --rank",
                file=path.name,
            )
        with path.open("rb") as file:
            return _scan_open(file, path, block, fast=fast)
    except OSError as error:
        raise NumprobeError(
            "E-FMT-010",
            "{file} cannot be read: {reason}",
            where=str(path),
            do="check that the file exists and that you may read it",
            file=path.name,
            reason=error.strerror or str(error),
        ) from None


class _Reader:
    """Reads at most what the file held when it was opened: one that grows meanwhile ends there, cut short."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.left = self.size

    def read(self, count: int) -> bytes:
        content = self.file.read(min(count, self.left))
        self.left = self.left - len(content) if content else 0
        return content

    def rest(self) -> bytes:
        return self.read(self.left)


def _scan_open(file: BinaryIO, path: Path, block: int, *, fast: bool) -> RankIndex:
    source = _Reader(file)
    buffer = source.read(block)
    while (
        _DATA.search(buffer) is None and len(buffer) < HEADER_LIMIT and (more := source.read(max(block, len(buffer))))
    ):
        buffer += more
    info, base = _header(buffer, path)
    if info is None:
        return _whole_file(buffer + source.rest(), path, source.size)
    rows = _Rows()
    rest, at = buffer[base:], base  # bytes not yet indexed, and their offset in the file
    damage: Damage | None = None
    has_extrema = False
    grow = block  # doubled where a block holds no whole member, so that time stays linear in the member's length
    done = False
    while not done:
        more = source.read(grow) if fast else source.rest()
        if more and not fast:
            rest += more
            continue
        cut = _last_boundary(rest) if more else len(rest)
        if more and cut == 0:  # a member longer than the block
            rest += more
            grow = len(rest)
            continue
        piece = rest[:cut]
        taken = _Rows()
        if fast and _fast_block(piece, at, taken, last=not more):
            tail = None
        else:
            tail, damage = _slow_block(piece, at, taken)
            ended = (
                damage is not None and damage.offset - at == len(piece) and not damage.record
            )  # behind a whole member
            if more and damage is not None and not ended:
                if damage.reason == "truncated" or len(piece) - (damage.offset - at) < 64:
                    rest += more  # the cut was not between two members after all
                    grow = len(rest)
                    damage = None
                    continue
            elif more:
                tail, damage = (None, None) if damage is not None else (tail, None)
        if not has_extrema and taken.end and len(taken.end[-1]):
            first, last = int(taken.start[0][0]) - at, int(taken.end[-1][-1]) - at
            has_extrema = _EXTREMUM.search(piece, first, last) is not None
        rows.extend(taken)
        if tail is None and more:
            at += cut
            rest = rest[cut:] + more
            grow = block
            continue
        done = True
        if tail is not None and damage is None:
            damage = _tail_damage((rest + more)[tail + 1 :] + source.rest(), at + tail + 1)
    return _index(info, rows, source.size, has_extrema, damage)


def _index(info: RunInfo, rows: _Rows, size: int, has_extrema: bool, damage: Damage | None) -> RankIndex:
    none = np.zeros(0, np.int64)
    flags = np.concatenate(rows.flags) if rows.flags else np.zeros((0, 3), np.uint8)
    repeated: list[str] = []
    if len(set(rows.names)) != len(rows.names):
        seen: set[str] = set()
        for name in rows.names:
            if name in seen:
                repeated.append(name)
            seen.add(name)
    return RankIndex(
        info,
        rows.names,
        np.concatenate(rows.start) if rows.start else none,
        np.concatenate(rows.end) if rows.end else none,
        np.ascontiguousarray(flags[:, 0]),
        np.ascontiguousarray(flags[:, 1]),
        np.ascontiguousarray(flags[:, 2]),
        size,
        has_extrema,
        damage,
        repeated,
    )


# --- header and tail ---------------------------------------------------------------------------------------------


def _header(buffer: bytes, path: Path) -> tuple[RunInfo | None, int]:
    """Run information and the offset behind the brace of ``data``; (None, 0) if ``data`` is not where it usually is."""
    skip = len(_BOM) if buffer.startswith(_BOM) else 0
    first = buffer[skip:].lstrip()[:1]
    if first != b"{":
        raise NumprobeError(
            "E-FMT-011",
            "{file} is no JSON object: it begins with {first!a}" if first else "{file} is empty",
            where=str(path),
            do="point numprobe at a dump.json as the collector wrote it, or leave the rank out with --rank",
            file=path.name,
            first=first.decode("latin-1"),
        )
    found = _DATA.search(buffer)
    if found is None or found.end() > HEADER_LIMIT:
        return None, 0
    try:
        fields = json.loads(buffer[skip : found.end()].decode("utf-8", "replace") + "}}")
    except (ValueError, RecursionError):
        return None, 0
    if fields.get("data") != {}:  # inside another key's object
        return None, 0
    return _run_info(fields), found.end()


def _run_info(fields: dict[str, object]) -> RunInfo:
    def text(key: str) -> str:
        value = fields.get(key)
        return value if isinstance(value, str) else ""

    return RunInfo(text("framework"), text("task"), text("level"), text("grad_kind"))


def _tail_damage(tail: bytes, at: int) -> Damage | None:
    """Is what follows the brace that closes ``data`` (from file offset ``at`` on) the end of the file's object?"""
    rest = tail.strip()
    if rest == b"}":
        return None
    if not rest:
        return Damage(at + len(tail), "", "truncated")
    text = tail.decode("latin-1")
    again = False
    try:  # further keys behind data
        members = iterate_members(text, 0, at)
        while True:
            again = next(members).name == "data" or again
    except StopIteration as end:
        closed = int(end.value)
        if again or text[closed + 1 :].strip():
            return Damage(at, "", "malformed")
    except Stop as stop:
        return Damage(stop.damage.offset, "", stop.damage.reason)
    return None


def _whole_file(buffer: bytes, path: Path, size: int) -> RankIndex:
    """A file whose ``data`` does not follow a short header of plain keys: walk the top-level object member by member."""
    text = buffer.decode("latin-1")
    pos = skip_space(text, 3 if buffer.startswith(_BOM) else 0) + 1
    fields: dict[str, object] = {}
    rows = _Rows()
    damage: Damage | None = None
    found = False
    members = iterate_members(text, pos)
    try:
        for member in members:
            if member.name == "data":
                found = True
                if buffer[member.start : member.start + 1] != b"{":
                    raise _no_data(path, sorted(fields), size, there=True)
                begin = member.start + 1
                damage = _slow_block(buffer[begin : member.end], begin, rows)[1]
            else:
                try:
                    fields[member.name] = decode_member(buffer[member.start : member.end])
                except UndecodableMember:
                    fields[member.name] = None
    except Stop as stop:
        damage = damage or stop.damage
        if not found:
            at = re.search(r'"data"\s*:\s*\{', text)
            if at is None:
                raise _no_data(path, sorted(fields), size) from None
            found = True
            _, inner = _slow_block(buffer[at.end() :], at.end(), rows)
            damage = inner or damage
    if not found:
        raise _no_data(path, sorted(fields), size)
    has_extrema = False
    if rows.end and len(rows.end[-1]):
        has_extrema = _EXTREMUM.search(buffer, int(rows.start[0][0]), int(rows.end[-1][-1])) is not None
    return _index(_run_info(fields), rows, size, has_extrema, damage)


def _no_data(path: Path, keys: list[str], size: int, *, there: bool = False) -> NumprobeError:
    """``there``: a member ``data`` was found, but is no object."""
    listed = ", ".join(keys[:12])
    return NumprobeError(
        "E-FMT-012",
        '{file} is not a dump: member "data" is no object' if there else '{file} is not a dump: no member "data"',
        where=str(path),
        found="{keys} ({size:,} bytes)" if listed else "nothing ({size:,} bytes)",
        do="the job may still be writing: wait and run again, or leave the rank out with --rank",
        file=path.name,
        keys=listed,
        size=size,
    )


# --- the full-decode path ----------------------------------------------------------------------------------------


def _slow_block(piece: bytes, at: int, rows: _Rows) -> tuple[int, Damage | None]:
    """Index ``piece`` (members, at file offset ``at``) by full decode: position of the closing brace, and damage."""
    members: list[Member] = []
    flags: list[tuple[int, int, int]] = []
    damage: Damage | None = None
    tail = len(piece)
    walk = iterate_members(piece.decode("latin-1"), 0, at)
    try:
        while True:
            try:
                member = next(walk)
            except StopIteration as end:
                tail = int(end.value)
                break
            try:
                flags.append(member_flags(member.name, piece[member.start - at : member.end - at]))
            except UndecodableMember as error:
                reason = TOO_DEEP if str(error) == TOO_DEEP else "malformed"
                raise Stop(Damage(member.start, member.name, reason)) from None
            members.append(member)
    except Stop as stop:
        damage = stop.damage
    rows.add(
        [m.name for m in members],
        np.array([m.start for m in members], np.int64),
        np.array([m.end for m in members], np.int64),
        np.array(flags, np.uint8).reshape(-1, 3),
    )
    return tail, damage


# --- the fast path -----------------------------------------------------------------------------------------------


def _last_boundary(piece: bytes) -> int:
    """Where the last member that is known to be followed by another one ends; 0 if there is none."""
    width = 1 << 12
    while True:
        low = max(0, len(piece) - width)
        ends = [m.start() for m in _MEMBER.finditer(piece, low)]
        if ends:
            return ends[-1] + 1  # behind the comma: the next block begins with white space and a key
        if low == 0:
            return 0
        width *= 8


def _fast_block(piece: bytes, at: int, rows: _Rows, *, last: bool) -> bool:
    """Index the members of ``piece``; False where the full-decode path must take over."""
    try:
        body = _strip_end(piece) if last else piece[:-1]  # else: the comma before the next member
        names, start, end, flags = index_block(body)
    except (Unusual, UndecodableMember):
        return False
    rows.add(names, start + at, end + at, flags)
    return True


def _strip_end(piece: bytes) -> bytes:
    """The members of a file's last block, without the two braces that close it."""
    end = len(piece)
    for _ in range(2):
        while end and piece[end - 1] in b" \t\n\r":
            end -= 1
        if not end or piece[end - 1] != 0x7D:
            raise Unusual
        end -= 1
    return piece[:end]
