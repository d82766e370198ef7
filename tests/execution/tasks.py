"""What the executors run; workers import this module."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from numprobe.execution.executor import process_pool
from numprobe.record.errors import NumprobeError


def square(n: int) -> int:
    return n * n


def divide(n: int) -> float:
    return 1 / n


def refuse(where: str) -> None:
    raise NumprobeError("E-FMT-011", "no JSON", where=where, do="look elsewhere")


def leave_mark(path: Path) -> None:
    path.touch()
    time.sleep(0.02)


def die(n: int) -> None:
    os._exit(9)


def die_by(number: int) -> None:
    os.kill(os.getpid(), number)


def no_server(*_: object) -> None:
    """Starting a process fails like this when the server that makes them has ended."""
    raise EOFError


def wait(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(1.0)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir()
    try:
        list(process_pool(2)(wait, [folder] * 50))
    except KeyboardInterrupt:
        sys.exit(130)
