"""The ranks of one run, in canonical form, as one: shards joined, replicas checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from numprobe.align.roles.figures import rows_by_slot, together
from numprobe.align.roles.side import RoleSide
from numprobe.formats.msprobe.values import ABSENT

REPLICATED, SHARDED, PARTIAL = "replicated", "sharded", "partial"


def joined(ranks: Sequence[RoleSide], other: RoleSide) -> tuple[RoleSide, dict[str, int]]:
    """One side of several ranks, slot by slot by what its sizes and figures say beside the other run.

    Equal on all ranks and as large as the other side's: replicated. All of them together as large: shards, whose figures are
    joined. As large and not equal: partial sums or ranks that do not agree, which have no figures here. Returns the side, and how
    many slots were of each kind.
    """
    first, kinds = ranks[0], {REPLICATED: 0, SHARDED: 0, PARTIAL: 0}
    if len(ranks) == 1:
        return first, {}
    rows = [rows_by_slot(side.calls.values) for side in ranks]
    wanted = {slot: int(other.calls.values.numel[row]) for slot, row in rows_by_slot(other.calls.values).items()}
    table = first.calls.values
    figures, status, numel = table.figures.copy(), table.status.copy(), table.numel.copy()
    spread: dict[int, str] = {}
    for slot, row in rows[0].items():
        parts = [of.get(slot) for of in rows]
        if any(part is None for part in parts):
            continue
        values = np.array([side.calls.values.figures[part] for side, part in zip(ranks, parts, strict=True)])
        counts = np.array([side.calls.values.numel[part] for side, part in zip(ranks, parts, strict=True)])
        size = wanted.get(slot)
        if _equal(values) and counts[0] == (size or counts[0]):
            spread[row] = REPLICATED
        elif size is not None and counts.sum() == size:
            spread[row] = SHARDED
            numel[row], figures[row] = size, together(values, counts)
        else:
            spread[row] = PARTIAL
            status[row] = ABSENT
    shapes = sorted({int(n) for n in numel})
    number = {n: i for i, n in enumerate(shapes)}
    whole = replace(
        table,
        figures=figures,
        status=status,
        numel=numel,
        shapes=[(n,) for n in shapes],
        shape=np.array([number[int(n)] for n in numel], np.int32),
    )
    for kind in spread.values():
        kinds[kind] += 1
    return replace(first, calls=replace(first.calls, values=whole), ranks=ranks, spread=spread), kinds


def _equal(figures: NDArray[np.float64]) -> bool:
    return bool(np.allclose(figures, figures[0], rtol=1e-6, atol=0, equal_nan=True))
