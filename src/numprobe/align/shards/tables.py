"""Value tables of several ranks behind each other, and rows picked out of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.values import Texts, ValueTable
from numprobe.record.names import OpName

T = TypeVar("T")
Rows = NDArray[np.int64]
SPARSE = ("exact", "scalars", "digests", "files", "stat_dtypes")  # of ValueTable, by row


def concatenated(tables: Sequence[ValueTable]) -> ValueTable:
    """One table with the rows of all; names repeat where the tables have the same."""
    if len(tables) == 1:
        return tables[0]
    slots, kinds, shapes = Texts(), Texts(), Texts()
    base = [0, *accumulate(len(t) for t in tables)]
    records = [0, *accumulate(len(t.names) for t in tables)]
    return ValueTable(
        names=[name for t in tables for name in t.names],
        ops=[op for t in tables for op in t.ops],
        first=np.concatenate([np.zeros(1, np.int64), *(t.first[1:] + b for t, b in zip(tables, base, strict=False))]),
        slot=np.concatenate([_renumbered(slots, t.slots, t.slot) for t in tables]),
        kind=np.concatenate([_renumbered(kinds, t.kinds, t.kind) for t in tables]),
        shape=np.concatenate([_renumbered(shapes, t.shapes, t.shape) for t in tables]),
        slots=slots.all,
        kinds=kinds.all,
        shapes=shapes.all,
        numel=np.concatenate([t.numel for t in tables]),
        figures=np.concatenate([t.figures for t in tables]),
        status=np.concatenate([t.status for t in tables]),
        grad_of={i + b: names for t, b in zip(tables, records, strict=False) for i, names in t.grad_of.items()},
        **{
            name: {
                row + b: value for t, b in zip(tables, base, strict=False) for row, value in getattr(t, name).items()
            }
            for name in SPARSE
        },
        fine=frozenset.intersection(*(t.fine for t in tables)),
        grad=np.concatenate([t.grad for t in tables])
        if all(len(t.grad) == len(t) for t in tables)
        else tables[0].grad[:0],
    )


def _renumbered(texts: Texts, own: Iterable[Any], column: NDArray[np.int32]) -> NDArray[np.int32]:
    numbers = np.array([texts.number(text) for text in own], np.int32)
    return numbers[column] if len(column) else column


def gathered(
    table: ValueTable, rows: Rows, first: Rows, ops: list[OpName], grad_of: Mapping[int, list[str]]
) -> ValueTable:
    """The table of these rows, as the records ``ops``: ``first[i] : first[i + 1]`` are those of record ``i``."""
    return ValueTable(
        [op.name for op in ops],
        ops,
        first,
        table.slots,
        table.kinds,
        table.shapes,
        table.slot[rows],
        table.kind[rows],
        table.shape[rows],
        table.numel[rows],
        table.figures[rows],
        table.status[rows],
        grad_of=dict(grad_of),
        **{name: _picked(getattr(table, name), rows) for name in SPARSE},
        fine=table.fine,
        grad=table.grad[rows] if len(table.grad) else table.grad,
    )


def _picked(sparse: Mapping[int, T], rows: Rows) -> dict[int, T]:
    if not sparse:
        return {}
    return {new: sparse[old] for new, old in enumerate(rows.tolist()) if old in sparse}
