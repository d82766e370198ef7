"""How far each leaf of the target is from its partner: from figures, digests or plain values.

Distances are relative and dimensionless. For a pair of tensors, with rms(g) = Norm / sqrt(n):

    d_norm = |Norm_t - Norm_g| / Norm_g        d_mean = |Mean_t - Mean_g| / rms(g)
    d_extreme = max over Max, Min of |x_t - x_g| / max(|x_g|, rms(g))

Random errors of relative size e move the extremes by about e, the norm and the mean by e / n_eff^(1/2). Errors of neighbouring
elements are not independent (a row shares its scale, a column its weights): n_eff = sqrt(n) holds over the layers of real models.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from numprobe.align.leaves import LeafPairs
from numprobe.compare.exact import digests_of, equal, tells_numbers
from numprobe.formats.msprobe.values import GIVEN, ValueTable
from numprobe.metrics.distance import Distance
from numprobe.record.dtypes import FloatFormat, float_format
from numprobe.record.nonfinite import kind_bits
from numprobe.record.trace import PARAMETER

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# what a row can be compared by
NOTHING, PLAIN, INTEGER, FLOAT, DIGEST = range(5)
ROUNDING = 0.4  # rms rounding error in units of u, over a binade of uniform mantissas
STATISTIC_ROUNDING = {"fp64": 0.0, "fp32": 2.0**-22, "fp16": 2.0**-10, "bf16": 2.0**-7}
OF_PARTS = {"complex32": "fp16", "complex64": "fp32", "complex128": "fp64"}
NORM_OF_FP32 = 6e-11  # relative error of a norm that was summed in fp32 on a CPU, an element (measured with torch 2.13)

REASONS = (
    "",
    "shape",  # the shapes differ
    "kind",  # a tensor on one side, something else on the other
    "no_figures",  # one of the two gives no figures, no digest and no file
    "nonfinite",  # both hold the same non-finite values: their figures say nothing more
    "gradient_definition",  # the two collectors mean different things by the gradient of a call
    "routing",  # tokens went to other experts
    "storage",  # the tensor file cannot be compared as it lies on disk
    "file",  # the tensor file is missing or cannot be read
    "partial",  # what each rank of a group has by itself: an addend of a sum, a mask of its part
    "shards",  # the shapes of a group's ranks do not make up the other side's
    "padding",  # rows that only one side has, which figures hold and only tensors can leave out
    "average",  # gradients of a loss that is the mean over each rank's own part of the batch
)
REASON = {name: number for number, name in enumerate(REASONS)}


@dataclass
class Measures:
    """One entry a row of the :class:`LeafPairs`; NaN where a distance cannot be given.

    * ``by``: by what the rows are compared; ``reason`` (index into :data:`REASONS`) why they are not.
    * ``error``: the relative error, measured where the tensors are there, estimated from the figures else.
    * ``local``: the largest error of a single element in units of rms(g), from tensors only.
    * ``differs``: rows of exact kinds that are not equal; ``nonfinite``: those whose non-finite kinds differ.
    * ``rounding``: the rms rounding error of both dtypes together, ``bound`` the largest; ``stat`` that of Mean and Norm.
    * ``squeezed``: shapes that differ by dimensions of 1; ``other_dtype``: dtypes of different kinds (integers of another
      width, integers for floats); ``weak``: equal digests that do not say that the tensors are (:func:`weak_digests`).
    * ``details``: what else tensors say, by row; ``problems``: why a tensor could not be read.
    """

    by: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    error: Floats
    d_norm: Floats
    d_mean: Floats
    d_extreme: Floats
    local: Floats
    rms: Floats
    numel: Floats
    rounding: Floats
    bound: Floats
    stat: Floats
    differs: Flags
    nonfinite: Flags
    from_tensors: Flags
    is_float: Flags
    squeezed: Flags
    other_dtype: Flags
    weak: Flags
    details: dict[int, Distance] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.by)


def measure(pairs: LeafPairs, target: ValueTable, golden: ValueTable, *, digests: bool = True) -> Measures:
    """Compare every row by what both files say about it."""
    n = len(pairs)
    m = Measures(
        by=np.zeros(n, np.uint8),
        reason=np.zeros(n, np.uint8),
        error=np.full(n, np.nan),
        d_norm=np.full(n, np.nan),
        d_mean=np.full(n, np.nan),
        d_extreme=np.full(n, np.nan),
        local=np.full(n, np.nan),
        rms=np.full(n, np.nan),
        numel=np.full(n, np.nan),
        rounding=np.zeros(n),
        bound=np.zeros(n),
        stat=np.zeros(n),
        differs=np.zeros(n, bool),
        nonfinite=np.zeros(n, bool),
        from_tensors=np.zeros(n, bool),
        is_float=np.zeros(n, bool),
        squeezed=np.zeros(n, bool),
        other_dtype=np.zeros(n, bool),
        weak=np.zeros(n, bool),
    )
    both = np.flatnonzero(pairs.both)
    if not len(both):
        return m
    t, g = pairs.target[both], pairs.golden[both]
    tensor_t, tensor_g = _of_kind(target, "tensor")[t], _of_kind(golden, "tensor")[g]
    float_t, float_g = _of_kind(target, "float")[t], _of_kind(golden, "float")[g]
    floats = float_t & float_g & (_of_kind(target, "complex")[t] == _of_kind(golden, "complex")[g])
    m.is_float[both] = floats
    m.reason[both[tensor_t != tensor_g]] = REASON["kind"]
    _plain(m, both[~tensor_t & ~tensor_g], pairs, target, golden)
    same_shape, exactly = _shapes_equal(target, golden, t, g)
    m.squeezed[both] = tensor_t & tensor_g & same_shape & ~exactly
    m.other_dtype[both] = tensor_t & tensor_g & _other_kind_of_number(target, golden, t, g)
    tensors = tensor_t & tensor_g
    m.reason[both[tensors & ~same_shape]] = REASON["shape"]
    comparable = tensors & same_shape
    _roundings(m, both[comparable], pairs, target, golden)
    given = (target.status[t][:, :2] == GIVEN).all(1) & (golden.status[g][:, :2] == GIVEN).all(1)
    figures = comparable & given
    _exact(m, both[figures & ~floats], pairs, target, golden)
    _floats(m, both[figures & floats], pairs, target, golden)
    if digests:
        _digests(m, both[comparable], pairs, target, golden)
    empty = comparable & (target.numel[t] == 0)
    m.by[both[empty]] = PLAIN
    nothing = comparable & ~empty & (m.by[both] == NOTHING) & (m.reason[both] == 0)
    m.reason[both[nothing]] = REASON["no_figures"]
    return m


def _of_kind(values: ValueTable, what: str) -> Flags:
    """By row of the value table: is it a tensor, a tensor of floating-point numbers, of complex ones?"""
    if what == "float":
        kinds = [_format(short) is not None for _, _, short in values.kinds]
    elif what == "complex":
        kinds = [short in OF_PARTS for _, _, short in values.kinds]
    else:
        kinds = [bool(dtype) for _, dtype, _ in values.kinds]
    found = np.array(kinds, bool)[values.kind] if len(values) else np.zeros(0, bool)
    return found | (values.status[:, 0] != 0) if what == "tensor" else found


def _format(dtype: str) -> FloatFormat | None:
    """The format of a tensor's numbers, of complex ones that of their parts; None where they are no floats."""
    return float_format(OF_PARTS.get(dtype, dtype))


def _shapes_equal(
    target: ValueTable, golden: ValueTable, t: NDArray[np.int64], g: NDArray[np.int64]
) -> tuple[Flags, Flags]:
    """Are the shapes the same but for dimensions of 1, and are they the same? An unknown one is like any other."""
    sides = []
    numbers: dict[object, int] = {}
    for values, rows in ((target, t), (golden, g)):
        squeezed = [s if s is None else tuple(n for n in s if n != 1) for s in values.shapes]
        by_shape = np.array(
            [
                [numbers.setdefault((exact, s), len(numbers)) for exact, s in ((False, a), (True, b))]
                for a, b in zip(squeezed, values.shapes, strict=True)
            ]
        )
        sides.append(by_shape[values.shape[rows]] if len(rows) else np.zeros((0, 2)))
    unknown = [np.array([s is None for s in v.shapes], bool)[v.shape[rows]] for v, rows in ((target, t), (golden, g))]
    same = (sides[0] == sides[1]) | (unknown[0] | unknown[1])[:, None]
    return same[:, 0], same[:, 1]


def _other_kind_of_number(target: ValueTable, golden: ValueTable, t: NDArray[np.int64], g: NDArray[np.int64]) -> Flags:
    """Do the dtypes differ by more than the precision of a floating-point number?"""
    numbers: dict[str, int] = {}
    sides = []
    for values, rows in ((target, t), (golden, g)):
        names = ["float" if float_format(short) else short for _, _, short in values.kinds]
        sides.append(np.array([numbers.setdefault(n, len(numbers)) for n in names], np.int64)[values.kind[rows]])
    differs: Flags = sides[0] != sides[1]
    return differs


def _plain(m: Measures, rows: NDArray[np.int64], pairs: LeafPairs, target: ValueTable, golden: ValueTable) -> None:
    """Numbers, texts and objects: equal or not. Where a thing is, in which memory, and its dtype decide nothing."""
    m.by[rows] = PLAIN
    told = [[tells_numbers(kind) for kind, _, _ in values.kinds] for values in (target, golden)]
    for row, t, g in zip(rows.tolist(), pairs.target[rows].tolist(), pairs.golden[rows].tolist(), strict=True):
        if told[0][target.kind[t]] and told[1][golden.kind[g]]:
            m.differs[row] = not equal(target.scalars.get(t), golden.scalars.get(g))


def _roundings(m: Measures, rows: NDArray[np.int64], pairs: LeafPairs, target: ValueTable, golden: ValueTable) -> None:
    square = np.zeros(len(rows))
    for values, side in ((target, pairs.target), (golden, pairs.golden)):
        formats = [_format(short) for _, _, short in values.kinds]
        u = np.array([2.0**-f.p if f else 0.0 for f in formats])
        coarse = u[values.kind[side[rows]]]
        square += (ROUNDING * coarse) ** 2
        m.bound[rows] += coarse
        m.stat[rows] = np.maximum(m.stat[rows], _statistic_rounding(values, side[rows]))
    m.rounding[rows] = np.sqrt(square)
    numel = target.numel[pairs.target[rows]]
    m.numel[rows] = np.where(numel >= 0, numel, np.nan)  # no shape in the file


def _statistic_rounding(values: ValueTable, rows: NDArray[np.int64]) -> Floats:
    """Relative rounding of Mean and Norm: of the format in which they were computed, else of the tensor's own."""
    names = ["" if short in values.fine else OF_PARTS.get(short, short) for _, _, short in values.kinds]
    own = np.array([STATISTIC_ROUNDING.get(name, 2.0**-22) for name in names])[values.kind[rows]]
    long_sums: Floats = np.maximum(own, np.where(own == 2.0**-22, NORM_OF_FP32 * values.numel[rows], 0.0))
    if not values.stat_dtypes:
        return long_sums
    precise = np.zeros(len(values), bool)
    precise[[row for row, name in values.stat_dtypes.items() if name.endswith("64")]] = True
    found: Floats = np.where(precise[rows], 2.0**-22, long_sums)
    return found


def _exact(m: Measures, rows: NDArray[np.int64], pairs: LeafPairs, target: ValueTable, golden: ValueTable) -> None:
    """Integers and booleans (also where the other side has floats of the same values): all given figures are equal."""
    m.by[rows] = INTEGER
    a, b = target.figures[pairs.target[rows]], golden.figures[pairs.golden[rows]]
    both = (target.status[pairs.target[rows]] == GIVEN) & (golden.status[pairs.golden[rows]] == GIVEN)
    both[:, 2:] &= np.abs(b[:, 2:]) < 2.0**24  # means and norms of large sums are rounded
    with np.errstate(all="ignore"):  # integers beyond every float
        apart = both & (np.abs(a - b) > 1e-6 * np.abs(b))
    m.differs[rows] = apart.any(1) | (both[:, :2] & (a[:, :2] != b[:, :2])).any(1)
    for row, i, j in zip(rows.tolist(), pairs.target[rows].tolist(), pairs.golden[rows].tolist(), strict=True):
        if i in target.exact and j in golden.exact and target.exact[i][:2] != golden.exact[j][:2]:
            m.differs[row] = True


def _floats(m: Measures, rows: NDArray[np.int64], pairs: LeafPairs, target: ValueTable, golden: ValueTable) -> None:
    m.by[rows] = FLOAT
    a, b = target.figures[pairs.target[rows]], golden.figures[pairs.golden[rows]]
    n = m.numel[rows]
    wild = ~(np.isfinite(a[:, :2]).all(1) & np.isfinite(b[:, :2]).all(1))
    for k in np.flatnonzero(wild).tolist():
        one, other = (kind_bits(float(x[0]), float(x[1])) for x in (a[k], b[k]))
        m.nonfinite[rows[k]] = one != other
    with np.errstate(all="ignore"):
        norm = np.where(np.isfinite(b[:, 3]) & ~wild, np.abs(b[:, 3]), np.nan)
        rms = np.where(n > 0, norm / np.sqrt(np.fmax(n, 1)), np.nan)
        largest = np.fmax(
            np.abs(np.where(np.isfinite(b[:, 0]), b[:, 0], np.nan)),
            np.abs(np.where(np.isfinite(b[:, 1]), b[:, 1], np.nan)),
        )
        rms = np.where(np.isfinite(rms), rms, largest)  # a mask of -inf, or no norm in the file
        m.rms[rows] = rms
        extremes = np.abs(a[:, :2] - b[:, :2]) / np.maximum(np.abs(b[:, :2]), rms[:, None])
        extremes = np.where(np.isfinite(a[:, :2]) & np.isfinite(b[:, :2]), extremes, np.nan)
        extremes[(a[:, :2] == b[:, :2])] = 0.0
        m.d_extreme[rows] = np.fmax(extremes[:, 0], extremes[:, 1])
        for k, name, unit in ((3, "d_norm", norm), (2, "d_mean", rms)):
            apart = np.where(a[:, k] == b[:, k], 0.0, np.abs(a[:, k] - b[:, k]) / unit)
            overflowed = np.isinf(a[:, k]) != np.isinf(b[:, k])  # a sum of finite numbers, in the dtype of one side
            getattr(m, name)[rows] = np.where(wild | overflowed, np.nan, apart)
        lever = np.sqrt(np.sqrt(np.fmax(n, 1)))  # n_eff^(1/2) with n_eff = sqrt(n)
        beyond = np.maximum(m.d_norm[rows] - m.stat[rows], 0) * lever
        shift = np.maximum(m.d_mean[rows] - m.stat[rows], 0) * lever
        m.error[rows] = np.fmax(np.fmax(beyond, shift), m.d_extreme[rows])
    unknown = np.isnan(m.error[rows]) & ~m.nonfinite[rows]
    m.reason[rows[unknown]] = REASON["nonfinite"]


def _digests(m: Measures, rows: NDArray[np.int64], pairs: LeafPairs, target: ValueTable, golden: ValueTable) -> None:
    """Digests of tensors of one dtype: equal means equal in every bit, unequal that some bit is not.

    Digests of different kinds tell nothing, and those that say equal where Max and Min do not are digests of something else.
    """
    if not target.digests or not golden.digests:
        return
    t, g = pairs.target[rows], pairs.golden[rows]
    (kind_t, text_t), (kind_g, text_g) = (digests_of(v.digests, r.tolist()) for v, r in ((target, t), (golden, g)))
    numbers: dict[str, int] = {}
    dtypes = [
        np.array([numbers.setdefault(short, len(numbers)) for _, _, short in v.kinds], np.int64)
        for v in (target, golden)
    ]
    told = np.array([bool(one) and one == other for one, other in zip(kind_t, kind_g, strict=True)], bool)
    told &= dtypes[0][target.kind[t]] == dtypes[1][golden.kind[g]]
    same = np.array([one == other for one, other in zip(text_t, text_g, strict=True)], bool)
    figures_differ = np.where(m.by[rows] == FLOAT, m.d_extreme[rows] > 0, m.differs[rows])
    told &= ~(same & (m.nonfinite[rows] | figures_differ))
    m.by[rows[told]], m.reason[rows[told]] = DIGEST, 0
    m.differs[rows[told]] = ~same[told]
    m.weak[rows] = told & same & weak_digests(target)[t]
    for column in (m.error, m.d_norm, m.d_mean, m.d_extreme, m.local):
        column[rows[told & same]] = 0.0


def weak_digests(values: ValueTable) -> Flags:
    """By row: is the digest one that many other tensors have too? An XOR is 0 wherever every element is there twice, and one of a
    few values where elements are small integers or booleans."""
    xors = [row for row, text in values.digests.items() if text[:2] in ("0x", "0X")]
    weak = np.zeros(len(values), bool)
    if xors:
        few = np.array([_format(short) is None for _, _, short in values.kinds], bool)[values.kind[xors]]
        zero = np.array([not values.digests[row][2:].strip("0 ") for row in xors], bool)
        weak[xors] = (few | zero) & (values.numel[xors] != 1)
    return weak


def leave_out(m: Measures, rows: NDArray[np.int64], reason: str) -> None:
    """These rows cannot be compared, whatever their figures say."""
    m.by[rows], m.reason[rows] = NOTHING, REASON[reason]
    for column in (m.error, m.d_norm, m.d_mean, m.d_extreme):
        column[rows] = np.nan
    m.differs[rows] = m.nonfinite[rows] = False


def is_parameter(values: ValueTable) -> Flags:
    """By row: does the file itself call it a parameter?"""
    roles = np.array([role == PARAMETER for role, _ in values.slots], bool)
    return roles[values.slot] if len(values) else np.zeros(0, bool)
