"""The hot switch: a configuration that says ``dump_enable`` is read again while the program runs (CFG-8)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from numprobe.collect.pytorch.settings import Settings
from numprobe.record.errors import NumprobeError

log = logging.getLogger("numprobe")
EVERY_ENABLED, EVERY_DISABLED = 0.5, 3.0  # seconds between two looks at the file


class Reloading:
    """Looks at a file for changes; ``read()`` makes settings of it."""

    def __init__(self, settings: Settings, read: Callable[[], Settings]) -> None:
        self._read = read
        self._path = settings.config_path if settings.dump_enable is not None else None
        self.enabled = settings.dump_enable is not False
        self._state = self._look()
        self._looked = time.monotonic()

    def changed(self) -> Settings | None:
        """New settings, if the file has changed since the last look. One that cannot be read switches recording off."""
        if self._path is None or time.monotonic() - self._looked < (EVERY_ENABLED if self.enabled else EVERY_DISABLED):
            return None
        self._looked = time.monotonic()
        state = self._look()
        if state == self._state:
            return None
        self._state = state
        try:
            settings = self._read()
        except NumprobeError as error:
            log.warning("numprobe: recording is off until the configuration can be read again: %s", error)
            self.enabled = False
            return None
        if settings.dump_enable is not None:
            self.enabled = settings.dump_enable
        return settings

    def _look(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            state = Path(self._path).stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size
