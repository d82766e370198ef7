"""A job in stages: each stage reports how far it is, in one protocol, to whoever listens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from numprobe.execution.progress import Progress

Listener = Callable[[Progress], None]


def ignore(event: Progress) -> None:
    """A listener that does nothing."""


@dataclass
class Stages:
    """Emits :class:`Progress` events. ``names`` are message keys, one a stage; ``timings`` collects seconds a stage."""

    names: tuple[str, ...]
    listener: Listener = ignore
    timings: dict[str, float] = field(default_factory=dict)
    _at: int = 0
    _begun: float = 0.0

    def begin(self, name: str, total: int = 0) -> None:
        self._at = self.names.index(name) + 1
        self._begun = time.monotonic()
        self.update(0, total)

    def update(self, done: int, total: int, note: str = "") -> None:
        elapsed = time.monotonic() - self._begun
        eta = elapsed / done * (total - done) if done and total and elapsed > 1.0 else None
        self._emit(done, total, note, "running", eta)

    def end(self, note: str = "", done: int = 0, total: int = 0) -> None:
        self.timings[self.names[self._at - 1]] = time.monotonic() - self._begun
        self._emit(done, total, note, "done", None)

    def stop(self, state: str, note: str = "", done: int = 0, total: int = 0) -> None:
        """The stage ends early: ``interrupted`` or ``failed``."""
        self._emit(done, total, note, state, None)

    def _emit(self, done: int, total: int, note: str, state: str, eta: float | None) -> None:
        name = self.names[self._at - 1]
        elapsed = time.monotonic() - self._begun
        self.listener(Progress(self._at, len(self.names), name, done, total, eta, note, state, elapsed))
