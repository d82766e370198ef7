"""Leaves of paired records side by side: one row a leaf of either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numprobe.align.records import RecordPairs
from numprobe.formats.msprobe.values import ValueTable

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class LeafPairs:
    """``pair`` indexes the record pairs, ``target`` and ``golden`` the rows of the two value tables, -1 where a side has no such
    leaf. In the order of the record pairs; inside one, the target's order with the golden run's own leaves at the end.

    ``first[i] : first[i + 1]`` are the rows of record pair ``i``.
    """

    pair: Rows
    target: Rows
    golden: Rows
    first: Rows

    def __len__(self) -> int:
        return len(self.pair)

    @property
    def both(self) -> NDArray[np.bool_]:
        return (self.target >= 0) & (self.golden >= 0)


def pair_leaves(pairs: RecordPairs, target: ValueTable, golden: ValueTable) -> LeafPairs:
    """Pair the leaves of paired records by role and path."""
    t_pair, t_row = _expanded(pairs.target, target.first)
    g_pair, g_row = _expanded(pairs.golden, golden.first)
    slots = {slot: i for i, slot in enumerate(target.slots)}
    renumbered = np.array([slots.setdefault(slot, len(slots)) for slot in golden.slots], np.int64)
    width = len(slots) + 1
    t_key = t_pair * width + target.slot[t_row]
    g_key = g_pair * width + (renumbered[golden.slot[g_row]] if len(g_row) else g_row)
    if len(t_key) == len(g_key) and (t_key == g_key).all():
        pair, rows_t, rows_g = t_pair, t_row, g_row
    else:
        order = np.argsort(g_key, kind="stable")
        at = np.searchsorted(g_key[order], t_key)
        found = np.zeros(len(t_key), bool)
        inside = at < len(order)
        found[inside] = g_key[order[at[inside]]] == t_key[inside]
        partner = np.full(len(t_key), -1, np.int64)
        partner[found] = order[at[found]]
        alone = np.ones(len(g_key), bool)
        alone[partner[found]] = False
        alone &= ~np.isin(g_row, g_row[partner[found]])  # a recompute that ended early is no loss of the first call's output
        pair = np.concatenate([t_pair, g_pair[alone]])
        rows_t = np.concatenate([t_row, np.full(int(alone.sum()), -1, np.int64)])
        rows_g = np.concatenate([np.where(partner >= 0, g_row[partner], -1) if len(g_row) else partner, g_row[alone]])
        by_pair = np.argsort(pair, kind="stable")
        pair, rows_t, rows_g = pair[by_pair], rows_t[by_pair], rows_g[by_pair]
    first = np.searchsorted(pair, np.arange(len(pairs) + 1))
    return LeafPairs(pair, rows_t, rows_g, first)


def _expanded(records: Sequence[int], first: Rows) -> tuple[Rows, Rows]:
    """(number of the pair, row) of every leaf of the given records; those that are -1 have none."""
    op = np.array(records, np.int64)
    pair = np.flatnonzero(op >= 0)
    op = op[pair]
    count = first[op + 1] - first[op] if len(op) else np.zeros(0, np.int64)
    total = int(count.sum())
    start = (
        np.repeat(first[op] - np.concatenate([[0], np.cumsum(count)[:-1]]), count) if total else np.zeros(0, np.int64)
    )
    return np.repeat(pair, count), np.arange(total) + start
