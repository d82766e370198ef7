"""A tensor in parts: files of several ranks read as the one tensor that they are slices of, and slices of one file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numprobe.formats.tensors import Reader, TensorFile
from numprobe.formats.tensors.tensor import c_strides

Array = NDArray[Any]


class Piece(NamedTuple):
    """``length`` indices along the split dimension, from ``begin`` on, of part number ``part``."""

    part: int
    begin: int
    length: int


ZIGZAG = 0  # in the place of a number of groups: two chunks a part, the second ones in reverse (context parallel)


def pieces(sizes: Sequence[int], full: int, groups: int = 1) -> tuple[Piece, ...]:
    """The order of parts of these sizes in a dimension of ``full``.

    With ``groups`` each part has its share of every group: of ``[gate, up]`` rank 0 has ``[gate 0, up 0]``. What the parts have
    beyond ``full`` is padding at the end. In :data:`ZIGZAG` order the first of n parts has chunks 0 and 2n-1, the second 1 and
    2n-2, as context parallel ranks share the work of causal attention.

    >>> pieces([4, 4], 8, groups=2)
    (Piece(part=0, begin=0, length=2), Piece(part=1, begin=0, length=2), Piece(part=0, begin=2, length=2), \
Piece(part=1, begin=2, length=2))
    >>> pieces([4, 4], 8, ZIGZAG)
    (Piece(part=0, begin=0, length=2), Piece(part=1, begin=0, length=4), Piece(part=0, begin=2, length=2))
    """
    if groups == ZIGZAG:
        there = [Piece(part, 0, size // 2) for part, size in enumerate(sizes)]
        back = [Piece(part, size // 2, size - size // 2) for part, size in enumerate(sizes)][::-1]
        turn = Piece(there[-1].part, 0, there[-1].length + back[0].length)
        return (*there[:-1], turn, *back[1:])
    found = []
    for group in range(groups):
        for part, size in enumerate(sizes):
            length = min(size // groups, full)
            full -= length
            found.append(Piece(part, group * (size // groups), length))
    return tuple(p for p in found if p.length)


@dataclass(frozen=True)
class PiecedTensor(TensorFile):
    """Pieces of ``parts``, in order, along dimension ``dim``: a tensor that is read like a file."""

    parts: tuple[TensorFile, ...] = field(default=(), repr=False)
    order: tuple[Piece, ...] = field(default=(), repr=False)
    dim: int = 0

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """As of :class:`TensorFile`."""
        with ExitStack() as stack:
            yield _PiecedReader(self, [stack.enter_context(part.reader()) for part in self.parts])

    def array(self) -> Array:
        """As of :class:`TensorFile`."""
        with self.reader() as reader:
            return reader.read(0, self.numel).reshape(self.shape)

    @cached_property
    def ends(self) -> list[int]:
        """Elements of one line of the joined tensor up to the end of each piece."""
        return list(accumulate(p.length * self.inner for p in self.order))

    @cached_property
    def inner(self) -> int:
        """Elements below one index of the split dimension."""
        return prod(self.shape[self.dim + 1 :])

    def line(self, part: int) -> int:
        """Elements of a part below one index of the dimensions before the split one."""
        return prod(self.parts[part].shape[self.dim :])


def joined(parts: Sequence[TensorFile], dim: int, order: Sequence[Piece]) -> PiecedTensor:
    """These pieces as one tensor. The parts have one dtype, and one shape but for dimension ``dim``."""
    first = parts[0]
    shape = (*first.shape[:dim], sum(p.length for p in order), *first.shape[dim + 1 :])
    return PiecedTensor(
        first.path,
        first.dtype,
        shape,
        c_strides(shape),
        first.stored,
        0,
        parts=tuple(parts),
        order=tuple(order),
        dim=dim,
    )


class _PiecedReader(Reader):
    """Reads lines (everything below the dimensions before the split one) whole and many at a time, and parts of lines piece by
    piece: no more than was asked for is ever in memory twice."""

    __slots__ = ("_pieced", "_readers")

    def __init__(self, tensor: PiecedTensor, readers: list[Reader]) -> None:
        super().__init__(tensor, -1)
        self._pieced, self._readers = tensor, readers

    def stored(self, start: int, count: int) -> Array:
        tensor = self._pieced
        out = np.empty(count, tensor.stored)
        line = tensor.ends[-1] if tensor.ends else 0
        done = 0
        while done < count:
            number, inside = divmod(start + done, line)
            whole = (count - done) // line if tensor.dim and not inside else 0  # of dimension 0 there is one line
            if whole:
                self._lines(out[done : done + whole * line].reshape(whole, line), number)
                done += whole * line
            else:
                done += self._within(out[done:], number, inside)
        return out

    def _lines(self, out: Array, number: int) -> None:
        tensor, at = self._pieced, 0
        for part, begin, length in tensor.order:
            size, first, width = tensor.line(part), begin * tensor.inner, length * tensor.inner
            lines = self._readers[part].stored(number * size, len(out) * size).reshape(len(out), size)
            out[:, at : at + width] = lines[:, first : first + width]
            at += width

    def _within(self, out: Array, number: int, inside: int) -> int:
        """Fill from one piece of one line, as far as it and ``out`` reach. Returns how many elements that were."""
        tensor = self._pieced
        at = bisect_right(tensor.ends, inside)
        part, begin, _ = tensor.order[at]
        before = tensor.ends[at - 1] if at else 0
        count = min(len(out), tensor.ends[at] - inside)
        out[:count] = self._readers[part].stored(
            number * tensor.line(part) + begin * tensor.inner + inside - before, count
        )
        return count
