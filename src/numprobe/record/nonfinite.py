"""When is a recorded tensor non-finite, and in which way.

Max and Min decide, Mean and Norm never do: a finite mask filled with ``finfo.min`` has Mean -inf and Norm inf, and a
large finite fp16 tensor has Norm inf. NaN is a value, absence is not: a null statistic gives :attr:`Kinds.UNKNOWN`.
"""

from __future__ import annotations

import enum
import math
import re
from typing import TypeAlias

Number: TypeAlias = "float | int | bool | None"


class Kinds(enum.IntFlag):
    """Which non-finite values a slot holds. ``Kinds(0)`` is clean."""

    CLEAN = 0
    NAN = 1
    POS_INF = 2
    NEG_INF = 4
    MAYBE_NAN = 8  # Max = +inf and Min = -inf: the mean would be NaN either way, so NaN cannot be excluded
    UNKNOWN = 16  # no Max and no Min

    @property
    def dirty(self) -> bool:
        return bool(self & DIRTY)

    def words(self) -> str:
        """``NaN``, ``inf``, ``-inf`` and combinations, in this fixed spelling in every language."""
        parts = []
        if self & Kinds.NAN:
            parts.append("NaN")
        if self & Kinds.POS_INF:
            parts.append("inf")
        if self & Kinds.NEG_INF:
            parts.append("-inf")
        if parts:
            return ", ".join(parts)
        return "unknown" if self & Kinds.UNKNOWN else "finite"


DIRTY = Kinds.NAN | Kinds.POS_INF | Kinds.NEG_INF
INFINITE = Kinds.POS_INF | Kinds.NEG_INF

_SPELLINGS = {
    "nan": math.nan,
    "+nan": math.nan,
    "-nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}


_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_FAR = 2**1024 - 2**970  # integers from here on are rounded to infinity


def number(value: object) -> Number:
    """A statistic as a number, whatever its spelling: ``NaN``, ``"nan"``, ``"-inf\\t"``, ``"1.5"``, ``true``, 3.

    A number beyond every double (``1e400``, an integer of 400 digits) is infinite. Returns None for null and for anything
    that is no number.
    """
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        if -_FAR < value < _FAR:
            return value
        return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        text = value.strip(" \t\n")
        special = _SPELLINGS.get(text.lower())
        if special is not None:
            return special
        if _NUMBER.fullmatch(text):  # float() also takes 1_0 and digits of every script
            return float(text)
    return None


def kinds_of(maximum: Number, minimum: Number) -> Kinds:
    """The state of a tensor from its Max and Min (numbers, see :func:`number`).

    The union over the two: Max or Min NaN means NaN, Max finite and Min = -inf means -inf only. One missing: the other
    decides. Max = -inf with Min = +inf is what a reduction over no elements gives: clean.
    """
    return _BY_BITS[kind_bits(maximum, minimum)]


def kind_bits(maximum: Number, minimum: Number) -> int:
    """:func:`kinds_of` as a plain integer, for loops over millions of tensors."""
    if maximum is None and minimum is None:
        return 16
    bits = 0
    for value in (maximum, minimum):
        if type(value) is float:
            if value != value:
                bits |= 1
            elif value == math.inf:
                bits |= 2
            elif value == -math.inf:
                bits |= 4
    if bits == 6:
        return 14 if maximum == math.inf else 0
    return bits


_BY_BITS = {bits: Kinds(bits) for bits in range(32)}
