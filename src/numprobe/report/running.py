"""A run of a tool from start to end: where it may write, what its manifest says when it ends early, what is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from numprobe.execution.progress import Progress
from numprobe.execution.stages import Listener
from numprobe.formats.dump import Dump
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import RunFolder


@dataclass
class Told:
    """Passes events on, and knows the last one: an interrupt between two stages, or while files are written, is told too."""

    listener: Listener
    last: Progress | None = None

    def __call__(self, event: Progress) -> None:
        self.last = event
        self.listener(event)

    def interrupted(self) -> None:
        if self.last is not None and self.last.state != "interrupted":
            self(replace(self.last, state="interrupted", eta_s=None))


@contextmanager
def marked(run: RunFolder, told: Told) -> Iterator[None]:
    """Inside, whatever ends the run early is marked in its manifest; what was written stays."""
    try:
        yield
    except KeyboardInterrupt:
        told.interrupted()
        _mark(run, "interrupted")
        raise
    except BaseException:
        _mark(run, "failed")
        raise


def _mark(run: RunFolder, state: str) -> None:
    with suppress(NumprobeError):  # the disk is full: what made the run end is the news
        run.finish(state)


def refuse_inside(dump: Dump, out: Path | None) -> None:
    """Fail on an output folder inside the dump, also where only a part of it was named.

    Raises:
        NumprobeError: E-OUT-003.
    """
    folder = (out or Path("numprobe_out")).resolve()
    if any(folder.is_relative_to(root) for root in _roots(dump)):
        raise NumprobeError(
            "E-OUT-003",
            "the output would lie inside the dump, which is never written to",
            where=str(out or folder),
            do="choose an -o outside of the dump",
        )


def _roots(dump: Dump) -> set[Path]:
    """The folders of the dump. Around a rank that was named alone: its step, and the folder above if that is ``step<N>``."""
    roots = {dump.root.resolve()}
    for step in dump.steps:
        around = step.folder.resolve()
        if around not in dump.root.resolve().parents:
            continue
        if step.step is not None:
            roots |= {around, around.parent}
        elif step.left_out:  # other ranks lie there
            roots.add(around)
    return roots


def print_conclusion(text: str) -> None:
    """Print to stdout; a reader that has gone is no error, the exit code still tells."""
    try:
        print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
