"""The folder of a step and rank: opened, named after the rank as soon as that is known, never written over by accident."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from numprobe._version import __version__
from numprobe.collect.pytorch.differences import Differences
from numprobe.collect.pytorch.recorder import Recorder, StepFiles, clear_old_run
from numprobe.collect.pytorch.settings import Settings
from numprobe.collect.pytorch.tensor_files import TensorWriter
from numprobe.record.errors import NumprobeError

log = logging.getLogger("numprobe")


class Folders:
    """Gives the recorder its files; with ``differences``, those see each tensor before it is saved."""

    def __init__(self, settings: Settings, recorder: Recorder, differences: Differences | None) -> None:
        self._settings, self._recorder, self._differences = settings, recorder, differences
        self._prepared: set[Path] = set()
        self._told = False

    def open(self, step: int, rank: int | None) -> bool:
        """Open the files of a step; called again, it changes nothing but the name of a rank that is known by now.

        Where that fails, the program goes on, is told so once, and gets False.
        """
        if self._recorder.files is not None:
            self._name_rank(self._recorder.files, rank)
            return True
        folder = self._settings.dump_path / f"step{step}" / (f"proc{os.getpid()}" if rank is None else f"rank{rank}")
        try:
            self._open(folder, step, rank)
        except OSError as problem:
            error = NumprobeError(
                "E-COL-002",
                "the dump folder cannot be written: {reason}",
                reason=problem.strerror or str(problem),
                where=str(folder),
                do="choose another dump_path",
            )
            if not self._told:
                self._told = True
                log.error("numprobe: NOTHING IS RECORDED: %s: %s; %s", error, error.where, error.do)
            return False
        return True

    def _open(self, folder: Path, step: int, rank: int | None) -> None:
        settings = self._settings
        if folder not in self._prepared:
            aside = clear_old_run(folder, overwrite=settings.overwrite)
            if aside is not None:
                log.warning("numprobe: %s held an earlier run, which is now %s", folder, aside.name)
            self._prepared.add(folder)
        extra: dict[str, object] = (
            {} if settings.compat else {"collector": f"numprobe {__version__}", "grad_kind": "true"}
        )
        files = StepFiles(
            folder,
            settings.task,
            settings.level,
            extra,
            tensors=settings.saves_tensors,
            step=step,
            table=settings.format == "parquet",
        )
        if settings.saves_tensors:
            sink = TensorWriter(files.tensor_folder, settings.tensor_format, until_flush=settings.async_dump)
            compare = self._differences
            self._recorder.sink = sink if compare is None else compare.begin_step(step, rank, sink)
        self._recorder.begin_step(files)

    def _name_rank(self, files: StepFiles, rank: int | None) -> None:
        if rank is None or files.folder.name != f"proc{os.getpid()}":
            return
        folder = files.folder.with_name(f"rank{rank}")
        if not folder.exists():
            sink = self._recorder.sink
            if sink is not None:
                self._recorder.tally.problems.update(sink.flush())
                sink.folder = folder / files.tensor_folder.name
            files.move(folder)
            self._prepared.add(folder)
