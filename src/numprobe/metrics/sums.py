"""What one chunk of two tensors adds to the figures of :mod:`numprobe.metrics.distance`: sums, extremes, counts, histograms.

All elements are computed with in float64. Complex numbers count as their two parts.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from numprobe.metrics.histogram import BINS, Counts, Floats, count
from numprobe.metrics.stream import CHUNK, Array, dot
from numprobe.record.dtypes import float_format

_ULP_TYPES = {
    "fp64": np.dtype(np.float64),
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


_thread = threading.local()


@dataclass(slots=True)
class OneSide:
    """Sums over the elements of one side that are finite."""

    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    total: float = 0.0
    squares: float = 0.0
    max: float = -np.inf
    min: float = np.inf

    def add(self, other: OneSide) -> None:
        self.nan += other.nan
        self.pos_inf += other.pos_inf
        self.neg_inf += other.neg_inf
        self.total += other.total
        self.squares += other.squares
        self.max = max(self.max, other.max)
        self.min = min(self.min, other.min)


@dataclass(slots=True)
class Sums:
    """Sums over both sides. Where nothing else is said, over the elements that are finite on both; ``d`` is target - golden."""

    target: OneSide = field(default_factory=OneSide)
    golden: OneSide = field(default_factory=OneSide)
    nan_mismatch: int = 0  # elements that are NaN on one side only; the same for the infinities
    pos_inf_mismatch: int = 0
    neg_inf_mismatch: int = 0
    nonfinite_mismatch: int = 0  # elements for which any of the three holds
    nonfinite_mismatch_at: int = -1  # number of the first of them
    equal_bits: bool = True  # of all elements
    finite: int = 0
    differing: int = 0
    target_squares: float = 0.0
    golden_squares: float = 0.0
    d_squares: float = 0.0
    d_sum: float = 0.0
    d_target: float = 0.0  # sum of d times target
    d_golden: float = 0.0
    max_abs: float = -1.0
    max_abs_at: int = -1  # number of the element; of a complex tensor, of the part
    max_relative: float = 0.0
    max_integer: int = 0
    over: int = 0
    max_ulp: int = 0
    abs_bins: Counts = field(default_factory=lambda: np.zeros(BINS, np.int64))
    ulp_bins: Counts = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, other: Sums) -> Sums:
        """Take in what comes after; the one that is given back is this one."""
        self.target.add(other.target)
        self.golden.add(other.golden)
        self.nan_mismatch += other.nan_mismatch
        self.pos_inf_mismatch += other.pos_inf_mismatch
        self.neg_inf_mismatch += other.neg_inf_mismatch
        self.nonfinite_mismatch += other.nonfinite_mismatch
        if self.nonfinite_mismatch_at < 0:
            self.nonfinite_mismatch_at = other.nonfinite_mismatch_at
        self.equal_bits &= other.equal_bits
        self.finite += other.finite
        self.differing += other.differing
        self.target_squares += other.target_squares
        self.golden_squares += other.golden_squares
        self.d_squares += other.d_squares
        self.d_sum += other.d_sum
        self.d_target += other.d_target
        self.d_golden += other.d_golden
        if other.max_abs > self.max_abs:
            self.max_abs, self.max_abs_at = other.max_abs, other.max_abs_at
        self.max_relative = max(self.max_relative, other.max_relative)
        self.max_integer = max(self.max_integer, other.max_integer)
        self.over += other.over
        self.max_ulp = max(self.max_ulp, other.max_ulp)
        self.abs_bins += other.abs_bins
        self.ulp_bins += other.ulp_bins
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """How a pair is computed. ``ulp``: the dtype that ULPs are counted in. ``tolerance``: (a, b) of |d| > a + b |golden|.

    ``wide``: both sides are integers of one 64-bit type, which float64 cannot hold. ``scale``: a power of two that all elements
    are multiplied by, so that their squares neither overflow nor vanish.
    """

    ulp: np.dtype[np.generic] | None
    integers: bool
    wide: bool
    tolerance: tuple[float, float] | None = None
    scale: float = 1.0


@lru_cache
def plan(target: np.dtype[np.generic], golden: np.dtype[np.generic], tolerance: tuple[float, float] | None) -> Plan:
    """The plan for two element types."""
    formats = [float_format(str(part_type(side))) for side in (target, golden)]
    ulp = None
    if formats[0] is not None and formats[1] is not None:
        ulp = _ULP_TYPES[min(formats[0], formats[1], key=lambda f: f.p).name]
    integers = target.kind in "biu" and golden.kind in "biu"
    return Plan(ulp, integers, integers and target == golden and target.itemsize == 8, tolerance)


def part_type(element: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The dtype of the parts of a complex dtype; any other is its own."""
    return np.dtype(f"f{element.itemsize // 2}") if element.kind == "c" else element


def parts(target: Array, golden: Array) -> tuple[Array, Array]:
    """Flat arrays of complex elements as their parts, real and imaginary in turn; a real one beside a complex one as well."""
    if target.dtype.kind != "c" and golden.dtype.kind != "c":
        return target, golden
    both = []
    for side in (target, golden):
        if side.dtype.kind != "c":
            side = side.astype(np.complex128)
        both.append(side.view(part_type(side.dtype)))
    return both[0], both[1]


DEVICE_FAILED = "E-CMP-017"  # the code of the error that a kernel on a device raises
Kernel: TypeAlias = Callable[[int, Array, Array, Plan], Sums]


def block_sums(start: int, target: Array, golden: Array, how: Plan) -> Sums:
    """The sums of two flat arrays of one length, whose first element has the number ``start``."""
    target, golden = parts(np.ascontiguousarray(target), np.ascontiguousarray(golden))
    sums = Sums()
    work = _work()
    with np.errstate(all="ignore"):
        for at in range(0, len(target), CHUNK):
            chunk = target[at : at + CHUNK]
            _add_chunk(sums, start + at, chunk, golden[at : at + CHUNK], how, work[:, : len(chunk)])
    return sums


def _work() -> Floats:
    """Arrays of this thread for intermediate results: new ones would be taken from the system and given back each time."""
    found: Floats | None = getattr(_thread, "work", None)
    if found is None or found.shape[1] < CHUNK:
        found = _thread.work = np.empty((5, CHUNK))
    return found


def _add_chunk(sums: Sums, start: int, target: Array, golden: Array, how: Plan, work: Floats) -> None:
    t, g, d, spare, _ = work
    t[:], g[:] = target, golden
    if how.scale != 1.0:
        t *= how.scale
        g *= how.scale
    np.subtract(t, g, out=d)
    d_squares = dot(d, d)
    both = None
    finite = len(t)
    t_squares, g_squares = dot(t, t), dot(g, g)
    if math.isfinite(d_squares):  # so is every element
        _add_side(sums.target, t, t_squares)
        _add_side(sums.golden, g, g_squares)
    else:
        both = _take_out_nonfinite(sums, start, t, g)
        finite = int(np.count_nonzero(both))
        np.subtract(t, g, out=d)
        d_squares, t_squares, g_squares = dot(d, d), dot(t, t), dot(g, g)
    sums.finite += finite
    sums.d_squares += d_squares
    sums.target_squares += t_squares
    sums.golden_squares += g_squares
    if how.wide:
        d[:] = _wide_difference(sums, target, golden)
        d *= how.scale
    size = np.abs(d, out=spare)
    at = int(size.argmax())
    largest = float(size[at])
    if both is not None and not both[at]:  # all are 0: any place that counts
        at = int(both.argmax())
    if finite and largest > sums.max_abs:
        sums.max_abs, sums.max_abs_at = largest, start + at
    equal = _equal_bits(target, golden)
    sums.equal_bits &= equal
    if equal or not largest:
        sums.abs_bins[0] += finite
        sums.ulp_bins[0] += finite
        return
    sums.d_sum += float(d.sum())
    sums.d_target += dot(d, t)
    sums.d_golden += dot(d, g)
    _add_errors(sums, g, work, how)
    if how.ulp is not None:
        _add_ulps(sums, target, golden, both, how.ulp, work)
    if both is not None:  # the places that were made 0
        sums.abs_bins[0] -= len(t) - finite
        sums.ulp_bins[0] -= len(t) - finite


def _equal_bits(target: Array, golden: Array) -> bool:
    if target.dtype != golden.dtype:
        return False
    bits = np.dtype(f"u{target.itemsize}")
    return np.array_equal(target.view(bits), golden.view(bits))


def _add_side(side: OneSide, values: Floats, squares: float) -> None:
    side.total += float(values.sum())
    side.squares += squares
    side.max = max(side.max, float(values.max()))
    side.min = min(side.min, float(values.min()))


def _take_out_nonfinite(sums: Sums, start: int, t: Floats, g: Floats) -> NDArray[np.bool_]:
    """Count what is not finite, and put 0 there on both sides; gives the mask of what is finite on both."""
    masks = []
    for side, values in ((sums.target, t), (sums.golden, g)):
        nan, pos_inf, neg_inf = np.isnan(values), values == np.inf, values == -np.inf
        side.nan += int(np.count_nonzero(nan))
        side.pos_inf += int(np.count_nonzero(pos_inf))
        side.neg_inf += int(np.count_nonzero(neg_inf))
        finite = ~(nan | pos_inf | neg_inf)
        if finite.any():
            kept = values[finite]
            _add_side(side, kept, dot(kept, kept))
        masks.append((nan, pos_inf, neg_inf, finite))
    (nan_t, pos_t, neg_t, finite_t), (nan_g, pos_g, neg_g, finite_g) = masks
    nan, pos_inf, neg_inf = nan_t != nan_g, pos_t != pos_g, neg_t != neg_g
    sums.nan_mismatch += int(np.count_nonzero(nan))
    sums.pos_inf_mismatch += int(np.count_nonzero(pos_inf))
    sums.neg_inf_mismatch += int(np.count_nonzero(neg_inf))
    mismatch = nan | pos_inf | neg_inf
    sums.nonfinite_mismatch += int(np.count_nonzero(mismatch))
    if sums.nonfinite_mismatch and sums.nonfinite_mismatch_at < 0:
        sums.nonfinite_mismatch_at = start + int(mismatch.argmax())
    both: NDArray[np.bool_] = finite_t & finite_g
    t[~both] = 0.0
    g[~both] = 0.0
    return both


def _wide_difference(sums: Sums, target: Array, golden: Array) -> Floats:
    """d of 64-bit integers, whose exact size is below 2**64: computed as such, rounded only then."""
    size = np.maximum(target, golden).view(np.uint64) - np.minimum(target, golden).view(np.uint64)
    sums.max_integer = max(sums.max_integer, int(size.max()))
    return np.where(target >= golden, 1.0, -1.0) * size.astype(np.float64)


def _add_errors(sums: Sums, g: Floats, work: Floats, how: Plan) -> None:
    """Everything from |d|, which is in ``work[3]``; ``g`` is used up."""
    size, spare = work[3], work[4]
    base = np.abs(g, out=g)
    sums.differing += int(np.count_nonzero(size != 0))
    count(sums.abs_bins, size, spare)
    if how.integers and not how.wide:
        sums.max_integer = max(sums.max_integer, int(size.max()))
    worst = float(np.fmax.reduce(np.divide(size, base, out=spare)))  # 0 / 0 is NaN, which fmax passes over
    sums.max_relative = max(sums.max_relative, worst)
    if how.tolerance is not None:
        absolute, relative = how.tolerance
        if worst > relative and sums.max_abs > absolute * how.scale:
            base *= relative
            base += absolute * how.scale
            sums.over += int(np.count_nonzero(size > base))


def _add_ulps(
    sums: Sums, target: Array, golden: Array, both: NDArray[np.bool_] | None, ulp: np.dtype[np.generic], work: Floats
) -> None:
    """Units in the last place: how many steps from number to number of dtype ``ulp`` lie between the two sides."""
    t = _ordered(target.astype(ulp, copy=False), work[0], work[3])
    g = _ordered(golden.astype(ulp, copy=False), work[1], work[3])
    high, low = np.maximum(t, g, out=_as(work[2], t.dtype)), np.minimum(t, g, out=t)
    unsigned = np.dtype(f"u{t.itemsize}")
    steps = np.subtract(high.view(unsigned), low.view(unsigned), out=high.view(unsigned))  # less than twice the range
    if both is not None:
        steps[~both] = 0
    sums.max_ulp = max(sums.max_ulp, int(steps.max()))
    sizes = work[3]
    sizes[:] = steps
    count(sums.ulp_bins, sizes, work[4])


def _ordered(values: Array, out: Floats, spare: Floats) -> Array:
    """Floating-point numbers as integers in their order, -0 and 0 both 0: sign and size of the bits."""
    width = values.itemsize
    integer = np.dtype(np.int64 if width == 8 else np.int32)
    size, negative = _as(out, integer), _as(spare, integer)
    size[:] = values.view(f"i{width}")
    np.right_shift(size, 8 * integer.itemsize - 1, out=negative)
    size &= (1 << (8 * width - 1)) - 1
    size ^= negative
    size -= negative
    return size


def _as(work: Floats, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The memory of a work array for elements of another dtype."""
    return work.view(dtype)[: len(work)]
