"""What is equal or not: numbers, texts and digests."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from numprobe.record.dtypes import float_format
from numprobe.record.nonfinite import number

_PLACES = ("dtype", "device", "memory_format", "ProcessGroup")
_DEVICES = ("cpu", "cuda", "npu", "mps", "xpu", "meta")
_NO_DIGEST = ("", "none", "null", "n/a", "nan")
_HEX = re.compile("[0-9a-f]+")


def tells_numbers(kind: str) -> bool:
    """Can an argument of this type decide a number? Places, dtypes and groups differ between runs that agree."""
    return kind.rsplit(".", 1)[-1] not in _PLACES


def equal(a: object, b: object) -> bool:
    """Integers and texts exactly, floats to 1e-6, NaN to NaN; devices are all alike."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(x == y or _near(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, str) and isinstance(b, str):
        return a == b or (a.split(":")[0] in _DEVICES and b.split(":")[0] in _DEVICES)
    return a == b or _near(a, b)


def _near(a: object, b: object) -> bool:
    if not (isinstance(a, float) or isinstance(b, float)):
        return False
    x, y = number(a), number(b)  # integers beyond every float are infinite
    return x is not None and y is not None and (math.isclose(x, y, rel_tol=1e-6) or (x != x and y != y))


def is_number(plain: object, element: float, dtype: str) -> bool:
    """Is the only element of a tensor of this dtype the number that a plain value is, as that dtype can hold it?"""
    known = float_format(dtype)
    value = number(plain)
    rounding = 2.0**-known.p if known else 0.0
    return value is not None and (math.isclose(value, element, rel_tol=max(rounding, 1e-6)) or equal(value, element))


class Digest(NamedTuple):
    """``kind`` is empty where there is no digest."""

    kind: str
    text: str


def digest_of(text: str | None) -> Digest:
    """CRC-32, 64-bit hash and MD5 are told apart by their lengths, XOR by its prefix."""
    digest = (text or "").strip().lower()
    if digest in _NO_DIGEST:
        return Digest("", "")
    if digest.startswith("0x"):
        return Digest("xor", digest)
    return Digest(f"hex {len(digest)}" if _HEX.fullmatch(digest) else "other", digest)


def digests_of(texts: Mapping[int, str], rows: Sequence[int]) -> tuple[list[str], list[str]]:
    """Kinds and texts of the digests of many rows."""
    found = [texts.get(row, "") for row in rows]
    if _HEX.fullmatch("".join(found)):  # as collectors write them: nothing to look at one by one
        of_length = {n: f"hex {n}" if n else "" for n in set(map(len, found))}
        return [of_length[len(text)] for text in found], found
    digests = [digest_of(text) for text in found]
    return [digest.kind for digest in digests], [digest.text for digest in digests]
