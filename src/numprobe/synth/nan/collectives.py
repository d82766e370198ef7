"""What collectives compute, and whose dirt reaches whom."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from numprobe.synth.nan import tensor as T
from numprobe.synth.nan.rules import SPREADING, Options
from numprobe.synth.nan.tensor import INFINITE, NAN, Tensor, mix


class Delivery(NamedTuple):
    """What one member gets: the tensor, and which members (by position) sent dirt of the fault into it."""

    tensor: Tensor
    senders: tuple[int, ...]


def delivered(api: str, ins: list[Tensor], options: Options) -> list[Delivery]:
    """The results of all collectives but all_to_all, in the order of the members."""
    dirty = tuple(i for i, t in enumerate(ins) if t.taint)
    if api == "all_reduce":
        outs = [_reduced(ins, options["op"])] * len(ins)
    elif api == "reduce_scatter_tensor":
        outs = _scattered(_reduced(ins, options["op"]), len(ins))
    elif api == "all_gather_into_tensor":
        outs = [_gathered(ins)] * len(ins)
    else:  # broadcast, from the first
        outs, dirty = [ins[0]] * len(ins), dirty[:1] if ins[0].taint else ()
    return [Delivery(out, dirty if out.taint else ()) for out in outs]


@dataclass(frozen=True)
class Exchange:
    """An all_to_all: what each member gets, and ``rows[i][j]``, the rows that member i sent to member j."""

    deliveries: list[Delivery]
    rows: list[list[int]]


def even_counts(rows: int, parts: int) -> list[int]:
    return [rows // parts + (1 if j < rows % parts else 0) for j in range(parts)]


def starve(rows: list[list[int]], key: int) -> None:
    """In one of eight exchanges one expert gets no token at all: its neighbour takes them."""
    if key & 7 == 0:
        k = len(rows)
        j = (key >> 8) % k
        for row in rows:
            row[(j + 1) % k] += row[j]
            row[j] = 0


def exchanged(ins: list[Tensor], rows: list[list[int]], salt: int) -> Exchange:
    """all_to_all: the sum of squares and the extremes of all inputs are those of all outputs.

    Member j gets dirt from member i only if the slice for j holds some and has any row.
    """
    k = len(ins)
    key = mix(salt, *(t.key for t in ins))
    shares = [_shares(t, rows[i], mix(key, t.key)) for i, t in enumerate(ins)]
    width = ins[0].shape[1:]
    elements = math.prod(width)
    deliveries = []
    for j in range(k):
        own = mix(key, j)
        received = [rows[i][j] for i in range(k)]
        n = sum(received) * elements
        square = sum(shares[i][j] for i in range(k))
        out = _sized(ins[0].dtype, (sum(received), *width), square, own)
        if n:
            _take_extremes(out, ins, j, own, received)
        senders, kinds = [], 0
        for i, t in enumerate(ins):
            if t.kinds & SPREADING and received[i] and (t.slices is None or j in t.slices):
                kinds |= t.kinds & SPREADING
                if t.taint:
                    senders.append(i)
        if kinds and n:
            out = T.with_kinds(out, kinds, taint=bool(senders))
        deliveries.append(Delivery(out, tuple(senders)))
    return Exchange(deliveries, rows)


def _shares(t: Tensor, rows: list[int], key: int) -> list[float]:
    """How the sum of squares of ``t`` splits over the receivers: by rows, within 20 %, adding up exactly."""
    weights = [n * (0.9 + 0.2 * T.uniform(mix(key, j))) for j, n in enumerate(rows)]
    scale = t.rms * t.rms * t.n / (sum(weights) or 1.0)
    return [w * scale for w in weights]


def _sized(dtype: str, shape: tuple[int, ...], square: float, key: int) -> Tensor:
    """A tensor with this sum of squares."""
    n = math.prod(shape)
    t = T.finite(dtype, shape, math.sqrt(square / n) if n else 0.0, key)
    if n and shape:
        t.rms = math.sqrt(square / n)
        (t.norm,) = T.rounded(dtype, math.sqrt(square))
    return t


def _take_extremes(out: Tensor, ins: list[Tensor], j: int, key: int, received: list[int]) -> None:
    """Each sender's Max and Min lie in exactly one slice; the other receivers see something smaller."""
    high, low = -math.inf, math.inf
    k = len(ins)
    for i, t in enumerate(ins):
        if not received[i] or t.kinds & SPREADING or t.max is None or t.min is None:
            continue
        high = max(high, t.max if t.key % k == j else t.max * (0.8 + 0.19 * T.uniform(key, 0)))
        low = min(low, t.min if t.key // k % k == j else t.min * (0.8 + 0.19 * T.uniform(key, 1)))
    if high > low and out.norm is not None:
        out.max, out.min = T.rounded(out.dtype, high, low)
        out.norm = max(out.norm, abs(out.max), abs(out.min))


def _kinds(ins: list[Tensor]) -> int:
    kinds = 0
    for t in ins:
        kinds |= t.kinds & SPREADING
    return kinds


def _reduced(ins: list[Tensor], op: str) -> Tensor:
    """SUM adds the squares of independent inputs, and exactly where they are numbers; MAX takes the largest number."""
    key = mix(len(op), *(t.key for t in ins))
    first, kinds = ins[0], _kinds(ins)
    if first.n == 0:
        return first
    if first.shape:
        out = T.finite(first.dtype, first.shape, math.sqrt(sum(t.rms * t.rms for t in ins)), key)
    else:
        values = [t.max for t in ins if t.max is not None and math.isfinite(t.max)]
        out = T.constant(first.dtype, (), max(values, default=0.0) if op == "MAX" else math.fsum(values), key)
        if kinds & INFINITE == INFINITE:
            kinds |= NAN
    slices: frozenset[int] | None = frozenset()
    for t in ins:
        if t.kinds & SPREADING:
            slices = None if t.slices is None or slices is None else slices | t.slices
    return T.with_kinds(out, kinds, taint=any(t.taint for t in ins), slices=slices) if kinds else out


def _gathered(ins: list[Tensor]) -> Tensor:
    """All inputs one after another."""
    key = mix(47, *(t.key for t in ins))
    shape = (sum(t.shape[0] for t in ins), *ins[0].shape[1:])
    out = _sized(ins[0].dtype, shape, sum(t.rms * t.rms * t.n for t in ins), key)
    clean = [t for t in ins if not t.kinds & SPREADING and t.n]
    if clean and out.n:
        out.max = max(t.max for t in clean if t.max is not None)
        out.min = min(t.min for t in clean if t.min is not None)
    kinds = _kinds(ins)
    return T.with_kinds(out, kinds, taint=any(t.taint for t in ins)) if kinds else out


def _scattered(whole: Tensor, parts: int) -> list[Tensor]:
    """Member j gets slice j of the sum, dirty only if that slice is."""
    n = whole.n // parts
    weights = [0.9 + 0.2 * T.uniform(mix(whole.key, j)) for j in range(parts)]
    scale = whole.rms * whole.rms * whole.n / sum(weights)
    outs = []
    for j, weight in enumerate(weights):
        out = _sized(whole.dtype, (n,), weight * scale, mix(whole.key, 53, j))
        if whole.kinds & SPREADING and (whole.slices is None or j in whole.slices):
            out = T.with_kinds(out, whole.kinds, taint=whole.taint)
        outs.append(out)
    return outs
