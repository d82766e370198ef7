"""Leaves of paired records side by side: one row a leaf of either side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

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

    @cached_property
    def both(self) -> NDArray[np.bool_]:
        return (self.target >= 0) & (self.golden >= 0)


def pair_leaves(
    pairs: RecordPairs, target: ValueTable, golden: ValueTable, given: Mapping[int, int] = MappingProxyType({})
) -> LeafPairs:
    """Pair the leaves of paired records by role and path. ``given``: rows of the target whose golden row is known (-1: none)."""
    t_pair, t_row = _expanded(pairs.target, target.first)
    g_pair, g_row = _expanded(pairs.golden, golden.first)
    slots = {slot: i for i, slot in enumerate(target.slots)}
    renumbered = np.array([slots.setdefault(slot, len(slots)) for slot in golden.slots], np.int64)
    width = len(slots) + 1
    t_key = t_pair * width + target.slot[t_row]
    g_key = g_pair * width + (renumbered[golden.slot[g_row]] if len(g_row) else g_row)
    if not given and len(t_key) == len(g_key) and (t_key == g_key).all():
        pair, rows_t, rows_g = t_pair, t_row, g_row
    else:
        order = np.argsort(g_key, kind="stable")
        at = np.searchsorted(g_key[order], t_key)
        found = np.zeros(len(t_key), bool)
        inside = at < len(order)
        found[inside] = g_key[order[at[inside]]] == t_key[inside]
        partner = np.full(len(t_key), -1, np.int64)
        partner[found] = order[at[found]]
        if given:
            partner = _as_given(partner, t_row, g_row, given)
            found = partner >= 0
        alone = np.ones(len(g_key), bool)
        alone[partner[found]] = False
        # a golden leaf that another target record was compared with is not lost: a recompute that ended early
        alone &= ~np.isin(g_row, g_row[partner[found]])
        pair = np.concatenate([t_pair, g_pair[alone]])
        rows_t = np.concatenate([t_row, np.full(int(alone.sum()), -1, np.int64)])
        rows_g = np.concatenate([np.where(partner >= 0, g_row[partner], -1) if len(g_row) else partner, g_row[alone]])
        by_pair = np.argsort(pair, kind="stable")
        pair, rows_t, rows_g = pair[by_pair], rows_t[by_pair], rows_g[by_pair]
    first = np.searchsorted(pair, np.arange(len(pairs) + 1))
    return LeafPairs(pair, rows_t, rows_g, first)


def _as_given(partner: Rows, t_row: Rows, g_row: Rows, given: Mapping[int, int]) -> Rows:
    """Partners (positions in ``g_row``) with those that are given in their place."""
    position = {row: i for i, row in reversed(list(enumerate(g_row.tolist())))}
    position[-1] = -1
    known = [(i, position[given[row]]) for i, row in enumerate(t_row.tolist()) if row in given]
    changed = partner.copy()
    changed[[i for i, _ in known]] = [at for _, at in known]
    return changed


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
