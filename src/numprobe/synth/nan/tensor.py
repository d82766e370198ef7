"""What the simulator knows of a tensor: the statistics that a dump shows, and what only the simulator sees.

No elements are stored. A tensor is its Max, Min, Mean and Norm, kept consistent with each other and rounded to its
dtype as the recorder does (statistics are computed in the tensor's own dtype), and a *content key*: equal keys mean
equal content. Every operator derives its output from the keys of its inputs, so that replicas that compute the same
thing get bit-equal statistics, and a recomputed forward reproduces the first one.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache

from numprobe.record.dtypes import FLOATS
from numprobe.record.nonfinite import Kinds

NAN, POS_INF, NEG_INF = int(Kinds.NAN), int(Kinds.POS_INF), int(Kinds.NEG_INF)
INFINITE = POS_INF | NEG_INF
MASKED_ROW = 1 << 8  # beside NEG_INF: at least one whole row is -inf, so that a softmax over it gives NaN
GARBAGE = 1 << 9  # memory that nobody has written: its contents mean nothing, finite or not

_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int64": "int64", "bool": "bool"}
_MASK64 = (1 << 64) - 1
LIMIT = {name: FLOATS[name].max for name in ("bf16", "fp16", "fp32")}


@dataclass(slots=True, eq=False)
class Tensor:
    """One tensor.

    ``max`` to ``norm`` are what the dump shows (None: null). ``rms`` is the root mean square of the finite part, also
    where the statistics are NaN. ``kinds`` are the non-finite values it holds, ``taint`` says that they stem from the
    fault and not from a mask or from unused memory. ``slices`` are the parts (one for each member of the group that the
    tensor is split over) that hold them; None: any part.
    """

    dtype: str
    shape: tuple[int, ...]
    n: int
    max: float | None
    min: float | None
    mean: float | None
    norm: float | None
    rms: float
    key: int
    kinds: int = 0
    taint: bool = False
    slices: frozenset[int] | None = None
    text: str = ""

    @property
    def dirty(self) -> bool:
        return bool(self.kinds & (NAN | INFINITE))


def mix(*parts: int) -> int:
    """A 64-bit key from integers: a pure function of its arguments, the same in every process."""
    h = hash(parts) & _MASK64
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    h = (h ^ (h >> 27)) * 0x94D049BB133111EB & _MASK64
    return h ^ (h >> 31)


def uniform(key: int, index: int = 0) -> float:
    """A number in [0, 1) from 16 bits of ``key``; ``index`` 0 to 3 picks the bits."""
    return ((key >> (16 * index)) & 0xFFFF) / 65536.0


def _bf16(values: tuple[float, ...]) -> tuple[float, ...]:
    # round to nearest, ties away: the carry out of bit 15 is all that is needed
    form = f"{len(values)}I"
    bits = struct.unpack(form, struct.pack(f"{len(values)}f", *values))
    return struct.unpack(f"{len(values)}f", struct.pack(form, *((b + 0x8000) & 0xFFFF0000 for b in bits)))


def _fp16(value: float) -> float:
    try:
        return float(struct.unpack("e", struct.pack("e", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def rounded(dtype: str, *values: float) -> tuple[float, ...]:
    """Finite values rounded to ``dtype``; what exceeds fp16 becomes infinite, as the recorder's own sum does."""
    if dtype == "bf16":
        return _bf16(values)
    if dtype == "fp16":
        return tuple(_fp16(v) for v in values)
    return struct.unpack(f"{len(values)}f", struct.pack(f"{len(values)}f", *values))


def finite(dtype: str, shape: tuple[int, ...], rms: float, key: int, offset: float = 0.0) -> Tensor:
    """A bell-shaped tensor with root mean square ``rms`` around ``offset``; an empty one has null statistics.

    Extremes follow the expected maximum of n normal draws, sqrt(2 ln n), within 12 %.
    """
    n = math.prod(shape)
    if n == 0:
        return Tensor(dtype, shape, 0, None, None, None, None, 0.0, key)
    if not shape:
        (value,) = rounded(dtype, rms * (0.9 + 0.2 * uniform(key)) + offset)
        return Tensor(dtype, shape, 1, value, value, value, value, abs(value), key)
    reach = rms * math.sqrt(2.0 * math.log(n + 1.0))
    mean = offset + rms * 0.1 * (uniform(key, 2) - 0.5) / math.sqrt(n) * min(8.0, math.sqrt(n))
    size = math.hypot(rms * (0.98 + 0.04 * uniform(key, 3)), mean)
    high = mean + reach * (0.88 + 0.24 * uniform(key, 0))
    low = mean - reach * (0.88 + 0.24 * uniform(key, 1))
    norm = max(size * math.sqrt(n), abs(high), abs(low))
    a, b, c, d = rounded(dtype, high, low, mean, norm)
    return Tensor(dtype, shape, n, a, b, c, d, size, key)


def constant(dtype: str, shape: tuple[int, ...], value: float, key: int) -> Tensor:
    """Every element is ``value``, which may be infinite."""
    n = math.prod(shape)
    if n == 0:
        return Tensor(dtype, shape, 0, None, None, None, None, 0.0, key)
    norm = abs(value) * math.sqrt(n) if shape else value
    kinds = (NAN if value != value else POS_INF if value > 0 else NEG_INF) if not math.isfinite(value) else 0
    if math.isfinite(value):
        value, norm = rounded(dtype, value, min(norm, LIMIT[dtype]) if norm > 0 else norm)
    return Tensor(dtype, shape, n, value, value, value, norm, abs(value) if not kinds else 0.0, key, kinds)


def whole(shape: tuple[int, ...], high: int, low: int, key: int) -> Tensor:
    """int64: Max and Min only, as the recorder writes them."""
    n = math.prod(shape)
    if n == 0:
        return Tensor("int64", shape, 0, None, None, None, None, 0.0, key)
    return Tensor("int64", shape, n, high, low, None, None, 0.0, key)


def integers(shape: tuple[int, ...], low: int, high: int, key: int) -> Tensor:
    """int64 with extremes within the tenth next to the bounds."""
    span = (high - low) // 10
    return whole(shape, high - int(uniform(key) * span), low + int(uniform(key, 1) * span), key)


def with_zero(t: Tensor) -> Tensor:
    """``t`` with its smallest element exactly zero."""
    t.min = 0.0
    return t


def valid_tokens(length: int, key: int) -> Tensor:
    """The mask of tokens that count in a loss, as fp32 numbers 0 and 1: 60 to 100 % of them do."""
    share = int(length * (0.6 + 0.4 * uniform(key))) / length
    mean, norm = rounded("fp32", share, math.sqrt(share * length))
    return Tensor("fp32", (length,), length, 1.0, 0.0, mean, norm, math.sqrt(share), key)


def boolean(shape: tuple[int, ...], key: int) -> Tensor:
    """bool, some true and some false: Max is any, Min is all, Mean and Norm null."""
    return Tensor("bool", shape, math.prod(shape), True, False, None, None, 0.0, key)


def with_kinds(t: Tensor, kinds: int, *, taint: bool, slices: frozenset[int] | None = None) -> Tensor:
    """``t`` holding non-finite values of ``kinds`` as well: the statistics that the recorder computes then.

    NaN makes all four NaN; -inf alone makes Min and Mean -inf and Norm inf, and leaves Max; both infinities make Mean
    NaN. An empty tensor holds nothing.
    """
    if t.n == 0 or not kinds & (NAN | INFINITE):
        return Tensor(t.dtype, t.shape, t.n, t.max, t.min, t.mean, t.norm, t.rms, t.key)
    nan, inf = math.nan, math.inf
    if kinds & NAN:
        high = low = mean = norm = nan
    elif not t.shape:
        high = low = mean = norm = inf if kinds & POS_INF else -inf
    else:
        high = inf if kinds & POS_INF else t.max  # type: ignore[assignment]
        low = -inf if kinds & NEG_INF else t.min  # type: ignore[assignment]
        mean = nan if kinds & INFINITE == INFINITE else inf if kinds & POS_INF else -inf
        norm = inf
    return Tensor(t.dtype, t.shape, t.n, high, low, mean, norm, t.rms, t.key, kinds, taint, slices)


def garbage(dtype: str, shape: tuple[int, ...], key: int) -> Tensor:
    """Memory as allocation leaves it: NaN, infinities, huge figures or, often, what an earlier tensor left."""
    base = finite(dtype, shape, 10.0 ** (4.0 * uniform(key, 1) - 3.0), key)
    draw = key >> 11 & 7
    if draw <= 1:
        t = with_kinds(base, NAN, taint=False)
    elif draw == 2:
        t = with_kinds(base, POS_INF, taint=False)
    elif draw == 3:
        t = with_kinds(base, INFINITE, taint=False)
    elif draw == 4 and dtype != "fp16" and base.n:
        huge = 1e38 * (1.0 + uniform(key, 2))
        high, low, mean = rounded(dtype, huge, -huge / 3.0, huge / base.n)
        t = Tensor(dtype, shape, base.n, high, low, mean, math.inf if shape else high, huge, key)
    else:
        t = base
    t.kinds |= GARBAGE
    return t


@lru_cache(maxsize=4096)
def shape_text(shape: tuple[int, ...]) -> str:
    """``[2, 8]`` as json with indent 1 writes it six levels deep."""
    return "[]" if not shape else "[\n      " + ",\n      ".join(map(str, shape)) + "\n     ]"


def number_text(value: float | None) -> str:
    """A statistic as Python's json writes it: bare NaN, Infinity and -Infinity, true, false, null."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if value != value:
        return "NaN"
    if value in (math.inf, -math.inf):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def render(t: Tensor, *, requires_grad: bool) -> str:
    """The tensor's json record four levels deep, without the leading indent."""
    if not t.text:
        t.text = (
            f'{{\n     "type": "torch.Tensor",\n     "dtype": "torch.{_TORCH[t.dtype]}",\n     "shape": {shape_text(t.shape)},'
            f'\n     "Max": {number_text(t.max)},\n     "Min": {number_text(t.min)},\n     "Mean": {number_text(t.mean)},'
            f'\n     "Norm": {number_text(t.norm)},\n     "requires_grad": '
        )
    return t.text + ("true\n    }" if requires_grad else "false\n    }")
