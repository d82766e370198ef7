"""The records of one rank as calls: in which module each ran, and in which phase of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from numprobe.execution.beside import beside, can_fork, processors
from numprobe.formats.dump import RankDump
from numprobe.formats.msprobe.values import ValueTable
from numprobe.formats.tensors import TensorFile, TensorFolder
from numprobe.record.names import BACKWARD, FORWARD, PARAMETERS_GRAD, OpName

RECOMPUTE = "recompute"


class Tensors(Protocol):
    """Tensors by the names that a value table gives their files."""

    def open(self, name: str, shape: tuple[int, ...] | None = None) -> TensorFile:
        """As :meth:`~numprobe.formats.tensors.TensorFolder.open`."""
        ...


@dataclass
class Calls:
    """One side of a comparison. ``parent`` is the record of the module around a call, -1 where none is recorded.

    ``around`` names what encloses a call without being a record (``optimizer``, ``clip_grad``), ``phase`` is forward,
    recompute, backward, parameters_grad or the record's kind.
    """

    dump: RankDump
    values: ValueTable
    parent: list[int]
    around: list[str]
    phase: list[str]

    @property
    def ops(self) -> list[OpName]:
        return self.values.ops

    @cached_property
    def position(self) -> dict[str, int]:
        """Record by name; the first one where a name repeats."""
        names = self.values.names
        return dict(zip(reversed(names), range(len(names) - 1, -1, -1), strict=True))

    @cached_property
    def children(self) -> list[list[int]]:
        """Calls inside each call, in file order, forward and backward apart by their own parents."""
        inside: list[list[int]] = [[] for _ in self.parent]
        for i, parent in enumerate(self.parent):
            if parent >= 0:
                inside[parent].append(i)
        return inside

    def forget(self) -> None:
        """Drop what was made for looking up; it is made again where it is needed."""
        for name in ("position", "children", "depth", "_codes"):
            self.__dict__.pop(name, None)
        for dump in self.dumps:
            dump.forget()

    @cached_property
    def depth(self) -> list[int]:
        found = [-1] * len(self.parent)
        for i in range(len(found)):
            chain: list[int] = []
            while i >= 0 and found[i] < 0 and i not in chain[-1:]:
                chain.append(i)
                i = self.parent[i]
            base = found[i] if i >= 0 else -1
            for n, k in enumerate(reversed(chain), 1):
                found[k] = base + n
        return found

    @cached_property
    def tensors(self) -> Tensors:
        return TensorFolder(self.dump.place.tensors)

    @property
    def left_out(self) -> Mapping[str, NDArray[np.int64]]:
        """Rows of the table that cannot be compared, by the reason."""
        return {}

    @property
    def dumps(self) -> list[RankDump]:
        """All dumps that it lies in."""
        return [self.dump]

    def recorded(self, i: int) -> tuple[RankDump, int]:
        """The dump that a record lies in, and its op_index there."""
        return self.dump, i

    def inside(self, i: int) -> list[str]:
        """Names of what is around a record, innermost first."""
        return self.dump.tree.chain(self.values.names[i])[1:]

    def code(self, i: int) -> str:
        """Function and source line of the innermost frame outside of libraries; empty where no stack is recorded.

        Without file and line number: the two sides may run different versions of the same program.
        """
        return self._codes.get(self.values.names[i], "")

    @cached_property
    def _codes(self) -> dict[str, str]:
        return {name: _own_code(frames) for name, frames in self.dump.stacks.every()}


def _own_code(frames: Sequence[str]) -> str:
    own = next((f for f in frames if "site-packages" not in f and "/torch/" not in f), frames[0] if frames else "")
    return own.split(", in ", 1)[-1]


def read_calls(dump: RankDump) -> Calls:
    """The calls of one rank.

    Raises:
        NumprobeError: as :func:`~numprobe.formats.msprobe.values.read_values`.
    """
    values = dump.values
    calls = Calls(dump, values, [], [], [])
    position, parents = calls.position, dump.tree.parents
    parent: list[int] = []
    around: list[str] = []
    for name, op in zip(values.names, values.ops, strict=True):
        above = parents.get(name)
        if above is None and op.kind == PARAMETERS_GRAD:
            above = f"{op.prefix}.{op.path}.{op.api}.backward.{op.call}"
        found = position.get(above, -1) if above is not None else -1
        parent.append(found)
        around.append(above if above is not None and found < 0 and "." not in above else "")
    _no_rings(parent)
    calls.parent, calls.around, calls.phase = parent, around, _phases(dump, values.ops, parent)
    return calls


AT_ONCE = 4_000_000  # bytes of a side from which on a second process earns back its start


def read_both(one: RankDump, other: RankDump, *, at_once: bool) -> tuple[Calls, Calls]:
    """The calls of two ranks, with names in common. ``at_once``: where it pays and can be done, one of them by a copy of this
    process.

    Raises:
        NumprobeError: as :func:`read_calls`.
    """
    if at_once and min(one.place.size, other.place.size) >= AT_ONCE and processors() > 1 and can_fork():
        with beside(other.look) as look:
            calls = read_calls(one)
            other.seen(look())
    else:
        calls = read_calls(one)
    other.share_names(one)
    return calls, read_calls(other)


def _no_rings(parent: list[int]) -> None:
    """A damaged construct.json may name a record as its own ancestor: such a link is cut."""
    if all(p > i or p < 0 for i, p in enumerate(parent)):  # modules end after what is inside them
        return
    done = [False] * len(parent)
    for i in range(len(parent)):
        seen = set()
        at = i
        while at >= 0 and not done[at]:
            if at in seen:
                parent[at] = -1
                break
            seen.add(at)
            at = parent[at]
        for k in seen:
            done[k] = True


def _phases(dump: RankDump, ops: Sequence[OpName], parent: Sequence[int]) -> list[str]:
    """Phase of every record. A forward call inside a backward one is a recompute (activation checkpointing); of those that
    stand alone among backward records the stack tells."""
    phases = [op.direction if op.kind in ("module", "api") else op.kind for op in ops]
    backward = [i for i, phase in enumerate(phases) if phase == BACKWARD]
    for i, op in enumerate(ops):
        if phases[i] != FORWARD or not backward or not backward[0] < i < backward[-1]:
            continue
        at = parent[i]
        while at >= 0 and ops[at].direction != BACKWARD and parent[at] >= 0:
            at = parent[at]
        root = ops[at] if at >= 0 else op
        if root.direction == BACKWARD or root.name in dump.recomputed:
            phases[i] = RECOMPUTE
    return phases
