"""The byte scanner: an index of a dump.json without decoding its records.

A file is read in blocks that are cut between two members. Within a block

1. numpy finds every ``nan`` and ``inf`` (in any spelling) and every number whose exponent has three digits;
2. bare tokens are overwritten by numbers of the same length, which makes the block strict JSON with every byte where it
   was, and msgspec splits it into members without decoding them;
3. hits behind ``"Max": `` or ``"Min": `` become flags, those behind ``"Mean": ``, ``"Norm": `` and ``"value": `` mean
   nothing, and a member with any other hit is decoded in full.

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

import msgspec
import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.index import STORED, RankIndex
from numprobe.formats.msprobe.lines import line_layout
from numprobe.formats.msprobe.members import UndecodableMember, decode_member, decode_repeated, extrema, section_role
from numprobe.formats.msprobe.reference import TOO_DEEP, Damage, Member, Stop, decode_name, iterate_members, skip_space
from numprobe.record.errors import NumprobeError
from numprobe.record.names import BACKWARD, DEBUG, FORWARD, PARAMETERS_GRAD, parse_name
from numprobe.record.nonfinite import Kinds
from numprobe.record.trace import INPUT, OTHER, PARAMETER, RunInfo

BLOCK = 1 << 20
HEADER_LIMIT = 1 << 20
_MEMBER = re.compile(
    rb',\s*("(?:[^"\\]|\\.){1,4096}?\.(?:forward|backward|parameters_grad|debug)(?:\.\d+)?"\s*:\s*[{\[])',
)
_DATA = re.compile(rb'"data"\s*:\s*\{')
_EXTREMUM = re.compile(rb'"(?:Max|Min)"\s*:\s*[^n\s]')
_GAP = re.compile(rb'\s*,?\s*("(?:[^"\\]|\\.)*")\s*:\s*', re.S)
_IN_STRING = re.compile(rb'"([^"\\]*)"\s*:\s*"[-+0-9.a-f]*\Z')
_BOM = b"\xef\xbb\xbf"

# White space and punctuation at the joints of members and sections
_JOINTS = re.compile(rb'(?P<lead>\s*")[^"\\]*(?P<close>"\s*:\s*)(?P<open>\{\s*")[^"\\]*(?P<shut>"\s*:\s*)', re.S)
_LINK = re.compile(rb'\s*,\s*"')
_FOOT = re.compile(rb'(?P<foot>\s*\})(?P<between>\s*,\s*")?')

_RAW = msgspec.json.Decoder(msgspec.Raw)
_RAW_SECTIONS = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]])
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_POS, _NEG, _NAN = int(Kinds.POS_INF), int(Kinds.NEG_INF), int(Kinds.NAN)


class _Unusual(Exception):
    """The block is not of the layout that the fast path can prove."""


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
                f"{path.name} cannot be read: it is no file",
                where=str(path),
                do="point numprobe at a dump.json as the collector wrote it, or leave the rank out with --rank",
            )
        with path.open("rb") as file:
            return _scan_open(file, path, block, fast=fast)
    except OSError as error:
        raise NumprobeError(
            "E-FMT-010",
            f"{path.name} cannot be read: {error.strerror or error}",
            where=str(path),
            do="check that the file exists and that you may read it",
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
            if more and damage is not None and not (damage.reason == "truncated" and not damage.record):
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
            f"{path.name} is no JSON object: it begins with {first.decode('latin-1')!a}"
            if first
            else f"{path.name} is empty",
            where=str(path),
            do="point numprobe at a dump.json as the collector wrote it, or leave the rank out with --rank",
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

    return RunInfo(text("framework"), text("task"), text("level"))


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
                    raise _no_data(path, 'member "data" is no object', sorted(fields), size)
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
                raise _no_data(path, 'no member "data"', sorted(fields), size) from None
            found = True
            _, inner = _slow_block(buffer[at.end() :], at.end(), rows)
            damage = inner or damage
    if not found:
        raise _no_data(path, 'no member "data"', sorted(fields), size)
    has_extrema = False
    if rows.end and len(rows.end[-1]):
        has_extrema = _EXTREMUM.search(buffer, int(rows.start[0][0]), int(rows.end[-1][-1])) is not None
    return _index(_run_info(fields), rows, size, has_extrema, damage)


def _no_data(path: Path, what: str, keys: list[str], size: int) -> NumprobeError:
    return NumprobeError(
        "E-FMT-012",
        f"{path.name} is not a dump: {what}",
        where=str(path),
        found=f"{', '.join(keys[:12]) or 'nothing'} ({size:,} bytes)",
        do="the job may still be writing: wait and run again, or leave the rank out with --rank",
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


def member_flags(name: str, raw: bytes) -> tuple[int, int, int]:
    """Flags (input, output, parameter) of one member by full decode.

    Raises:
        UndecodableMember: no JSON, or nested too deeply.
    """
    op = parse_name(name)
    body = decode_repeated(raw)
    flags = [0, 0, 0]
    sections = body if isinstance(body, dict) and op.kind != DEBUG else {"": body}
    for section, content in sections.items():
        role = section_role(op, section)
        if role != OTHER:
            flags[0 if role == INPUT else 2 if role == PARAMETER else 1] |= extrema(content) & int(STORED)
    return flags[0], flags[1], flags[2]


# --- the fast path -----------------------------------------------------------------------------------------------


def _last_boundary(piece: bytes) -> int:
    """Where the last member that is known to be followed by another one ends; 0 if there is none."""
    width = 1 << 14
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
        hits, layout = _by_lines(body) or _by_bytes(body)
        flags = _flags(body, hits, layout)
    except (_Unusual, UndecodableMember):
        return False
    rows.add(layout.names, layout.start + at, layout.end + at, flags)
    return True


def _by_lines(body: bytes) -> tuple[_Hits, _Layout] | None:
    """The quick way, for a block that has one value a line and is JSON."""
    found = line_layout(body)
    if found is None:
        return None
    hits = _classify(body, np.frombuffer(body, np.uint8), found.candidates)
    try:
        _RAW.decode(_strict(body, hits))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return hits, _Layout(
        found.names,
        found.start,
        found.end,
        found.section_key,
        found.section_start,
        found.section_end,
        found.section_row,
    )


def _by_bytes(body: bytes) -> tuple[_Hits, _Layout]:
    hits = _find_hits(body)
    return hits, _split(body, hits)


def _strip_end(piece: bytes) -> bytes:
    """The members of a file's last block, without the two braces that close it."""
    outer = piece.rstrip()
    if not outer.endswith(b"}"):
        raise _Unusual
    inner = outer[:-1].rstrip()
    if not inner.endswith(b"}"):
        raise _Unusual
    return inner[:-1]


@dataclass(frozen=True)
class _Hits:
    position: NDArray[np.int64]  # of the token's first byte, sign included
    kind: NDArray[np.uint8]  # Kinds bits, 0: unusual
    column: NDArray[np.uint8]  # 1: decides, 0: means nothing, 2: unusual
    bare_nan: NDArray[np.int64]  # where bare tokens stand, sign excluded, wherever they are
    bare_infinity: NDArray[np.int64]


_AFTER = np.zeros(256, bool)
_AFTER[list(b",}] \t\r\n")] = True
_DIGIT = np.zeros(256, bool)
_DIGIT[list(b"0123456789")] = True


def _find_hits(body: bytes) -> _Hits:
    raw = np.frombuffer(body, np.uint8)
    found: list[NDArray[np.int64]] = []
    step = 1 << 18  # stays in the second-level cache
    for low in range(0, len(raw), step):
        part = raw[low : low + step + 12]
        if len(part) < 3:
            break
        lower = part | 0x20
        a, b, c = lower[:-2], lower[1:-1], lower[2:]
        n = b == 0x6E  # second letter n: inf
        nan = (b == 0x61) & (a == 0x6E) & (c == 0x6E)
        inf = n & (a == 0x69) & (c == 0x66)
        exponent = (b == 0x65) & (part[:-2] - 0x30 < 10)
        at = np.flatnonzero(nan | inf | exponent)
        at = at[at < step]
        if len(at):
            found.append(at + low)
    if not found:
        none = np.zeros(0, np.int64)
        return _Hits(none, none.astype(np.uint8), none.astype(np.uint8), none, none)
    return _classify(body, raw, np.concatenate(found))


def _classify(body: bytes, raw: NDArray[np.uint8], at: NDArray[np.int64]) -> _Hits:
    padded = np.concatenate([np.full(12, 0x20, np.uint8), raw, np.full(12, 0x20, np.uint8)])
    p = at + 12
    first = padded[p]
    is_number = _DIGIT[first]
    if is_number.any():  # exponents: only three digits and more can leave the range of a double
        q = p[is_number] + 2
        q = q + np.isin(padded[q], (0x2B, 0x2D))
        far = _DIGIT[padded[q]] & _DIGIT[padded[q + 1]] & _DIGIT[padded[q + 2]]
        keep = ~is_number
        for k in np.flatnonzero(is_number)[far].tolist():  # hexadecimal digests look like that too
            text = _IN_STRING.search(body, max(0, int(at[k]) - 64), int(at[k]) + 1)
            keep[k] = text is None or text.group(1) in (b"Max", b"Min")
        p, first, is_number = p[keep], first[keep], is_number[keep]
    # bare tokens have one spelling, quoted ones any, with a sign and perhaps a tab at the end
    nan = first | 0x20 == 0x6E
    exact_nan = (first == 0x4E) & (padded[p + 1] == 0x61) & (padded[p + 2] == 0x4E)
    long = ~nan
    exact_infinity = first == 0x49
    for offset, letter in enumerate(b"nfinity", 1):
        exact_infinity &= padded[p + offset] == letter
        long &= padded[p + offset] | 0x20 == letter
    sign = padded[p - 1]
    signed = (sign == 0x2D) | (sign == 0x2B)
    negative = ~nan & (sign == 0x2D)
    quoted = padded[p - signed - 1] == 0x22
    token = np.where(quoted, p - signed - 1, p - negative)
    end = p + np.where(long, 8, 3)
    tab = (padded[end] == 0x5C) & (padded[end + 1] == 0x74) & (padded[end + 2] == 0x22)
    exact = exact_nan | exact_infinity
    closed = np.where(quoted, (padded[end] == 0x22) | tab, exact & _AFTER[padded[end]])
    spaced = padded[token - 1] == 0x20
    colon = token - 1 - spaced
    key_end = colon - 1  # the closing quote of the key
    plain = closed & ~is_number & (padded[colon] == 0x3A) & (padded[key_end] == 0x22)
    k1, k2, k3 = padded[key_end - 1], padded[key_end - 2], padded[key_end - 3]
    quote3 = padded[key_end - 4] == 0x22
    quote3 &= padded[key_end - 5] != 0x5C  # else the key only ends in Max
    extremum = quote3 & (k3 == 0x4D) & (((k2 == 0x61) & (k1 == 0x78)) | ((k2 == 0x69) & (k1 == 0x6E)))
    quote4 = padded[key_end - 5] == 0x22
    k4 = padded[key_end - 4]
    mean = quote4 & (k4 == 0x4D) & (k3 == 0x65) & (k2 == 0x61) & (k1 == 0x6E)
    norm = quote4 & (k4 == 0x4E) & (k3 == 0x6F) & (k2 == 0x72) & (k1 == 0x6D)
    value = (
        (padded[key_end - 6] == 0x22)
        & (padded[key_end - 5] == 0x76)
        & (k4 == 0x61)
        & (k3 == 0x6C)
        & (k2 == 0x75)
        & (k1 == 0x65)
    )
    column = np.where(plain & extremum, 1, np.where(plain & (mean | norm | value), 0, 2)).astype(np.uint8)
    kind = np.where(nan, _NAN, np.where(negative, _NEG, _POS)).astype(np.uint8)
    return _Hits(token - 12, kind, column, p[exact_nan] - 12, p[exact_infinity] - 12)


@dataclass(frozen=True)
class _Layout:
    """Where the members of a block lie and, where it could be proved for all of them, their sections."""

    names: list[str]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    section_key: NDArray[np.int64]  # where the sections' keys begin, behind their quotes
    section_start: NDArray[np.int64]
    section_end: NDArray[np.int64]
    section_row: NDArray[np.int64]


def _strict(body: bytes, hits: _Hits) -> bytearray:
    """``{body}`` with its bare tokens overwritten by numbers of the same length."""
    strict = bytearray(len(body) + 2)
    strict[0], strict[-1] = 0x7B, 0x7D
    strict[1:-1] = body
    raw = np.frombuffer(strict, np.uint8)
    for at, number in ((hits.bare_nan, b"0.0"), (hits.bare_infinity, b"1.000000")):
        for offset, digit in enumerate(number, 1):
            raw[at + offset] = digit
    return strict


def _split(body: bytes, hits: _Hits) -> _Layout:
    """The layout of a block.

    Raises:
        _Unusual: it cannot be proved.
    """
    strict = _strict(body, hits)
    try:
        members = _RAW_SECTIONS.decode(strict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        members = {}
    layout = _tile(body, members) if members else None
    if layout is None:
        layout = _by_gaps(body, strict)
    bare = np.concatenate([hits.bare_nan, hits.bare_infinity])
    if len(bare):
        # a token inside a key was overwritten too: such names have to come from the file
        row = np.searchsorted(layout.start, bare, "right") - 1
        outside = (row < 0) | (bare >= layout.end[np.maximum(row, 0)])
        if outside.any() and len(layout.section_key):
            layout = _by_gaps(body, strict)
    return layout


def _tile(body: bytes, members: dict[str, dict[str, msgspec.Raw]]) -> _Layout | None:
    """Offsets from lengths alone, if plain ASCII keys and the same white space everywhere make the parts tile the block.

    Every joint is compared with the first of its kind, so a layout that is returned is proved.
    """
    names = list(members)
    sections = [part for body in members.values() for part in body.values()]
    keys = [key for body in members.values() for key in body]
    count = np.fromiter(map(len, members.values()), np.int64, len(names))
    joints = _JOINTS.match(body)
    if joints is None or not count.all():
        return None
    lead, close, open_, shut = (len(joints.group(g)) for g in ("lead", "close", "open", "shut"))
    raw = np.frombuffer(body, np.uint8)
    lengths = np.fromiter((memoryview(s).nbytes for s in sections), np.int64, len(sections))
    key_lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    name_lengths = np.fromiter(map(len, names), np.int64, len(names))
    first = np.cumsum(count) - count  # section number of each member's first section
    is_first = np.zeros(len(sections), bool)
    is_first[first] = True
    link, foot, between = 0, 0, 0
    first_end = int(lead + name_lengths[0] + close + open_ + key_lengths[0] + shut + lengths[0])
    if (~is_first).any():
        at = int(np.flatnonzero(~is_first)[0])
        if at != 1:
            return None  # the first member has one section only: its joint is seen later, leave it to the other path
        found = _LINK.match(body, first_end)
        if found is None:
            return None
        link = len(found.group())
    step = key_lengths + shut + lengths
    step[~is_first] += link
    member_length = np.add.reduceat(step, first) + open_
    ending = _FOOT.match(body, int(lead + name_lengths[0] + close + member_length[0]))
    if ending is None:
        return None
    foot = len(ending.group("foot"))
    member_length = member_length + foot
    if len(names) > 1:
        between = len(ending.group("between") or "")
    start = np.empty(len(names), np.int64)
    start[0] = lead + name_lengths[0] + close
    start[1:] = start[0] + np.cumsum(member_length[:-1] + between + name_lengths[1:] + close)
    end = start + member_length
    if end[-1] > len(body) or body[int(end[-1]) :].strip():
        return None
    row = np.repeat(np.arange(len(names)), count)
    before = np.cumsum(step) - step
    section_end = start[row] + open_ + (before - before[first][row]) + step
    section_start = section_end - lengths
    proved = (
        _same_bytes(raw, start - close, close)
        and _same_bytes(raw, start, open_)
        and _same_bytes(raw, section_start - shut, shut)
        and _same_bytes(raw, (section_start - shut - key_lengths - link)[~is_first], link)
        and _same_bytes(raw, end - foot, foot)
        and _same_bytes(raw, end[:-1], between)
    )
    key = section_start - shut - key_lengths
    return _Layout(names, start, end, key, section_start, section_end, row) if proved else None


def _same_bytes(raw: NDArray[np.uint8], at: NDArray[np.int64], width: int) -> bool:
    """Are the ``width`` bytes the same at every one of these positions?"""
    if not len(at) or not width:
        return True
    seen = raw[at[:, None] + np.arange(width)]
    return bool((seen == seen[0]).all())


def _by_gaps(body: bytes, strict: bytearray) -> _Layout:
    """The layout by reading every key where it stands, without sections.

    Raises:
        _Unusual: no strict JSON, or the members do not tile the block (a repeated key).
    """
    try:
        members = _RAW_MEMBERS.decode(strict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _Unusual from None
    names: list[str] = []
    start = np.empty(len(members), np.int64)
    end = np.empty(len(members), np.int64)
    pos = 0
    for i, member in enumerate(members.values()):
        gap = _GAP.match(body, pos)
        if gap is None:
            raise _Unusual
        try:
            names.append(decode_name(gap.group(1)))
        except Stop:
            raise _Unusual from None
        pos = gap.end() + memoryview(member).nbytes
        start[i], end[i] = gap.end(), pos
    if body[pos:].strip():
        raise _Unusual
    none = np.zeros(0, np.int64)
    return _Layout(names, start, end, none, none, none, none)


def _flags(body: bytes, hits: _Hits, layout: _Layout) -> NDArray[np.uint8]:
    flags = np.zeros((len(layout.names), 3), np.uint8)
    if not len(layout.names):
        return flags
    row = np.searchsorted(layout.start, hits.position, "right") - 1
    inside = (row >= 0) & (hits.position < layout.end[np.maximum(row, 0)]) & (hits.column > 0)
    row, position, kind, unusual = row[inside], hits.position[inside], hits.kind[inside], hits.column[inside] == 2
    decode = np.zeros(len(layout.names), bool)
    decode[row[unusual]] = True
    for offset in _disguised(body):
        at = int(np.searchsorted(layout.start, offset, "right")) - 1
        decode[max(at, 0)] = True
    row, position, kind = row[~unusual], position[~unusual], kind[~unusual]
    if len(layout.section_key):
        section = np.searchsorted(layout.section_start, position, "right") - 1
        first = np.flatnonzero(np.r_[True, section[1:] != section[:-1]]) if len(section) else section
        if len(first):
            hit_section = section[first]
            hit_row = layout.section_row[hit_section]
            column = _columns(body, layout, hit_section, hit_row)
            decode[hit_row[column < 0]] = True
            np.bitwise_or.at(flags, (hit_row, np.maximum(column, 0)), np.bitwise_or.reduceat(kind, first))
            both = _POS | _NEG  # both infinities: of one tensor or of two
            decode |= ((flags & both) == both).any(axis=1)
    else:
        decode[row] = True
    for r in np.flatnonzero(decode).tolist():
        flags[r] = member_flags(layout.names[r], body[int(layout.start[r]) : int(layout.end[r])])
    return flags


def _disguised(body: bytes) -> list[int]:
    """Where a non-finite number may stand that no letter gives away: ``"\\u006ean"``, or hundreds of digits."""
    places = [found.start() for found in re.finditer(rb"\\u00", body)] if b"\\" in body else []
    sample = np.frombuffer(body, np.uint8)[:: _RUN // 8] - 0x30 < 10
    run = sample[:-3] & sample[1:-2] & sample[2:-1] & sample[3:]
    if run.any():  # seven samples in a row: any 200 digits have them
        run = run[:-3] & run[3:]
    return places + (np.flatnonzero(run) * (_RUN // 8)).tolist()


_RUN = 200  # digits: 200 of them before an exponent of two digits may be infinite, fewer are not
_PLAIN, _GRADIENT, _ODD = 0, 1, 2
_COLUMNS = {b'input_args"': 0, b'input_kwargs"': 0, b'input"': 0, b'output"': 1, b'parameters"': 2}
_WIDEST_KEY = 13


def _columns(body: bytes, layout: _Layout, sections: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Flag column of each of these sections, -1 where the member has to be decoded."""
    distinct = np.unique(rows)
    kinds = np.array([_name_kind(layout.names[r]) for r in distinct.tolist()], np.int64)
    kind = kinds[np.searchsorted(distinct, rows)]
    raw = np.frombuffer(body, np.uint8)
    at = layout.section_key[sections]
    text = raw[np.minimum(at[:, None] + np.arange(_WIDEST_KEY), len(raw) - 1)]
    column = np.full(len(sections), -1, np.int64)
    figure = np.zeros(len(sections), bool)
    for key, value in _COLUMNS.items():
        column[(text[:, : len(key)] == np.frombuffer(key, np.uint8)).all(axis=1)] = value
    for key in (b'Max"', b'Min"'):  # a figure that is a section itself belongs to no tensor
        figure |= (text[:, : len(key)] == np.frombuffer(key, np.uint8)).all(axis=1)
    return np.where(kind == _PLAIN, column, np.where((kind == _GRADIENT) & ~figure, 1, -1))


def _name_kind(name: str) -> int:
    if name.endswith((f".{FORWARD}", f".{BACKWARD}")):
        return _PLAIN
    kind = parse_name(name).kind
    return _GRADIENT if kind == PARAMETERS_GRAD else _PLAIN if kind in ("module", "api") else _ODD
