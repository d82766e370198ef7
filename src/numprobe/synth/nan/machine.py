"""Runs all ranks of a simulated job in a real global order.

A rank executes its program until it must wait for others: collectives complete when all members have posted, a receive
when the sender has sent. What reaches whom is therefore what the communication pattern implies, and the machine notes on
the way who held the fault's dirt before receiving any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from numprobe.synth.nan.builder import key_of
from numprobe.synth.nan.collectives import Delivery, Exchange, delivered, even_counts, exchanged, starve
from numprobe.synth.nan.program import WAIT, Comm, Instr, Label, Program
from numprobe.synth.nan.rank import Effect, Job, Rank, group_id
from numprobe.synth.nan.records import deeper, scalar
from numprobe.synth.nan.rules import Options, Rule, row_counts
from numprobe.synth.nan.tensor import Tensor, mix

_Members = tuple[int, ...]
_REMEMBERED = 40_000  # results kept for other replicas, which come soon or never


@dataclass(slots=True)
class _Instance:
    """A collective in progress. ``ordinal`` counts calls of this API in this group, ``sequence`` all calls in it."""

    members: _Members
    sequence: int
    ordinal: int
    inputs: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Delivery] | None = None
    rows: list[list[int]] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)


class Machine:
    """All ranks of one step. ``effects`` change what operators compute, ``leaf_effects`` what ranks start with."""

    def __init__(
        self, job: Job, effects: Mapping[tuple[int, Label], Effect], leaf_effects: Mapping[tuple[int, str], Effect]
    ) -> None:
        self.job = job
        self._effects, self._leaf_effects = effects, leaf_effects
        # where a fault strikes every expert gets tokens: NaN in an empty tensor would be no fault
        self._fed = {key_of(f"{label.micro_batch}.{label.layer}") for _, label in effects}
        self._ranks: list[Rank] = []
        self._ready: deque[int] = deque()
        self._instances: dict[tuple[_Members, int], _Instance] = {}
        self._sequence: dict[tuple[int, _Members], int] = {}
        self._ordinals: dict[tuple[int, str, _Members], int] = {}
        self._open: dict[tuple[int, int], tuple[_Instance, Instr, int]] = {}
        self._mail: dict[tuple[int, int], deque[tuple[Tensor, str]]] = {}
        self._sent: dict[tuple[int, int], int] = {}
        self._awaited: set[tuple[int, int]] = set()
        self._computed: dict[tuple[int, ...], tuple[object, Tensor]] = {}
        self._exchanged: dict[tuple[int, ...], tuple[object, Exchange]] = {}
        self._rows: dict[tuple[_Members, int], list[list[int]]] = {}

    def run(self, program_of: Callable[[int], Program], folder_of: Callable[[int], Path | None]) -> list[Rank]:
        """Execute the step; every rank's files are complete when this returns.

        Raises:
            KeyError: an effect names an operator that the rank's program does not have.
            RuntimeError: the ranks wait for each other, which a correct schedule cannot do.
        """
        places: dict[int, dict[Label, int]] = {}
        for rank in range(self.job.size.world):
            program = program_of(rank)
            mine = {label: e for (who, label), e in self._effects.items() if who == rank}
            if mine and id(program) not in places:
                places[id(program)] = _places(program)
            effects = {places[id(program)][label]: e for label, e in mine.items()}
            leaf_effects = {name: e for (who, name), e in self._leaf_effects.items() if who == rank}
            self._ranks.append(Rank(self.job, rank, program, folder_of(rank), effects, leaf_effects))
        self._ready.extend(range(self.job.size.world))
        while self._ready:
            self._advance(self._ranks[self._ready.popleft()])
        stuck = [r for r in self._ranks if r.pc < len(r.program.instrs)]
        if stuck:
            raise RuntimeError(f"deadlock: {len(stuck)} ranks wait, rank {stuck[0].rank} at instruction {stuck[0].pc}")
        for r in self._ranks:
            r.close()
        return self._ranks

    def _advance(self, r: Rank) -> None:
        """Run a rank until it has to wait or is done."""
        instrs, registers, effects = r.program.instrs, r.registers, r.effects
        while r.pc < len(instrs):
            instr = instrs[r.pc]
            if instr.comm is not None:
                if not self._communicate(r, instr, instr.comm):
                    return
            else:
                if instr.rule is not None:
                    out = self._compute(instr.rule, instr.options, tuple(registers[a] for a in instr.args))
                    if r.pc in effects:
                        out = effects[r.pc](out)
                    registers[instr.out] = out
                    if out.taint and not r.tainted:
                        r.born(instr.label)
                if instr.row is not None:
                    r.record(instr.row)
            for reg in instr.free:
                registers[reg] = None
            r.pc += 1

    def _compute(self, rule: Rule, options: Options, args: tuple[Tensor | str | None, ...]) -> Tensor:
        """Apply a rule, once for all replicas that apply the same operator to the very same tensors."""
        key = (options["op"], *map(id, args))
        known = self._computed.get(key)
        if known is not None:
            return known[1]
        out = rule(options, *args)
        if len(self._computed) > _REMEMBERED:
            self._computed.clear()
        self._computed[key] = (args, out)  # the arguments are kept, so that their ids stay theirs
        return out

    # -- communication: each of these returns False if the rank has to wait, and is called again then

    def _communicate(self, r: Rank, instr: Instr, comm: Comm) -> bool:
        if comm.api == WAIT:
            return self._wait(r, comm)
        if comm.transfers:
            return self._transfer(r, instr, comm)
        members = r.group(comm.group)
        if not r.posted:
            instance = self._post(r, comm, members, instr)
            if comm.handle >= 0:
                self._open[r.rank, comm.handle] = (instance, instr, r.reserve(instr.row))
                return True
            r.posted = True
        else:
            instance = self._instances[members, self._sequence[r.rank, members] - 1]
        if instance.outputs is None:
            instance.waiting.append(r.rank)
            return False
        r.posted = False
        self._take(r, comm, instance, instr)
        if instr.row is not None:
            r.record(instr.row)
        return True

    def _post(self, r: Rank, comm: Comm, members: _Members, instr: Instr) -> _Instance:
        sequence = self._sequence.get((r.rank, members), 0)
        self._sequence[r.rank, members] = sequence + 1
        ordinal = self._ordinals.get((r.rank, comm.api, members), 0)
        self._ordinals[r.rank, comm.api, members] = ordinal + 1
        instance = self._instances.setdefault((members, sequence), _Instance(members, sequence, ordinal))
        mine = r.registers[instr.args[0]]
        assert isinstance(mine, Tensor)
        instance.inputs[r.rank] = mine
        if len(instance.inputs) == len(members):
            self._complete(comm, instance)
            self._ready.extend(instance.waiting)
        return instance

    def _complete(self, comm: Comm, instance: _Instance) -> None:
        ins = [instance.inputs[m] for m in instance.members]
        if comm.api == "all_to_all_single":
            exchange = self._exchange(comm, instance, ins)
            deliveries, instance.rows = exchange.deliveries, exchange.rows
        else:
            deliveries = delivered(comm.api, ins, comm.options)
        instance.outputs = dict(zip(instance.members, deliveries, strict=True))

    def _exchange(self, comm: Comm, instance: _Instance, ins: list[Tensor]) -> Exchange:
        rows = self._row_table(comm, instance, ins)
        key = (comm.options["pair"], comm.options["dispatch"], *map(id, ins))
        known = self._exchanged.get(key)
        if known is None:
            if len(self._exchanged) > _REMEMBERED // len(ins):
                self._exchanged.clear()
            known = self._exchanged[key] = (ins, exchanged(ins, rows, 3 + comm.options["dispatch"]))
        return known[1]

    def _row_table(self, comm: Comm, instance: _Instance, ins: list[Tensor]) -> list[list[int]]:
        """How many tokens go from member to member: drawn once for a layer and micro-batch, transposed on the way back."""
        members, pair = instance.members, comm.options["pair"]
        table = self._rows.get((members, pair))
        if table is None:
            fed = pair in self._fed or bool(self._leaf_effects)
            key = mix(self.job.seed, self.job.step, 31, pair)
            k = len(members)
            if comm.options["splits"]:
                places = [self.job.size.place(m)[:2] for m in members]  # tensor-parallel replicas route alike
                table = [
                    row_counts(t.shape[0], k, mix(key, *p), some_for_all=fed) for t, p in zip(ins, places, strict=True)
                ]
                if not fed and k > 2:
                    starve(table, mix(key, 37, *places[0]))
            else:
                table = [even_counts(t.shape[0], k) for t in ins]
            self._rows[members, pair] = table
        return table if comm.options["dispatch"] else [list(column) for column in zip(*table, strict=True)]

    def _take(self, r: Rank, comm: Comm, instance: _Instance, instr: Instr) -> None:
        """Hand a rank its part of a completed collective."""
        assert instance.outputs is not None
        out, positions = instance.outputs.pop(r.rank)
        if r.pc in r.effects:
            out = r.effects[r.pc](out)
        r.registers[instr.out] = out
        if instance.rows and comm.options["splits"]:
            me = instance.members.index(r.rank)
            received, sent = comm.options["splits"]
            r.registers[received] = _split_text([row[me] for row in instance.rows])
            r.registers[sent] = _split_text(instance.rows[me])
        if out.taint and not r.tainted:
            name = f"{comm.api}@{group_id(instance.members)}#{instance.ordinal}"
            own = instance.inputs[r.rank].taint  # only a leaf can be dirty on a rank that is not tainted yet
            senders = () if own else tuple(instance.members[i] for i in positions)
            self._receive(r, None if own else name, senders, instr)
        if not instance.outputs:
            del self._instances[instance.members, instance.sequence]

    def _receive(self, r: Rank, name: str | None, senders: tuple[int, ...], instr: Instr) -> None:
        if senders and name:
            r.reached(name, senders)
            for s in senders:
                self._ranks[s].infected.add(r.rank)
        else:
            r.born(instr.label, name)

    def _wait(self, r: Rank, comm: Comm) -> bool:
        instance, start, at = self._open[r.rank, comm.handle]
        if instance.outputs is None:
            instance.waiting.append(r.rank)
            return False
        del self._open[r.rank, comm.handle]
        assert start.comm is not None
        self._take(r, start.comm, instance, start)
        if start.row is not None:
            r.record(start.row, at)
        return True

    def _transfer(self, r: Rank, instr: Instr, comm: Comm) -> bool:
        """Point-to-point: sends are buffered, receives wait."""
        if not r.posted:
            for op, peer, reg in comm.transfers:
                if op.endswith("send"):
                    self._send(r, r.peer(peer), reg)
            r.posted = True
        receives = [(r.peer(peer), reg) for op, peer, reg in comm.transfers if op.endswith("recv")]
        for source, _ in receives:
            if not self._mail.get((source, r.rank)):
                self._awaited.add((source, r.rank))
                return False
        r.posted = False
        for source, reg in receives:
            sent, name = self._mail[source, r.rank].popleft()
            got = r.effects[r.pc](sent) if r.pc in r.effects else sent
            r.registers[reg] = got
            if got.taint and not r.tainted:
                self._receive(r, name, (source,) if sent.taint else (), instr)
        if instr.row is not None:
            r.record(instr.row)
        return True

    def _send(self, r: Rank, target: int, reg: int) -> None:
        t = r.registers[reg]
        assert isinstance(t, Tensor)
        pair = (r.rank, target)
        number = self._sent.get(pair, 0)
        self._sent[pair] = number + 1
        self._mail.setdefault(pair, deque()).append((t, f"send@{r.rank}->{target}#{number}"))
        if pair in self._awaited:
            self._awaited.discard(pair)
            self._ready.append(target)


def _places(program: Program) -> dict[Label, int]:
    """Where each label stands; of several operators with one label (a loop over parameters) the first."""
    table: dict[Label, int] = {}
    for at, instr in enumerate(program.instrs):
        if instr.label is not None:
            table.setdefault(instr.label, at)
    return table


def _split_text(rows: list[int]) -> str:
    return "[\n     " + ",\n     ".join(deeper(scalar("int", n), 1) for n in rows) + "\n    ]"
