"""Where non-finite numbers may stand in a block, and what they mean: candidates by numpy, then their context.

A token behind ``"Max": `` or ``"Min": `` decides, one behind ``"Mean": ``, ``"Norm": `` or ``"value": `` means nothing,
and any other one makes its member be decoded in full.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numprobe.record.nonfinite import Kinds

_POS, _NEG, _NAN = int(Kinds.POS_INF), int(Kinds.NEG_INF), int(Kinds.NAN)
_IN_STRING = re.compile(rb'"([^"\\]*)"\s*:\s*"[-+0-9.a-f]*\Z')


@dataclass(frozen=True)
class Hits:
    position: NDArray[np.int64]  # of the token's first byte, sign included; ascending
    kind: NDArray[np.uint8]  # Kinds bits, 0: unusual
    column: NDArray[np.uint8]  # DECIDES, MEANS_NOTHING or UNUSUAL
    bare_nan: NDArray[np.int64]  # where bare tokens stand, sign excluded, wherever they are
    bare_infinity: NDArray[np.int64]


_AFTER = np.zeros(256, bool)
_AFTER[list(b",}] \t\r\n")] = True
_DIGIT = np.zeros(256, bool)
_DIGIT[list(b"0123456789")] = True
_MARGIN = 16  # white space on both sides, so that the context of every token can be looked at


def _word(text: bytes) -> np.uint64:
    """Up to eight bytes as the integer that an unaligned look at them gives."""
    return np.uint64(int.from_bytes(text, "little"))


_BYTE, _THREE_BYTES = np.uint64(8), np.uint64((1 << 24) - 1)
_W_NAN, _W_INFINITY = _word(b"NaN"), _word(b"Infinity")
_W_MAX, _W_MIN, _W_MEAN, _W_NORM = (_word(b'"%s": ' % key) for key in (b"Max", b"Min", b"Mean", b"Norm"))
_W_VALUE = _word(b'value": ')
_BACKSLASH = 0x5C
MEANS_NOTHING, DECIDES, UNUSUAL = 0, 1, 2
_NO_TOKEN = 3


def find_hits(body: bytes) -> Hits:
    raw = np.frombuffer(body, np.uint8)
    found: list[NDArray[np.int64]] = []
    step = 1 << 18  # stays in the second-level cache
    for low in range(0, len(raw), step):
        part = raw[low : low + step + 12]
        if len(part) < 3:
            break
        lower = part | 0x20
        a, b, c = lower[:-2], lower[1:-1], lower[2:]
        n = lower == 0x6E
        at = (b == 0x61) & n[:-2] & n[2:]  # nan
        at |= n[1:-1] & (a == 0x69) & (c == 0x66)  # inf
        at |= (b == 0x65) & (part[:-2] & 0xF0 == 0x30)  # an exponent
        places = np.flatnonzero(at[:step])
        if len(places):
            found.append(places + low)
    if not found:
        none = np.zeros(0, np.int64)
        return Hits(none, none.astype(np.uint8), none.astype(np.uint8), none, none)
    return _classify(body, np.concatenate(found))


def _classify(body: bytes, at: NDArray[np.int64]) -> Hits:
    space = b" " * _MARGIN
    padded = space + body + space
    byte = np.frombuffer(padded, np.uint8)
    word = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    p = at + _MARGIN
    exponent = byte[p + 1] | 0x20 == 0x65
    if exponent.any():  # only three digits and more can leave the range of a double
        q = p[exponent]
        digits = _DIGIT[byte[q]]
        q = q + 2
        q += (byte[q] == 0x2B) | (byte[q] == 0x2D)
        far = ~exponent
        far[exponent] = digits & _DIGIT[byte[q]] & _DIGIT[byte[q + 1]] & _DIGIT[byte[q + 2]]
        p = p[far]
    # what the collector writes: a bare token behind one of five keys
    behind = word[p]
    nan = (behind & _THREE_BYTES) == _W_NAN
    exact = nan | (behind == _W_INFINITY)
    end = p + np.where(nan, 3, 8)
    negative = ~nan & (byte[p - 1] == 0x2D)
    token = p - negative
    key = word[token - 8]
    short = key >> _BYTE
    extremum = (short == _W_MAX) | (short == _W_MIN)
    other = (key == _W_MEAN) | (key == _W_NORM)
    value = (key == _W_VALUE) & (byte[token - 9] == 0x22)
    before = byte[token - 8 - other - 2 * value]  # a backslash: the key only ends in Max
    known = exact & _AFTER[byte[end]] & (extremum | other | value) & (before != _BACKSLASH)
    column = np.where(extremum, DECIDES, MEANS_NOTHING).astype(np.uint8)
    kind = np.where(nan, _NAN, np.where(negative, _NEG, _POS)).astype(np.uint8)
    bare_nan, bare_infinity = p[nan], p[exact & ~nan]
    if not known.all():
        rest = np.flatnonzero(~known)
        token[rest], kind[rest], column[rest] = _patiently(body, byte, p[rest])
        kept = column != _NO_TOKEN
        token, kind, column = token[kept], kind[kept], column[kept]
    return Hits(token - _MARGIN, kind, column, bare_nan - _MARGIN, bare_infinity - _MARGIN)


def _patiently(
    body: bytes, byte: NDArray[np.uint8], p: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8]]:
    """Start, kind and column of what may be a token in any spelling; column ``_NO_TOKEN``: it is none.

    Bare tokens have one spelling, quoted ones any, with a sign and perhaps a tab at the end.
    """
    first = byte[p]
    is_number = _DIGIT[first]
    none = is_number.copy()
    for k in np.flatnonzero(is_number).tolist():  # hexadecimal digests look like exponents too
        at = int(p[k]) - _MARGIN
        text = _IN_STRING.search(body, max(0, at - 64), at + 1)
        none[k] = text is not None and text.group(1) not in (b"Max", b"Min")
    nan = first | 0x20 == 0x6E
    exact_nan = (first == 0x4E) & (byte[p + 1] == 0x61) & (byte[p + 2] == 0x4E)
    long = ~nan
    exact_infinity = first == 0x49
    for offset, letter in enumerate(b"nfinity", 1):
        exact_infinity &= byte[p + offset] == letter
        long &= byte[p + offset] | 0x20 == letter
    sign = byte[p - 1]
    signed = (sign == 0x2D) | (sign == 0x2B)
    negative = ~nan & (sign == 0x2D)
    quoted = byte[p - signed - 1] == 0x22
    token = np.where(quoted, p - signed - 1, p - negative)
    end = p + np.where(long, 8, 3)
    tab = (byte[end] == _BACKSLASH) & (byte[end + 1] == 0x74) & (byte[end + 2] == 0x22)
    closed = np.where(quoted, (byte[end] == 0x22) | tab, (exact_nan | exact_infinity) & _AFTER[byte[end]])
    spaced = byte[token - 1] == 0x20
    colon = token - 1 - spaced
    key = colon - 1  # its closing quote

    def key_is(name: bytes) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = (byte[key - len(name) - 1] == 0x22) & (byte[key - len(name) - 2] != _BACKSLASH)
        for back, letter in enumerate(reversed(name), 1):
            same &= byte[key - back] == letter
        return same

    plain = closed & ~is_number & (byte[colon] == 0x3A) & (byte[key] == 0x22)
    decides = plain & (key_is(b"Max") | key_is(b"Min"))
    means_nothing = plain & (key_is(b"Mean") | key_is(b"Norm") | key_is(b"value"))
    column = np.where(
        decides, DECIDES, np.where(none, _NO_TOKEN, np.where(means_nothing, MEANS_NOTHING, UNUSUAL))
    ).astype(np.uint8)
    return token, np.where(nan, _NAN, np.where(negative, _NEG, _POS)).astype(np.uint8), column


def strict_json(body: bytes, hits: Hits) -> bytearray:
    """``{body}`` with its bare tokens overwritten by numbers of the same length."""
    strict = bytearray(len(body) + 2)
    strict[0], strict[-1] = 0x7B, 0x7D
    strict[1:-1] = body
    raw = np.frombuffer(strict, np.uint8)
    for at, number in ((hits.bare_nan, b"0.0"), (hits.bare_infinity, b"1.000000")):
        for offset, digit in enumerate(number, 1):
            raw[at + offset] = digit
    return strict


def disguised(body: bytes) -> list[int]:
    """Where a non-finite number may stand that no letter gives away: ``"\\u006ean"``, or hundreds of digits."""
    places = [found.start() for found in re.finditer(rb"\\u00", body)] if b"\\" in body else []
    sample = np.frombuffer(body, np.uint8)[:: _RUN // 8] - 0x30 < 10
    run = sample[:-3] & sample[1:-2] & sample[2:-1] & sample[3:]
    if run.any():  # seven samples in a row: any 200 digits have them
        run = run[:-3] & run[3:]
    return places + (np.flatnonzero(run) * (_RUN // 8)).tolist()


_RUN = 200  # digits: 200 of them before an exponent of two digits may be infinite, fewer are not
