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
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.index import STORED, RankIndex
from numprobe.formats.msprobe.members import UndecodableMember, decode_member, flatten
from numprobe.formats.msprobe.reference import Damage, Member, Stop, iterate_members, skip_space
from numprobe.record.errors import NumprobeError
from numprobe.record.names import BACKWARD, FORWARD, PARAMETERS_GRAD, parse_name
from numprobe.record.nonfinite import Kinds
from numprobe.record.trace import INPUT, OTHER, PARAMETER, RunInfo, Value

BLOCK = 1 << 20
HEADER_LIMIT = 1 << 20
_MEMBER = re.compile(
    rb',\s*("(?:[^"\\]|\\.){1,4096}?\.(?:forward|backward|parameters_grad|debug)(?:\.\d+)?"\s*:\s*[{\[])',
)
_DATA = re.compile(rb'"data"\s*:\s*\{')
_EXTREMUM = re.compile(rb'"(?:Max|Min)"\s*:\s*[^n\s]')
_GAP = re.compile(rb'\s*,?\s*("(?:[^"\\]|\\.)*")\s*:\s*', re.S)
_BOM = b"\xef\xbb\xbf"

# White space and punctuation at the joints of members and sections
_JOINTS = re.compile(rb'(?P<lead>\s*")[^"\\]*(?P<close>"\s*:\s*)(?P<open>\{\s*")[^"\\]*(?P<shut>"\s*:\s*)', re.S)
_LINK = re.compile(rb'\s*,\s*"')
_FOOT = re.compile(rb'(?P<foot>\s*\})(?P<between>\s*,\s*")?')

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
        with path.open("rb") as file:
            return _scan_open(file, path, block, fast=fast)
    except OSError as error:
        raise NumprobeError(
            "E-FMT-010",
            f"{path.name} cannot be read: {error.strerror or error}",
            where=str(path),
            do="check that the file exists and that you may read it",
        ) from None


def _scan_open(file: BinaryIO, path: Path, block: int, *, fast: bool) -> RankIndex:
    size = path.stat().st_size
    buffer = file.read(max(block, 1 << 16))
    info, base = _header(buffer, file, path)
    if info is None:
        buffer += file.read()
        return _whole_file(buffer, path, size)
    rows = _Rows()
    rest, at = buffer[base:], base  # bytes not yet indexed, and their offset in the file
    damage: Damage | None = None
    has_extrema = False
    done = False
    while not done:
        has_extrema = has_extrema or _EXTREMUM.search(rest) is not None
        more = file.read(block)
        cut = len(rest)
        if more and fast:
            cut = _last_boundary(rest)
            if cut == 0:  # a member longer than the block
                rest += more
                continue
        elif more:  # the full-decode path takes the file whole
            rest += more + file.read()
            continue
        piece = rest[:cut]
        if fast and _fast_block(piece, at, rows, last=not more):
            at += cut
            rest = rest[cut:] + more
            done = not more
            continue
        taken = _Rows()
        tail, damage = _slow_block(piece, at, taken)
        if more and damage is not None and damage.reason == "truncated":
            if damage.record:  # the cut was not between two members after all
                rest += more
                continue
            rows.extend(taken)
            damage = None
            at += cut
            rest = rest[cut:] + more
            continue
        rows.extend(taken)
        done = True
        if damage is None:
            damage = _tail_damage((rest + more)[tail + 1 :] + file.read(), at + tail + 1)
    return _index(info, rows, size, has_extrema, damage)


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


def _header(buffer: bytes, file: BinaryIO, path: Path) -> tuple[RunInfo | None, int]:
    """Run information and the offset behind the brace of ``data``; (None, 0) if ``data`` is not where it usually is."""
    text = buffer[3:] if buffer.startswith(_BOM) else buffer
    first = text.lstrip()[:1]
    if first != b"{":
        raise NumprobeError(
            "E-FMT-011",
            f"{path.name} is not JSON: it begins with {first!r}" if first else f"{path.name} is empty",
            where=str(path),
            do="point numprobe at a dump.json as the collector wrote it, or leave the rank out with --rank",
        )
    found = _DATA.search(buffer)
    if found is None or found.end() > HEADER_LIMIT:
        return None, 0
    head = buffer[3 if text is not buffer else 0 : found.end()]
    try:
        fields = json.loads(head.decode("utf-8", "replace") + "}}")
    except ValueError:
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
    try:
        json.loads(b'{"data": 0' + rest)  # further keys behind data
    except ValueError:
        return Damage(at, "", "malformed")
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
                _slow_block(buffer[member.start + 1 : member.end], member.start + 1, rows)
            else:
                try:
                    fields[member.name] = json.loads(buffer[member.start : member.end])
                except ValueError:
                    fields[member.name] = None
    except Stop as stop:
        damage = stop.damage
        if not found:
            at = re.search(r'"data"\s*:\s*\{', text)
            if at is None:
                raise _no_data(path, 'no member "data"', sorted(fields), size) from None
            found = True
            _, inner = _slow_block(buffer[at.end() :], at.end(), rows)
            damage = inner or damage
    if not found:
        raise _no_data(path, 'no member "data"', sorted(fields), size)
    return _index(_run_info(fields), rows, size, _EXTREMUM.search(buffer) is not None, damage)


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
            except UndecodableMember:
                raise Stop(Damage(member.start, member.name, "malformed")) from None
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
    flags = [0, 0, 0]
    for value in flatten(op, decode_member(raw)):
        flags[_column(value)] |= int(value.kinds & STORED) if value.role != OTHER else 0
    return flags[0], flags[1], flags[2]


def _column(value: Value) -> int:
    return 0 if value.role == INPUT else 2 if value.role == PARAMETER else 1


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
        hits = _find_hits(body)
        layout = _split(body, hits)
        flags = _flags(body, hits, layout)
    except (_Unusual, UndecodableMember):
        return False
    rows.add(layout.names, layout.start + at, layout.end + at, flags)
    return True


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
    bare: bool


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
        return _Hits(none, none.astype(np.uint8), none.astype(np.uint8), False)
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
        keep[np.flatnonzero(is_number)[far]] = True
        p, first, is_number = p[keep], first[keep], is_number[keep]
    nan = (first == 0x4E) & (padded[p + 1] == 0x61) & (padded[p + 2] == 0x4E)
    infinity = (first == 0x49) & (padded[p + 3] == 0x69) & (padded[p + 7] == 0x79)
    infinity &= (padded[p + 4] == 0x6E) & (padded[p + 5] == 0x69) & (padded[p + 6] == 0x74)
    negative = infinity & (padded[p - 1] == 0x2D)
    token = p - negative
    length = np.where(nan, 3, 8) + negative
    spaced = padded[token - 1] == 0x20
    colon = token - 1 - spaced
    key_end = colon - 1  # the closing quote of the key
    plain = (nan | infinity) & (padded[colon] == 0x3A) & (padded[key_end] == 0x22) & _AFTER[padded[token + length]]
    k1, k2, k3 = padded[key_end - 1], padded[key_end - 2], padded[key_end - 3]
    quote3 = padded[key_end - 4] == 0x22
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
    return _Hits(token - 12, kind, column, bool((nan | infinity).any()))


@dataclass(frozen=True)
class _Layout:
    """Where the members of a block lie and, where it could be proved for all of them, their sections."""

    names: list[str]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    section_keys: list[str]
    section_start: NDArray[np.int64]
    section_end: NDArray[np.int64]
    section_row: NDArray[np.int64]


def _split(body: bytes, hits: _Hits) -> _Layout:
    """The layout of a block.

    Raises:
        _Unusual: it cannot be proved.
    """
    strict = body
    if hits.bare:
        strict = body.replace(b"NaN", b"0.0").replace(b"Infinity", b"1.000000")
    strict = b"{" + strict + b"}"
    try:
        members = _RAW_SECTIONS.decode(strict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        members = {}
    layout = _tile(body, members) if members else None
    if layout is None:
        layout = _by_gaps(body, strict)
    if hits.bare:
        # a token inside a key was overwritten too: such names have to come from the file
        row = np.searchsorted(layout.start, hits.position, "right") - 1
        outside = (row < 0) | (hits.position >= layout.end[np.maximum(row, 0)])
        if outside.any() and layout.section_keys:
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
        between = len(ending.group("between"))
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
    return _Layout(names, start, end, keys, section_start, section_end, row) if proved else None


def _same_bytes(raw: NDArray[np.uint8], at: NDArray[np.int64], width: int) -> bool:
    """Are the ``width`` bytes the same at every one of these positions?"""
    if not len(at) or not width:
        return True
    seen = raw[at[:, None] + np.arange(width)]
    return bool((seen == seen[0]).all())


def _by_gaps(body: bytes, strict: bytes) -> _Layout:
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
            names.append(str(json.loads(gap.group(1).decode("utf-8", "replace"), strict=False)))
        except ValueError:
            raise _Unusual from None
        pos = gap.end() + memoryview(member).nbytes
        start[i], end[i] = gap.end(), pos
    if body[pos:].strip():
        raise _Unusual
    none = np.zeros(0, np.int64)
    return _Layout(names, start, end, [], none, none, none)


def _flags(body: bytes, hits: _Hits, layout: _Layout) -> NDArray[np.uint8]:
    flags = np.zeros((len(layout.names), 3), np.uint8)
    if not len(hits.position) or not len(layout.names):
        return flags
    row = np.searchsorted(layout.start, hits.position, "right") - 1
    inside = (row >= 0) & (hits.position < layout.end[np.maximum(row, 0)]) & (hits.column > 0)
    row, position, kind, unusual = row[inside], hits.position[inside], hits.kind[inside], hits.column[inside] == 2
    decode = np.zeros(len(layout.names), bool)
    decode[row[unusual]] = True
    if layout.section_keys:
        section = np.searchsorted(layout.section_start, position, "right") - 1
        first = np.flatnonzero(np.r_[True, section[1:] != section[:-1]]) if len(section) else section
        if len(first):
            hit_section = section[first]
            hit_row = layout.section_row[hit_section]
            column = _columns(layout, hit_section.tolist(), hit_row.tolist())
            decode[hit_row[column < 0]] = True
            np.bitwise_or.at(flags, (hit_row, np.maximum(column, 0)), np.bitwise_or.reduceat(kind, first))
            both = _POS | _NEG  # both infinities: of one tensor or of two
            decode |= ((flags & both) == both).any(axis=1)
    else:
        decode[row] = True
    for r in np.flatnonzero(decode).tolist():
        flags[r] = member_flags(layout.names[r], body[int(layout.start[r]) : int(layout.end[r])])
    return flags


_COLUMNS = {"input_args": 0, "input_kwargs": 0, "input": 0, "output": 1, "parameters": 2}


def _columns(layout: _Layout, sections: list[int], rows: list[int]) -> NDArray[np.int64]:
    """Flag column of each of these sections, -1 where the member has to be decoded."""
    columns = np.empty(len(sections), np.int64)
    previous, plain, gradient = -1, False, False
    for i, (section, row) in enumerate(zip(sections, rows, strict=True)):
        if row != previous:
            previous = row
            name = layout.names[row]
            plain = name.endswith((f".{FORWARD}", f".{BACKWARD}"))
            gradient = False
            if not plain:
                kind = parse_name(name).kind
                plain, gradient = kind in ("module", "api"), kind == PARAMETERS_GRAD
        columns[i] = 1 if gradient else _COLUMNS.get(layout.section_keys[section], -1) if plain else -1
    return columns
