"""Figures of parts as of one tensor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.values import ValueTable

Slot = tuple[str, tuple[str, str]]  # name of a record; role and path of a leaf


def together(figures: NDArray[np.float64], sizes: NDArray[np.int64]) -> list[float]:
    """Max, Min, Mean and Norm of tensors of ``sizes`` elements that are parts of one; ``figures`` is (parts, 4)."""
    weight = sizes.astype(float)
    with np.errstate(all="ignore"):
        return [
            float(figures[:, 0].max()),
            float(figures[:, 1].min()),
            float((figures[:, 2] * weight).sum() / max(weight.sum(), 1)),
            float(np.sqrt((figures[:, 3] ** 2).sum())),
        ]


def rows_by_slot(values: ValueTable) -> dict[Slot, int]:
    """Row of every leaf by the name of its record, its role and its path."""
    return {
        (name, values.slots[values.slot[row]]): row for i, name in enumerate(values.names) for row in values.rows(i)
    }
