"""How large can an operator's output be, given the recorded figures of its inputs.

Bounds are rigorous (no output element can exceed them) and prove a fault of the kernel or of a hidden input when the
output is non-finite all the same. Estimates say what rows and columns of the recorded norms give where they point the same
way (sqrt(K) above random signs); only they speak for an overflow, since a bound above the dtype's limit proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from numprobe.diagnose.nan_overflow import apis
from numprobe.diagnose.nan_overflow.result import Bound, Params
from numprobe.record.dtypes import float_format, short_dtype
from numprobe.record.names import BACKWARD
from numprobe.record.nonfinite import Kinds
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER, Record, Value

_KEEPS_SIZE = frozenset(
    (
        "silu",
        "gelu",
        "relu",
        "relu6",
        "leaky_relu",
        "elu",
        "dropout",
        "max_pool2d",
        "avg_pool2d",
        "mean",
        "max",
        "min",
        "amax",
    )
)
_WITHIN_ONE = frozenset(("softmax", "sigmoid", "tanh", "sin", "cos", "erf"))
_SCALED = ("float8", "int8", "int4", "uint8")


@dataclass(frozen=True)
class Sized:
    """A tensor input with its largest magnitude."""

    value: Value
    size: float


def magnitude(v: Value) -> float | None:
    """max|x| from Max and Min; None if unknown or not finite."""
    if v.max is None or v.min is None or v.kinds != Kinds.CLEAN:
        return None
    size = max(abs(float(v.max)), abs(float(v.min)))
    return size if math.isfinite(size) else None


def tensors(record: Record) -> list[Value]:
    """Floating-point tensor inputs and parameters that have elements."""
    return [v for v in record.of(INPUT, PARAMETER) if v.is_tensor and float_format(v.dtype) and v.numel]


def output_of(record: Record) -> Value | None:
    """The first non-finite output, or the first tensor output."""
    outputs = [v for v in record.of(OUTPUT) if v.is_tensor]
    return next((v for v in outputs if v.kinds.dirty), outputs[0] if outputs else None)


def bound_of(record: Record, show: Callable[[float], str]) -> Bound:
    """The bound on |output|, its formula with the figures put in (worded by ``show``), and what the output says to it."""
    op = record.name
    out = output_of(record)
    form = float_format(out.dtype) if out is not None else None
    if out is None or form is None:
        return _none("bound.no_tensor")
    if op.direction == BACKWARD or op.kind not in ("api", "module"):
        return _none("bound.unknown_rule")
    inputs = tensors(record)
    if any(word in v.dtype for v in record.of(INPUT, PARAMETER) for word in _SCALED) and apis.is_matmul(op):
        return _none("bound.unknown_scale")
    name = apis.base(op).lower()
    if not inputs:
        return _none("bound.no_tensor")
    sizes = [magnitude(v) for v in inputs]
    if any(s is None for s in sizes):
        infinite = any(v.kinds.dirty for v in inputs)
        return _none("bound.infinite_input" if infinite else "bound.unknown_input")
    known = [Sized(v, s) for v, s in zip(inputs, sizes, strict=True) if s is not None]
    found: tuple[str, str, float] | None = None
    if apis.is_matmul(op):
        found = _matmul(name, known, show)
        if found is None:
            return _none("bound.unknown_k")
    elif apis.is_attention(op) and len(known) >= 3:
        v = known[2]
        found = ("max|v|", show(v.size), v.size)
    elif name in ("add", "sub") and len(known) == 2 and not _scalars(record):
        a, b = known
        found = ("max|a|+max|b|", f"{show(a.size)} + {show(b.size)}", a.size + b.size)
    elif name in ("mul", "multiply") and len(known) == 2:
        a, b = known
        found = ("max|a|*max|b|", f"{show(a.size)} x {show(b.size)}", a.size * b.size)
    elif name in _WITHIN_ONE:
        found = ("1", "1", 1.0)
    elif name in _KEEPS_SIZE and len(known) == 1:
        found = ("max|x|", show(known[0].size), known[0].size)
    if found is None:
        return _none("bound.unknown_rule")
    rule, formula, value = found
    return Bound(
        True, None, rule, formula, value, short_dtype(out.dtype), form.max, value < form.max and out.kinds.dirty
    )


def matmul_estimate(record: Record) -> float | None:
    """Largest |output| of a matrix product of aligned rows and columns: sqrt(2 ln n) ||x|| ||w|| / sqrt(rows columns).

    n is the number of output elements. Norms that are not recorded, or not finite, give None.
    """
    out = output_of(record)
    inputs = tensors(record)
    if out is None or not out.numel or len(inputs) < 2 or not apis.is_matmul(record.name):
        return None
    norms = [float(v.norm) for v in inputs[:2] if v.norm is not None and math.isfinite(v.norm)]
    if len(norms) < 2:
        return None
    return math.sqrt(2 * math.log(max(out.numel, 2))) * norms[0] * norms[1] / math.sqrt(out.numel)


def _matmul(name: str, known: list[Sized], show: Callable[[float], str]) -> tuple[str, str, float] | None:
    if len(known) < 2:
        return None
    x, w = (known[1], known[2]) if name in ("addmm", "baddbmm") and len(known) >= 3 else (known[0], known[1])
    k = contraction(name, x.value.shape, w.value.shape)
    if k is None:
        return None
    extra = [s.size for s in known if s is not x and s is not w]
    value, rule, formula = k * x.size * w.size, "K*max|x|*max|w|", f"{k} x {show(x.size)} x {show(w.size)}"
    norms = [s.value.norm for s in (x, w)]
    if all(n is not None and math.isfinite(n) and n > 0 for n in norms):
        product = float(norms[0] or 0) * float(norms[1] or 0)
        # Cauchy-Schwarz; recorded norms may be rounded down by 2**-8 each
        if product * 1.01 < value:
            value, rule = product * 1.01, "||x||*||w||"
            formula = f"{show(float(norms[0] or 0))} x {show(float(norms[1] or 0))}"
    if extra:
        value += max(extra)
        rule, formula = f"{rule}+max|b|", f"{formula} + {show(max(extra))}"
    return rule, formula, value


def contraction(name: str, x: tuple[int, ...] | None, w: tuple[int, ...] | None) -> int | None:
    """Length K of the sum of a matrix product from its shapes, or None where they do not show it."""
    if not x or not w:
        return None
    k = x[-1]
    if name.startswith("conv"):
        return math.prod(w[1:])
    if name in ("linear", "dense", "npu_linear") or "linear" in name:
        return k if w[-1] == k else None
    if len(w) >= 2 and w[-2] == k:
        return k
    return k if w[-1] == k else None


def _scalars(record: Record) -> bool:
    """A scalar factor (``alpha``) that changes the sum."""
    return any(v.path.endswith(".alpha") for v in record.of(INPUT))


def _none(reason: str) -> Bound:
    return Bound(False, Params(reason))
