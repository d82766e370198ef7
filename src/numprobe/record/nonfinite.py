"""When is a recorded tensor non-finite, and in which way.

Max and Min decide, Mean and Norm never do: a finite mask filled with ``finfo.min`` has Mean -inf and Norm inf, and a
large finite fp16 tensor has Norm inf. NaN is a value, absence is not: a null statistic gives :attr:`Kinds.UNKNOWN`.
"""

from __future__ import annotations

import enum
import math
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


def number(value: object) -> Number:
    """A statistic as a number, whatever its spelling: ``NaN``, ``"nan"``, ``"-inf\\t"``, ``"1.5"``, ``true``, 3.

    Returns None for null and for anything that is no number.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        text = value.strip()
        special = _SPELLINGS.get(text.lower())
        if special is not None:
            return special
        try:
            return float(text)
        except ValueError:
            return None
    return None


def kinds_of(maximum: Number, minimum: Number) -> Kinds:
    """The state of a tensor from its Max and Min (numbers, see :func:`number`).

    The union over the two: Max or Min NaN means NaN, Max finite and Min = -inf means -inf only. One missing: the other
    decides.
    """
    if maximum is None and minimum is None:
        return Kinds.UNKNOWN
    kinds = Kinds.CLEAN
    for value in (maximum, minimum):
        if isinstance(value, float):
            if value != value:
                kinds |= Kinds.NAN
            elif value == math.inf:
                kinds |= Kinds.POS_INF
            elif value == -math.inf:
                kinds |= Kinds.NEG_INF
    if kinds == INFINITE:
        kinds |= Kinds.MAYBE_NAN
    return kinds
