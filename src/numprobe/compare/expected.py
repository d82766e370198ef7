"""How far apart an output may be, given how far apart what it was computed from is."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from numprobe.align.leaves import LeafPairs
from numprobe.compare.measure import DIGEST, FLOAT, NOTHING, Measures
from numprobe.formats.msprobe.values import ValueTable
from numprobe.metrics.gains import CONSTANT, UNIT_ROUNDOFF_FP32, Family

T = TypeVar("T")

WARNING, ERROR = 4.0, 16.0  # rho: found over expected
FOREIGN = 8.0  # the error of two programs that have the weights, but not the code in common
CONTEXT = 32  # clean outputs that show how far the two runs are apart at this depth
FINE = 2.0**-10  # the rounding of a figure from which on it hides small changes
ENOUGH, OUTSTANDING = 8, 8.0  # clean outputs that show how far norms are apart, and how much more is no chance
SMALL = 16  # tensors of fewer elements are figures: a sum that cancels may lose all its digits
LARGE = 0.5  # relative: no few tokens make such a difference
FEW = 16  # elements that may go the other way by chance, however small the error
SUMMING = (Family.MATMUL, Family.ATTENTION, Family.NORM, Family.UNKNOWN, Family.LOSS)  # long sums in fp32
FLOOR = 4 * UNIT_ROUNDOFF_FP32  # two correct implementations in fp32 differ by a few units in the last place


@dataclass(frozen=True)
class Allowed:
    """Relative errors by leaf row that other runs show there: ``noise`` of a repeated run adds to what is expected,
    ``baseline``, the error of a trusted run of low precision times the factor that it may be exceeded by, takes its place.

    ``elsewhere`` are rows of which few tokens may have gone another way: single elements say nothing there."""

    noise: Mapping[int, float] = field(default_factory=dict)
    baseline: Mapping[int, float] = field(default_factory=dict)
    elsewhere: frozenset[int] = frozenset()


NOTHING_ALLOWED = Allowed()


def _peaks(leaves: LeafPairs, golden: ValueTable) -> NDArray[np.float64]:
    """By row, the share of the largest element in the norm, |x|_max / ||x||; 0 where it is not known.

    A random relative error shows in a norm or a mean as n_eff^(-1/2) with n_eff = sqrt(n), and no less than with this share: the
    error of the largest element is not averaged out.
    """
    if not len(golden):
        return np.zeros(len(leaves))
    figures = golden.figures[leaves.golden]
    with np.errstate(all="ignore"):
        peaks = np.fmax(np.abs(figures[:, 0]), np.abs(figures[:, 1])) / figures[:, 3]
        return np.where(np.isfinite(peaks) & (peaks <= 1), peaks, 0.0)


def detection_limit(m: Measures, expected: Sequence[float]) -> float | None:
    """The smallest uncorrelated relative error that the norms could show, median over the rows: e_min = sqrt(2 tol_norm)."""
    e = np.array(expected)
    rows = m.is_float & ~np.isnan(e) & (m.numel > 1)
    if not rows.any():
        return None
    lever = np.sqrt(np.sqrt(m.numel[rows]))
    with np.errstate(over="ignore"):
        tolerance = ERROR * (e[rows] / lever + e[rows] ** 2 / 2) + m.stat[rows]
    limits = np.sort(np.sqrt(2 * tolerance))
    middle = len(limits) // 2
    return float((limits[middle] + limits[(len(limits) - 1) // 2]) / 2)  # np.median loads numpy.ma


class Listed(Generic[T]):
    """A column for a loop that looks at single rows: numbers as Python has them, without an object each while nobody looks."""

    def __init__(self, column: Callable[[Any], NDArray[Any]]) -> None:
        self.column = column

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> MutableSequence[T]:
        found: MutableSequence[T] = single(self.column(instance))
        instance.__dict__[self.name] = found  # from now on found there, not here
        return found


def single(column: NDArray[Any]) -> Any:
    """The same memory for looks at single rows: at half the cost of numpy's own, and with Python's arithmetic."""
    return column.tolist() if column.dtype == object else column.data


class Expectation:
    """Expected errors of one rank. ``errors`` and ``norms`` are those of the last outputs that were clean, forward and backward,
    ``cleaned`` their rows;
    ``backward`` says which way the call goes that is looked at."""

    g = Listed[int](lambda self: self.leaves.golden)
    by = Listed[int](lambda self: self.m.by)
    error = Listed[float](lambda self: self.m.error)
    d_norm = Listed[float](lambda self: self.m.d_norm)
    d_mean = Listed[float](lambda self: self.m.d_mean)
    d_extreme = Listed[float](lambda self: self.m.d_extreme)
    local = Listed[float](lambda self: self.m.local)
    rms = Listed[float](lambda self: self.m.rms)
    numel = Listed[float](lambda self: self.m.numel)
    rounding = Listed[float](lambda self: self.m.rounding)
    bound = Listed[float](lambda self: self.m.bound)
    stat = Listed[float](lambda self: self.m.stat)
    differs = Listed[bool](lambda self: self.m.differs)
    peak = Listed[float](lambda self: self.peaks * np.sqrt(self.m.numel))  # over rms
    spread = Listed[float](lambda self: self.spreads)
    from_tensors = Listed[bool](lambda self: self.m.from_tensors)
    hidden = Listed[bool](lambda self: self.m.is_float & (self.m.by == NOTHING))

    def __init__(self, m: Measures, leaves: LeafPairs, golden: ValueTable, allowed: Allowed) -> None:
        self.m, self.leaves, self.golden, self.allowed = m, leaves, golden, allowed
        self.peaks = _peaks(leaves, golden)
        with np.errstate(all="ignore"):
            self.spreads = np.nan_to_num(np.fmax(m.numel**-0.25, self.peaks), nan=1.0, posinf=1.0)
        self.details = m.details
        self.errors: dict[bool, deque[float]] = {way: deque(maxlen=CONTEXT) for way in (False, True)}
        self.norms: dict[bool, deque[float]] = {way: deque(maxlen=CONTEXT) for way in (False, True)}
        self.cleaned: dict[bool, deque[int]] = {way: deque(maxlen=CONTEXT) for way in (False, True)}
        self.backward = False
        self._context: dict[bool, float | None] = {False: None, True: None}

    def clean(self, row: int) -> None:
        """Note an output that is as expected: the next ones will be like it."""
        if self.error[row] > 0:  # tables that both sides compute alike say nothing about the others
            self.errors[self.backward].append(self.error[row])
            self._context[self.backward] = None
        self.cleaned[self.backward].append(row)
        self.norms[self.backward].append(self.rms[row] * math.sqrt(self.numel[row]))

    def forget_context(self) -> None:
        """The clean outputs of forward are others now."""
        self._context[False] = None

    def context(self) -> float:
        """The median error of clean outputs at this depth; 0 before the first."""
        way = self.backward if self.errors[self.backward] else False
        found = self._context[way]
        if found is None:
            errors = sorted(self.errors[way])
            found = self._context[way] = errors[len(errors) // 2] if errors else 0.0
        return found

    def handed_on(self, row: int, base: float) -> float:
        """E of a tensor that was made by something of error ``base``.

        A figure of a few elements may be the sum of a whole tensor, and cancel: there the error of such a sum is allowed for.
        """
        least, twice = max(self.rounding[row], FLOOR), 2 * base
        expected = math.sqrt(least * least + twice * twice)  # as compare/many.py has it, to the last bit
        norms = self.norms[self.backward]
        if self.numel[row] < SMALL and norms and self.rms[row] > 0:
            sum_error = max(self.context(), self.rounding[row]) * max((n for n in norms if n == n), default=0.0)
            expected = math.hypot(expected, 2 * sum_error / (self.rms[row] * math.sqrt(self.numel[row] or 1)))
        return expected

    def output(self, kind: Family, inputs: list[int], out: int, backward: bool) -> float:
        """E of an output, from the errors of what it was computed from (gradients, inputs, parameters).

        E^2 = rounding^2 + accumulation^2 + sum (gain e)^2. Errors that are estimated from figures may be too small by chance:
        there half of what is usual at this depth is added. Inputs that could not be measured (each rank's part of a sum) are as
        far off as is usual.
        """
        floats = [r for r in inputs if self.by[r] in (FLOAT, DIGEST) and self.error[r] == self.error[r]]
        total = self.rounding[out] * self.rounding[out]
        for row in floats:
            part = self._gain(kind, row, floats, out, backward) * self.error[row]
            total += part * part  # a power would raise where it overflows
        sums = backward or kind in SUMMING
        terms = max((self._last_dim(r) for r in floats), default=1) if sums else 1
        total += terms * FLOOR**2
        if any(self.hidden[r] for r in inputs):
            part = 2 * self.context()
            total += part * part
        if not self.from_tensors[out]:
            part = self.context() / 2
            total += part * part
        return math.sqrt(total)

    def rho(self, row: int, expected: float, flipped: bool = False) -> float:
        """What was found over what was expected, the worst of all figures. Where elements are known to have gone the other way
        (``flipped``), single ones say nothing."""
        if self.by[row] == DIGEST and self.differs[row]:
            return math.inf
        allowed = self.is_allowed(row)
        if row in self.allowed.baseline:
            expected = self.allowed.baseline[row] / WARNING + self.rounding[row]
        if row in self.allowed.noise:
            expected = math.hypot(expected, self.allowed.noise[row])
        n = self.numel[row]
        if self.from_tensors[row]:
            worst = _ratio(self.error[row], expected)
            if n >= SMALL:
                if not flipped and row not in self.allowed.elsewhere:
                    largest = max(math.sqrt(2 * math.log(n)), self.peak[row])
                    single = expected * largest + self.bound[row] / 2
                    worst = max(worst, _ratio(self.local[row], single))
                norm, mean = (
                    (0.0, 0.0) if allowed else self._sums(row)
                )  # other runs show how much, not that it is random
                share = expected * self.spread[row] + FLOOR
                worst = max(worst, _ratio(norm, share + expected * expected / 2), _ratio(mean, share))
            return worst
        share, stat = expected * self.spread[row], self.stat[row] / WARNING
        norm = _ratio(self.d_norm[row], share + expected * expected / 2 + stat)
        mean = _ratio(self.d_mean[row], share + stat)
        extreme = _ratio(self.d_extreme[row], 2 * expected + self.bound[row] / 4)
        return max(norm, mean, extreme)

    def _norm_change(self, row: int) -> float:
        return self._sums(row)[0] if self.from_tensors[row] else self.d_norm[row]

    def stands_out(self, row: int) -> bool:
        """Is the norm much further off than that of any clean output at this depth?"""
        usual = [c for c in map(self._norm_change, self.cleaned[self.backward]) if c == c]
        return len(usual) >= ENOUGH and self._norm_change(row) > OUTSTANDING * max(*usual, FLOOR)

    def is_fine(self, row: int) -> bool:
        """Would any change show: are these tensors, digests or values, or figures of more digits than a short dtype has?"""
        return self.from_tensors[row] or self.by[row] != FLOAT or self.stat[row] < FINE

    def is_allowed(self, row: int) -> bool:
        """Do other runs show what this row may differ by?"""
        return row in self.allowed.baseline or row in self.allowed.noise

    def _sums(self, row: int) -> tuple[float, float]:
        """d_norm and d_mean from the tensors: what all elements have in common shows there first."""
        details = self.details[row]
        norm = details.golden.norm
        return abs(details.target.norm - norm) / norm if norm else 0.0, abs(details.mean_error)

    def more_than_kinks(self, row: int, expected: float) -> bool:
        """Has more changed than the few elements near a kink, which go the other way there? Of a relative error e about e of all
        elements do, and a few by chance: the median element stays, and so do norm and mean within a few e."""
        few = WARNING * expected + FEW / max(self.numel[row], 1.0)
        if self.from_tensors[row]:
            return self.details[row].p50 > WARNING * expected or max(self._sums(row)) > few
        return max(self.d_norm[row], self.d_mean[row]) > few + self.stat[row]

    def everywhere(self, row: int, expected: float) -> bool:
        """Is most of the tensor off? A routing decision that went the other way moves a few tokens only: the median element
        stays, and the norm of activations does not change by half."""
        details = self.details.get(row)
        if details is not None:
            return details.p50 > WARNING * expected
        return not self.backward and self.d_norm[row] > LARGE

    def parameter_rho(self, row: int) -> float:
        """rho of a parameter. Both sides are casts of one number, so that no element differs by more than the rounding of both
        and the norm neither: twice that is an error."""
        if self.by[row] == DIGEST and self.differs[row]:
            return math.inf
        if self.is_allowed(row):
            return self.rho(row, self.rounding[row])
        bound = self.bound[row] or 2 * UNIT_ROUNDOFF_FP32
        if self.from_tensors[row]:
            return max(
                _ratio(self.error[row], bound / 8), _ratio(self.local[row], bound)
            )  # up to 8 rms: few are larger
        figures = (self.d_norm[row], bound + self.stat[row]), (self.d_extreme[row], bound)
        return max(_ratio(distance, unit / 8) for distance, unit in figures)

    def bias_gain(self, row: int, gradient: int) -> float:
        """Gain of the gradient of a bias, the sum of ``gradient`` over T tokens: rms(gradient) sqrt(T) / rms(sum), which grows
        where the sum cancels (of the bias of attention keys it is zero but for rounding)."""
        shape = self.golden.shapes[self.golden.shape[self.g[row]]]
        if gradient < 0 or shape is None or len(shape) != 1 or not self.rms[row] > 0:
            return 1.0
        tokens = max(self.numel[gradient] / max(self._last_dim(gradient), 1), 1.0)
        return _between(1.0, self.rms[gradient] * math.sqrt(tokens) / self.rms[row], 1e12)

    def _last_dim(self, row: int) -> int:
        shape = self.golden.shapes[self.golden.shape[self.g[row]]]
        return shape[-1] if shape else 1

    def _gain(self, kind: Family, row: int, inputs: list[int], out: int, backward: bool) -> float:
        rms_out = self.rms[out]
        ratio = self.rms[row] / rms_out if rms_out else 1.0
        if ratio != ratio:
            ratio = 1.0
        small = max(1.0, min(ratio, 1e6)) if self.numel[out] < SMALL else 1.0
        if backward:
            return 2.0 * small
        if kind is Family.SUM:
            return max(ratio, 0.5) * (small if small > ratio else 1.0)
        if kind is Family.MATMUL and len(inputs) > 1:
            x, w = inputs[0], inputs[1]
            cancellation = (
                self.rms[x] * self.rms[w] * math.sqrt(max(self._last_dim(x), 1)) / rms_out if rms_out else 1.0
            )
            return max(1.0, cancellation if cancellation == cancellation else 1.0) * small
        if kind is Family.SOFTMAX:
            return math.sqrt(2) * _between(1.0, self.rms[row], 1e3)
        if kind is Family.EXP:
            return max(_between(1.0, self.rms[row], 1e3), 1 / rms_out if rms_out else 1.0)
        if kind is Family.ATTENTION:
            return 2.0 * _between(1.0, ratio, 1e2)
        return CONSTANT.get(kind, 2.0) * small


def _ratio(distance: float, unit: float) -> float:
    if not distance > 0:  # NaN too: not known
        return 0.0
    return distance / unit if unit else math.inf


def _between(low: float, value: float, high: float) -> float:
    return low if value != value else max(low, min(value, high))
