"""How gradients arise, spread and vanish: the backward rules of operators.

A gradient rule takes its options, the upstream gradient, the input whose gradient is wanted, and the saved tensors that
the derivative multiplies with. Dirt of a saved tensor reaches the gradient just as that of the upstream gradient does.
"""

from __future__ import annotations

import math

from numprobe.synth.nan import tensor as T
from numprobe.synth.nan.rules import SPREADING, Options, arising, contracted, same
from numprobe.synth.nan.tensor import INFINITE, NAN, POS_INF, Tensor, mix


def gradient(o: Options, upstream: Tensor, like: Tensor, *using: Tensor) -> Tensor:
    """Gradient in the shape of ``like``: dirty if the upstream gradient is, or any saved tensor that it is multiplied with.

    Options: ``by`` the size of the derivative; ``contracts`` for a matrix product, over the last dimension of the upstream
    gradient or, with ``weight``, over its rows; ``rows`` where dirty rows stay the same rows.
    """
    key = mix(o["op"], upstream.key, like.key, *(t.key for t in using))
    kinds = upstream.kinds & SPREADING
    if any(t.dirty for t in using):
        kinds = NAN
    elif kinds and o.get("contracts"):
        kinds = contracted(kinds, key)
    if upstream.n == 0 and like.n:
        return T.constant(like.dtype, like.shape, 0.0, key)
    rms = upstream.rms * o.get("by", 1.0)
    if o.get("contracts"):
        width = max(upstream.shape[-1], 1)
        summands = upstream.n / width if o.get("weight") else width
        rms *= max(t.rms for t in using) * math.sqrt(summands)
    base = T.finite(like.dtype, like.shape, min(rms, T.LIMIT[like.dtype] / 64.0), key)
    return arising(base, kinds, (upstream, *using), upstream.slices if o.get("rows") else None)


def of_log(o: Options, upstream: Tensor, like: Tensor) -> Tensor:
    """grad / x: at x = 0, where the branch was discarded, 0/0 = NaN."""
    key = mix(o["op"], upstream.key, like.key)
    kinds = upstream.kinds & SPREADING
    if like.kinds & SPREADING or (like.min is not None and like.min <= 0):
        kinds = NAN
    return arising(T.finite(like.dtype, like.shape, upstream.rms, key), kinds, (upstream, like))


def of_quotient(o: Options, upstream: Tensor, like: Tensor, divisor: Tensor) -> Tensor:
    """grad / divisor for the numerator: infinite where the divisor is zero."""
    key = mix(o["op"], upstream.key, divisor.key)
    if divisor.max == 0 and not upstream.dirty:
        return T.with_kinds(T.finite(like.dtype, like.shape, 1.0, key), POS_INF, taint=True)
    kinds = upstream.kinds & SPREADING or (NAN if divisor.dirty else 0)
    rms = upstream.rms / max(divisor.rms, 1e-12)
    return arising(T.finite(like.dtype, like.shape, rms, key), kinds, (upstream, divisor))


def through_mask(o: Options, upstream: Tensor, like: Tensor, mask: Tensor) -> Tensor:
    """grad x mask: an infinite gradient times a zero of the mask is NaN."""
    key = mix(o["op"], upstream.key, mask.key)
    kinds = upstream.kinds & SPREADING
    if kinds & INFINITE and mask.min == 0:
        kinds = NAN
    return arising(T.finite(like.dtype, like.shape, upstream.rms, key), kinds, (upstream,))


def of_log_probability(o: Options, upstream: Tensor, like: Tensor) -> Tensor:
    """Gradient of the chosen log-probability: the incoming one at the target, zero elsewhere."""
    key = mix(o["op"], upstream.key)
    rms = upstream.rms / math.sqrt(max(like.shape[-1], 1))
    base = T.finite(like.dtype, like.shape, rms, key)
    if base.n:
        base.max = 0.0
    return arising(base, upstream.kinds & SPREADING, (upstream,))


def reshaped(o: Options, upstream: Tensor, like: Tensor, *using: Tensor) -> Tensor:
    """The same gradient in the shape of ``like``, as views and permutations pass it on."""
    if upstream.n != like.n:
        return gradient(o, upstream, like, *using)
    return same({"shape": like.shape}, upstream)


def broadcast(o: Options, upstream: Tensor, like: Tensor) -> Tensor:
    """The gradient of a sum: the same number everywhere."""
    key = mix(o["op"], upstream.key)
    value = upstream.max
    if value is None or not math.isfinite(value):
        return arising(T.finite(like.dtype, like.shape, 1.0, key), upstream.kinds, (upstream,))
    return T.constant(like.dtype, like.shape, value, key)
