"""Which token is which on both sides: batches first or sequences first, packed or in rows, in one call or in several.

The common order is that of training, sequence by sequence. It is told from the ids that the embedding was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from numprobe.align.roles.strips import Order

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """The tokens of one side. ``blocks`` are (sequences, length) of what was computed at once: one a call, and with several
    batches at a time one a rank and call. ``ids`` are theirs as the embedding got them, ``starts`` where a sequence begins.

    ``embed`` and ``layers`` say where the tokens of the common order lie in what the embedding and the layers have.
    """

    blocks: tuple[tuple[int, int], ...]
    embed: Order
    layers: Order
    ids: Ids | None = None
    starts: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        return sum(b * s for b, s in self.blocks)


def tokens_of(
    blocks: Sequence[tuple[int, int]], *, sequence_first: bool, ids: Ids | None, starts: Ids | None
) -> Tokens:
    """``starts``: positions of tokens in their prompts, in the order of the ids; None where they are not recorded."""
    at, layers = 0, []
    begins: list[int] = []
    for b, s in blocks:
        inside = np.arange(b * s, dtype=np.int64)
        layers.append(at + (inside.reshape(s, b).T.reshape(-1) if sequence_first else inside))
        begins += range(at, at + b * s, max(s, 1))
        at += b * s
    if starts is not None and len(starts) == at:
        begins = sorted({*begins, *np.flatnonzero(starts == 0).tolist()})
    straight = np.arange(at, dtype=np.int64)
    return Tokens(tuple(blocks), straight, np.concatenate(layers) if layers else straight, ids, frozenset(begins))


def in_common_order(train: Tokens, rollout: Tokens) -> Tokens:
    """The rollout side with its tokens in the order of training. As it is where the ids are not recorded, or are others."""
    if train.ids is None or rollout.ids is None or len(train.ids) != len(rollout.ids):
        return rollout
    order = _places(train.ids, train.starts, rollout.ids)
    if order is None:
        back = _places(rollout.ids, rollout.starts, train.ids)
        order = np.argsort(back, kind="stable") if back is not None else None
    if order is None:
        return rollout
    return replace(rollout, embed=rollout.embed[order], layers=rollout.layers[order])


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
