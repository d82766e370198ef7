"""The figures of msProbe's result tables, as it computes and rounds them (release 26.2).

They are for tables that must look like msProbe's; :mod:`numprobe.metrics.distance` has better ones. What msProbe does not see is
not seen here either: the sign of infinities, the imaginary part of complex tensors, integers beyond 2**53.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple, TypeAlias

import numpy as np

from numprobe.metrics.stream import CHUNK, Array, Tensor, dot, element_type, fold_blocks, numel, reading

Cell: TypeAlias = float | str

TENSOR_COLUMNS = (
    "Cosine",
    "EucDist",
    "MaxAbsErr",
    "MaxRelativeErr",
    "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
)
STATISTICS_COLUMNS = (
    "Max diff",
    "Min diff",
    "Mean diff",
    "L2norm diff",
    "MaxRelativeErr",
    "MinRelativeErr",
    "MeanRelativeErr",
    "NormRelativeErr",
)
UNSUPPORTED = "unsupported"
SHAPE_UNMATCHED = "shape unmatched"
NOT_APPLICABLE = "N/A"
NAN = "Nan"
_EPSILON = float(np.finfo(np.float64).eps)
_DIGITS = 12
_DEVICES = ("npu", "cpu", "cuda")


class Sums(NamedTuple):
    """Of a part of two tensors: dot product, squares, squared distance, largest errors, elements with small relative error."""

    dot: float
    target: float
    golden: float
    distance: float
    max_abs: float
    max_relative: float
    below_1e3: int
    below_5e3: int


# of a block of target and golden, and the dtype that relative errors are computed in
Columns: TypeAlias = "Callable[[Array, Array, type[np.float32 | np.float64]], Sums | None]"


def _plus(a: Sums | None, b: Sums | None) -> Sums | None:
    if a is None or b is None:
        return None
    return Sums(
        a.dot + b.dot,
        a.target + b.target,
        a.golden + b.golden,
        a.distance + b.distance,
        max(a.max_abs, b.max_abs),
        max(a.max_relative, b.max_relative),
        a.below_1e3 + b.below_1e3,
        a.below_5e3 + b.below_5e3,
    )


def tensor_columns(
    target: Tensor | None, golden: Tensor | None, threads: int | None = None, columns: Columns | None = None
) -> tuple[Cell, ...]:
    """The cells of :data:`TENSOR_COLUMNS`: numbers, or a text that says why there is none.

    None is a tensor without a file, or whose file cannot be read. bfloat16 and float8 count as float32, integers and booleans as
    float64, complex numbers as their real part; dimensions of 1 do not count. In order: no tensor, or an empty target, is
    ``unsupported``; shapes that differ are ``shape unmatched``; of a single element only the errors are there; NaN or infinities
    at different places are ``N/A``, at the same ones they count as 0.

    Args:
        columns: what computes a block, :func:`block_columns` if nothing else is given.

    Raises:
        NumprobeError: a file cannot be read while it is compared.
    """
    if target is None or golden is None or not numel(target):
        return (UNSUPPORTED,) * len(TENSOR_COLUMNS)
    if squeezed(target) != squeezed(golden):
        return (SHAPE_UNMATCHED,) * len(TENSOR_COLUMNS)
    if not squeezed(target):
        return _one_element(target, golden)
    single = relative_type(element_type(target), element_type(golden))
    of_block = columns or block_columns
    total = fold_blocks(lambda _, t, g: of_block(t, g, single), _plus, target, golden, threads)
    if total is None:
        return (NOT_APPLICABLE,) * len(TENSOR_COLUMNS)
    return (
        _cosine(total.dot, math.sqrt(total.target), math.sqrt(total.golden)),
        math.sqrt(total.distance),
        _rounded(total.max_abs),
        _rounded(total.max_relative),
        _rounded(total.below_1e3 / numel(target)),
        _rounded(total.below_5e3 / numel(target)),
    )


def squeezed(tensor: Tensor) -> tuple[int, ...]:
    """The shape without dimensions of 1."""
    return tuple(n for n in tensor.shape if n != 1)


def relative_type(target: np.dtype[np.generic], golden: np.dtype[np.generic]) -> type[np.float32 | np.float64]:
    """The dtype in which relative errors are computed: float32 for floats of at most 32 bits on both sides, else float64."""
    narrow = all(d.kind in "fV" and d.itemsize <= 4 for d in (target, golden))
    return np.float32 if narrow else np.float64


def block_columns(target: Array, golden: Array, single: type[np.float32 | np.float64]) -> Sums | None:
    """The sums of two flat arrays, None where infinities or NaN do not stand at the same places; ``single``: the dtype in which
    relative errors are computed."""
    with np.errstate(all="ignore"):
        parts = [_compare(target[i : i + CHUNK], golden[i : i + CHUNK], single) for i in range(0, len(target), CHUNK)]
    return reduce(_plus, parts)


def _compare(target: Array, golden: Array, single: type[np.float32 | np.float64]) -> Sums | None:
    """The sums of two flat arrays, None where infinities or NaN do not stand at the same places."""
    n, b = _float64(target), _float64(golden)
    finite_n, finite_b = np.isfinite(n), np.isfinite(b)
    if not (finite_n.all() and finite_b.all()):
        if not (np.array_equal(np.isnan(n), np.isnan(b)) and np.array_equal(np.isinf(n), np.isinf(b))):
            return None
        n, b = np.where(finite_n, n, 0.0), np.where(finite_b, b, 0.0)
    difference = n - b
    relative = _relative(n.astype(single), b.astype(single))
    return Sums(
        dot(n, b),
        dot(n, n),
        dot(b, b),
        dot(difference, difference),
        float(np.abs(difference).max()),
        float(relative.max()),
        int(np.count_nonzero(relative < 0.001)),
        int(np.count_nonzero(relative < 0.005)),
    )


def _relative(n: Array, b: Array) -> Array:
    """|(n - b) / b| in the dtype of both; where b is 0, its machine epsilon is added to n and b."""
    zero = b == 0
    if zero.any():
        epsilon = np.finfo(b.dtype).eps
        n, b = np.where(zero, n + epsilon, n), np.where(zero, epsilon, b)
    found: Array = np.abs((n - b) / b)
    return found


def _one_element(target: Tensor, golden: Tensor) -> tuple[Cell, ...]:
    with reading(target) as read_target, reading(golden) as read_golden:
        n, b = read_target(0, 1), read_golden(0, 1)
    single = relative_type(n.dtype, b.dtype)
    with np.errstate(all="ignore"):
        difference = np.abs(_as_msprobe_loads(n) - _as_msprobe_loads(b))  # in their own dtype: small integers wrap
        relative = _relative(_float64(n).astype(single), _float64(b).astype(single))
    return (
        UNSUPPORTED,
        UNSUPPORTED,
        _rounded(float(difference[0])),
        _rounded(float(relative[0])),
        UNSUPPORTED,
        UNSUPPORTED,
    )


def _as_msprobe_loads(array: Array) -> Array:
    if array.dtype.kind == "b":
        return array.astype(np.float64)
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _float64(array: Array) -> Array:
    return (array.real if array.dtype.kind == "c" else array).astype(np.float64)


def _cosine(dot: float, target: float, golden: float) -> Cell:
    if target <= _EPSILON and golden <= _EPSILON:
        return 1.0
    if target <= _EPSILON or golden <= _EPSILON:
        return NAN
    cosine = dot / (target * golden)
    return round(cosine, 6) if cosine > 0.9999 else _rounded(cosine)


def _rounded(value: float) -> Cell:
    return NAN if math.isnan(value) else round(value, _DIGITS)


def statistics_columns(target: Sequence[object], golden: Sequence[object]) -> tuple[str, ...]:
    """The cells of :data:`STATISTICS_COLUMNS` from the four statistics (max, min, mean, norm) of both sides.

    A statistic is a number, None, a boolean, or a text where a value is no tensor; equal texts have no difference.
    """
    cells = [_difference(_text(t), _text(g)) for t, g in zip(target, golden, strict=True)]
    return (*(diff for diff, _ in cells), *(relative for _, relative in cells))


def _text(value: object) -> str:
    text = str(value)
    return NAN if text == "nan" else text


def _difference(target: str, golden: str) -> tuple[str, str]:
    """Difference and relative difference, in percent of golden, as texts."""
    if target == golden:
        return "0", "0"
    if NOT_APPLICABLE in (target, golden):
        return NOT_APPLICABLE, NOT_APPLICABLE
    try:
        t, g = float(target), float(golden)
    except ValueError:
        devices = target.startswith(_DEVICES) and golden.startswith(_DEVICES)
        return (NOT_APPLICABLE, NOT_APPLICABLE) if devices else ("Diff", "Diff")
    if math.isnan(t) or math.isnan(g):
        return NAN, NAN
    if math.isinf(t):
        return str(t), str(t)
    if math.isinf(g):
        return str(-g), str(-g)
    difference = t - g
    return str(difference), "inf" if g == 0 else f"{abs(difference / g * 100)}%"
