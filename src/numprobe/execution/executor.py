"""How independent work is spread: in this process, or over a pool of processes. Others (Ray) fit behind the same call.

An executor is a function ``(task, items) -> iterator of (position, result)`` that yields results as they are ready.
Closing the iterator, or Ctrl-C in it, cancels what has not begun.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from numprobe.execution.memory import keep_freed_memory
from numprobe.record.errors import NumprobeError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs ``task`` on every item, in any order."""

    def __call__(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]: ...


def inline(task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
    """One after another, in this process."""
    for i, item in enumerate(items):
        yield i, task(item)


def process_pool(jobs: int) -> Executor:
    """``jobs`` worker processes. ``task`` has to be a module-level function, items and results picklable."""

    def run(task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        # A forked child hangs once polars has run in the parent: workers come from a server that imported the task only.
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([task.__module__])
        pool = ProcessPoolExecutor(min(jobs, len(items)) or 1, mp_context=context, initializer=_begin_worker)
        try:
            futures = {pool.submit(task, item): i for i, item in enumerate(items)}
            for future in as_completed(futures):
                yield futures.pop(future), future.result()  # popped: results are not kept until the last one
        except BrokenProcessPool:
            raise NumprobeError(
                "E-EXE-001",
                "a worker process died, perhaps for want of memory",
                do="run again with fewer --jobs; --jobs 1 works in one process",
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    return run


def choose(jobs: int | None, items: int, size: int) -> Executor:
    """``jobs`` workers (default: one a core, up to 8); in this process where a pool would cost more than it saves.

    ``size`` is the work in bytes: below 32 MB the start of a pool (about 0.3 s) is not earned back.
    """
    keep_freed_memory()
    wanted = jobs if jobs is not None else min(os.cpu_count() or 1, 8)
    if wanted <= 1 or items <= 1 or size < 32_000_000:
        return inline
    return process_pool(wanted)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    keep_freed_memory()
    gc.disable()  # see memory.without_collector
