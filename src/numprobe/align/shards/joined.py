"""One side of a comparison that lies in the dumps of several ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from numprobe.align.calls import Calls, Tensors, read_calls
from numprobe.align.shards.tables import Rows, concatenated, gathered
from numprobe.formats.dump import RankDump
from numprobe.formats.msprobe.values import ValueTable
from numprobe.formats.tensors import TensorFile
from numprobe.record.names import DEBUG, PARAMETERS_GRAD, OpName

Origin = tuple[int, int]  # number of a rank, op_index there
COMMUNICATION = "Distributed"  # prefix of such calls
_NUMBER = re.compile(r"\d+")


@dataclass
class Ranks:
    """The ranks of one side: their calls, and their tables behind each other. ``base[r]`` is the first row of rank ``r``."""

    calls: Sequence[Calls]
    table: ValueTable
    base: Rows

    def owner(self, row: int) -> Origin:
        """The rank of a row of the table, and its row there."""
        rank = int(np.searchsorted(self.base, row, "right")) - 1
        return rank, row - int(self.base[rank])


def read_ranks(dumps: Sequence[RankDump]) -> Ranks:
    """Read every rank.

    Raises:
        NumprobeError: one of them cannot be read.
    """
    calls = [read_calls(dump) for dump in dumps]
    base = np.cumsum([0, *(len(c.values) for c in calls[:-1])])
    return Ranks(calls, concatenated([c.values for c in calls]), base)


@dataclass
class JoinedCalls(Calls):
    """Calls that lie in the dumps of several ranks.

    ``records`` says where each was recorded, in the dump of the first rank that has it. ``parts`` (rows, columns) has the rows of
    the table of all ranks that a leaf is made of, one a tensor parallel column, -1 where a column has none. ``talk`` has, by
    record, the communication inside that the other side has no need of, with such lines of its own. Names are those of
    the whole model, ``ops`` too: a pipeline stage may have counted its layers from 0.
    """

    ranks: Ranks
    records: list[Origin]
    parts: Rows
    talk: dict[int, list[tuple[OpName, Rows]]] = field(default_factory=dict)

    @property
    def dumps(self) -> list[RankDump]:
        return [calls.dump for calls in self.ranks.calls]

    def recorded(self, i: int) -> tuple[RankDump, int]:
        rank, record = self.records[i]
        return self.ranks.calls[rank].dump, record

    def code(self, i: int) -> str:
        rank, record = self.records[i]
        return self.ranks.calls[rank].code(record)

    def inside(self, i: int) -> list[str]:
        names: list[str] = []
        at = self.parent[i]
        while at >= 0:
            names.append(self.values.names[at])
            at = self.parent[at]
        return [*names, self.around[i]] if self.around[i] else names

    @cached_property
    def tensors(self) -> Tensors:
        return JoinedTensors(self)

    def tensor_of(self, row: int, part: Callable[[int], TensorFile]) -> TensorFile:
        """The tensor of a row. ``part`` opens that of a row of the table of all ranks."""
        return part(int(self.parts[row, self.column[row]]))

    @cached_property
    def column(self) -> Rows:
        """By row: the first column that has it."""
        first: Rows = np.argmax(self.parts >= 0, 1)
        return first

    def kind_of(self, row: int) -> Hashable:
        """The same for a leaf of the same call in every layer."""
        values = self.values
        op, path = self.ops[self.record_of(row)], _NUMBER.sub("#", self.path_of(row))
        return op.prefix, op.api, op.direction, path, values.slots[values.slot[row]], values.shapes[values.shape[row]]

    @cached_property
    def of_kind(self) -> dict[Hashable, list[int]]:
        """Rows by :meth:`kind_of`."""
        found: dict[Hashable, list[int]] = defaultdict(list)
        for row in range(len(self.values)):
            found[self.kind_of(row)].append(row)
        return found

    def record_of(self, row: int) -> int:
        return int(self.values.first.searchsorted(row, "right")) - 1

    def path_of(self, row: int) -> str:
        """The module that a leaf's record is, or the one around it."""
        record = self.record_of(row)
        while record >= 0 and not self.ops[record].is_module:
            record = self.parent[record]
        return self.ops[record].path if record >= 0 else ""

    def recorded_by(self, i: int, column: int) -> tuple[RankDump, int]:
        """The dump of a column that has a record, and its op_index there."""
        for row in self.values.rows(i):
            if self.parts[row, column] >= 0:
                rank, at = self.ranks.owner(int(self.parts[row, column]))
                calls = self.ranks.calls[rank]
                return calls.dump, int(calls.values.first.searchsorted(at, "right")) - 1
        return self.recorded(i)


class JoinedTensors:
    """The tensors of a joined side, by the names that its table gives their files: the numbers of its rows."""

    def __init__(self, side: JoinedCalls) -> None:
        self._side = side
        self._folders = [calls.tensors for calls in side.ranks.calls]

    def open(self, name: str, shape: tuple[int, ...] | None = None) -> TensorFile:
        """As :meth:`~numprobe.formats.tensors.TensorFolder.open`."""
        return self._side.tensor_of(int(name), self.part)

    def part(self, part: int) -> TensorFile:
        """The tensor of one rank; ``part`` is a row of the table of all ranks."""
        ranks = self._side.ranks
        table = ranks.table
        return self._folders[ranks.owner(part)[0]].open(table.files[part], table.shapes[table.shape[part]])


def assembled(
    ranks: Ranks,
    records: list[Origin],
    ops: Sequence[OpName],
    parent: list[int],
    rows: Sequence[Sequence[int]],
    parts: Callable[[Rows], Rows],
) -> JoinedCalls:
    """These records in this order. ``rows``: of each, the leaves in the table of all ranks; ``parts(rows)`` gives (rows, columns)
    of the chosen ones."""
    sources = [(ranks.calls[rank], record) for rank, record in records]
    chosen = np.array([row for of_record in rows for row in of_record], np.int64)
    first = np.cumsum([0, *map(len, rows)])
    grad_of = {i: c.values.grad_of[k] for i, (c, k) in enumerate(sources) if k in c.values.grad_of}
    unique = Unique().all(ops, [rank for rank, _ in records])
    values = gathered(ranks.table, chosen, first, unique, grad_of)
    values.files = {row: str(row) for row in values.files}
    dump = sources[0][0].dump if sources else ranks.calls[0].dump
    around, phase = [c.around[k] for c, k in sources], [c.phase[k] for c, k in sources]
    return JoinedCalls(dump, values, parent, around, phase, ranks=ranks, records=records, parts=parts(chosen))


class Unique:
    """Calls of one API on several ranks have the same numbers: those of a later rank are counted on."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str, str, str, int], int] = {}  # rank, what is called, its number there
        self._taken: dict[tuple[str, str, str], set[int]] = {}

    def all(self, ops: Sequence[OpName], ranks: Sequence[int]) -> list[OpName]:
        return [self._one(op, rank) for op, rank in zip(ops, ranks, strict=True)]

    def _one(self, op: OpName, rank: int) -> OpName:
        if op.call < 0 or op.kind == DEBUG:
            return op
        what = (op.prefix, op.path, op.api)
        key = (rank, *what, op.call)
        number = self._numbers.get(key)
        if number is None:
            taken = self._taken.setdefault(what, set())
            number = op.call if op.call not in taken else max(taken) + 1
            taken.add(number)
            self._numbers[key] = number
        return op if number == op.call else named(op, op.path, number)


def named(op: OpName, path: str, call: int) -> OpName:
    """The same record of another module path or call."""
    if op.is_module:
        word = PARAMETERS_GRAD if op.kind == PARAMETERS_GRAD else op.direction
        name = ".".join(p for p in (op.prefix, path, op.api, word, str(call)) if p)
    else:
        name = f"{op.prefix}.{op.api}.{call}.{op.direction}"
    return replace(op, name=name, path=path, call=call)
