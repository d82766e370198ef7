"""One simulated rank: what it starts with, how its records are written, and how the fault reached it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

from numprobe.synth.nan import tensor as T
from numprobe.synth.nan.builder import key_of
from numprobe.synth.nan.program import Label, Program
from numprobe.synth.nan.records import GRAD, RAW, Row, deeper
from numprobe.synth.nan.settings import Settings, Size
from numprobe.synth.nan.tensor import Tensor, mix

_FLUSH = 1 << 16  # characters a rank may hold before they are appended to its file

Effect: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Job:
    """What all ranks of a step share."""

    size: Size
    settings: Settings
    seed: int
    step: int
    shared: dict[tuple[object, ...], Tensor] = field(default_factory=dict)  # parameters and batches of replicas


@dataclass(frozen=True)
class Arrival:
    """How the fault's dirt first reached a rank: the communication that it came with, and the ranks that sent it."""

    instance: str
    senders: tuple[int, ...]


@cache
def group_id(ranks: tuple[int, ...]) -> str:
    """8 hex digits: CRC-32 of the printed list of ranks."""
    return f"{crc32(str(list(ranks)).encode()):08x}"


@cache
def _group_text(ranks: tuple[int, ...]) -> str:
    inner = ",\n      ".join(map(str, ranks))
    return (
        f'{{\n     "type": "torch.ProcessGroup",\n     "group_ranks": [\n      {inner}\n     ],'
        f'\n     "group_id": "{group_id(ranks)}"\n    }}'
    )


class Rank:
    """A rank with its registers, its position in the program, its text, and what the simulator knows of the fault there.

    ``birth``: the operator where the fault's dirt first arose without having been received. ``arrival``: how it came, if it
    was received first. ``first_row``: the first record in file order that shows it; ``first_row_dirty_input`` if an input
    that some earlier operator made was dirty already. ``folder`` None: nothing is written.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        program: Program,
        folder: Path | None,
        effects: Mapping[int, Effect],
        leaf_effects: Mapping[str, Effect],
    ) -> None:
        self.job, self.rank, self.program, self.folder = job, rank, program, folder
        self.effects, self._leaf_effects = effects, leaf_effects
        self.place = job.size.place(rank)
        self._groups = {kind: job.size.group(kind, rank) for kind in ("tp", "ep", "dp", "pp")}
        self._quoted = rank in job.settings.quoted
        self._placeholders = rank in job.settings.old_style
        self.pc = 0
        self.posted = False
        self.tainted = False
        self.birth: Label | None = None
        self.born_in: str | None = None
        self.arrival: Arrival | None = None
        self.infected: set[int] = set()
        self.first_row: Row | None = None
        self.first_row_dirty_input = False
        self._texts: list[str] = []
        self._size = 0
        self._reserved = 0
        self._written = False
        self.registers: list[Tensor | str | None] = [None] * program.registers
        self._leaves = frozenset(leaf.reg for leaf in program.leaves)
        for leaf in program.leaves:
            self.registers[leaf.reg] = leaf.make(self)

    # -- what leaves are made of

    def group(self, kind: str) -> tuple[int, ...]:
        return self._groups[kind] if kind in self._groups else self.job.size.group(kind, self.rank)

    def group_text(self, kind: str) -> str:
        return _group_text(self._groups[kind])

    def group_id(self, kind: str) -> str:
        return group_id(self._groups[kind])

    def peer(self, which: str) -> int:
        """The rank at this place in the ``next`` or ``prev`` pipeline stage."""
        stride = self.job.size.tp * self.job.size.dp
        return self.rank + stride if which == "next" else self.rank - stride

    def _altered(self, name: str, t: Tensor) -> Tensor:
        effect = self._leaf_effects.get(name)
        return effect(t) if effect else t

    def _key(self, *parts: int) -> int:
        return mix(self.job.seed, self.job.step, *parts)

    def weight(self, name: str, dtype: str, shape: tuple[int, ...], rms: float, shard: str, offset: float) -> Tensor:
        """A parameter: equal on all ranks that hold the same shard."""
        pp, dp, tp = self.place
        where = tp if shard == "tp" else dp % self.job.size.ep if shard == "ep" else 0
        t = self.job.shared.get((name, pp, where))
        if t is None:
            t = T.finite(dtype, shape, rms, self._key(11, key_of(name), pp, where), offset)
            self.job.shared[name, pp, where] = t
        return self._altered("weights" if "weights" in self._leaf_effects else name, t)

    def batch(self, name: str, make: Callable[[int], Tensor]) -> Tensor:
        """Input data: equal within a tensor-parallel group, different between data-parallel replicas."""
        replica = self.place[1]
        t = self.job.shared.get((name, replica))
        if t is None:
            t = self.job.shared[name, replica] = make(self._key(13, key_of(name), replica))
        return self._altered(name, t)

    def broadcast_buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Numbers near 1 on the source of the broadcast; the others hold zeros until they receive it."""
        if self.rank != self.group("dp")[0]:
            return T.constant("fp32", shape, 0.0, 1)
        return self._altered(name, T.finite("fp32", shape, 0.01, self._key(17, *self.place), offset=1.0))

    def unwritten_tensor(self, name: str, dtype: str, shape: tuple[int, ...], number: int) -> Tensor:
        return self._altered(name, T.garbage(dtype, shape, self._key(19, self.rank, number)))

    def unwritten_text(self, dtype: str, shape: tuple[int, ...], number: int) -> str:
        """A receive buffer before it is filled, as text."""
        return self.render(T.garbage(dtype, shape, self._key(23, self.rank, number)), requires_grad=False)

    def placeholder(self, dtype: str, shape: tuple[int, ...], number: int) -> str:
        """An output buffer among the inputs: null, or what its memory holds in dumps of old collectors."""
        return self.unwritten_text(dtype, shape, number) if self._placeholders else "null"

    # -- records

    def render(self, t: Tensor, *, requires_grad: bool) -> str:
        text = T.render(t, requires_grad=requires_grad)
        if self._quoted and t.norm is not None and not math.isfinite(t.norm):
            text = text.replace(": NaN", ': "nan"').replace(": Infinity", ': "inf"').replace(": -Infinity", ': "-inf"')
        return text

    def _fill(self, row: Row) -> str:
        parts = []
        for reg, kind, levels in row.slots:
            value = self.registers[reg]
            if kind == RAW:
                assert isinstance(value, str)
                parts.append(deeper(value, levels))
            else:
                assert isinstance(value, Tensor)
                parts.append(deeper(self.render(value, requires_grad=kind == GRAD), levels))
        return row.skeleton % tuple(parts)

    def reserve(self, row: Row | None) -> int:
        """Keep the place of a record whose output is known only later; returns it for :meth:`record`."""
        if row is None:
            return -1
        self._texts.append("")
        self._reserved += 1
        return len(self._texts) - 1

    def record(self, row: Row, at: int = -1) -> None:
        """Append a record, or put it where its place was kept."""
        if self.folder is not None:
            text = self._fill(row)
            self._size += len(text)
            if at < 0:
                self._texts.append(text)
            else:
                self._texts[at] = text
        if at >= 0:
            self._reserved -= 1
        if self.tainted and (self.first_row is None or self.first_row.index > row.index):
            self._judge(row)
        if self._size > _FLUSH and not self._reserved:
            self._flush()

    def _judge(self, row: Row) -> None:
        dirty = [r for r in (*row.inputs, *row.outputs) if getattr(self.registers[r], "taint", False)]
        if dirty:
            self.first_row = row
            self.first_row_dirty_input = any(r in dirty for r in row.inputs if r not in self._leaves)

    def _flush(self) -> None:
        if self.folder is not None and self._texts:
            with (self.folder / "dump.json").open("a", encoding="ascii") as f:
                f.write((",\n" if self._written else self.program.head) + ",\n".join(self._texts))
            self._written = True
            self._size = 0
        self._texts = []

    def close(self) -> None:
        """Complete the rank's three files."""
        if self.folder is None:
            return
        self._flush()
        with (self.folder / "dump.json").open("a", encoding="ascii") as f:
            f.write("\n }\n}" if self._written else self.program.head.rstrip() + "}\n}")
        (self.folder / "stack.json").write_text(self.program.stack, encoding="ascii")
        (self.folder / "construct.json").write_text(self.program.construct, encoding="ascii")

    # -- the fault

    def born(self, label: Label | None, instance: str | None = None) -> None:
        """The fault's dirt arises here without having been received; in a communication that itself is at fault, if any."""
        self.tainted, self.birth, self.born_in = True, label, instance

    def reached(self, instance: str, senders: tuple[int, ...]) -> None:
        """The fault's dirt is received for the first time."""
        self.tainted, self.arrival = True, Arrival(instance, senders)
