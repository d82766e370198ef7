"""The index of one dump.json: where every record lies, and which of its slots are non-finite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.reference import Damage
from numprobe.record.nonfinite import DIRTY, Kinds
from numprobe.record.trace import RunInfo

STORED = DIRTY | Kinds.MAYBE_NAN  # what a flag byte holds; "unknown" needs the record itself


@dataclass
class RankIndex:
    """One row a record, in file order. Flags are :class:`Kinds` bits per group of slots.

    ``output`` also holds the flags of parameter gradients and of debug values, the only slots of such records.
    """

    info: RunInfo
    names: list[str]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    input: NDArray[np.uint8]
    output: NDArray[np.uint8]
    parameter: NDArray[np.uint8]
    size: int
    has_extrema: bool
    damage: Damage | None = None
    repeated: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def status(self) -> str:
        return "ok" if self.damage is None else "partial"

    def dirty(self) -> Iterator[int]:
        """Positions of the records with any non-finite slot."""
        yield from np.flatnonzero((self.input | self.output | self.parameter) & int(DIRTY)).tolist()
