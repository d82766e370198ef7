"""Two tensors block by block, in threads, with results that depend on neither the number of threads nor the memory.

A tensor is a :class:`~numprobe.formats.tensors.TensorFile` or a numpy array. Blocks are of a fixed number of elements in C order,
and what is computed of each is combined pairwise in a fixed tree, so that sums round the same way every time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
MAX_THREADS = 8


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


def map_blocks(
    function: Callable[[int, Array, Array], T], target: Tensor, golden: Tensor, threads: int | None = None
) -> list[T]:
    """``function(start, target block, golden block)`` of every block, in order; both tensors have one number of elements.

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
            return [compute(start) for start in starts]
        return list(stack.enter_context(ThreadPoolExecutor(workers)).map(compute, starts))


def fold(combine: Callable[[T, T], T], parts: Sequence[T]) -> T:
    """One of all parts, combined in pairs, then pairs of these, and so on."""
    level = list(parts)
    while len(level) > 1:
        paired = [combine(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = paired + level[2 * len(paired) :]
    return level[0]


def default_threads() -> int:
    return min(MAX_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
