"""Task ``exception_dump``: records are kept in memory, and written only if the program ends in an exception."""

from __future__ import annotations

import sys
from types import TracebackType

from numprobe.collect.pytorch.recorder import Recorder


class CrashWriter:
    """Writes what the recorder holds when an exception that nobody caught ends the program."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._before = sys.excepthook
        sys.excepthook = self._hook

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._recorder.crashed = True
        self._recorder.write(everything=True)
        self._before(kind, error, trace)

    def restore(self) -> None:
        if sys.excepthook == self._hook:
            sys.excepthook = self._before
