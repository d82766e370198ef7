"""Does a tensor that differs hold the other side's elements in another order than it should? Never a pass: a wrong layout.

The orders that conversions and frameworks get wrong are tried on the features of a tensor that is not what it should be: q, k, v
grouped or stacked, gate and up exchanged or interleaved, shards put one after the other, heads in another order, rotary pairs as
halves or as neighbours, transposed matrices. They explain a finding, and decide nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numprobe.align.roles.rules import GROUPED, HALVES
from numprobe.align.roles.side import RoleSide
from numprobe.align.roles.strips import Heads, Order, in_order, segments
from numprobe.align.roles.tensors import ROWS, RoleTensors
from numprobe.compare.expected import WARNING
from numprobe.diagnose.rl_consistency.view import View, role_of
from numprobe.formats.tensors import TensorFile
from numprobe.metrics.distance import distance
from numprobe.metrics.permutation import find_layouts
from numprobe.record.errors import NumprobeError
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

SHARDS = (2, 4, 8)  # ranks whose gate and up may have been put one after the other
HEAD_SIZES = (256, 192, 128, 96, 80, 64, 32, 16)  # that are tried where nothing says the size
MOST_BLOCKS = 4096
CHUNK = 1 << 20  # elements


@dataclass(frozen=True)
class Found:
    """``transform``: how the training side has to be read to be the other one; ``expected``: both sides' layouts by the rules."""

    transform: str
    expected: tuple[str, str]


def tensors_of(side: RoleSide) -> RoleTensors | None:
    found = getattr(side.calls, "canonical", None)
    return found if isinstance(found, RoleTensors) else None


def other_layout(view: View, row: int) -> Found | None:
    """The order under which the two tensors of a row are the same; None where there is none, or nothing to compare."""
    sides = [tensors_of(side) for side in (view.train, view.rollout)]
    if sides[0] is None or sides[1] is None or not view.measures.from_tensors[row] or view.measures.nonfinite[row]:
        return None
    t, g = int(view.leaves.target[row]), int(view.leaves.golden[row])
    expected = float(np.nan_to_num(view.judged.expected[row], posinf=0.0))
    tolerance = WARNING * max(expected, float(view.measures.bound[row]))
    if view.measures.error[row] <= 2 * tolerance:  # so near that another order can hardly be told from it
        return None
    try:
        target, golden = sides[0].open(str(t)), sides[1].open(str(g))
        found = _search(target, golden, _Place.of(view, row), sides[0].heads, tolerance)
    except NumprobeError:
        return None
    layouts = [_layout(side, n) for side, n in ((view.train, t), (view.rollout, g))]
    return Found(found, (layouts[0], layouts[1])) if found else None


def _layout(side: RoleSide, row: int) -> str:
    source = side.sources[row]
    return "split" if source.parts > 1 else source.layout


@dataclass(frozen=True)
class _Place:
    role: str
    dim: int  # that of the features

    @classmethod
    def of(cls, view: View, row: int) -> _Place:
        role, slot = role_of(view.name(int(view.leaves.pair[row]))), view.slot_role(row)
        dim = 1 if slot != PARAMETER or role in ROWS else 0
        hidden = slot == INPUT if role in ("qkv", "gate_up") else role in ("out", "down") and slot == OUTPUT
        return cls("hidden" if hidden else role, dim)


def _search(target: TensorFile, golden: TensorFile, place: _Place, heads: Heads, tolerance: float) -> str:
    if target.shape != golden.shape or not target.numel:
        return ""
    dim = place.dim if len(target.shape) > place.dim else 0
    for name, order in _orders(target, golden, place.role, dim, heads):
        if not np.array_equal(order, np.arange(len(order))) and _fits(target, golden, order, dim, tolerance):
            return name
    if len(target.shape) == 2:
        for layout in find_layouts(target, golden, tolerance):
            return "transpose" if layout.kind == "transpose" else "order"
    return ""


def _fits(target: TensorFile, golden: TensorFile, order: Order, dim: int, tolerance: float) -> bool:
    return distance(in_order(target, order, dim), golden).relative_l2 <= tolerance


def _orders(target: TensorFile, golden: TensorFile, role: str, dim: int, heads: Heads) -> Iterator[tuple[str, Order]]:
    """Names and orders of the indices of the features that may be the other side's, likely ones first."""
    width = target.shape[dim]
    if role == "qkv" and heads.known and width % ((heads.per_group + 2) * heads.size) == 0:
        grouped = _joined(segments(GROUPED, width, heads))
        yield "qkv_rows", np.argsort(grouped)
        yield "qkv_rows", grouped
        turning = width - width // (heads.per_group + 2)
        for order in _pairs(turning, heads.size):
            yield "rotary", np.concatenate([order, np.arange(turning, width)])
    if role in ("gate_up", "act") and width % 2 == 0:
        straight = np.arange(width)
        yield "gate_up", np.roll(straight, width // 2)
        yield "gate_up", straight.reshape(2, -1).T.reshape(-1)
        yield "gate_up", straight.reshape(-1, 2).T.reshape(-1)
        for ranks in SHARDS:
            if width % (2 * ranks) == 0:
                shards = [segments(HALVES, width // ranks, heads)] * ranks
                one = width // ranks
                order = np.concatenate(
                    [np.arange(b, b + n) + r * one for half in (0, 1) for r in range(ranks) for b, n in shards[r][half]]
                )
                yield "shards", order
                yield "shards", np.argsort(order)
    sizes = (heads.size,) if heads.size else HEAD_SIZES
    for size in sizes if role in ("core", "out", "qkv") else ():
        if width % size == 0:
            yield from (("heads", order) for order in _blocks(target, golden, dim, size))


def _joined(parts: list[list[tuple[int, int]]]) -> Order:
    return np.concatenate([np.arange(b, b + n) for part in parts for b, n in part])


def _pairs(width: int, size: int) -> Iterator[Order]:
    """Halves of a head for neighbours, and the other way round."""
    if width % size or size % 2:
        return
    inside = np.arange(size).reshape(2, -1).T.reshape(-1)
    for order in (inside, np.argsort(inside)):
        yield (np.arange(0, width, size)[:, None] + order).reshape(-1)


def _blocks(target: TensorFile, golden: TensorFile, dim: int, size: int) -> Iterator[Order]:
    """The order of blocks of ``size`` by what is likest in the norms of their indices."""
    count = target.shape[dim] // size
    if not 1 < count <= MOST_BLOCKS:
        return
    mine, theirs = (_norms(t, dim).reshape(count, size) for t in (target, golden))
    order: list[int] = []
    free = np.ones(count, bool)
    for block in theirs:
        apart = np.where(free, ((mine - block) ** 2).sum(1), np.inf)
        order.append(int(apart.argmin()))
        free[order[-1]] = False
    yield (np.array(order)[:, None] * size + np.arange(size)).reshape(-1)


def _norms(tensor: TensorFile, dim: int) -> NDArray[np.float64]:
    """The sum of squares at every index of a dimension."""
    columns = tensor.shape[1] if len(tensor.shape) == 2 else 1
    total = np.zeros(tensor.shape[dim])
    rows = max(CHUNK // columns, 1)
    with tensor.reader() as reader:
        for begin in range(0, tensor.shape[0], rows):
            count = min(rows, tensor.shape[0] - begin)
            block = reader.read(begin * columns, count * columns).astype(np.float64).reshape(count, columns)
            if dim:
                total += (block**2).sum(0)
            else:
                total[begin : begin + count] = (block**2).sum(1)
    return total
