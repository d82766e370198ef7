"""One piece of work in a process of its own, while this one does another."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

Result = TypeVar("Result")
NOT_AFTER = ("polars", "torch")  # once these have threads, a forked process may wait for ever


def can_fork() -> bool:
    """May this process be copied as it stands?"""
    if not hasattr(os, "fork") or sys.platform == "darwin" or threading.active_count() > 1:
        return False
    return not any(name in sys.modules for name in NOT_AFTER)


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def beside(task: Callable[[], Result]) -> Iterator[Callable[[], Result]]:
    """Inside, ``task`` runs in a copy of this process; the function that is given waits for what it returns (picklable).

    Where the other process fails, whatever the reason, ``task`` is done here, so that errors are raised where they are handled.
    """
    source, sink = os.pipe()
    with warnings.catch_warnings():  # Python warns of every thread; those of numpy's libraries do nothing meanwhile
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _work(task, source, sink)
    os.close(sink)
    try:
        with os.fdopen(source, "rb") as answer:
            yield lambda: _received(task, answer)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # it has answered, or nobody waits any more
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def _work(task: Callable[[], object], source: int, sink: int) -> None:
    """What the copy does; it never returns, and leaves what it has in common with its parent alone."""
    try:
        os.close(source)
        with os.fdopen(sink, "wb") as answer:
            pickle.dump(task(), answer, pickle.HIGHEST_PROTOCOL)
        os._exit(0)
    finally:
        os._exit(1)


def _received(task: Callable[[], Result], answer: object) -> Result:
    try:
        found: Result = pickle.load(answer)  # type: ignore[arg-type]  # from our own copy
    except (EOFError, pickle.UnpicklingError):
        return task()
    return found
