"""Where a record stands among the others of its rank: its module, its phase, what it contains, what came before it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from numprobe.diagnose.nan_overflow import apis
from numprobe.formats.dump import RankDump
from numprobe.record.names import BACKWARD, FORWARD, PARAMETERS_GRAD, OpName, module_key, parse_name
from numprobe.record.nonfinite import DIRTY

LOOK_BACK = 256
_ELEMENTWISE_SOURCE = ("optimizer", "clip_grad")


@dataclass
class Surroundings:
    """What module tree, names and flags of one rank say about a record."""

    dump: RankDump

    @property
    def names(self) -> list[str]:
        return self.dump.index.names

    def chain(self, name: str) -> list[str]:
        return self.dump.tree.chain(name)

    def innermost(self, op: OpName) -> str:
        """``path.Class`` of the module that the record is, or is called by."""
        for name in self.chain(op.name):
            at = parse_name(name)
            if at.is_module:
                return f"{at.path}.{at.api}"
        return ""

    def placed(self, op: OpName) -> tuple[str, int | None]:
        """Phase and micro-batch, as far as the module tree tells."""
        chain = self.chain(op.name)
        phase = BACKWARD if op.direction == BACKWARD else FORWARD
        below_backward = any(parse_name(n).direction == BACKWARD for n in chain[1:])
        if phase == FORWARD and (below_backward or (len(chain) == 1 and op.name in self.dump.recomputed)):
            phase = "recompute"
        if chain[-1] in _ELEMENTWISE_SOURCE:
            phase = "optimizer"
        tree = self.dump.tree
        for name in chain:
            if name in tree.micro_step:
                return phase, tree.micro_step[name]
        modules = [at for n in chain if (at := parse_name(n)).kind == "module"]
        if not modules or phase not in (FORWARD, BACKWARD):
            return phase, None
        root = modules[-1]
        calls = self.module_calls
        usual = Counter(calls.values()).most_common(1)[0][0]
        a_micro_batch = max(1, round(calls[module_key(root)] / usual))  # a module that is used twice counts twice
        return phase, root.call // a_micro_batch

    @cached_property
    def module_calls(self) -> Counter[str]:
        """Forward calls by module."""
        ops = (parse_name(n) for n in self.names if n.startswith(("Module.", "Cell.")) and f".{FORWARD}." in n)
        return Counter(module_key(op) for op in ops) or Counter({"": 1})

    @cached_property
    def parents(self) -> set[str]:
        """Module records that have recorded children."""
        recorded = set(self.names)
        inside = {p for n, p in self.dump.tree.parents.items() if p and n in recorded}
        if not self.dump.tree.present or not inside:
            for name in self.names:
                op = parse_name(name) if name.startswith(("Module.", "Cell.")) else None
                if op and op.kind == "module":
                    parts = op.path.split(".")
                    inside.update(f"{op.direction}:{'.'.join(parts[:k])}" for k in range(1, len(parts)))
        return inside

    def has_children(self, op: OpName) -> bool:
        return op.name in self.parents or f"{op.direction}:{op.path}" in self.parents

    def inside(self, op: OpName, other: OpName, i: int, j: int) -> bool:
        """Is record ``other`` (at j) within the module call ``op`` (at i)?"""
        if self.dump.tree.present and other.name in self.dump.tree.parents:
            return op.name in self.chain(other.name)[1:]
        if other.is_module:
            return other.direction == op.direction and other.path.startswith(op.path + ".")
        return other.direction == op.direction and abs(i - j) < LOOK_BACK  # no tree: an API close by

    @cached_property
    def dirty_outputs(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.flatnonzero(self.dump.index.output & int(DIRTY))

    def dirty_inside(self, i: int, op: OpName) -> bool:
        """Has a record within the module call at ``i`` a dirty output?"""
        index = self.dump.index
        dirty = self.dirty_outputs
        at = int(np.searchsorted(dirty, i))
        around = dirty[max(0, at - LOOK_BACK) : at][::-1].tolist()
        if op.direction == BACKWARD:  # rows of one backward module call are in no fixed order
            around += dirty[at + 1 : at + 1 + LOOK_BACK].tolist()
        for j in around:
            other = parse_name(index.names[j])
            if j != i and other.kind != PARAMETERS_GRAD and self.inside(op, other, i, j):
                return True
        return False

    def last_clean(self, i: int, within: OpName | None = None) -> tuple[int, str]:
        """The last record before ``i`` with a clean output (inside the module call ``within``, if given)."""
        index = self.dump.index
        for j in range(i - 1, max(-1, i - 1 - 4 * LOOK_BACK), -1):
            if index.output[j] & int(DIRTY):
                continue
            op = parse_name(index.names[j])
            if op.kind == PARAMETERS_GRAD or apis.is_allocation(op):
                continue
            if within is None or self.inside(within, op, i, j):
                return j, op.name
        return -1, ""

    def is_first_of_model(self, i: int, op: OpName) -> bool:
        """No recorded operator of this micro-batch can have made its input: the model's call begins here."""
        if op.direction == BACKWARD:
            return False
        root = parse_name(self.chain(op.name)[-1])
        for j in range(i - 1, max(-1, i - 1 - LOOK_BACK), -1):
            other = parse_name(self.names[j])
            if apis.is_allocation(other) or apis.is_copy(other) or apis.is_fill(other):
                continue
            top = parse_name(self.chain(other.name)[-1])
            if apis.is_communication(other) or root.kind != "module":
                return False
            if other.direction == BACKWARD:
                return True
            return top.kind == "api" or (top.kind == "module" and top.call != root.call)
        return True
