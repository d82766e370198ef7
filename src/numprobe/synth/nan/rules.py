"""What operators do to the state of a tensor: size, and how non-finite values come, spread and vanish.

Each rule takes its options and the input tensors and returns one tensor. All are pure functions of the content of their inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from numprobe.synth.nan import tensor as T
from numprobe.synth.nan.tensor import GARBAGE, INFINITE, MASKED_ROW, NAN, NEG_INF, POS_INF, Tensor, mix

Options: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[..., Tensor]

SPREADING = NAN | INFINITE


def arising(base: Tensor, kinds: int, inputs: tuple[Tensor, ...], slices: frozenset[int] | None = None) -> Tensor:
    """``base`` with ``kinds``. Dirt is the fault's if an input's was, and wherever NaN or used garbage arises:
    NaN made of masks or of unused memory is a fault of whoever computed with them."""
    if not kinds & SPREADING or base.n == 0:
        return base
    taint = bool(kinds & NAN) or any(t.taint or t.kinds & GARBAGE for t in inputs)
    return T.with_kinds(base, kinds, taint=taint, slices=slices)


def union(inputs: tuple[Tensor, ...]) -> int:
    """The kinds of any of the inputs."""
    kinds = 0
    for t in inputs:
        kinds |= t.kinds
    return kinds


def _dirty_slices(inputs: tuple[Tensor, ...]) -> frozenset[int] | None:
    found: frozenset[int] = frozenset()
    for t in inputs:
        if t.kinds & SPREADING:
            if t.slices is None:
                return None
            found |= t.slices
    return found or None


def contracted(kinds: int, key: int) -> int:
    """A sum of products: one infinity in a row gives infinities of both signs (weights of both signs), two of them NaN."""
    if kinds & NAN:
        return NAN
    if kinds & INFINITE:
        return INFINITE if key & 1 else NAN
    return 0


def matmul(o: Options, x: Tensor, w: Tensor) -> Tensor:
    """x (..., K) times w, whose dimension ``width_of`` is the result's last: rms grows by rms(w) sqrt(K).

    Where the expected maximum of the result exceeds the dtype, the result is infinite, and that is a fault.
    """
    key = mix(o["op"], x.key, w.key)
    shape = (*x.shape[:-1], w.shape[o["width_of"]])
    rms = x.rms * w.rms * math.sqrt(x.shape[-1])
    kinds = contracted(union((x, w)), key)
    n = math.prod(shape)
    limit = T.LIMIT[x.dtype]
    if not kinds and n and rms * math.sqrt(2.0 * math.log(n + 1.0)) * 1.1 > limit:
        return T.with_kinds(T.finite(x.dtype, shape, limit / 16.0, key), INFINITE, taint=True)
    return arising(T.finite(x.dtype, shape, rms, key), kinds, (x, w), _dirty_slices((x, w)))


def normalised(o: Options, x: Tensor, *weights: Tensor) -> Tensor:
    """Layer or RMS norm: rms becomes that of the weight; any infinity gives inf/inf or inf - inf, so NaN."""
    key = mix(o["op"], x.key, *(w.key for w in weights))
    kinds = NAN if union((x, *weights)) & SPREADING else 0
    gain = weights[0].rms if weights else 1.0
    return arising(T.finite(x.dtype, x.shape, gain, key), kinds, (x, *weights))


def added(o: Options, a: Tensor, b: Tensor) -> Tensor:
    """Sum of two tensors; infinities of opposite sign at the same place are taken to meet when both hold them."""
    key = mix(o["op"], a.key, b.key)
    kinds = union((a, b))
    if a.kinds & INFINITE and b.kinds & INFINITE and (a.kinds ^ b.kinds) & INFINITE:
        kinds |= NAN
    rms = min(math.hypot(a.rms, b.rms), T.LIMIT.get(a.dtype, math.inf) / 16.0)
    return arising(T.finite(a.dtype, a.shape or b.shape, rms, key), kinds & SPREADING, (a, b))


def multiplied(o: Options, a: Tensor, b: Tensor) -> Tensor:
    """Elementwise product in the shape of ``a``."""
    key = mix(o["op"], a.key, b.key)
    kinds = contracted(union((a, b)), key)
    return arising(T.finite(a.dtype, a.shape, a.rms * b.rms, key), kinds, (a, b), _dirty_slices((a, b)))


def scaled(o: Options, x: Tensor) -> Tensor:
    """x times the number ``by``, perhaps in another ``shape``; infinite, and a fault, where that exceeds the dtype."""
    key = mix(o["op"], x.key)
    shape = o.get("shape", x.shape)
    rms = x.rms * o["by"]
    if rms * math.sqrt(2.0 * math.log(x.n + 1.0)) > T.LIMIT[x.dtype] and not x.dirty:
        return T.with_kinds(T.finite(x.dtype, shape, 1.0, key), INFINITE, taint=True)
    return arising(T.finite(x.dtype, shape, rms, key), x.kinds & SPREADING, (x,))


def same(o: Options, x: Tensor) -> Tensor:
    """A copy or a view: the same content, perhaps in another shape. Keeps what the memory is, garbage too."""
    shape = o.get("shape", x.shape)
    if shape == x.shape:
        return x
    return Tensor(x.dtype, shape, x.n, x.max, x.min, x.mean, x.norm, x.rms, x.key, x.kinds, x.taint, x.slices)


def flattened(o: Options, x: Tensor) -> Tensor:
    """(a, b, ..., h) -> (a * b * ..., h): the view that autograd makes of a 3-D input."""
    rows = math.prod(x.shape[:-1])
    return same({"shape": (rows, x.shape[-1])}, x)


def masked_fill(o: Options, x: Tensor, mask: Tensor) -> Tensor:
    """x with -inf (or, with ``finite``, the dtype's minimum) where the mask says so."""
    key = mix(o["op"], x.key, mask.key)
    base = Tensor(x.dtype, x.shape, x.n, x.max, x.min, x.mean, x.norm, x.rms, key)
    if x.n == 0:
        return base
    if o.get("finite"):
        base.min, base.mean, base.norm = -T.LIMIT[x.dtype], -math.inf, math.inf
        return arising(base, x.kinds & SPREADING, (x,))
    return T.with_kinds(base, NEG_INF | (x.kinds & SPREADING), taint=x.taint)


def top_values(o: Options, x: Tensor, *rest: Tensor) -> Tensor:
    """The largest ``width`` of the last dimension: leaves -inf behind unless a whole row is masked; NaN counts as largest."""
    key = mix(o["op"], x.key)
    base = T.finite(x.dtype, (*x.shape[:-1], o["width"]), x.rms, key, offset=x.rms)
    kinds = x.kinds & (NAN | POS_INF)
    if x.kinds & MASKED_ROW:
        kinds |= NEG_INF | MASKED_ROW
    return T.with_kinds(base, kinds, taint=x.taint and bool(kinds & (NAN | POS_INF)))


def softmax(o: Options, x: Tensor) -> Tensor:
    """Probabilities over the last dimension: absorbs -inf, makes NaN of NaN, +inf and of a row of -inf."""
    key = mix(o["op"], x.key)
    width = x.shape[-1]
    kinds = NAN if x.kinds & (NAN | POS_INF | MASKED_ROW) else 0
    n = x.n
    if n == 0:
        return T.finite(x.dtype, x.shape, 0.0, key)
    mean = 1.0 / width
    high = min(0.999, mean * (1.5 + T.uniform(key)) if width > 1 else 1.0)
    low = mean * (0.2 + 0.4 * T.uniform(key, 1))
    rms = mean * (1.05 + 0.1 * T.uniform(key, 2))
    a, b, c, d = T.rounded(x.dtype, high, low, mean, rms * math.sqrt(n))
    base = Tensor(x.dtype, x.shape, n, a, b, c, d, rms, key)
    return arising(base, kinds, (x,))


def attention(o: Options, x: Tensor, *masks: Tensor) -> Tensor:
    """Fused attention: rows become weighted means of rows; the masks' infinities are absorbed inside."""
    key = mix(o["op"], x.key)
    kinds = NAN if x.kinds & SPREADING else 0
    return arising(T.finite(x.dtype, (*x.shape[:-1], o["width"]), x.rms * 0.6, key), kinds, (x,))


def log_sum(o: Options, x: Tensor, *masks: Tensor) -> Tensor:
    """The fp32 row statistics that fused attention returns besides its result."""
    key = mix(o["op"], x.key)
    kinds = NAN if x.kinds & SPREADING else 0
    return arising(T.finite("fp32", (1, 4, x.shape[0], 8), 1.0, key, offset=3.0), kinds, (x,))


def gated(o: Options, x: Tensor) -> Tensor:
    """SwiGLU: halves the last dimension; infinities meet 0 x inf in the gate."""
    key = mix(o["op"], x.key)
    kinds = NAN if x.kinds & (NAN | NEG_INF) else x.kinds & POS_INF
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    return arising(T.finite(x.dtype, shape, x.rms * x.rms * 0.6, key), kinds, (x,), _dirty_slices((x,)))


def cast(o: Options, x: Tensor) -> Tensor:
    """To another dtype: the same values, rounded; what exceeds its range becomes infinite, a fault unless it is garbage."""
    dtype, key = o["dtype"], mix(o["op"], x.key)
    limit = T.LIMIT[dtype]
    if x.n == 0 or x.max is None or x.min is None or x.mean is None or x.norm is None:
        return Tensor(dtype, x.shape, x.n, None, None, None, None, x.rms, key)
    if x.dirty:
        out = T.with_kinds(T.finite(dtype, x.shape, min(x.rms, limit / 16.0), key), x.kinds, taint=x.taint)
    elif max(abs(x.max), abs(x.min)) > limit:
        kinds = (POS_INF if x.max > limit else 0) | (NEG_INF if x.min < -limit else 0)
        out = T.with_kinds(T.finite(dtype, x.shape, 1.0, key), kinds, taint=not x.kinds & GARBAGE)
    else:
        kept = [T.rounded(dtype, v)[0] if math.isfinite(v) else v for v in (x.max, x.min, x.mean, x.norm)]
        out = Tensor(dtype, x.shape, x.n, kept[0], kept[1], kept[2], kept[3], x.rms, key)
    out.kinds |= x.kinds & GARBAGE
    return out


def magnitude(o: Options, x: Tensor) -> Tensor:
    """|x|: never exactly zero by chance, only where the data hold a zero."""
    key = mix(o["op"], x.key)
    if x.n == 0 or x.max is None or x.min is None or not x.shape:
        return T.finite(x.dtype, x.shape, x.rms, key)
    if x.dirty:
        return arising(T.finite(x.dtype, x.shape, x.rms, key), NAN if x.kinds & NAN else POS_INF, (x,))
    low, mean, norm = T.rounded(x.dtype, x.rms / x.n, x.rms * 0.8, x.norm or 0.0)
    return Tensor(x.dtype, x.shape, x.n, max(x.max, -x.min), low, mean, norm, x.rms, key)


def logarithm(o: Options, x: Tensor) -> Tensor:
    """log: NaN below zero, -inf at zero."""
    key = mix(o["op"], x.key)
    kinds = NAN if x.kinds & SPREADING else 0
    if x.min is not None and not kinds:
        kinds = NAN if x.min < 0 else NEG_INF if x.min == 0 else 0
    base = T.finite(x.dtype, x.shape, 1.0, key)
    if kinds == NEG_INF:
        return T.with_kinds(base, kinds, taint=x.taint)
    return arising(base, kinds, (x,))


def square_root(o: Options, x: Tensor) -> Tensor:
    """sqrt: NaN below zero."""
    key = mix(o["op"], x.key)
    kinds = x.kinds & (NAN | POS_INF)
    if x.kinds & NEG_INF or (x.min is not None and x.min < 0):
        kinds |= NAN
    root = math.sqrt(x.rms)
    base = T.finite(x.dtype, x.shape, root * 0.4, key)
    if base.n and x.max is not None and x.min is not None and not kinds and not x.kinds:
        a, b, c, d = T.rounded(
            x.dtype, math.sqrt(max(x.max, 0.0)), math.sqrt(max(x.min, 0.0)), root * 0.9, root * math.sqrt(base.n)
        )
        base = Tensor(x.dtype, x.shape, base.n, a, b, c, d, root, key) if x.shape else T.constant(x.dtype, (), a, key)
    return arising(base, kinds, (x,))


def divided(o: Options, a: Tensor, b: Tensor) -> Tensor:
    """a / b: 0/0 is NaN, x/0 infinite. ``harmless`` marks a division whose infinities are known to be discarded."""
    key = mix(o["op"], a.key, b.key)
    kinds = union((a, b)) & SPREADING
    if kinds & INFINITE and b.kinds & INFINITE:
        kinds = NAN
    zero_in_b = (
        b.min is not None and b.max is not None and not b.kinds & SPREADING and (b.min <= 0 <= b.max) and b.min == 0
    )
    if zero_in_b and not kinds:
        if not a.shape and a.max == 0:
            kinds = NAN
        elif o.get("harmless"):
            return T.with_kinds(T.finite(a.dtype, a.shape, max(a.rms, 1e-3), key), POS_INF, taint=False)
        else:
            return T.with_kinds(T.finite(a.dtype, a.shape, max(a.rms, 1e-3), key), INFINITE, taint=True)
    if not a.shape and not b.shape and not kinds and a.max is not None and b.max is not None:
        return T.constant(a.dtype, (), a.max / b.max if b.max else 0.0, key)
    return arising(T.finite(a.dtype, a.shape, a.rms / max(b.rms, 1e-12), key), kinds, (a, b))


def selected(o: Options, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """where(condition, a, b) with a condition made so as to discard the infinities of ``a``; NaN of the fault passes."""
    key = mix(o["op"], a.key, b.key)
    kinds = (a.kinds & SPREADING if a.taint else 0) | (b.kinds & SPREADING)
    return arising(T.finite(a.dtype, a.shape, math.hypot(a.rms, b.rms) * 0.7, key), kinds, (a, b))


def cross_entropy(o: Options, logits: Tensor, targets: Tensor, *weights: Tensor) -> Tensor:
    """Loss of each row, about ln(vocabulary); any non-finite logit gives NaN."""
    key = mix(o["op"], logits.key, targets.key)
    kinds = NAN if logits.kinds & SPREADING else 0
    offset = math.log(max(2, logits.shape[-1]))
    return arising(T.finite(logits.dtype, logits.shape[:-1], offset * 0.05, key, offset=offset), kinds, (logits,))


def summed(o: Options, x: Tensor) -> Tensor:
    """Sum over everything, 0-d."""
    kinds = x.kinds & SPREADING
    if kinds & INFINITE == INFINITE:
        kinds |= NAN
    mean = x.mean if x.mean is not None and math.isfinite(x.mean) else x.rms
    return arising(T.constant(x.dtype, (), mean * x.n, mix(o["op"], x.key)), kinds, (x,))


def mask_product(o: Options, x: Tensor, mask: Tensor) -> Tensor:
    """Losses times the mask of valid tokens, whose mean is the share that counts."""
    key = mix(o["op"], x.key, mask.key)
    share = mask.mean or 0.0
    if share == 0.0 and not x.dirty:
        return T.constant(x.dtype, x.shape, 0.0, key)
    mean = (x.mean if x.mean is not None and math.isfinite(x.mean) else x.rms) * share
    base = T.finite(x.dtype, x.shape, x.rms * math.sqrt(share) * 0.1, key, offset=mean)
    return arising(base, NAN if x.dirty else 0, (x,))


def infinite_triangle(o: Options, *inputs: Tensor) -> Tensor:
    """-inf above the diagonal, 0 below: what triu makes of a matrix of -inf."""
    base = T.constant(o["dtype"], o["shape"], 0.0, o["op"])
    return T.with_kinds(base, NEG_INF, taint=False)


def made(o: Options, *inputs: Tensor) -> Tensor:
    """A tensor made by ``make`` from nothing but a key: masks, index tensors."""
    maker: Callable[[int], Tensor] = o["make"]
    return maker(mix(o["op"], *(t.key for t in inputs)))


def looked_up(o: Options, ids: Tensor, w: Tensor) -> Tensor:
    """Embedding rows of ``ids``."""
    key = mix(o["op"], ids.key, w.key)
    return arising(T.finite(w.dtype, o["shape"], w.rms, key), w.kinds & SPREADING, (w,))


def permuted(o: Options, x: Tensor, probs: Tensor) -> Tensor:
    """Tokens in the order of their experts; NaN probabilities send NaN-weighted tokens along."""
    key = mix(o["op"], x.key, probs.key)
    kinds = union((x, probs)) & SPREADING
    return arising(T.finite(x.dtype, x.shape, x.rms, key), kinds, (x, probs))


def difference(o: Options, a: Tensor, b: Tensor) -> Tensor:
    """mean square minus squared mean: positive by nature."""
    key = mix(o["op"], a.key, b.key)
    rms = max(a.rms - b.rms * b.rms, 0.1)
    base = T.finite(a.dtype, a.shape, rms * 0.05, key, offset=rms)
    return arising(base, union((a, b)) & SPREADING, (a, b))


def row_counts(rows: int, parts: int, key: int, *, some_for_all: bool) -> list[int]:
    """``rows`` cut into ``parts`` at random; with ``some_for_all`` every part has at least one row if there are enough."""
    floor = 1 if some_for_all and rows >= parts else 0
    rest = rows - floor * parts
    cuts = sorted(mix(key, j) % (rest + 1) for j in range(parts - 1))
    return [floor + b - a for a, b in zip([0, *cuts], [*cuts, rest], strict=True)]


def group_sizes(o: Options, tokens: Tensor) -> Tensor:
    """How many of the tokens each local expert gets, all of them together: the group_list of a grouped matmul."""
    key = mix(o["op"], tokens.key)
    counts = row_counts(tokens.shape[0], o["groups"], key, some_for_all=False)
    return T.whole((len(counts),), max(counts), min(counts), key)
