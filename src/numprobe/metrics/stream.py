"""Two tensors block by block, in threads, with results that depend on neither the number of threads nor the memory.

A tensor is a :class:`~numprobe.formats.tensors.TensorFile` or a numpy array. Blocks are of a fixed number of elements in C order,
and what is computed of each is combined pairwise in a fixed tree, so that sums round the same way every time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from numprobe.formats.tensors import TensorFile

Array: TypeAlias = NDArray[Any]
Tensor: TypeAlias = TensorFile | Array
Read: TypeAlias = Callable[[int, int], Array]
T = TypeVar("T")

BLOCK = 1 << 20  # elements: 8 MB of float64
# Elements computed at a time: few enough for the cache, so many that threads seldom wait for each other.
CHUNK = 1 << 17
MAX_THREADS = 8
_SINGLE = 8192  # elements: longer dot products are spread over threads by OpenBLAS, and sum in another order


def numel(tensor: Tensor) -> int:
    return tensor.numel if isinstance(tensor, TensorFile) else tensor.size


def element_type(tensor: Tensor) -> np.dtype[Any]:
    """The numpy or ml_dtypes dtype of the elements as they are computed with."""
    return tensor.element if isinstance(tensor, TensorFile) else tensor.dtype


@contextmanager
def reading(tensor: Tensor) -> Iterator[Read]:
    """Gives a function that reads ``count`` elements from ``start`` on, in C order, as a flat array.

    Raises:
        NumprobeError: the file cannot be read, or has become shorter.
    """
    if isinstance(tensor, TensorFile):
        with tensor.reader() as reader:
            yield reader.read
    else:
        flat = tensor.reshape(-1)
        yield lambda start, count: flat[start : start + count]


def fold_blocks(
    function: Callable[[int, Array, Array], T],
    combine: Callable[[T, T], T],
    target: Tensor,
    golden: Tensor,
    threads: int | None = None,
) -> T:
    """``function(start, target block, golden block)`` of every block, combined in pairs, then pairs of pairs, and so on.

    Both tensors have one number of elements, at least one. A part is let go once it is combined, so few are in memory.
    ``threads`` is by default one a processor, at most MAX_THREADS.
    """
    starts = range(0, numel(target), BLOCK)
    with ExitStack() as stack:
        read_target, read_golden = stack.enter_context(reading(target)), stack.enter_context(reading(golden))

        def compute(start: int) -> T:
            count = min(BLOCK, numel(target) - start)
            return function(start, read_target(start, count), read_golden(start, count))

        workers = min(threads or default_threads(), len(starts))
        if workers < 2:
            return _fold(combine, map(compute, starts))
        from concurrent.futures import ThreadPoolExecutor  # loads logging and more, which most runs need not

        return _fold(combine, stack.enter_context(ThreadPoolExecutor(workers)).map(compute, starts))


def _fold(combine: Callable[[T, T], T], parts: Iterable[T]) -> T:
    """The tree of pairs as a binary counter: of 2**k parts there is one sum for each bit that is set."""
    sums: list[tuple[int, T]] = []
    for part in parts:
        level = 0
        while sums and sums[-1][0] == level:
            part = combine(sums.pop()[1], part)
            level += 1
        sums.append((level, part))
    total = sums.pop()[1]
    while sums:
        total = combine(sums.pop()[1], total)
    return total


def dot(a: Array, b: Array) -> float:
    """Sum of products of two flat float64 arrays, by parts of fixed length."""
    return sum(float(np.dot(a[i : i + _SINGLE], b[i : i + _SINGLE])) for i in range(0, len(a), _SINGLE))


def default_threads() -> int:
    return min(MAX_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
