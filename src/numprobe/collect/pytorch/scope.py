"""What is going on in this process right now: is anything recorded, by which thread, inside which module."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field


class _Thread(threading.local):
    """A thread's own view. ``busy``: inside a recorded API or in the collector itself, so further APIs are swallowed."""

    def __init__(self) -> None:
        self.busy = threading.current_thread().name.startswith("numprobe-")  # the collector's own are never recorded
        self.modules: list[str] = []  # names of the module calls around this point, outermost first
        self.phase = ""  # optimizer | clip_grad, while inside one


class Quiet:
    """A block in which a thread is busy. (A class: this is entered for every gradient.)"""

    __slots__ = ("_before", "_thread")

    def __init__(self, thread: _Thread) -> None:
        self._thread = thread

    def __enter__(self) -> None:
        self._before, self._thread.busy = self._thread.busy, True

    def __exit__(self, *_: object) -> None:
        self._thread.busy = self._before


@dataclass
class Scope:
    """Shared by all hooks of one session. ``on`` is the one thing that every call looks at."""

    on: bool = False
    thread: _Thread = field(default_factory=_Thread)

    def __post_init__(self) -> None:
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.off)  # data loader workers record nothing

    def off(self) -> None:
        self.on = False

    def quiet(self) -> Quiet:
        """What this thread calls inside is the collector's own and is not recorded."""
        return Quiet(self.thread)

    def parent(self) -> str | None:
        """Name of the module call, or of the phase, that surrounds this point."""
        thread = self.thread
        return thread.modules[-1] if thread.modules else thread.phase or None


def backward_of(name: str | None) -> str | None:
    """The backward record of a forward module call: ``Module.a.Linear.forward.0`` -> ``Module.a.Linear.backward.0``."""
    if name is None or ".forward." not in name:
        return None
    head, _, number = name.rpartition(".forward.")
    return f"{head}.backward.{number}"
