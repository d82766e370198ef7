"""Single records of the dump that a run looked at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from numprobe.formats.dump import Dump, RankDump, open_dump
from numprobe.record.errors import NumprobeError
from numprobe.record.trace import Record


@dataclass(frozen=True)
class Records:
    """A dump by its path; nothing is read until a record is asked for."""

    path: str

    @cached_property
    def _dump(self) -> Dump | None:
        try:
            return open_dump(self.path)
        except NumprobeError:
            return None

    @property
    def there(self) -> bool:
        return self._dump is not None

    @property
    def steps(self) -> list[int]:
        """The steps of the dump, as far as they have numbers."""
        return [found.step for found in self._dump.steps if found.step is not None] if self._dump is not None else []

    @property
    def ranks(self) -> list[int]:
        """The ranks of all steps."""
        folders = [place for found in self._dump.steps for place in found.ranks] if self._dump is not None else []
        return sorted({place.rank for place in folders if place.rank is not None})

    def rank(self, rank_key: str, step: int | None) -> RankDump | None:
        """One rank of a step; None where it is not there or cannot be read."""
        if self._dump is None:
            return None
        for folder in (s for s in self._dump.steps if step is None or s.step in (step, None)):
            for place in folder.ranks:
                if place.key == rank_key and not place.problem:
                    found = self._dump.rank(place)
                    try:
                        len(found.index)
                    except NumprobeError:
                        return None
                    return found
        return None

    def file(self, rank: RankDump) -> str:
        """The dump.json of a rank, as it is cited: below the dump's folder."""
        place = rank.place.dump.resolve()
        root = Path(self.path).resolve()
        root = root if root.is_dir() else root.parent
        return place.relative_to(root).as_posix() if place.is_relative_to(root) else place.name


def record_of(rank: RankDump, position: int) -> Record | None:
    """One record, None where the file has changed meanwhile."""
    try:
        return rank.record(position)
    except (NumprobeError, OSError, IndexError):
        return None
