"""Both sides in canonical form, paired, measured and judged, and what is asked of them by row and pair."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from numprobe.align.leaves import LeafPairs
from numprobe.align.records import RecordPairs
from numprobe.align.roles.side import RoleSide
from numprobe.compare.judge import Judgement
from numprobe.compare.measure import NOTHING, Measures
from numprobe.record.names import parse_name
from numprobe.record.trace import OUTPUT

SAME_RATIO = 0.02


@dataclass
class View:
    """``train`` is the target. A pair is one of ``records``, a row one of ``leaves``."""

    train: RoleSide
    rollout: RoleSide
    records: RecordPairs
    leaves: LeafPairs
    measures: Measures
    judged: Judgement

    def name(self, pair: int) -> str:
        """The canonical name of a record pair."""
        t = self.records.target[pair]
        return (
            self.train.calls.values.names[t] if t >= 0 else self.rollout.calls.values.names[self.records.golden[pair]]
        )

    def keys(self, pair: int) -> tuple[list[str], list[str]]:
        """Names in the dumps of what a record pair was made of."""
        return named(self.train, self.records.target[pair]), named(self.rollout, self.records.golden[pair])

    def rows(self, pair: int) -> range:
        return range(int(self.leaves.first[pair]), int(self.leaves.first[pair + 1]))

    def paired(self, pair: int) -> bool:
        return self.records.target[pair] >= 0 and self.records.golden[pair] >= 0

    def _leaf(self, row: int) -> tuple[str, str]:
        t, g = int(self.leaves.target[row]), int(self.leaves.golden[row])
        values, i = (self.train.calls.values, t) if t >= 0 else (self.rollout.calls.values, g)
        role, path = values.slots[values.slot[i]]
        return role, path

    def slot_role(self, row: int) -> str:
        """input, output or parameter."""
        return self._leaf(row)[0]

    def slot(self, row: int) -> str:
        """``input_args.0``"""
        return self._leaf(row)[1]

    def of_pair(self, pair: int, role: str) -> list[int]:
        """The rows of a role that were compared."""
        return [
            r
            for r in self.rows(pair)
            if self.leaves.both[r] and self.slot_role(r) == role and self.measures.by[r] != NOTHING
        ]

    def agrees(self, pair: int) -> bool:
        """Were its outputs compared, and are they as expected? A warning is not: what is wrong there may show behind it."""
        outputs = self.of_pair(pair, OUTPUT) if self.paired(pair) else []
        return bool(outputs) and all(self.judged.verdict[r] == "pass" for r in outputs)

    def apart(self, row: int) -> float:
        """What the figures differ by, where that is more than was expected; else the estimate of the error from them."""
        return float(self.all_apart[row])

    @cached_property
    def all_apart(self) -> NDArray[np.float64]:
        """:meth:`apart` of every row."""
        plain = np.fmax(self.measures.d_norm, self.measures.d_extreme)
        return np.where(plain > 4 * np.asarray(self.judged.expected), plain, self.measures.error)


def named(side: RoleSide, record: int) -> list[str]:
    """Names in the dump of what a canonical record was made of; none for -1."""
    return [side.original.values.names[i] for i in side.origin[record]] if record >= 0 else []


def role_of(name: str) -> str:
    """``Module.layers.3.down.Linear.forward.0`` -> ``down``"""
    return parse_name(name).path.rsplit(".", 1)[-1]


def place(name: str) -> str:
    """``Module.layers.3.down.Linear.forward.0`` -> ``layers.3.down``; a later call keeps its number."""
    op = parse_name(name)
    return op.path + (f" #{op.call}" if op.call else "")


def place_in_layer(name: str) -> tuple[str, int]:
    """The place without the number of its layer, and the call: equal for what is the same in every layer."""
    op = parse_name(name)
    return (op.path if op.layer is None else op.path.split(f"layers.{op.layer}.", 1)[-1]), op.call


def number(value: float) -> float | None:
    """None for NaN."""
    return None if value != value else float(value)


def ratio(view: View, row: int) -> float | None:
    """The factor, where all figures of one side are the other's times one number."""
    t, g = int(view.leaves.target[row]), int(view.leaves.golden[row])
    if t < 0 or g < 0:
        return None
    one, other = view.train.calls.values.figures[t], view.rollout.calls.values.figures[g]
    with np.errstate(all="ignore"):
        ratios = (one / other)[[0, 1, 3]]
    if not np.isfinite(ratios).all() or abs(ratios[2] - 1) < SAME_RATIO:
        return None
    return float(ratios[2]) if np.allclose(ratios, ratios[2], rtol=SAME_RATIO) else None
