"""Ranks of two dumps that belong together, read as two sides of one comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.leaves import pair_leaves
from numprobe.align.records import RecordPairs
from numprobe.align.shards.columns import Stage, join_stages
from numprobe.align.shards.fold import fold_columns, without
from numprobe.align.shards.joined import COMMUNICATION, JoinedCalls, read_ranks
from numprobe.align.shards.merged import merge
from numprobe.align.shards.order import choose_orders
from numprobe.align.shards.spread import spread_of
from numprobe.formats.dump import RankDump
from numprobe.formats.layout import RankFolder


@dataclass(frozen=True)
class Group:
    """Ranks of one dump. ``columns``: tensor parallel columns, each with its pipeline stages in order; a :class:`Stage` is a
    number of ``ranks``."""

    ranks: tuple[RankFolder, ...]
    columns: tuple[tuple[Stage, ...], ...]

    @property
    def alone(self) -> bool:
        """One rank, as it is?"""
        return self.columns == ((Stage(0),),)


@dataclass(frozen=True)
class Unit:
    """One of the two sides has a single column: its tensors are the whole ones of the other."""

    target: Group
    golden: Group


def read_unit(
    unit: Unit, cache_to: Path | None, pair: Callable[[Calls, Calls], RecordPairs], *, tensors: bool
) -> tuple[Calls, Calls]:
    """The two sides, each put together from its ranks. ``pair`` aligns records.

    Raises:
        NumprobeError: a dump cannot be read.
    """
    target, golden = _side(unit.target, cache_to), _side(unit.golden, cache_to)
    target, golden = _without_own_communication(target, golden), _without_own_communication(golden, target)
    if max(target.parts.shape[1], golden.parts.shape[1]) == 1:
        return target, golden
    leaves = pair_leaves(pair(target, golden), target.values, golden.values)
    both = leaves.both
    sides = (target, leaves.target[both], unit.target), (golden, leaves.golden[both], unit.golden)
    for (one, rows, group), (other, others, _) in (sides, sides[::-1]):
        if one.parts.shape[1] > 1:
            partner = np.full(len(one.values), -1, np.int64)
            partner[rows] = others
            damaged = [calls.dump.index.damage is not None for calls in one.ranks.calls]
            cut = [c for c, column in enumerate(group.columns) if any(damaged[stage.rank] for stage in column)]
            merged = merge(
                one, spread_of(one, other.values, partner, cut, trusted=one is golden), other.values, partner
            )
            if tensors:
                choose_orders(merged, other, partner)
            return (merged, golden) if one is target else (target, merged)
    return target, golden


def _without_own_communication(side: JoinedCalls, other: JoinedCalls) -> JoinedCalls:
    """Ranks of a group talk to each other in calls that a single rank has no need of."""
    theirs = {op.api for op in other.ops if op.prefix == COMMUNICATION}
    own = {i for i, op in enumerate(side.ops) if op.prefix == COMMUNICATION and op.api not in theirs}
    return without(side, own) if own and len(side.ranks.calls) > 1 else side


def _side(group: Group, cache_to: Path | None) -> JoinedCalls:
    ranks = read_ranks([RankDump(folder, cache_to) for folder in group.ranks])
    columns: Sequence[JoinedCalls] = [join_stages(ranks, stages) for stages in group.columns]
    return fold_columns(columns)
