"""What the end of a step computes: gradient buckets, gradient norm and clipping, Adam. Rules like those of ``rules``."""

from __future__ import annotations

import math

from numprobe.synth.nan import tensor as T
from numprobe.synth.nan.rules import SPREADING, Options, arising, union
from numprobe.synth.nan.tensor import INFINITE, NAN, POS_INF, Tensor, mix


def concatenated(o: Options, *parts: Tensor) -> Tensor:
    """A flat buffer of all parts. Which of its ``pieces`` equal slices are dirty follows from where the dirty parts lie."""
    key = mix(o["op"], *(t.key for t in parts))
    n = sum(t.n for t in parts)
    pieces = o["pieces"]
    padded = -(-n // pieces) * pieces
    dtype = parts[0].dtype
    square = mean = 0.0
    high, low = 0.0, 0.0
    kinds, start = 0, 0
    dirty: set[int] = set()
    for t in parts:
        square += t.rms * t.rms * t.n
        if t.kinds & SPREADING:
            kinds |= t.kinds & SPREADING
            first, last = start * pieces // padded, (start + t.n - 1) * pieces // padded
            dirty.update(range(first, last + 1))
        elif t.n and t.max is not None and t.min is not None and t.mean is not None:
            high, low = max(high, t.max), min(low, t.min)
            mean += t.mean * t.n / padded
        start += t.n
    rms = math.sqrt(square / padded)
    a, b, c, d = T.rounded(dtype, high, low, mean, max(rms * math.sqrt(padded), high, -low))
    return arising(Tensor(dtype, (padded,), padded, a, b, c, d, rms, key), kinds, parts, frozenset(dirty))


def found_infinity(o: Options, *grads: Tensor) -> Tensor:
    """1.0 if any gradient is non-finite, else 0.0."""
    return T.constant("fp32", (), 1.0 if union(grads) & SPREADING else 0.0, o["op"])


def norm_of(o: Options, x: Tensor) -> Tensor:
    """L2 norm, 0-d fp32."""
    kinds = NAN if x.kinds & NAN else POS_INF if x.kinds & INFINITE else 0
    return arising(T.constant("fp32", (), x.rms * math.sqrt(x.n), mix(o["op"], x.key)), kinds, (x,))


def squared(o: Options, x: Tensor) -> Tensor:
    """The square of a 0-d tensor."""
    value = x.max
    if value is None or not math.isfinite(value):
        return x
    return T.constant(x.dtype, (), min(value * value, 1e38), mix(o["op"], x.key))


def clip_coefficient(o: Options, norm: Tensor) -> Tensor:
    """max_norm / norm, at most 1; zero for an infinite norm."""
    value = norm.max
    if value is None or value != value:
        return norm
    return T.constant(
        norm.dtype, (), 0.0 if math.isinf(value) else min(1.0, 1.0 / (value + 1e-6)), mix(o["op"], norm.key)
    )


def clipped(o: Options, grad: Tensor, coefficient: Tensor) -> Tensor:
    """Gradient times clip coefficient; an infinite gradient times zero is NaN."""
    key = mix(o["op"], grad.key, coefficient.key)
    kinds = union((grad, coefficient)) & SPREADING
    if kinds & INFINITE and coefficient.max == 0:
        kinds = NAN
    rms = grad.rms * min(coefficient.rms, 1.0)
    return arising(T.finite(grad.dtype, grad.shape, rms, key), kinds, (grad, coefficient))


def state_of(o: Options, grad: Tensor) -> Tensor:
    """Optimizer state in the shape of the gradient: fp32; ``positive`` for second moments."""
    base = T.finite("fp32", grad.shape, o["rms"], mix(o["op"], grad.key))
    if o.get("positive") and base.n and base.shape:
        base.min = T.rounded("fp32", o["rms"] * 1e-3)[0]
        base.mean = T.rounded("fp32", o["rms"] * 0.6)[0]
    return base


def second_moment(o: Options, square: Tensor, grad: Tensor) -> Tensor:
    """square += 0.001 grad grad."""
    key = mix(o["op"], square.key, grad.key)
    base = T.finite(square.dtype, square.shape, square.rms, key)
    base.min, base.mean = square.min, square.mean
    kinds = NAN if grad.kinds & NAN else POS_INF if grad.kinds & INFINITE else 0
    return arising(base, kinds | square.kinds & SPREADING, (square, grad))


def stepped(o: Options, param: Tensor, moment: Tensor, root: Tensor) -> Tensor:
    """param - lr moment / root."""
    key = mix(o["op"], param.key, moment.key, root.key)
    kinds = NAN if (moment.kinds | root.kinds) & SPREADING else param.kinds & SPREADING
    return arising(T.finite(param.dtype, param.shape, param.rms, key), kinds, (param, moment, root))
