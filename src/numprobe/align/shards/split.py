"""How a tensor lies on the members of a group, told from its shapes; and statistics of the whole from those of the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Split:
    """``dim`` is the split dimension. ``copies``: so many members have the same part (k and v heads, where there are fewer than
    ranks); ``padded``: elements along ``dim`` that the other side does not have (a vocabulary made a round number)."""

    dim: int
    copies: int = 1
    padded: int = 0


def split_of(shapes: Sequence[Shape | None], full: Shape | None) -> Split | None:
    """How members of these shapes make up the full one; None where they do not, or each has all of it.

    >>> split_of([(4, 6), (4, 6)], (8, 6)), split_of([(4, 6), (4, 6)], (7, 6))
    (Split(dim=0, copies=1, padded=0), Split(dim=0, copies=1, padded=1))
    >>> split_of([(1, 6)] * 4, (2, 6))
    Split(dim=0, copies=2, padded=0)
    """
    if full is None or any(s is None or len(s) != len(full) for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    dims = {d for s in known for d, (a, b) in enumerate(zip(s, full, strict=True)) if a != b}
    if len(dims) != 1:
        return None
    [dim] = dims
    sizes, whole = [s[dim] for s in known], full[dim]
    total, count = sum(sizes), len(sizes)
    if total == whole:
        return Split(dim)
    if len(set(sizes)) != 1 or not sizes[0]:
        return None
    if total > whole > total - sizes[0]:
        return Split(dim, padded=total - whole)
    if whole and total % whole == 0 and count % (total // whole) == 0:
        return Split(dim, copies=total // whole)
    return None


def merged_figures(figures: Floats, numel: NDArray[np.int64]) -> Floats:
    """Max, Min, Mean and Norm of tensors from those of their parts: (rows, parts, 4) and (rows, parts) give (rows, 4).

    Max = max, Min = min, Mean = sum(n mean) / sum(n), Norm = sqrt(sum Norm^2). Blind to where an element is: any order of the
    same parts has the same figures. A part without elements counts for nothing; NaN is handed on.

    >>> parts = np.array([[[2, -1, 0.5, 3], [1, -4, -0.25, 4]]])
    >>> merged_figures(parts, np.array([[8, 24]]))
    array([[ 2.    , -4.    , -0.0625,  5.    ]])
    """
    weight = np.maximum(numel, 0).astype(float)
    empty = weight == 0
    count = np.maximum(weight.sum(1), 1)
    with np.errstate(all="ignore"):
        high = np.where(empty, -np.inf, figures[:, :, 0]).max(1)
        low = np.where(empty, np.inf, figures[:, :, 1]).min(1)
        mean = np.where(empty, 0.0, figures[:, :, 2] * weight).sum(1) / count
        norms = np.where(empty, 0.0, figures[:, :, 3])
        norm = np.where(np.isnan(norms).any(1), np.nan, np.hypot.reduce(norms, axis=1))
    return np.stack([high, low, mean, norm], 1)
