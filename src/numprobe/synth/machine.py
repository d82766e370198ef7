"""Runs all ranks of a simulated job in a real global order and writes their dumps.

A rank executes its program until it must wait for others: collectives complete when all members have posted, a receive
when the sender has sent. What reaches whom is therefore what the communication pattern implies, and the machine notes on
the way who held the fault's dirt before receiving any.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from zlib import crc32

from numprobe.synth import tensor as T
from numprobe.synth.program import GRAD, RAW, WAIT, Comm, Instr, Label, Program, Row, key_of, scalar
from numprobe.synth.settings import Settings, Size
from numprobe.synth.tensor import INFINITE, NAN, Tensor, mix

_FLUSH = 1 << 16  # bytes of text a rank may hold before it is appended to its file

Effect = Callable[[Tensor, "Rank"], Tensor]


@cache
def group_id(ranks: tuple[int, ...]) -> str:
    """8 hex digits: CRC-32 of the printed list of ranks."""
    return f"{crc32(str(list(ranks)).encode()):08x}"


@cache
def _group_text(ranks: tuple[int, ...]) -> str:
    inner = ",\n      ".join(map(str, ranks))
    return f'{{\n     "type": "torch.ProcessGroup",\n     "group_ranks": [\n      {inner}\n     ],\n     "group_id": "{group_id(ranks)}"\n    }}'


@dataclass
class Arrival:
    """How the fault's dirt first reached a rank: the communication it came with, and the ranks that brought it."""

    instance: str
    senders: tuple[int, ...]


@dataclass(slots=True)
class _Instance:
    members: tuple[int, ...]
    sequence: int
    ordinal: int
    inputs: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] | None = None
    senders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    splits: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)


class Rank:
    """One rank: its registers, its position in the program, the text it has recorded, and what it knows of the fault."""

    def __init__(self, machine: Machine, rank: int, program: Program, folder: Path | None) -> None:
        self.rank = rank
        self.size, self.settings, self.seed, self.step = machine.size, machine.settings, machine.seed, machine.step
        self.place = self.size.place(rank)
        self.program = program
        self.folder = folder
        self.leaf_effects = {name: e for (r, name), e in machine.leaf_effects.items() if r == rank}
        self.effects: dict[int, Effect] = {}
        self.pc = 0
        self.posted = False
        self.sequence: dict[tuple[int, ...], int] = {}
        self.ordinals: dict[tuple[str, tuple[int, ...]], int] = {}
        self.open: dict[
            int, tuple[_Instance, Instr, int]
        ] = {}  # handle -> instance, its start, index of the reserved text
        self.texts: list[str] = []
        self.bytes = 0
        self.written = False
        self.reserved = 0
        self.quoted = rank in self.settings.quoted
        self.tainted = False
        self.birth: Label | None = None
        self.born_in: str | None = None
        self.arrival: Arrival | None = None
        self.first_row: Row | None = None
        self.first_row_dirty_input = False
        self.infected: frozenset[int] = frozenset()
        self.registers: list[Tensor | str | None] = [None] * program.registers
        self.leaf_registers = frozenset(leaf.reg for leaf in program.leaves)
        for leaf in program.leaves:
            self.registers[leaf.reg] = leaf.make(self)

    # -- what leaves are made of

    def group(self, kind: str) -> tuple[int, ...]:
        return self.size.group(kind, self.rank)

    def group_text(self, kind: str) -> str:
        return _group_text(self.group(kind))

    def group_id(self, kind: str) -> str:
        return group_id(self.group(kind))

    def peer(self, which: str) -> int:
        stride = self.size.tp * self.size.dp
        return self.rank + stride if which == "next" else self.rank - stride

    def _altered(self, name: str, t: Tensor) -> Tensor:
        effect = self.leaf_effects.get(name)
        return effect(t, self) if effect else t

    def weight(self, name: str, dtype: str, shape: tuple[int, ...], rms: float, shard: str, offset: float) -> Tensor:
        """A parameter: equal on all ranks that hold the same shard, slightly moved from step to step."""
        pp, dp, tp = self.place
        where = tp if shard == "tp" else dp % self.size.ep if shard == "ep" else 0
        key = mix(self.seed, 11, key_of(name), pp, where, self.step)
        t = T.finite(dtype, shape, rms, key, offset)
        return self._altered("weights" if "weights" in self.leaf_effects else name, t)

    def batch(self, name: str, make: Callable[[int], Tensor]) -> Tensor:
        """Input data: equal within a tensor-parallel group, different between data-parallel replicas."""
        return self._altered(name, make(mix(self.seed, 13, key_of(name), self.place[1], self.step)))

    def broadcast_buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """fp32 numbers near 1 on the source of the broadcast; the others hold zeros until they receive it."""
        if self.rank != self.group("dp")[0]:
            return T.constant("fp32", shape, 0.0, 1)
        return self._altered(
            name, T.finite("fp32", shape, 0.01, mix(self.seed, 17, *self.place, self.step), offset=1.0)
        )

    def unwritten_tensor(self, name: str, dtype: str, shape: tuple[int, ...], number: int) -> Tensor:
        return self._altered(name, T.garbage(dtype, shape, mix(self.seed, 19, self.rank, number, self.step)))

    def unwritten(self, dtype: str, shape: tuple[int, ...], number: int, deeper: int) -> str:
        """Text of a receive buffer before it is filled, ``deeper`` levels below an argument."""
        text = self.render(T.garbage(dtype, shape, mix(self.seed, 23, self.rank, number, self.step)), False)
        return text.replace("\n", "\n" + " " * deeper)

    def placeholder(self, dtype: str, shape: tuple[int, ...], number: int) -> str:
        """An output buffer among the inputs: null, or its unwritten content in dumps of old collectors."""
        if self.rank not in self.settings.old_style:
            return "null"
        return self.render(T.garbage(dtype, shape, mix(self.seed, 29, self.rank, number, self.step)), False)

    # -- recording

    def render(self, t: Tensor, requires_grad: bool) -> str:
        text = T.render(t, requires_grad=requires_grad)
        if self.quoted and t.n and (t.kinds or t.norm is None or not math.isfinite(t.norm)):
            text = text.replace(": NaN", ': "nan"').replace(": Infinity", ': "inf"').replace(": -Infinity", ': "-inf"')
        return text

    def fill(self, row: Row) -> str:
        parts = []
        registers = self.registers
        for reg, kind, deeper in row.slots:
            value = registers[reg]
            if kind == RAW:
                text = value
            else:
                text = self.render(value, kind == GRAD)  # type: ignore[arg-type]
            parts.append(text.replace("\n", "\n" + " " * deeper) if deeper else text)  # type: ignore[union-attr]
        return row.skeleton % tuple(parts)

    def record(self, row: Row, at: int = -1) -> None:
        """Append a record, or put it where ``at`` was reserved for it."""
        if self.folder is not None:
            text = self.fill(row)
            self.bytes += len(text)
            if at < 0:
                self.texts.append(text)
            else:
                self.texts[at] = text
        if self.tainted and (self.first_row is None or at >= 0):
            self.judge(row)
        if self.bytes > _FLUSH and not self.reserved:
            self.flush()

    def judge(self, row: Row) -> None:
        """Is this the first record, in file order, that shows the fault?"""
        if self.first_row is not None and self.first_row.index < row.index:
            return
        dirty = [r for r in (*row.inputs, *row.outputs) if getattr(self.registers[r], "taint", False)]
        if dirty:
            self.first_row = row
            self.first_row_dirty_input = any(r in dirty for r in row.inputs if r not in self.leaf_registers)

    def flush(self) -> None:
        if self.folder is None or not self.texts:
            return
        with (self.folder / "dump.json").open("a", encoding="ascii") as f:
            f.write((",\n" if self.written else self.program.head) + ",\n".join(self.texts))
        self.written = True
        self.texts, self.bytes = [], 0

    def close(self) -> None:
        if self.folder is None:
            return
        if not self.written and not self.texts:
            (self.folder / "dump.json").write_text(self.program.head.rstrip("\n") + "}\n}", encoding="ascii")
        else:
            self.flush()
            with (self.folder / "dump.json").open("a", encoding="ascii") as f:
                f.write("\n }\n}")
        (self.folder / "stack.json").write_text(self.program.stack, encoding="ascii")
        (self.folder / "construct.json").write_text(self.program.construct, encoding="ascii")

    def dirty(self, label: Label | None, born_in: str | None) -> None:
        """The first time that the fault's dirt arises on this rank without having been received."""
        self.tainted = True
        self.birth, self.born_in = label, born_in


class Machine:
    """All ranks of one step."""

    def __init__(
        self,
        size: Size,
        settings: Settings,
        seed: int,
        step: int,
        effects: Mapping[tuple[int, Label], Effect],
        leaf_effects: Mapping[tuple[int, str], Effect],
    ) -> None:
        self.size, self.settings, self.seed, self.step = size, settings, seed, step
        self.effects, self.leaf_effects = effects, leaf_effects
        self.instances: dict[tuple[tuple[int, ...], int], _Instance] = {}
        self.mail: dict[tuple[int, int], deque[tuple[Tensor, str]]] = {}
        self.sent: dict[tuple[int, int], int] = {}
        self.waiting_for_mail: dict[tuple[int, int], int] = {}
        self.splits: dict[tuple[tuple[int, ...], int], list[list[int]]] = {}
        self.struck = {key_of(f"{label.micro_batch}.{label.layer}") for _, label in effects}
        self.ready: deque[int] = deque()
        self.ranks: list[Rank] = []
        self.infected: dict[int, set[int]] = {}

    def run(self, program_of: Callable[[int], Program], folder_of: Callable[[int], Path | None]) -> list[Rank]:
        """Execute the step; every rank's files are complete when this returns.

        Raises:
            RuntimeError: the ranks wait for each other, which a correct schedule cannot do.
        """
        places: dict[int, dict[Label, int]] = {}
        for rank in range(self.size.world):
            program = program_of(rank)
            r = Rank(self, rank, program, folder_of(rank))
            mine = {label: e for (who, label), e in self.effects.items() if who == rank}
            if mine:
                if id(program) not in places:
                    places[id(program)] = _places(program)
                table = places[id(program)]
                for label, effect in mine.items():
                    if label.phase != "recompute" or self.settings.recompute:
                        r.effects[table[label]] = effect
            self.ranks.append(r)
        self.ready.extend(range(self.size.world))
        while self.ready:
            self._advance(self.ranks[self.ready.popleft()])
        stuck = [r.rank for r in self.ranks if r.pc < len(r.program.instrs)]
        if stuck:
            raise RuntimeError(f"deadlock: ranks {stuck[:8]} wait at instruction {self.ranks[stuck[0]].pc}")
        for r in self.ranks:
            r.close()
        return self.ranks

    def _advance(self, r: Rank) -> None:
        instrs, registers = r.program.instrs, r.registers
        effects = r.effects
        while r.pc < len(instrs):
            instr = instrs[r.pc]
            if instr.comm is not None:
                if not self._communicate(r, instr):
                    return
            else:
                rule = instr.rule
                if rule is not None:
                    out = rule(instr.options, *[registers[a] for a in instr.args])
                    if r.pc in effects:
                        out = effects[r.pc](out, r)
                    registers[instr.out] = out
                    if out.taint and not r.tainted:
                        r.dirty(instr.label, None)
                elif not r.tainted and any(getattr(registers[a], "taint", False) for a in instr.args):
                    r.dirty(instr.label, None)
                if instr.row is not None:
                    r.record(instr.row)
            for reg in instr.free:
                registers[reg] = None
            r.pc += 1

    # -- communication

    def _communicate(self, r: Rank, instr: Instr) -> bool:
        comm = instr.comm
        assert comm is not None
        if comm.api == WAIT:
            return self._wait(r, comm)
        if comm.transfers:
            return self._transfer(r, instr, comm)
        members = r.group(comm.group)
        if not r.posted:
            instance = self._post(r, comm, members, instr)
            if comm.handle >= 0:
                at = -1
                if instr.row is not None:
                    at = len(r.texts)
                    r.texts.append("")
                    r.reserved += 1
                r.open[comm.handle] = (instance, instr, at)
                return True
        else:
            instance = self.instances[members, r.sequence[members] - 1]
        if instance.outputs is None:
            instance.waiting.append(r.rank)
            return False
        r.posted = False
        self._receive(r, comm, instance, instr)
        if instr.row is not None:
            r.record(instr.row)
        self._finish(r, instance)
        return True

    def _post(self, r: Rank, comm: Comm, members: tuple[int, ...], instr: Instr) -> _Instance:
        sequence = r.sequence.get(members, 0)
        r.sequence[members] = sequence + 1
        ordinal = r.ordinals.get((comm.api, members), 0)
        r.ordinals[comm.api, members] = ordinal + 1
        instance = self.instances.get((members, sequence))
        if instance is None:
            instance = self.instances[members, sequence] = _Instance(members, sequence, ordinal)
        mine = r.registers[instr.args[0]]
        assert isinstance(mine, Tensor)
        instance.inputs[r.rank] = mine
        r.posted = comm.handle < 0
        if len(instance.inputs) == len(members):
            self._complete(comm, instance)
            self.ready.extend(instance.waiting)
        return instance

    def _finish(self, r: Rank, instance: _Instance) -> None:
        assert instance.outputs is not None
        del instance.outputs[r.rank]
        if not instance.outputs:
            del self.instances[instance.members, instance.sequence]

    def _receive(self, r: Rank, comm: Comm, instance: _Instance, instr: Instr) -> None:
        assert instance.outputs is not None
        out = instance.outputs[r.rank]
        effect = r.effects.get(r.pc)
        if effect:
            out = effect(out, r)
        r.registers[instr.out] = out
        splits = comm.options.get("splits")
        if splits:
            received, sent = instance.splits[r.rank]
            r.registers[splits[0]] = _split_text(received)
            r.registers[splits[1]] = _split_text(sent)
        if out.taint and not r.tainted:
            name = f"{comm.api}@{group_id(instance.members)}#{instance.ordinal}"
            senders = instance.senders.get(r.rank, ())
            if senders:
                self._infect(r, name, senders)
            else:
                r.dirty(instr.label, name)

    def _infect(self, r: Rank, instance: str, senders: tuple[int, ...]) -> None:
        r.tainted = True
        r.arrival = Arrival(instance, senders)
        for s in senders:
            self.infected.setdefault(s, set()).add(r.rank)

    def _wait(self, r: Rank, comm: Comm) -> bool:
        instance, start, at = r.open[comm.handle]
        if instance.outputs is None:
            instance.waiting.append(r.rank)
            return False
        del r.open[comm.handle]
        assert start.comm is not None
        self._receive(r, start.comm, instance, start)
        if start.row is not None:
            r.reserved -= 1
            r.record(start.row, at)
        self._finish(r, instance)
        return True

    def _transfer(self, r: Rank, instr: Instr, comm: Comm) -> bool:
        """Point-to-point: sends are buffered, receives wait. A receive's buffer is read after it has arrived."""
        if not r.posted:
            for op, peer, reg in comm.transfers:
                if op.endswith("send"):
                    self._put(r, r.peer(peer), reg)
            r.posted = True
        sources = [(r.peer(peer), reg) for op, peer, reg in comm.transfers if op.endswith("recv")]
        for source, _ in sources:
            if not self.mail.get((source, r.rank)):
                self.waiting_for_mail[source, r.rank] = r.rank
                return False
        r.posted = False
        for source, reg in sources:
            t, name = self.mail[source, r.rank].popleft()
            clean = t
            if r.pc in r.effects:
                t = r.effects[r.pc](t, r)
            r.registers[reg] = t
            if t.taint and not r.tainted:
                if clean.taint:
                    self._infect(r, name, (source,))
                else:
                    r.dirty(instr.label, name)
        if instr.row is not None:
            r.record(instr.row)
        return True

    def _put(self, r: Rank, target: int, reg: int) -> None:
        t = r.registers[reg]
        assert isinstance(t, Tensor)
        pair = (r.rank, target)
        number = self.sent.get(pair, 0)
        self.sent[pair] = number + 1
        self.mail.setdefault(pair, deque()).append((t, f"send@{r.rank}->{target}#{number}"))
        waiter = self.waiting_for_mail.pop(pair, None)
        if waiter is not None:
            self.ready.append(waiter)

    # -- what collectives compute

    def _complete(self, comm: Comm, instance: _Instance) -> None:
        ins = [instance.inputs[m] for m in instance.members]
        members = instance.members
        tainted = tuple(m for m, t in zip(members, ins, strict=True) if t.taint)
        if comm.api == "all_reduce":
            out = _reduced(ins, comm.options["op"])
            outs = [out] * len(ins)
        elif comm.api == "broadcast":
            outs = [ins[0]] * len(ins)
            tainted = tainted[:1] if ins[0].taint else ()
        elif comm.api == "all_gather_into_tensor":
            outs = [_gathered(ins)] * len(ins)
        elif comm.api == "reduce_scatter_tensor":
            outs = _scattered(_reduced(ins, comm.options["op"]), ins)
        else:
            outs = self._exchanged(comm, instance, ins)
            instance.outputs = dict(zip(members, outs, strict=True))
            return
        instance.outputs = dict(zip(members, outs, strict=True))
        for m in members:
            instance.senders[m] = tuple(s for s in tainted if s != m)

    def _exchanged(self, comm: Comm, instance: _Instance, ins: list[Tensor]) -> list[Tensor]:
        """all_to_all: row counts are drawn once for a dispatch and transposed for its way back."""
        members = instance.members
        k = len(members)
        pair = comm.options["pair"]
        forth = comm.options["direction"] == "dispatch"
        counts = self.splits.get((members, pair))
        if counts is None:
            # where a fault strikes every expert gets tokens: NaN in an empty tensor would be no fault
            even = not comm.options["splits"] or bool(self.leaf_effects) or pair in self.struck
            counts = [
                _row_counts(t.shape[0], k, mix(self.seed, 31, pair, m, self.step), even)
                for t, m in zip(ins, members, strict=True)
            ]
            if not even and k > 2:
                _starve(counts, mix(self.seed, 37, pair, members[0], self.step))
            self.splits[members, pair] = counts
        table = counts if forth else [list(c) for c in zip(*counts, strict=True)]
        key = mix(key_of(comm.options["direction"]), *(t.key for t in ins))
        outs = []
        shares = [_shares(t, table[i], key) for i, t in enumerate(ins)]
        width = ins[0].shape[1:]
        for j, m in enumerate(members):
            rows = [table[i][j] for i in range(k)]
            instance.splits[m] = (rows, table[j])
            n_row = math.prod(width)
            square = sum(shares[i][j] for i in range(k))
            n = sum(rows) * n_row
            own = mix(key, j)
            rms = math.sqrt(square / n) if n else 0.0
            out = _sized(ins[0].dtype, (sum(rows), *width), square, rms, own)
            if n:
                _take_extremes(out, ins, j, own, rows)
            kinds, taint, senders = 0, False, []
            for i, t in enumerate(ins):
                if t.dirty and rows[i] and (t.slices is None or j in t.slices):
                    kinds |= t.kinds & (NAN | INFINITE)
                    taint = taint or t.taint
                    if t.taint and members[i] != m:
                        senders.append(members[i])
            instance.senders[m] = tuple(senders)
            outs.append(T.with_kinds(out, kinds, taint=taint) if kinds and n else out)
        return outs


def _split_text(rows: list[int]) -> str:
    return "[\n     " + ",\n     ".join(scalar("int", n).replace("\n", "\n ") for n in rows) + "\n    ]"


def _row_counts(rows: int, parts: int, key: int, even: bool) -> list[int]:
    if even:
        return [rows // parts + (1 if j < rows % parts else 0) for j in range(parts)]
    cuts = sorted(mix(key, j) % (rows + 1) for j in range(parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]


def _starve(counts: list[list[int]], key: int) -> None:
    """In one of eight exchanges one expert gets no token at all: the member next to it takes them."""
    if key & 7:
        return
    k = len(counts)
    j = (key >> 8) % k
    for row in counts:
        row[(j + 1) % k] += row[j]
        row[j] = 0


def _shares(t: Tensor, rows: list[int], key: int) -> list[float]:
    """How the sum of squares of ``t`` splits over the receivers: by rows, within 20 %, adding up exactly."""
    total = sum(rows)
    square = t.rms * t.rms * t.n
    weights = [n * (0.9 + 0.2 * T.uniform(mix(key, t.key, j))) for j, n in enumerate(rows)]
    scale = sum(weights)
    return [square * w / scale if total else 0.0 for w in weights]


def _sized(dtype: str, shape: tuple[int, ...], square: float, rms: float, key: int) -> Tensor:
    t = T.finite(dtype, shape, rms, key)
    if t.n and t.shape:
        (t.norm,) = T.rounded(dtype, math.sqrt(square))
        t.rms = rms
    return t


def _take_extremes(out: Tensor, ins: list[Tensor], j: int, key: int, rows: list[int]) -> None:
    """Each sender's Max and Min lands in exactly one slice; the other receivers see something smaller."""
    high, low = -math.inf, math.inf
    k = len(ins)
    for i, t in enumerate(ins):
        if not rows[i] or t.max is None or t.min is None or not (math.isfinite(t.max) and math.isfinite(t.min)):
            continue
        here = mix(t.key, 41) % k == j
        high = max(high, t.max if here else t.max * (0.8 + 0.19 * T.uniform(key, 0)))
        low = min(low, t.min if mix(t.key, 43) % k == j else t.min * (0.8 + 0.19 * T.uniform(key, 1)))
    if high > low:
        out.max, out.min = T.rounded(out.dtype, high, low)
        if out.norm is not None:
            out.norm = max(out.norm, abs(out.max), abs(out.min))


def _reduced(ins: list[Tensor], op: str) -> Tensor:
    """all_reduce: SUM adds squares of independent inputs; MAX takes the largest. NaN reaches every member."""
    key = mix(key_of(op), *(t.key for t in ins))
    kinds = 0
    for t in ins:
        kinds |= t.kinds & (NAN | INFINITE)
    taint = any(t.taint for t in ins)
    first = ins[0]
    if first.n == 0:
        return first
    if not first.shape:
        values = [t.max for t in ins if t.max is not None and math.isfinite(t.max)]
        out = T.constant(first.dtype, (), max(values, default=0.0) if op == "MAX" else math.fsum(values), key)
    else:
        out = T.finite(first.dtype, first.shape, math.sqrt(sum(t.rms * t.rms for t in ins)), key)
    if kinds & INFINITE == INFINITE and op == "SUM":
        kinds |= NAN if not first.shape else 0
    if not kinds:
        return out
    slices: frozenset[int] | None = frozenset()
    for t in ins:
        if t.dirty:
            slices = None if t.slices is None or slices is None else slices | t.slices
    return T.with_kinds(out, kinds, taint=taint, slices=slices or None)


def _gathered(ins: list[Tensor]) -> Tensor:
    """all_gather: all inputs one after another."""
    key = mix(47, *(t.key for t in ins))
    n = sum(t.n for t in ins)
    square = sum(t.rms * t.rms * t.n for t in ins)
    shape = (sum(t.shape[0] for t in ins), *ins[0].shape[1:])
    out = _sized(ins[0].dtype, shape, square, math.sqrt(square / n) if n else 0.0, key)
    clean = [t for t in ins if not t.dirty and t.max is not None and t.min is not None]
    if clean and out.n:
        out.max = max(t.max for t in clean if t.max is not None)
        out.min = min(t.min for t in clean if t.min is not None)
    kinds = 0
    for t in ins:
        kinds |= t.kinds & (NAN | INFINITE)
    return T.with_kinds(out, kinds, taint=any(t.taint for t in ins)) if kinds else out


def _scattered(whole: Tensor, ins: list[Tensor]) -> list[Tensor]:
    """reduce_scatter: member j gets slice j of the sum, dirty only if that slice of an input was."""
    k = len(ins)
    n = whole.n // k
    outs = []
    weights = [0.9 + 0.2 * T.uniform(mix(whole.key, j)) for j in range(k)]
    square = whole.rms * whole.rms * whole.n
    for j in range(k):
        part = square * weights[j] / sum(weights)
        out = _sized(whole.dtype, (n,), part, math.sqrt(part / n), mix(whole.key, 53, j))
        if whole.dirty and (whole.slices is None or j in whole.slices):
            out = T.with_kinds(out, whole.kinds, taint=whole.taint)
        outs.append(out)
    return outs


def _places(program: Program) -> dict[Label, int]:
    """Where each label stands; of several operators with one label (a loop over parameters) the first."""
    table: dict[Label, int] = {}
    for at, instr in enumerate(program.instrs):
        if instr.label is not None:
            table.setdefault(instr.label, at)
    return table


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="ascii")
