"""One block of members: where each lies, and which of its sections hold non-finite values.

A kernel in C reads the block once, where it was compiled; what follows is the way without it. msgspec checks that the block is
JSON and gives the length of every member without decoding it. With plain keys and the same white space at every joint, the
lengths alone tell where each member lies; the sections of a member that holds a non-finite value are found in the same way.
Where that proves nothing, every key is read where it stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.members import member_flags
from numprobe.formats.msprobe.reference import Stop, decode_name
from numprobe.formats.msprobe.tokens import DECIDES, UNUSUAL, Hits, disguised, find_hits, strict_json
from numprobe.native import kernels
from numprobe.record.names import BACKWARD, FORWARD, PARAMETERS_GRAD, parse_name
from numprobe.record.nonfinite import Kinds

Positions = NDArray[np.int64]

_GAP = re.compile(rb'\s*,?\s*("(?:[^"\\]|\\.)*")\s*:\s*', re.S)

# white space and punctuation between the parts of an object: before its first key, behind a key, between two pairs, at the end
_LEAD = re.compile(rb'\s*"')
_SHUT = re.compile(rb'"\s*:\s*')
_LINK = re.compile(rb'\s*,\s*"')
_FOOT = re.compile(rb"\s*")

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SECTIONS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_POS, _NEG = int(Kinds.POS_INF), int(Kinds.NEG_INF)


class Unusual(Exception):
    """The block is not of the layout that the fast path can prove."""


@dataclass(frozen=True)
class Layout:
    """Where the members of a block lie. ``values`` is their JSON with bare tokens overwritten."""

    names: list[str]
    start: Positions
    end: Positions
    values: list[msgspec.Raw]


@dataclass(frozen=True)
class _Parts:
    """Where the values of some objects lie, all in one row: their keys, begins, ends, and the number of the object."""

    keys: list[str]
    start: Positions
    end: Positions
    owner: Positions


def index_block(body: bytes) -> tuple[list[str], Positions, Positions, NDArray[np.uint8]]:
    """Names, starts, ends and flags (columns input, output, parameter) of the members in ``body``.

    Raises:
        Unusual: the layout cannot be proved.
        UndecodableMember: a member that has to be decoded cannot be.
    """
    compiled = None if kernels is None else kernels.index_members(body)
    if compiled is not None:
        names, start, end = compiled[0], np.frombuffer(compiled[1], np.int64), np.frombuffer(compiled[2], np.int64)
        flags = np.frombuffer(compiled[3], np.uint8).reshape(-1, 3).copy()
        _decode_flags(body, names, start, end, flags, compiled[4])
        return names, start, end, flags
    hits = find_hits(body)
    layout = _layout(body, hits)
    return layout.names, layout.start, layout.end, _flags(body, hits, layout)


def _decode_flags(
    body: bytes, names: list[str], start: Positions, end: Positions, flags: NDArray[np.uint8], rows: list[int]
) -> None:
    """Enter the flags of members that nothing but a decoder can tell."""
    for r in rows:
        flags[r] = member_flags(names[r], body[int(start[r]) : int(end[r])])


def _layout(body: bytes, hits: Hits) -> Layout:
    strict = strict_json(body, hits)
    try:
        members = _MEMBERS.decode(strict)
    except _BAD_JSON:
        raise Unusual from None
    values = list(members.values())
    none = np.zeros(1, np.int64)
    parts = _tile(body, [members], none, none + len(body)) if values and body.isascii() and b"\\" not in body else None
    if parts is not None:
        layout = Layout(parts.keys, parts.start, parts.end, values)
        bare = np.concatenate([hits.bare_nan, hits.bare_infinity])
        if not len(bare):
            return layout
        # a token inside a key was overwritten too: such names have to come from the file
        row = np.searchsorted(layout.start, bare, "right") - 1
        if ((row >= 0) & (bare < layout.end[np.maximum(row, 0)])).all():
            return layout
    return _by_gaps(body, values)


def _tile(body: bytes, objects: list[dict[str, msgspec.Raw]], begin: Positions, end: Positions) -> _Parts | None:
    """Offsets of all values of ``objects`` from lengths alone, if the same white space at all joints makes them fit.

    ``begin`` and ``end`` are the insides of their braces; keys are plain ASCII. Every joint is compared with the first of
    its kind, which is looked at, so what is returned is proved.
    """
    count = np.fromiter(map(len, objects), np.int64, len(objects))
    if not count.all():
        return None
    keys = list(chain.from_iterable(objects))
    key_length = np.fromiter(map(len, keys), np.int64, len(keys))
    length = np.fromiter(map(len, chain.from_iterable(o.values() for o in objects)), np.int64, len(keys))
    first = np.cumsum(count) - count
    later = np.ones(len(keys), bool)
    later[first] = False
    lead = _width(_LEAD, body, begin[0])
    shut = _width(_SHUT, body, begin[0] + lead + key_length[0])
    step = key_length + shut + length
    step[first] += lead
    link = 0
    if later.any():
        several = int(np.argmax(count > 1))
        link = _width(_LINK, body, begin[several] + step[first[several]])
        step[later] += link
    owner = np.repeat(np.arange(len(objects)), count)
    passed = np.cumsum(step)
    value_end = passed + (begin - passed[first] + step[first])[owner]
    start = value_end - length
    key = start - shut - key_length
    foot = value_end[first + count - 1]
    width = int(end[0] - foot[0])
    proved = (
        min(lead, shut, link or not later.any(), width + 1) > 0
        and bool((end - foot == width).all())
        and _FOOT.fullmatch(body, int(foot[0]), int(end[0])) is not None
        and _same_bytes(body, key[first] - lead, lead)
        and _same_bytes(body, start - shut, shut)
        and _same_bytes(body, key[later] - link, link)
        and _same_bytes(body, foot, width)
    )
    return _Parts(keys, start, value_end, owner) if proved else None


def _width(joint: re.Pattern[bytes], body: bytes, at: np.int64) -> int:
    """Length of the joint that stands there; 0: none does."""
    found = joint.match(body, int(at))
    return len(found.group()) if found else 0


def _same_bytes(body: bytes, at: Positions, width: int) -> bool:
    """Are the ``width`` bytes the same at every one of these positions?"""
    if len(at) < 2 or not width:
        return True
    seen = np.frombuffer(body, np.uint8)[at[:, None] + np.arange(width)]
    return bool((seen == seen[0]).all())


def _by_gaps(body: bytes, values: list[msgspec.Raw]) -> Layout:
    """The layout by reading every key where it stands.

    Raises:
        Unusual: the members do not tile the block (a repeated key).
    """
    names: list[str] = []
    start = np.empty(len(values), np.int64)
    end = np.empty(len(values), np.int64)
    pos = 0
    for i, value in enumerate(values):
        gap = _GAP.match(body, pos)
        if gap is None:
            raise Unusual
        try:
            names.append(decode_name(gap.group(1)))
        except Stop:
            raise Unusual from None
        pos = gap.end() + len(value)
        start[i], end[i] = gap.end(), pos
    if body[pos:].strip():
        raise Unusual
    return Layout(names, start, end, values)


# --- flags -------------------------------------------------------------------------------------------------------


def _flags(body: bytes, hits: Hits, layout: Layout) -> NDArray[np.uint8]:
    flags = np.zeros((len(layout.names), 3), np.uint8)
    if not len(layout.names):
        return flags
    row = np.searchsorted(layout.start, hits.position, "right") - 1
    inside = (row >= 0) & (hits.position < layout.end[np.maximum(row, 0)])
    decode = np.zeros(len(layout.names), bool)
    decode[row[inside & (hits.column == UNUSUAL)]] = True
    for offset in disguised(body):
        at = int(np.searchsorted(layout.start, offset, "right")) - 1
        decode[max(at, 0)] = True
    inside &= hits.column == DECIDES
    row = row[inside]
    clear = ~decode[row]
    _sort_into_columns(body, layout, row[clear], hits.position[inside][clear], hits.kind[inside][clear], flags, decode)
    _decode_flags(body, layout.names, layout.start, layout.end, flags, np.flatnonzero(decode).tolist())
    return flags


def _sort_into_columns(
    body: bytes,
    layout: Layout,
    row: Positions,
    position: Positions,
    kind: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    decode: NDArray[np.bool_],
) -> None:
    """Enter tokens (their member, place and kind) in ``flags``, or mark in ``decode`` the members where this is not clear."""
    if not len(row):
        return
    touched = row[np.r_[True, row[1:] != row[:-1]]]
    forms = [_form(layout.names[r]) for r in touched.tolist()]
    try:
        objects = _SECTIONS.decode(b"[%b]" % b",".join([layout.values[r] for r in touched.tolist()]))
    except _BAD_JSON:
        objects = []
    parts = _tile(body, objects, layout.start[touched] + 1, layout.end[touched] - 1) if objects else None
    if parts is None or not (parts.start[0] <= position[0] and (parts.start[1:] >= parts.end[:-1]).all()):
        decode[touched] = True
        return
    section = np.searchsorted(parts.start, position, "right") - 1
    first = np.flatnonzero(np.r_[True, section[1:] != section[:-1]])
    hit = section[first]
    member = touched[parts.owner[hit]]
    column = np.array(
        [_column(forms[o], parts.keys[s]) for o, s in zip(parts.owner[hit].tolist(), hit.tolist(), strict=True)]
    )
    decode[member[column < 0]] = True
    np.bitwise_or.at(flags, (member, np.maximum(column, 0)), np.bitwise_or.reduceat(kind, first))
    both = _POS | _NEG  # both infinities: of one tensor or of two
    decode |= ((flags & both) == both).any(axis=1)


_PLAIN, _GRADIENT, _ODD = 0, 1, 2
_COLUMNS = {"input_args": 0, "input_kwargs": 0, "input": 0, "output": 1, "parameters": 2}


def _column(form: int, section: str) -> int:
    """Flag column of a section, -1 where the member has to be decoded."""
    if form == _PLAIN:
        return _COLUMNS.get(section, -1)
    if form == _GRADIENT and section not in ("Max", "Min"):  # a figure that is a section itself belongs to no tensor
        return 1
    return -1


def _form(name: str) -> int:
    if name.endswith((f".{FORWARD}", f".{BACKWARD}")):
        return _PLAIN
    kind = parse_name(name).kind
    return _GRADIENT if kind == PARAMETERS_GRAD else _PLAIN if kind in ("module", "api") else _ODD
