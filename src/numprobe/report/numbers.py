"""How figures are written, the same in every rendering and language: plain ASCII, so that copied figures parse."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

ABSENT = "-"  # HTML shows an em dash instead; never 0, never blank


def stat(value: float | int | bool | None, digits: int = 4) -> str:
    """A statistic with ``digits`` significant digits: ``7.938``, ``1,391``, ``1.904e-5``, ``NaN``, ``-inf``; integers exact."""
    if value is None:
        return ABSENT
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 10**15):
        return f"{value:,}" if not isinstance(value, bool) else str(value)
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    if 1e4 <= abs(value) < 99_999.5:
        return f"{value:,.0f}"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")  # rounds first: 9.9996 is 10.00, 99999.9 is 1.000e5
    exponent = int(power)
    if -3 <= exponent < 5:
        return f"{value:,.{max(digits - 1 - exponent, 0)}f}"
    return f"{mantissa}e{exponent}"


def limit(value: float | None) -> str:
    """A limit of a dtype: ``65504``, ``3.39e38``."""
    if value is None:
        return ABSENT
    if abs(value) < 1e5 and value == int(value):
        return str(int(value))
    return stat(value, digits=3)


def count(value: int) -> str:
    """An exact integer with comma groups."""
    return f"{value:,}"


def percent(share: float) -> str:
    """A share of 1 as a percentage: 2 significant digits, 3 from 10 %. State the base next to it."""
    value = share * 100
    if not math.isfinite(share):
        return f"{value} %"
    if not abs(value) < 1e9:
        return f"{Decimal(share) * 100:.2e} %".replace(
            "e+", "e"
        )  # exact: 100 times a float may be more than floats hold
    if value == 0:
        return "0 %"
    digits = 3 if abs(value) >= 9.95 else 2
    power = math.floor(math.log10(abs(value)))
    if power < -4:
        return f"{value:.{digits - 1}e} %".replace("e-0", "e-")
    return f"{value:.{max(digits - 1 - power, 0)}f} %"


def signed(value: float) -> str:
    """A term of a confidence: ``+0.40``, ``-0.20``."""
    return f"{value:+.2f}"


def size(n_bytes: int) -> str:
    """An amount of data in powers of 10: ``812 bytes``, ``7.3 GB``."""
    if n_bytes < 1000:
        return f"{n_bytes} bytes"
    value = float(n_bytes)
    for unit in ("kB", "MB", "GB", "TB"):  # noqa: B007 the unit at which it stopped is the answer
        value /= 1000
        if value < 999.5:
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:,.0f} {unit}"


def duration(seconds: float) -> str:
    """``34 ms``, ``0.4 s``, ``62 s``, ``12 min``."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 599.5 else f"{seconds / 60:.0f} min"


def ranges(numbers: Iterable[int], comma: str = ", ") -> str:
    """Rank numbers in the syntax of ``--rank``: ``0,3,8-15``, with a space after each comma for reading.

    Within a sentence, ``comma`` is that of its language.
    """
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    parts: list[str] = []
    for first, last in spans:
        if last - first < 2:
            parts.extend(str(number) for number in range(first, last + 1))
        else:
            parts.append(f"{first}-{last}")
    return comma.join(parts)


def shape(dims: Iterable[int] | None) -> str:
    """``[1024, 512]``; an unknown shape is absent, a scalar is ``[]``."""
    return ABSENT if dims is None else f"[{', '.join(map(str, dims))}]"


_SHORT = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}


def dtype(name: str) -> str:
    """``torch.bfloat16`` and ``BFloat16`` as ``bf16``; integers keep their name."""
    plain = name.rpartition(".")[2].lower()
    return _SHORT.get(plain, plain)
