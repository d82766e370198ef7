"""Memory habits of a batch job: the C library keeps what it has, the collector rests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3) in glibc


def keep_freed_memory(limit: int = 1 << 26) -> None:
    """Let freed blocks of up to ``limit`` bytes be used again instead of going back to the system.

    Scanning allocates the same few arrays of some hundred kilobytes again and again; by default glibc maps and unmaps each
    one, and the page faults take longer than the work. At most a few megabytes a process stay allocated for it. Without
    glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, limit // 2)
    mallopt(_TRIM_THRESHOLD, limit)


def release_freed_memory() -> None:
    """Give back what :func:`keep_freed_memory` kept: other allocators, such as that of polars, cannot use it."""
    if sys.platform.startswith("linux"):
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def polars_keeps_nothing() -> None:
    """Let the allocator of polars give back at once what was freed. For a program of its own, before polars is loaded."""
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")


@contextmanager
def without_collector() -> Iterator[None]:
    """No cyclic garbage collection inside: millions of small objects without cycles make it cost a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
