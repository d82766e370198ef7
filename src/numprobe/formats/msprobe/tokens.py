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
    position: NDArray[np.int64]  # of the token's first byte, sign included
    kind: NDArray[np.uint8]  # Kinds bits, 0: unusual
    column: NDArray[np.uint8]  # 1: decides, 0: means nothing, 2: unusual
    bare_nan: NDArray[np.int64]  # where bare tokens stand, sign excluded, wherever they are
    bare_infinity: NDArray[np.int64]


_AFTER = np.zeros(256, bool)
_AFTER[list(b",}] \t\r\n")] = True
_DIGIT = np.zeros(256, bool)
_DIGIT[list(b"0123456789")] = True


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
        return Hits(none, none.astype(np.uint8), none.astype(np.uint8), none, none)
    return classify(body, raw, np.concatenate(found))


def classify(body: bytes, raw: NDArray[np.uint8], at: NDArray[np.int64]) -> Hits:
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
    return Hits(token - 12, kind, column, p[exact_nan] - 12, p[exact_infinity] - 12)


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
