"""The ranks of one run, in canonical form, as one: shards joined, replicas checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from numprobe.align.roles.side import RoleSide
from numprobe.formats.msprobe.values import ABSENT, ValueTable


def joined(ranks: Sequence[RoleSide], other: RoleSide) -> tuple[RoleSide, dict[str, int]]:
    """One side of several ranks, slot by slot by what its sizes and figures say beside the other run.

    Equal on all ranks and as large as the other side's: replicated. All of them together as large: shards, whose figures are
    joined. As large and not equal: partial sums or ranks that do not agree, which have no figures here. Returns the side, and how
    many slots were of each kind.
    """
    if len(ranks) == 1:
        return ranks[0], {}
    first, kinds = ranks[0], {"replicated": 0, "sharded": 0, "partial": 0}
    names = {name: i for i, name in enumerate(first.calls.values.names)}
    sizes = _sizes(other.calls.values)
    table = first.calls.values
    figures, status = table.figures.copy(), table.status.copy()
    size = table.numel.copy()
    for i, name in enumerate(table.names):
        for row in table.rows(i):
            slot = table.slots[table.slot[row]]
            parts = [_row(side.calls.values, name, slot) for side in ranks]
            if any(part is None for part in parts):
                continue
            values = np.array([side.calls.values.figures[part] for side, part in zip(ranks, parts, strict=True)])
            counts = np.array([side.calls.values.numel[part] for side, part in zip(ranks, parts, strict=True)], float)
            wanted = sizes.get((name, slot))
            equal = bool(
                (values == values[0]).all()
                or (
                    (np.isnan(values) == np.isnan(values[0])).all()
                    and np.allclose(values, values[0], rtol=1e-6, equal_nan=True)
                )
            )
            if equal and counts[0] == (wanted or counts[0]):
                kinds["replicated"] += 1
            elif wanted is not None and counts.sum() == wanted:
                kinds["sharded"] += 1
                size[row] = int(wanted)
                with np.errstate(all="ignore"):
                    figures[row] = [
                        values[:, 0].max(),
                        values[:, 1].min(),
                        (values[:, 2] * counts).sum() / counts.sum(),
                        np.sqrt((values[:, 3] ** 2).sum()),
                    ]
            else:
                kinds["partial"] += 1
                status[row] = ABSENT
    shapes = sorted({(int(n),) for n in size})
    number = {shape: n for n, shape in enumerate(shapes)}
    whole = replace(
        table,
        figures=figures,
        status=status,
        numel=size,
        shapes=list(shapes),
        shape=np.array([number[int(n),] for n in size], np.int32),
    )
    assert names
    return replace(first, calls=replace(first.calls, values=whole)), kinds


def _sizes(values: ValueTable) -> dict[tuple[str, tuple[str, str]], int]:
    return {
        (name, values.slots[values.slot[row]]): int(values.numel[row])
        for i, name in enumerate(values.names)
        for row in values.rows(i)
    }


def _row(values: ValueTable, name: str, slot: tuple[str, str]) -> int | None:
    try:
        i = values.names.index(name)
    except ValueError:
        return None
    return next((row for row in values.rows(i) if values.slots[values.slot[row]] == slot), None)
