"""The distance of two tensors by blocks along an axis: by head, row, expert or channel.

One bad head of 64 changes the relative L2 of the whole by 1/8 of its own; by itself it stands out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from numprobe.metrics.distance import shapes
from numprobe.metrics.stream import CHUNK, Array, Tensor, element_type, fold_blocks, numel
from numprobe.metrics.sums import parts

Floats = NDArray[np.float64]
MAX_BLOCKS = 1 << 20


@dataclass(frozen=True, slots=True)
class BlockErrors:
    """Errors of blocks of ``size`` indices along ``axis``; the last block may be smaller.

    ``d_norms`` and ``g_norms``, shape [blocks], are the L2 norms of target - golden and of golden in each block, over the
    elements that are finite on both sides.
    """

    axis: int
    size: int
    d_norms: Floats
    g_norms: Floats

    @property
    def errors(self) -> Floats:
        """Relative L2 of each block: ||d|| / ||g||; 0 where both are 0, infinite where only ||g|| is or squares overflow."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(self.d_norms == 0, 0.0, self.d_norms / self.g_norms)
        return np.where(np.isnan(found), np.inf, found)

    @property
    def worst(self) -> tuple[int, float]:
        """The block with the largest error, and that error."""
        errors = self.errors
        block = int(errors.argmax())
        return block, float(errors[block])


def block_errors(
    target: Tensor, golden: Tensor, splits: Sequence[tuple[int, int]], *, threads: int | None = None
) -> list[BlockErrors]:
    """The errors by blocks, for each of several ways to split, in one pass: ``[(-1, 64), (0, 1)]`` gives heads of 64 and rows.

    Args:
        splits: axis and number of indices a block. Axes may be negative.

    Raises:
        ValueError: the shapes differ, the tensors have no such axis or no element, or there would be more than MAX_BLOCKS blocks.
        NumprobeError: a file cannot be read.
    """
    shape = tuple(golden.shape)
    if shapes(target, golden) != "equal" or not numel(golden):
        raise ValueError(f"shapes {tuple(target.shape)} and {shape}")
    twice = 2 if "c" in (element_type(target).kind, element_type(golden).kind) else 1
    cuts = [_cut(shape, axis, size, twice) for axis, size in splits]
    sums = fold_blocks(partial(_sums, twice=twice, cuts=cuts), _plus, target, golden, threads)
    return [
        BlockErrors(axis % len(shape), size, *np.sqrt(found)) for (axis, size), found in zip(splits, sums, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A way to split: in every ``period`` elements come ``blocks`` runs of ``run`` elements, the last of which may be shorter."""

    period: int
    run: int
    blocks: int


def _cut(shape: tuple[int, ...], axis: int, size: int, twice: int) -> _Cut:
    if not -len(shape) <= axis < len(shape) or size < 1:
        raise ValueError(f"axis {axis} in blocks of {size} of shape {shape}")
    axis %= len(shape)
    inner = twice * prod(shape[axis + 1 :])
    blocks = -(-shape[axis] // size)
    if blocks > MAX_BLOCKS:
        raise ValueError(f"{blocks} blocks along axis {axis} of shape {shape}")
    return _Cut(shape[axis] * inner, size * inner, blocks)


def _sums(start: int, target: Array, golden: Array, twice: int, cuts: Sequence[_Cut]) -> list[Floats]:
    """For each cut, shape [2, blocks]: squares of target - golden and of golden."""
    target, golden = parts(np.ascontiguousarray(target), np.ascontiguousarray(golden))
    found = [np.zeros((2, cut.blocks)) for cut in cuts]
    with np.errstate(all="ignore"):
        for at in range(0, len(target), CHUNK):
            t = target[at : at + CHUNK].astype(np.float64)
            g = golden[at : at + CHUNK].astype(np.float64)
            if not (np.isfinite(t).all() and np.isfinite(g).all()):
                out = ~(np.isfinite(t) & np.isfinite(g))
                t[out] = g[out] = 0.0
            t -= g
            np.square(t, out=t)
            np.square(g, out=g)
            for sums, cut in zip(found, cuts, strict=True):
                _add_runs(sums, twice * start + at, t, g, cut)
    return found


def _add_runs(sums: Floats, start: int, d_squares: Floats, g_squares: Floats, cut: _Cut) -> None:
    """Add up runs of equal block; ``start`` is the number of the first element (of a complex tensor, part)."""

    def number(position: int) -> int:
        return position // cut.period * cut.blocks + position % cut.period // cut.run

    runs = np.arange(number(start), number(start + len(d_squares) - 1) + 1)
    period, block = np.divmod(runs, cut.blocks)
    begins = np.maximum(period * cut.period + block * cut.run - start, 0)
    for total, squares in zip(sums, (d_squares, g_squares), strict=True):
        np.add.at(total, block, np.add.reduceat(squares, begins))


def _plus(a: list[Floats], b: list[Floats]) -> list[Floats]:
    return [x + y for x, y in zip(a, b, strict=True)]
