"""How independent work is spread: in this process, or over a pool of processes. Others (Ray) fit behind the same call.

An executor is a function ``(task, items) -> iterator of (position, result)`` that yields results as they are ready.
Closing the iterator, or Ctrl-C in it, cancels what has not begun.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar

from numprobe.execution.beside import processors
from numprobe.execution.memory import keep_freed_memory
from numprobe.record.errors import NumprobeError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

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
    """``jobs`` worker processes. ``task`` is a function of a module other than the main script; items and results picklable."""

    def run(task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor, as_completed
        from concurrent.futures.process import BrokenProcessPool

        # A forked child hangs once polars has run in the parent: workers come from a server that imported the task only.
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([task.__module__])
        others = set(multiprocessing.active_children())
        few = max(1, min(8, len(items) // (32 * jobs)))  # handing over an item costs as much as a small rank
        pool = ProcessPoolExecutor(min(jobs, len(items)) or 1, mp_context=context, initializer=_begin_worker)
        try:
            try:
                with _main_unseen():  # the pool starts its workers while it is given work
                    futures = {pool.submit(_each, task, items[i : i + few]): i for i in range(0, len(items), few)}
            except (EOFError, ConnectionError):  # the server that they come from has ended
                raise _ended("not started") from None
            workers = [p for p in multiprocessing.active_children() if p not in others]
            for future in as_completed(futures):
                first = futures.pop(future)  # popped: results are not kept until the last one
                yield from enumerate(future.result(), first)
        except BrokenProcessPool:
            pool.shutdown(wait=True, cancel_futures=True)
            raise _worker_died(workers) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    return run


def _each(task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [task(item) for item in items]


def choose(jobs: int | None, items: int, size: int) -> Executor:
    """``jobs`` workers (default: one a core, up to 8); in this process where a pool would cost more than it saves.

    ``size`` is the work in bytes: below 32 MB the start of a pool (about 0.3 s) is not earned back.
    """
    keep_freed_memory()
    wanted = jobs if jobs is not None else min(processors(), 8)
    if wanted <= 1 or items <= 1 or size < 32_000_000:
        return inline
    return process_pool(wanted)


@contextmanager
def _main_unseen() -> Iterator[None]:
    """Inside, new processes find no main script to import.

    They would run it again: without ``if __name__ == "__main__"`` it would start workers of its own, and one that came from
    stdin or a notebook is no file. Nothing of it is needed there.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _worker_died(workers: Sequence[BaseProcess]) -> NumprobeError:
    """E-EXE-001, from how the workers ended. The pool itself ends with SIGTERM those that outlive the first."""
    ends = [p.exitcode for p in workers if p.exitcode]
    code = next((c for c in ends if c != -signal.SIGTERM), -signal.SIGTERM)
    if code == -getattr(signal, "SIGKILL", 9):
        return NumprobeError(
            "E-EXE-001",
            "a worker process was killed from outside, as the system does when memory runs out",
            do="run again with fewer --jobs (in Python: jobs=); 1 works in one process",
        )
    try:
        end = signal.Signals(-code).name
    except ValueError:
        end = f"exit code {code}"
    return _ended(end)


def _ended(end: str) -> NumprobeError:
    return NumprobeError(
        "E-EXE-001",
        "a worker process ended before it answered: {end}",
        do="run again with --jobs 1 (in Python: jobs=1), which works in one process",
        end=end,
    )


def _begin_worker() -> None:
    for name in ("SIGINT", "SIGHUP"):  # sent to all processes of a terminal: the parent decides
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    gc.disable()  # see memory.without_collector


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
