"""How far two tensors are from each other: one pass over both, in float64, in little memory, by any number of threads.

Every figure is over the elements that are finite on both sides, except where it says otherwise; NaN and infinities are counted,
each kind by itself. Complex numbers count as their two parts, everywhere. Results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from numprobe.formats.tensors import TensorFile
from numprobe.metrics.histogram import quantiles
from numprobe.metrics.stream import Tensor, element_type, fold_blocks, numel
from numprobe.metrics.sums import Kernel, OneSide, Plan, Sums, block_sums, plan
from numprobe.record.dtypes import short_dtype

Index = tuple[int, ...]
_LARGE, _SMALL = 2.0**250, 2.0**-100  # beyond, elements are scaled: squares and the histogram have a limited range


@dataclass(frozen=True, slots=True)
class Side:
    """One tensor by itself. Norm, mean, max and min are over its own finite elements; NaN, and a norm of 0, where it has none."""

    dtype: str
    shape: tuple[int, ...]
    nan: int
    pos_inf: int
    neg_inf: int
    norm: float
    mean: float
    max: float
    min: float


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of a target from a golden tensor of the same shape, or the same but for dimensions of 1 (``squeezed``).

    With t, g the elements, d = t - g and rms the root mean square of g. Quotients with 0 below are 0 where 0 is above, else
    infinite. In sums of squares, what is smaller than 1e-154 of the largest element counts as 0. ``numel`` counts elements,
    of complex tensors parts.

    * ``equal_bits``: one dtype, and all bits are equal.
    * ``nan_mismatch``, ``pos_inf_mismatch``, ``neg_inf_mismatch``: elements that are so on one side only;
      ``nonfinite_mismatch``: those for which any holds, NaN against an infinity among them, the first at
      ``nonfinite_mismatch_index``.
    * ``finite``: elements that are finite on both sides; ``differing``: those of them with t != g.
    * ``relative_l2``: ||d|| / ||g||. ``one_minus_cosine``: without cancellation, so that 1e-20 is told from 0; it is 0 for two
      zero tensors and 1 where one is zero.
    * ``max_abs``: the largest |d|, at ``max_abs_index``. ``scaled_max``: that over rms. ``max_relative``: the largest |d| / |g|.
    * ``mean_error``: the mean of d over rms: a shift of all elements stands out.
    * ``p50``, ``p99``: quantiles of |d| over rms, within 7 %; the largest is ``scaled_max``.
    * ``over``: elements with |d| > a + b |g| for the tolerance (a, b); None without one.
    * ``max_ulp``, ``median_ulp``: numbers of dtype ``ulp_dtype``, the coarser of the two, between t and g, the median within 7 %;
      None where a side is no floating-point number.
    * ``max_integer``: the largest |d| exactly where both sides are integers or booleans (uint64 beside signed ones: to 53 bits).
    """

    numel: int
    squeezed: bool
    equal_bits: bool
    target: Side
    golden: Side
    nan_mismatch: int
    pos_inf_mismatch: int
    neg_inf_mismatch: int
    nonfinite_mismatch: int
    nonfinite_mismatch_index: Index | None
    finite: int
    differing: int
    relative_l2: float
    one_minus_cosine: float
    rms: float
    max_abs: float
    max_abs_index: Index | None
    scaled_max: float
    max_relative: float
    mean_error: float
    p50: float
    p99: float
    over: int | None
    ulp_dtype: str | None
    max_ulp: int | None
    median_ulp: int | None
    max_integer: int | None

    @property
    def mismatching(self) -> float:
        """Share of elements that are not equal; NaN is equal to NaN, an infinity to one of its sign."""
        return (self.differing + self.nonfinite_mismatch) / self.numel if self.numel else 0.0


def shapes(target: Tensor, golden: Tensor) -> Literal["equal", "squeezed", "different"]:
    """Whether two tensors have one shape, the same but for dimensions of 1, or different ones."""
    if tuple(target.shape) == tuple(golden.shape):
        return "equal"
    if [n for n in target.shape if n != 1] == [n for n in golden.shape if n != 1]:
        return "squeezed"
    return "different"


def distance(
    target: Tensor,
    golden: Tensor,
    *,
    tolerance: tuple[float, float] | None = None,
    threads: int | None = None,
    kernel: Kernel = block_sums,
) -> Distance:
    """Compare two tensors, each a file or an array, element by element.

    Args:
        tolerance: a and b of |d| > a + b |g|, for :attr:`Distance.over`.
        threads: by default one a processor, at most 8. Each takes about 12 MB.
        kernel: what computes a block: numpy, or a device (:mod:`numprobe.metrics.on_device`).

    Raises:
        ValueError: the shapes differ (see :func:`shapes`); that is for the caller to say.
        NumprobeError: a file cannot be read.
    """
    relation = shapes(target, golden)
    if relation == "different":
        raise ValueError(f"shapes {tuple(target.shape)} and {tuple(golden.shape)}")
    how = plan(element_type(target), element_type(golden), tolerance)
    sums = _pass(target, golden, how, threads, kernel)
    largest = max(abs(v) for side in (sums.target, sums.golden) for v in (side.max, side.min))
    if math.isfinite(largest) and (largest > _LARGE or 0 < largest < _SMALL):
        how = replace(how, scale=2.0 ** min(-math.frexp(largest)[1], 1000))  # of denormals it would be infinite
        scaled = _pass(target, golden, how, threads, kernel)
        scaled.differing, scaled.max_integer = sums.differing, sums.max_integer  # small ones have vanished
        sums = scaled
    return _distance(target, golden, relation == "squeezed", how, sums)


def _pass(target: Tensor, golden: Tensor, how: Plan, threads: int | None, kernel: Kernel) -> Sums:
    if not numel(target):
        return Sums(equal_bits=element_type(target) == element_type(golden))
    return fold_blocks(lambda start, t, g: kernel(start, t, g, how), Sums.add, target, golden, threads)


def _distance(target: Tensor, golden: Tensor, squeezed: bool, how: Plan, sums: Sums) -> Distance:
    parts = 2 if "c" in (element_type(target).kind, element_type(golden).kind) else 1
    norm_t, norm_g = math.sqrt(sums.target_squares), math.sqrt(sums.golden_squares)
    count = max(sums.finite, 1)
    rms = norm_g / math.sqrt(count)
    max_abs = max(sums.max_abs, 0.0)
    (p50, p99), (median,) = quantiles(sums.abs_bins, (0.5, 0.99)), quantiles(sums.ulp_bins, (0.5,))
    return Distance(
        numel=parts * numel(target),
        squeezed=squeezed,
        equal_bits=sums.equal_bits,
        target=_side(target, parts, sums.target, how.scale),
        golden=_side(golden, parts, sums.golden, how.scale),
        nan_mismatch=sums.nan_mismatch,
        pos_inf_mismatch=sums.pos_inf_mismatch,
        neg_inf_mismatch=sums.neg_inf_mismatch,
        nonfinite_mismatch=sums.nonfinite_mismatch,
        nonfinite_mismatch_index=_index(sums.nonfinite_mismatch_at, parts, target),
        finite=sums.finite,
        differing=sums.differing,
        relative_l2=_ratio(math.sqrt(sums.d_squares), norm_g),
        one_minus_cosine=_one_minus_cosine(sums, norm_t, norm_g),
        rms=rms / how.scale,
        max_abs=max_abs / how.scale,
        max_abs_index=_index(sums.max_abs_at, parts, target),
        scaled_max=_ratio(max_abs, rms),
        max_relative=sums.max_relative,
        mean_error=math.copysign(_ratio(abs(sums.d_sum) / count, rms), sums.d_sum),
        p50=_ratio(min(_middle(p50), max_abs), rms),
        p99=_ratio(min(_middle(p99), max_abs), rms),
        over=None if how.tolerance is None else sums.over,
        ulp_dtype=None if how.ulp is None else _name(how.ulp),
        max_ulp=None if how.ulp is None else sums.max_ulp,
        median_ulp=None if how.ulp is None else min(_whole(median), sums.max_ulp),
        max_integer=sums.max_integer if how.integers else None,
    )


def _side(tensor: Tensor, parts: int, side: OneSide, scale: float) -> Side:
    finite = parts * numel(tensor) - side.nan - side.pos_inf - side.neg_inf
    return Side(
        dtype=tensor.dtype if isinstance(tensor, TensorFile) else _name(tensor.dtype),
        shape=tuple(tensor.shape),
        nan=side.nan,
        pos_inf=side.pos_inf,
        neg_inf=side.neg_inf,
        norm=math.sqrt(side.squares) / scale,
        mean=side.total / finite / scale if finite else math.nan,
        max=side.max / scale if finite else math.nan,
        min=side.min / scale if finite else math.nan,
    )


@lru_cache
def _name(dtype: np.dtype[np.generic]) -> str:
    return short_dtype(str(dtype))


def _index(number: int, parts: int, tensor: Tensor) -> Index | None:
    if number < 0:
        return None
    return tuple(int(i) for i in np.unravel_index(number // parts, tensor.shape))


def _ratio(above: float, below: float) -> float:
    if not below:
        return math.inf if above else 0.0
    return above / below


def _one_minus_cosine(sums: Sums, norm_t: float, norm_g: float) -> float:
    """1 - tg / (|t| |g|) without the subtraction of what is nearly equal.

    For near tensors (|d|^2 - (|t| - |g|)^2) / (2 |t| |g|), where |t| - |g| = d (t + g) / (|t| + |g|): no more than
    1e-15 |d|^2 / |g|^2 is lost. For others by definition, with tg = |t|^2 - dt or |g|^2 + dg, whichever has the smaller terms.
    """
    product = norm_t * norm_g
    if not product:
        return 0.0 if norm_t == norm_g else 1.0
    if sums.d_squares < product:
        longer = (sums.d_target + sums.d_golden) / (norm_t + norm_g)
        return max(0.0, (sums.d_squares - longer * longer) / (2 * product))
    inner = sums.target_squares - sums.d_target if norm_t < norm_g else sums.golden_squares + sums.d_golden
    return 1.0 - inner / product


def _middle(edges: tuple[float, float]) -> float:
    return (edges[0] + edges[1]) / 2


def _whole(edges: tuple[float, float]) -> int:
    """Small numbers have a bin each."""
    return int(edges[0]) if edges[1] - edges[0] <= 1 else round(_middle(edges))
