"""Are the elements of one tensor those of another in another order, and if so, in which?

Norms, extremes and means do not see an order. Whether two tensors hold the same elements is told by a sum over a hash of each;
the order is looked for among those that conversions of weights get wrong: transposed axes, exchanged halves (gate and up) or
blocks (heads), parts that are interleaved instead of one after the other (rotary pairs, fused QKV), reversed axes, and a changed
sign.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numprobe.formats.tensors.tensor import c_strides
from numprobe.metrics.blocks import MAX_BLOCKS, block_errors
from numprobe.metrics.stream import BLOCK, CHUNK, Array, Tensor, element_type, numel, reading

Kind = Literal["sign_flip", "reshape", "transpose", "reverse", "half_swap", "block_swap", "interleave"]
Indices: TypeAlias = NDArray[np.int64]  # [places, dimensions]

_SAMPLE = 2048  # places that are compared to tell whether an order fits
_FIRST = 64  # of them, those that most wrong orders fail at
_IN_MEMORY = 4 * BLOCK  # elements; of larger files, single ones are read
_PARTS = 16  # the most parts that are looked for in an interleaved axis
# SplitMix64 (Steele, Lea, Flood 2014): the increment and the multipliers of its finaliser.
_GAMMA, _MULTIPLY_1, _MULTIPLY_2 = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Layout:
    """How the target holds golden's elements.

    * ``sign_flip``: all have the other sign. ``reshape``: the same order, another shape.
    * ``transpose``: ``axes`` are exchanged. ``reverse``: along the one of ``axes``.
    * ``half_swap``: the two halves of an axis are exchanged; ``block_swap``: the blocks of ``size`` indices at ``blocks`` are.
    * ``interleave``: golden's axis is ``parts`` parts one after the other, target's takes ``size`` indices of each part in turn.
      The other way round, ``parts`` is the number of turns.
    """

    kind: Kind
    axes: tuple[int, ...] = ()
    parts: int = 0
    size: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A layout, and how to find golden's place and sign of a place in the target; ``focus``: axis and indices that it changes."""

    layout: Layout
    place: Callable[[Indices], Indices]
    sign: float = 1.0
    focus: tuple[int, Indices] | None = None


def multiset_hash(tensor: Tensor) -> int:
    """The sum modulo 2**64 of a 64-bit hash of each element's bits: the same for every order of the elements.

    Different elements have another sum, but for a chance of 2**-64; not for adversaries.
    """
    total = 0
    with reading(tensor) as read, np.errstate(over="ignore"):
        for start in range(0, numel(tensor), BLOCK):
            block = np.ascontiguousarray(read(start, min(BLOCK, numel(tensor) - start)))
            for at in range(0, len(block), CHUNK):
                total += int(_hashes(block[at : at + CHUNK]).sum(dtype=np.uint64))
    return total & (1 << 64) - 1


def same_elements(target: Tensor, golden: Tensor) -> bool:
    """Whether both hold the same elements, bit for bit, in any order and shape."""
    return (
        element_type(target) == element_type(golden)
        and numel(target) == numel(golden)
        and multiset_hash(target) == multiset_hash(golden)
    )


def _hashes(values: Array) -> NDArray[np.uint64]:
    width = values.dtype.itemsize
    words = values.view(np.uint64).reshape(-1, width // 8) if width > 8 else values.view(f"u{width}").reshape(-1, 1)
    found = np.zeros(len(words), np.uint64)
    for column in range(words.shape[1]):
        found ^= words[:, column]
        found += _GAMMA
        for shift, factor in ((30, _MULTIPLY_1), (27, _MULTIPLY_2), (31, None)):
            found ^= found >> np.uint64(shift)
            if factor is not None:
                found *= factor
    return found


def find_layouts(target: Tensor, golden: Tensor, tolerance: float = 0.0) -> list[Layout]:
    """The layouts by which the target is golden in another order, the simplest first; none where it is golden as it is.

    There are several where the tensor does not tell them apart, such as equal halves. Each is tried at 2,048 places: that the
    tensors differ at a few elements besides is not excluded.

    Args:
        tolerance: relative L2 error up to which it fits; 0: the same numbers.

    Raises:
        NumprobeError: a file cannot be read.
    """
    if numel(golden) < 2 or numel(target) != numel(golden):
        return []
    rng = np.random.default_rng(0)
    places = rng.integers(0, target.shape, (_SAMPLE, len(target.shape)), np.int64)
    with reading(target) as read_target, reading(golden) as read_golden:
        at_target = _elements(read_target, tuple(target.shape))
        at_golden = _elements(read_golden, tuple(golden.shape))

        def fits(candidate: _Candidate) -> bool:
            where = places.copy()
            if candidate.focus is not None:
                axis, indices = candidate.focus
                where[:, axis] = rng.choice(indices, len(where))
            return all(
                _close(at_target(part), candidate.sign * at_golden(candidate.place(part)), tolerance)
                for part in (where[:_FIRST], where[_FIRST:])
                if len(part)
            )

        return [c.layout for c in _candidates(target, golden, tolerance) if fits(c)]


def _close(t: Array, g: Array, tolerance: float) -> bool:
    """Whether ||t - g|| <= tolerance ||g||, with NaN equal to NaN and infinities to their like."""
    same = (t == g) | (np.isnan(t) & np.isnan(g))
    if not np.isfinite(t[~same]).all() or not np.isfinite(g[~same]).all():
        return False
    return float(np.linalg.norm(t[~same] - g[~same])) <= tolerance * float(np.linalg.norm(g[np.isfinite(g)]))


def _elements(read: Callable[[int, int], Array], shape: tuple[int, ...]) -> Callable[[Indices], Array]:
    """A function that gives the elements at places, in float64 or complex128; small tensors are read once."""
    count = prod(shape)
    whole = read(0, count) if count <= _IN_MEMORY else None
    steps = np.array(c_strides(shape), np.int64)

    def elements(places: Indices) -> Array:
        numbers = places @ steps
        found = whole[numbers] if whole is not None else np.concatenate([read(int(n), 1) for n in numbers])
        return found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)

    return elements


def _candidates(target: Tensor, golden: Tensor, tolerance: float) -> Iterator[_Candidate]:
    t_shape, g_shape = tuple(target.shape), tuple(golden.shape)
    if t_shape == g_shape:
        changed = _changed(target, golden, tolerance)
        if not any(len(indices) for indices in changed.values()):
            return
        yield _Candidate(Layout("sign_flip"), lambda p: p, sign=-1.0)
        for axis, indices in changed.items():
            yield from _along(axis, t_shape[axis], indices)
    else:
        yield _Candidate(Layout("reshape"), lambda p: _reshaped(p, t_shape, g_shape))
    for i, j in itertools.combinations(range(len(g_shape)), 2):
        order = list(range(len(g_shape)))
        order[i], order[j] = j, i
        if g_shape[i] > 1 and g_shape[j] > 1 and t_shape == tuple(g_shape[k] for k in order):
            yield _Candidate(Layout("transpose", (i, j)), lambda p, order=order: p[:, order])  # type: ignore[misc]


def _changed(target: Tensor, golden: Tensor, tolerance: float) -> dict[int, Indices]:
    """By axis, the indices at which the tensors differ."""
    axes = [axis for axis, n in enumerate(golden.shape) if 1 < n <= MAX_BLOCKS]
    if not axes:
        return {}
    found = block_errors(target, golden, [(axis, 1) for axis in axes])
    return {axis: np.flatnonzero(one.errors > tolerance) for axis, one in zip(axes, found, strict=True)}


def _along(axis: int, n: int, changed: Indices) -> Iterator[_Candidate]:
    """Orders along one axis of n indices, of which those in ``changed`` differ."""

    def candidate(layout: Layout, order: Indices) -> _Candidate:
        """``order``: golden's index for each of target's."""

        def place(places: Indices) -> Indices:
            moved = places.copy()
            moved[:, axis] = order[places[:, axis]]
            return moved

        return _Candidate(layout, place, focus=(axis, changed))

    if not len(changed):
        return
    straight = np.arange(n)
    if n % 2 == 0:
        yield candidate(Layout("half_swap", (axis,)), np.roll(straight, n // 2))
    blocks = _two_blocks(changed)
    if blocks is not None and 2 * blocks[2] < n:
        first, second, size = blocks
        order = straight.copy()
        order[first : first + size], order[second : second + size] = straight[second:][:size], straight[first:][:size]
        yield candidate(Layout("block_swap", (axis,), size=size, blocks=(first, second)), order)
    if n > 2:
        yield candidate(Layout("reverse", (axis,)), straight[::-1])
    divisors = [d for d in range(1, n) if n % d == 0]
    for parts, size in itertools.product(divisors, divisors):
        turns, rest = divmod(n, parts * size)
        if not rest and min(parts, turns) > 1 and min(parts, turns) <= _PARTS:
            order = straight.reshape(parts, turns, size).swapaxes(0, 1).reshape(-1)
            yield candidate(Layout("interleave", (axis,), parts=parts, size=size), order)


def _two_blocks(changed: Indices) -> tuple[int, int, int] | None:
    """First index of each of two blocks, and their size, where the indices are two runs of one length, or one that has halves."""
    runs = np.split(changed, np.flatnonzero(np.diff(changed) != 1) + 1)
    if len(runs) == 1 and len(changed) % 2 == 0:
        runs = np.split(changed, 2)
    if len(runs) != 2 or len(runs[0]) != len(runs[1]):
        return None
    return int(runs[0][0]), int(runs[1][0]), len(runs[0])


def _reshaped(places: Indices, shape: tuple[int, ...], other: tuple[int, ...]) -> Indices:
    """Places with the same numbers in C order in a tensor of another shape."""
    return np.stack(np.unravel_index(places @ np.array(c_strides(shape), np.int64), other), 1)
