"""Number formats: one short name per dtype of any framework, with its limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format. ``max`` is the largest finite value, ``p`` the significand bits (unit roundoff 2**-p)."""

    name: str
    max: float
    p: int
    smallest_normal: float


FLOATS: dict[str, FloatFormat] = {
    f.name: f
    for f in (
        FloatFormat("fp64", 1.7976931348623157e308, 53, 2.0**-1022),
        FloatFormat("fp32", 3.4028234663852886e38, 24, 2.0**-126),
        FloatFormat("fp16", 65504.0, 11, 2.0**-14),
        FloatFormat("bf16", 3.3895313892515355e38, 8, 2.0**-126),
        FloatFormat("e4m3", 448.0, 4, 2.0**-6),
        FloatFormat("e5m2", 57344.0, 3, 2.0**-14),
        FloatFormat("hif8", 32768.0, 4, 2.0**-15),
    )
}

_SHORT = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e4m3": "e4m3",
    "float8_e5m2": "e5m2",
    "hifloat8tensor": "hif8",
    "hifloat8": "hif8",
}


def short_dtype(name: str | None) -> str:
    """``torch.bfloat16`` -> ``bf16``, ``Float32`` (MindSpore) -> ``fp32``, ``torch.int64`` -> ``int64``, None -> ``""``."""
    if not name:
        return ""
    last = name.rsplit(".", 1)[-1].lower()
    return _SHORT.get(last, last)


def float_format(name: str | None) -> FloatFormat | None:
    """The format of a dtype name of any framework, or None where the dtype is not a floating-point one."""
    return FLOATS.get(short_dtype(name))
