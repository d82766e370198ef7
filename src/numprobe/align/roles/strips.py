"""A canonical tensor as strips of the files that it lies in: whatever a framework fused, grouped, split over ranks or packed.

Canonical tensors have two dimensions: tokens by features, or rows by columns of a weight. Fused parts lie one after the other
(all of q, then k, then v; gate, then up), tokens sequence by sequence. Nothing is copied: a strip is a range of rows or columns
of a file, and files are read when asked for.

With n query groups, p query heads a group and heads of d elements, a *grouped* dimension is n times (p d of q, d of k, d of v)
(Megatron-Core); a *stacked* one is n p d of q, then n d of k, then n d of v (engines); *halves* are gate, then up, on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numprobe.align.roles.rules import GROUPED, HALVES, STACKED
from numprobe.align.shards.tensor import Piece, PiecedTensor, joined
from numprobe.formats.tensors import TensorFile
from numprobe.formats.tensors.tensor import c_strides

Order = NDArray[np.int64]


class Unfit(Exception):
    """The sizes are not those of the layout."""


@dataclass(frozen=True)
class Heads:
    """``per_group`` query heads share one of keys and values; each has ``size`` elements. 0: not known."""

    per_group: int = 0
    size: int = 0

    @property
    def known(self) -> bool:
        return self.per_group > 0 and self.size > 0


def segments(layout: str, width: int, heads: Heads) -> list[list[tuple[int, int]]]:
    """By fused part, the (begin, length) of its strips in a dimension of ``width``.

    >>> segments("grouped", 16, Heads(2, 2))
    [[(0, 4), (8, 4)], [(4, 2), (12, 2)], [(6, 2), (14, 2)]]
    >>> segments("stacked", 16, Heads(2, 2))
    [[(0, 8)], [(8, 4)], [(12, 4)]]

    Raises:
        Unfit: the width is not that of whole groups, or the heads are not known and count.
    """
    if layout == HALVES:
        if width % 2:
            raise Unfit
        return [[(0, width // 2)], [(width // 2, width // 2)]]
    if layout == GROUPED:
        if not heads.known or width % ((heads.per_group + 2) * heads.size):
            raise Unfit
        d, q = heads.size, heads.per_group * heads.size
        groups = range(0, width, q + 2 * d)
        return [[(g, q) for g in groups], [(g + q, d) for g in groups], [(g + q + d, d) for g in groups]]
    if layout == STACKED and heads.per_group:
        share = heads.per_group + 2
        if width % share:
            raise Unfit
        one = width // share
        return [[(0, width - 2 * one)], [(width - 2 * one, one)], [(width - one, one)]]
    return [[(0, width)]]


def side_by_side(tensors: Sequence[Sequence[TensorFile]], dim: int, layout: str, heads: Heads) -> TensorFile:
    """The parts of all ranks as one tensor: ``tensors[part][rank]``, which differ in dimension ``dim`` only.

    Raises:
        Unfit: they differ in another dimension or dtype, or have other sizes than the layout.
    """
    flat = [t for part in tensors for t in part]
    rest = {(t.stored, t.dtype, *t.shape[:dim], *t.shape[dim + 1 :]) for t in flat}
    if len(rest) != 1:
        raise Unfit
    if len(flat) == 1 and layout != GROUPED:
        return flat[0]
    order: list[Piece] = []
    ranks = len(tensors[0])
    for number, part in enumerate(tensors):
        split = [segments(layout, t.shape[dim], heads) for t in part]
        for segment in range(len(split[0])):
            for rank in range(ranks):
                order += [Piece(number * ranks + rank, *strip) for strip in split[rank][segment]]
    return joined(flat, dim, order)


def reshaped(tensor: TensorFile, shape: tuple[int, ...]) -> TensorFile:
    """The same elements in C order, in another shape."""
    if tensor.shape == shape:
        return tensor
    whole = (Piece(0, 0, shape[0]),)
    return PiecedTensor(
        tensor.path, tensor.dtype, shape, c_strides(shape), tensor.stored, 0, parts=(tensor,), order=whole, dim=0
    )


def in_order(tensor: TensorFile, order: Order, dim: int = 0) -> TensorFile:
    """The tensor with the indices ``order`` of dimension ``dim``, as few runs as there are."""
    if np.array_equal(order, np.arange(tensor.shape[dim])):
        return tensor
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    return joined([tensor], dim, [Piece(0, int(run[0]), len(run)) for run in np.split(order, breaks)])
