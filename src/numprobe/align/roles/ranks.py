"""The ranks of one run, in canonical form, as one: shards joined, replicas checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from numprobe.align.roles.figures import Slot, rows_by_slot, together
from numprobe.align.roles.side import RoleSide
from numprobe.formats.msprobe.values import ABSENT

REPLICATED, SHARDED, PARTIAL = "replicated", "sharded", "partial"


def joined(ranks: Sequence[RoleSide], others: Sequence[RoleSide]) -> tuple[RoleSide, dict[str, int]]:
    """One side of several ranks, slot by slot by what its sizes and figures say beside the ranks of the other run.

    Equal on all ranks and as large as the other side's: replicated; so it is where a rank is not finite and the others are equal,
    and then that rank's is taken. All of them together as large, or one of each where as many ranks have the same: shards, whose
    figures are joined. As large and not equal: partial sums or ranks that do not agree, which have no figures here. Returns the
    side, and how many slots were of each kind.
    """
    first, kinds = ranks[0], {REPLICATED: 0, SHARDED: 0, PARTIAL: 0}
    if len(ranks) == 1:
        return first, {}
    rows = [rows_by_slot(side.calls.values) for side in ranks]
    wanted = _sizes(others)
    table = first.calls.values
    figures, status, numel = table.figures.copy(), table.status.copy(), table.numel.copy()
    spread: dict[int, str] = {}
    odd: dict[int, int] = {}
    holders: dict[int, Sequence[int]] = {}
    for slot, row in rows[0].items():
        parts = [of.get(slot) for of in rows]
        if any(part is None for part in parts):
            continue
        values = np.array([side.calls.values.figures[part] for side, part in zip(ranks, parts, strict=True)])
        counts = np.array([side.calls.values.numel[part] for side, part in zip(ranks, parts, strict=True)])
        sizes = wanted.get(slot, ())
        if _equal(values) and (not sizes or counts[0] in sizes):
            spread[row] = REPLICATED
        elif counts[0] in sizes and (strange := _not_finite(values)) is not None:
            spread[row], odd[row], figures[row] = REPLICATED, strange, values[strange]
        elif (own := _parts(values, counts, sizes)) is not None:
            spread[row], holders[row] = SHARDED, own
            numel[row], figures[row] = counts[own].sum(), together(values[own], counts[own])
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
        exact={row: known for row, known in table.exact.items() if spread.get(row) != SHARDED},
    )
    for kind in spread.values():
        kinds[kind] += 1
    return replace(
        first, calls=replace(first.calls, values=whole), ranks=ranks, spread=spread, odd=odd, holders=holders
    ), kinds


def _parts(figures: NDArray[np.float64], counts: NDArray[np.int64], sizes: Sequence[int]) -> list[int] | None:
    """The ranks whose parts make up a tensor of one of these sizes: all of them, or the first of each that have the same."""
    if counts.sum() in sizes:
        return list(range(len(counts)))
    same = [next(m for m in range(n + 1) if _equal(figures[[m, n]])) for n in range(len(counts))]
    first = sorted(set(same))
    alike = {same.count(m) for m in first}
    return first if len(first) > 1 and len(alike) == 1 and counts[first].sum() in sizes else None


def _sizes(ranks: Sequence[RoleSide]) -> dict[Slot, tuple[int, ...]]:
    """How large a whole slot of these ranks may be: as on the first, or, where ranks hold something else each, all together."""
    tables = [side.calls.values for side in ranks]
    rows = [rows_by_slot(table) for table in tables]
    found: dict[Slot, tuple[int, ...]] = {}
    for slot, row in rows[0].items():
        sizes = [int(tables[0].numel[row])]
        parts = [of.get(slot) for of in rows]
        if len(ranks) > 1 and all(part is not None for part in parts):
            pairs = list(zip(tables, parts, strict=True))
            if not _equal(np.array([table.figures[part] for table, part in pairs])):
                sizes.append(sum(int(table.numel[part]) for table, part in pairs))
        found[slot] = tuple(sizes)
    return found


def _not_finite(figures: NDArray[np.float64]) -> int | None:
    """The first rank whose figures are not finite, where some are and are equal."""
    bad = ~np.isfinite(figures).all(axis=1)
    return int(bad.argmax()) if bad.any() and not bad.all() and _equal(figures[~bad]) else None


def _equal(figures: NDArray[np.float64]) -> bool:
    return bool(np.allclose(figures, figures[0], rtol=1e-6, atol=0, equal_nan=True))
