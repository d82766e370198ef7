"""A tensor in a file: what it is, and its elements by position, read when asked for."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numprobe.formats.tensors.dtypes import DType, decode, element_type
from numprobe.record.errors import NumprobeError

Array = NDArray[Any]
BLOCK = 1 << 20  # elements
_SPAN = 64 << 10  # bytes that are read in one go although few of them are wanted
_WASTE = 4  # bytes read for one wanted, where more would have to be read


class Placed(NamedTuple):
    """A tensor in the file: ``offset`` is a byte, ``strides`` count elements."""

    dtype: str
    stored: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A tensor in a file.

    ``dtype`` is a short name (:mod:`numprobe.record.dtypes`), ``stored`` how elements lie in the file, ``strides`` count
    elements, ``offset`` is the byte where the element of index 0, 0, ... begins: in ``data`` where the file was small or
    converted, else in the file. Elements are numbered in C order (the last index changes fastest) whatever the strides.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stored: DType = field(repr=False)
    offset: int = field(repr=False)
    data: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements in the file's dtype, each counted once whatever the strides."""
        return self.numel * self.stored.itemsize

    @property
    def element(self) -> DType:
        """The numpy or ml_dtypes dtype of the arrays that reading gives."""
        return element_type(self.stored)

    @property
    def contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Access to elements by position, for any number of threads, as long as the context lasts.

        Raises:
            NumprobeError: E-FMT-010 the file cannot be opened any more.
        """
        if self.data is not None:
            yield Reader(self, -1)
            return
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(self.path, error.strerror or str(error)) from None
        try:
            yield Reader(self, fd)
        finally:
            os.close(fd)

    def blocks(self, elements: int = BLOCK) -> Iterator[Array]:
        """All elements in C order, as flat arrays of ``elements`` each; the last may be shorter.

        Raises:
            NumprobeError: E-FMT-010 or E-FMT-031, as for :meth:`Reader.read`.
        """
        with self.reader() as reader:
            for start in range(0, self.numel, elements):
                yield reader.read(start, min(elements, self.numel - start))

    def array(self) -> Array:
        """The whole tensor in memory, read-only. Strides are those of the file: expanded tensors take no more than it.

        Raises:
            NumprobeError: E-FMT-010 or E-FMT-031, as for :meth:`Reader.read`.
        """
        with self.reader() as reader:
            array = reader.view(self.offset, self.shape, self.strides)
        array.flags.writeable = False
        return array

    def same_bytes(self, other: TensorFile) -> bool:
        """Whether dtype, shape and all bytes are equal; that is several times cheaper than to compute a difference.

        Raises:
            NumprobeError: E-FMT-010 or E-FMT-031, as for :meth:`Reader.read`.
        """
        if (self.stored, self.shape) != (other.stored, other.shape):
            return False
        with self.reader() as mine, other.reader() as theirs:
            for start in range(0, self.numel, BLOCK):
                count = min(BLOCK, self.numel - start)
                if not _equal(mine.stored(start, count), theirs.stored(start, count)):
                    return False
        return True

    def crc32(self) -> str:
        """CRC-32 of the elements' bytes in C order, 8 hex digits: the reference's md5 mode (STA-5), for bf16 its 16 bits."""
        crc = 0
        with self.reader() as reader:
            for start in range(0, self.numel, BLOCK):
                raw: Any = reader.stored(start, min(BLOCK, self.numel - start))
                crc = zlib.crc32(raw.view(np.uint8), crc)
        return f"{crc:08x}"


class Reader:
    """Elements of an open tensor. Reading leaves no state behind, so threads may share it."""

    __slots__ = ("_fd", "_tensor")

    def __init__(self, tensor: TensorFile, fd: int) -> None:
        self._tensor = tensor
        self._fd = fd

    def read(self, start: int, count: int) -> Array:
        """Elements ``start`` to ``start + count`` in C order as a flat array of :attr:`TensorFile.element`.

        Raises:
            NumprobeError: E-FMT-010 the file cannot be read, E-FMT-031 it has become shorter.
        """
        return decode(self.stored(start, count))

    def stored(self, start: int, count: int) -> Array:
        """The same elements as the file has them."""
        tensor = self._tensor
        size = tensor.stored.itemsize
        if tensor.contiguous:
            return self._bytes(tensor.offset + start * size, count * size).view(tensor.stored)
        out = np.empty(count, tensor.stored)
        at = 0
        for origin, extents in boxes(start, count, tensor.shape):
            box = prod(extents)
            begin = tensor.offset + size * sum(i * s for i, s in zip(origin, tensor.strides, strict=True))
            self._gather(out[at : at + box].reshape(extents), begin, tensor.strides)
            at += box
        return out

    def view(self, begin: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Elements of one region of the file, which is read as a whole, with strides; ``begin`` is its first byte."""
        stored = self._tensor.stored
        if not prod(shape):
            return np.empty(shape, self._tensor.element)
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        flat: Any = decode(self._bytes(begin, reach * stored.itemsize).view(stored))
        steps = tuple(s * flat.itemsize for s in strides)
        return np.ndarray(shape, flat.dtype, flat.view(np.uint8), 0, steps)

    def _gather(self, out: Array, begin: int, strides: tuple[int, ...]) -> None:
        """Fill ``out`` with the elements of its shape from ``begin`` on: dense dimensions at once, the others in a loop."""
        stored = self._tensor.stored
        dense, wanted, span = [], 1, 1
        for dim in sorted((d for d, n in enumerate(out.shape) if n > 1), key=lambda d: strides[d]):
            wanted *= out.shape[dim] if strides[dim] else 1
            span += (out.shape[dim] - 1) * strides[dim]
            if span * stored.itemsize > _SPAN and span > _WASTE * wanted:
                break
            dense.append(dim)
        inner = tuple(n if d in dense else 1 for d, n in enumerate(out.shape))
        outer = tuple(1 if d in dense else n for d, n in enumerate(out.shape))
        size = stored.itemsize * (1 + sum((n - 1) * s for n, s in zip(inner, strides, strict=True)))
        steps = tuple(s * stored.itemsize for s in strides)
        for index in np.ndindex(*outer):
            raw: Any = self._bytes(begin + sum(i * s for i, s in zip(index, steps, strict=True)), size)
            place = tuple(slice(i, i + n) for i, n in zip(index, inner, strict=True))
            out[place] = np.ndarray(inner, stored, raw, 0, steps)

    def _bytes(self, begin: int, size: int) -> NDArray[np.uint8]:
        tensor = self._tensor
        if tensor.data is not None:
            return np.frombuffer(tensor.data, np.uint8, size, begin)
        buffer = np.empty(size, np.uint8)
        untyped: Any = buffer
        target, done = memoryview(untyped), 0
        while done < size:
            try:
                got = os.preadv(self._fd, [target[done:]], begin + done)
            except OSError as error:
                raise unreadable(tensor.path, error.strerror or str(error)) from None
            if not got:
                raise NumprobeError(
                    "E-FMT-031",
                    "{file} has become shorter while it was read",
                    where=str(tensor.path),
                    do="wait until it is written, and run again",
                    file=tensor.path.name,
                )
            done += got
        return buffer


def _equal(mine: Array, theirs: Array) -> bool:
    """Whether two flat arrays of one dtype have equal bytes; compared by words of 8, as far as they reach."""
    a: Any = mine.view(np.uint8)
    b: Any = theirs.view(np.uint8)
    words = a.size & ~7
    return np.array_equal(a[:words].view(np.uint64), b[:words].view(np.uint64)) and np.array_equal(a[words:], b[words:])


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie in C order without gaps; dimensions of one element do not count."""
    expected = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1:
            if stride != expected:
                return False
            expected *= n
        elif n == 0:
            return True
    return True


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def boxes(start: int, count: int, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes (first index, extents) that together are elements ``start`` to ``start + count`` in C order, in this order.

    >>> list(boxes(1, 6, (3, 3)))
    [((0, 1), (1, 2)), ((1, 0), (1, 3)), ((2, 0), (1, 1))]
    """
    if not count:
        return
    if not shape:
        yield (), ()
        return
    row = prod(shape[1:])
    while count:
        index, inside = divmod(start, row)
        if inside or count < row:  # a part of one row
            part = min(count, row - inside)
            for origin, extents in boxes(inside, part, shape[1:]):
                yield (index, *origin), (1, *extents)
        else:
            part = count // row * row
            yield (index, *(0,) * (len(shape) - 1)), (count // row, *shape[1:])
        start += part
        count -= part


def unreadable(path: Path, reason: str) -> NumprobeError:
    return NumprobeError(
        "E-FMT-010",
        "{file} cannot be read: {reason}",
        where=str(path),
        do="check that the file exists and that you may read it",
        file=path.name,
        reason=reason,
    )
