"""Which token is which on both sides: batches first or sequences first, packed or in rows, in one call or in several.

The common order is that of training, sequence by sequence. It is told from the ids that the embedding was given. Of tokens that
only one side has (the last one that an engine samples goes through no layer; padding; answers that were not recorded) the common
order has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from numprobe.align.roles.steps import follow
from numprobe.align.roles.strips import Order

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """The tokens of one side. ``blocks`` are (sequences, length) of what was computed at once: one a call, and with several
    batches at a time, or sequences that ranks share, one a rank and call, all of a rank (of ``ranks``) together. ``ids`` are
    theirs as the embedding got them, ``starts`` where a sequence begins.

    ``positions`` are those of the tokens in their prompts, where recorded. ``embed`` and ``layers`` say where the tokens of the
    common order lie in what the embedding and the layers have.
    """

    blocks: tuple[tuple[int, int], ...]
    embed: Order
    layers: Order
    ids: Ids | None = None
    starts: frozenset[int] = frozenset()
    positions: Ids | None = None
    ranks: int = 1

    @property
    def count(self) -> int:
        return sum(b * s for b, s in self.blocks)

    @property
    def is_cut(self) -> bool:
        """Does the common order leave out some of them?"""
        return len(self.layers) < self.count

    def chosen(self, order: Order) -> Tokens:
        return replace(self, embed=self.embed[order], layers=self.layers[order])


def tokens_of(
    blocks: Sequence[tuple[int, int]],
    *,
    sequence_first: bool,
    ids: Ids | None,
    positions: Ids | None,
    ranks: int = 1,
) -> Tokens:
    """``positions`` of tokens in their prompts, in the order of the ids; None where they are not recorded."""
    at, layers = 0, []
    begins: list[int] = []
    for b, s in blocks:
        inside = np.arange(b * s, dtype=np.int64)
        layers.append(at + (inside.reshape(s, b).T.reshape(-1) if sequence_first else inside))
        begins += range(at, at + b * s, max(s, 1))
        at += b * s
    if positions is not None and len(positions) == at:
        begins = sorted({*begins, *np.flatnonzero(positions == 0).tolist()})
    else:
        positions = None
    straight = np.arange(at, dtype=np.int64)
    packed = np.concatenate(layers) if layers else straight
    return Tokens(tuple(blocks), straight, packed, ids, frozenset(begins), positions, ranks)


def in_common_order(train: Tokens, rollout: Tokens) -> tuple[Tokens, Tokens]:
    """Both sides with their tokens in the common order. As they are where the ids are not recorded, or are others."""
    for one, other in product((train, *_sequences(train)), (rollout, *_sequences(rollout))):
        found = _joined(one, other)
        if found is not None:
            return found
    return train, rollout


def _sequences(tokens: Tokens) -> Iterator[Tokens]:
    """The tokens of sequences that several ranks share: a chunk each, or in zig-zag two, the first and the last on rank 0."""
    calls, rest = divmod(len(tokens.blocks), tokens.ranks)
    blocks = tokens.blocks
    if (
        tokens.ranks == 1
        or rest
        or tokens.ids is None
        or any(blocks[n] != blocks[n % calls] for n in range(len(blocks)))
    ):
        return
    begin = np.cumsum([0, *(b * s for b, s in blocks)])
    for chunks in (1, 2):
        if any(s % chunks for _, s in blocks):
            continue
        order: list[Order] = []
        starts: list[int] = []
        for call, (b, s) in enumerate(blocks[:calls]):
            length = s // chunks
            there = [(rank, 0) for rank in range(tokens.ranks)]
            back = [(rank, length) for rank in reversed(range(tokens.ranks))] if chunks == 2 else []
            for row in range(b):
                starts.append(sum(len(part) for part in order))
                for rank, first in (*there, *back):
                    at = int(begin[rank * calls + call]) + row * s + first
                    order.append(np.arange(at, at + length, dtype=np.int64))
        places = np.concatenate(order)
        whole = replace(tokens.chosen(places), ids=tokens.ids[places], starts=frozenset(starts))
        yield replace(whole, positions=None if tokens.positions is None else tokens.positions[places])


def _joined(train: Tokens, rollout: Tokens) -> tuple[Tokens, Tokens] | None:
    """Both sides in one order; None where they have not the same sequences."""
    if train.ids is None or rollout.ids is None:
        return None
    if len(train.ids) == len(rollout.ids):
        order = _places(train.ids, train.starts, rollout.ids)
        if order is None:
            back = _places(rollout.ids, rollout.starts, train.ids)
            order = np.argsort(back, kind="stable") if back is not None else None
        if order is not None:
            return train, rollout.chosen(order)
    found = in_steps(train, rollout)
    return (train.chosen(found[0]), rollout.chosen(found[1])) if found is not None else None


def in_steps(train: Tokens, rollout: Tokens) -> tuple[Order, Order] | None:
    """Which token is which where the calls of the rollout are chunks and steps: see :mod:`numprobe.align.roles.steps`."""
    if train.ids is None or rollout.ids is None:
        return None
    firsts = sorted(train.starts)
    ends = [*firsts[1:], len(train.ids)]
    sequences = [train.ids[begin:end] for begin, end in zip(firsts, ends, strict=True)]
    return follow(sequences, firsts, rollout.ids, rollout.positions, [b * s for b, s in rollout.blocks])


def _places(ids: Ids, starts: frozenset[int], other: Ids) -> Order | None:
    """Where each token of ``ids`` lies in ``other``, which has the same sequences in another order; None where it has not."""
    if np.array_equal(ids, other):
        return np.arange(len(ids), dtype=np.int64)
    ends = [*sorted(starts)[1:], len(ids)]
    free = np.ones(len(other), bool)
    found = np.zeros(len(ids), np.int64)
    sequences = sorted(zip(sorted(starts), ends, strict=True), key=lambda ends: ends[0] - ends[1])  # the longest first
    for begin, end in sequences:
        at = _find(ids[begin:end], other, free)
        if at < 0:
            return None
        found[begin:end] = np.arange(at, at + end - begin)
        free[at : at + end - begin] = False
    return found


def _find(sequence: Ids, other: Ids, free: NDArray[np.bool_]) -> int:
    """The first free place of a sequence; -1: none."""
    length = len(sequence)
    for at in np.flatnonzero((other == sequence[0]) & free).tolist():
        if at + length <= len(other) and free[at : at + length].all() and (other[at : at + length] == sequence).all():
            return int(at)
    return -1
