"""One block of members: where each lies, where its sections lie, and which of them hold non-finite values.

Three ways to the same layout, from the quickest to the most patient: line ends (:mod:`.lines`), tiling by the lengths that
msgspec finds without decoding, reading every key where it stands. Each proves what it returns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.lines import line_layout
from numprobe.formats.msprobe.members import member_flags
from numprobe.formats.msprobe.reference import Stop, decode_name
from numprobe.formats.msprobe.tokens import Hits, classify, disguised, find_hits, strict_json
from numprobe.record.names import BACKWARD, FORWARD, PARAMETERS_GRAD, parse_name
from numprobe.record.nonfinite import Kinds

_GAP = re.compile(rb'\s*,?\s*("(?:[^"\\]|\\.)*")\s*:\s*', re.S)

# White space and punctuation at the joints of members and sections
_JOINTS = re.compile(rb'(?P<lead>\s*")[^"\\]*(?P<close>"\s*:\s*)(?P<open>\{\s*")[^"\\]*(?P<shut>"\s*:\s*)', re.S)
_LINK = re.compile(rb'\s*,\s*"')
_FOOT = re.compile(rb'(?P<foot>\s*\})(?P<between>\s*,\s*")?')

_RAW = msgspec.json.Decoder(msgspec.Raw)
_RAW_SECTIONS = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]])
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_POS, _NEG = int(Kinds.POS_INF), int(Kinds.NEG_INF)


class Unusual(Exception):
    """The block is not of the layout that the fast path can prove."""


@dataclass(frozen=True)
class Layout:
    """Where the members of a block lie and, where it could be proved for all of them, their sections."""

    names: list[str]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    section_key: NDArray[np.int64]  # where the sections' keys begin, behind their quotes
    section_start: NDArray[np.int64]
    section_end: NDArray[np.int64]
    section_row: NDArray[np.int64]


def block_layout(body: bytes) -> tuple[Hits, Layout]:
    """Tokens and layout of the members in ``body``.

    Raises:
        Unusual: no way proves it.
    """
    return _by_lines(body) or _by_bytes(body)


def _by_lines(body: bytes) -> tuple[Hits, Layout] | None:
    """The quick way, for a block that has one value a line and is JSON."""
    found = line_layout(body)
    if found is None:
        return None
    hits = classify(body, np.frombuffer(body, np.uint8), found.candidates)
    try:
        _RAW.decode(strict_json(body, hits))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return hits, Layout(
        found.names,
        found.start,
        found.end,
        found.section_key,
        found.section_start,
        found.section_end,
        found.section_row,
    )


def _by_bytes(body: bytes) -> tuple[Hits, Layout]:
    hits = find_hits(body)
    return hits, split(body, hits)


def split(body: bytes, hits: Hits) -> Layout:
    """The layout of a block.

    Raises:
        Unusual: it cannot be proved.
    """
    strict = strict_json(body, hits)
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


def _tile(body: bytes, members: dict[str, dict[str, msgspec.Raw]]) -> Layout | None:
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
    return Layout(names, start, end, key, section_start, section_end, row) if proved else None


def _same_bytes(raw: NDArray[np.uint8], at: NDArray[np.int64], width: int) -> bool:
    """Are the ``width`` bytes the same at every one of these positions?"""
    if not len(at) or not width:
        return True
    seen = raw[at[:, None] + np.arange(width)]
    return bool((seen == seen[0]).all())


def _by_gaps(body: bytes, strict: bytearray) -> Layout:
    """The layout by reading every key where it stands, without sections.

    Raises:
        Unusual: no strict JSON, or the members do not tile the block (a repeated key).
    """
    try:
        members = _RAW_MEMBERS.decode(strict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unusual from None
    names: list[str] = []
    start = np.empty(len(members), np.int64)
    end = np.empty(len(members), np.int64)
    pos = 0
    for i, member in enumerate(members.values()):
        gap = _GAP.match(body, pos)
        if gap is None:
            raise Unusual
        try:
            names.append(decode_name(gap.group(1)))
        except Stop:
            raise Unusual from None
        pos = gap.end() + memoryview(member).nbytes
        start[i], end[i] = gap.end(), pos
    if body[pos:].strip():
        raise Unusual
    none = np.zeros(0, np.int64)
    return Layout(names, start, end, none, none, none, none)


def block_flags(body: bytes, hits: Hits, layout: Layout) -> NDArray[np.uint8]:
    flags = np.zeros((len(layout.names), 3), np.uint8)
    if not len(layout.names):
        return flags
    row = np.searchsorted(layout.start, hits.position, "right") - 1
    inside = (row >= 0) & (hits.position < layout.end[np.maximum(row, 0)]) & (hits.column > 0)
    row, position, kind, unusual = row[inside], hits.position[inside], hits.kind[inside], hits.column[inside] == 2
    decode = np.zeros(len(layout.names), bool)
    decode[row[unusual]] = True
    for offset in disguised(body):
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


_PLAIN, _GRADIENT, _ODD = 0, 1, 2
_COLUMNS = {b'input_args"': 0, b'input_kwargs"': 0, b'input"': 0, b'output"': 1, b'parameters"': 2}
_WIDEST_KEY = 13


def _columns(body: bytes, layout: Layout, sections: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
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
