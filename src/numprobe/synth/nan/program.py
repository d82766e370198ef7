"""The program of a rank: what its training step executes, in order, as data that the machine runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numprobe.synth.nan.records import Row
from numprobe.synth.nan.rules import Options, Rule

WAIT = "wait"


class Label(NamedTuple):
    """Where in the step an operator stands: phase (forward, recompute, backward, optimizer), micro-batch, layer, role."""

    phase: str
    micro_batch: int
    layer: int
    role: str


@dataclass(frozen=True)
class Comm:
    """A communication: ``api``, the name of the ``group``, and for point-to-point the ``transfers`` (op, peer, register).

    ``handle`` marks an asynchronous one, completed by the :data:`WAIT` with the same handle.
    """

    api: str
    group: str
    transfers: tuple[tuple[str, str, int], ...] = ()
    handle: int = -1
    options: Options = field(default_factory=dict)


@dataclass(slots=True)
class Instr:
    """One step of a program: compute ``rule`` into register ``out``, or communicate, then leave ``row`` if there is one.

    ``free`` are the registers that nothing reads any more.
    """

    rule: Rule | None
    options: Options
    args: tuple[int, ...]
    out: int
    label: Label | None
    row: Row | None
    comm: Comm | None = None
    free: tuple[int, ...] = ()


@dataclass(frozen=True)
class Leaf:
    """A register that a rank starts with: ``make`` gets the machine's rank and returns a tensor or text."""

    reg: int
    make: Callable[[Any], Any]


@dataclass(frozen=True)
class Program:
    """Everything that ranks running the same code share. ``rows`` are the names of the records in file order; ``head`` is
    the text of dump.json up to the first record."""

    instrs: list[Instr]
    leaves: list[Leaf]
    registers: int
    rows: list[str]
    construct: str
    stack: str
    head: str


def free_registers(instrs: list[Instr]) -> None:
    """Fill in ``free``: each register after its last use; an asynchronous call uses its registers until its wait."""
    last: dict[int, int] = {}
    started: dict[int, Instr] = {}
    for at, instr in enumerate(instrs):
        used = _used(instr)
        if instr.comm and instr.comm.handle >= 0:
            if instr.comm.api == WAIT:
                used += _used(started[instr.comm.handle])
            else:
                started[instr.comm.handle] = instr
        for reg in used:
            last[reg] = at
    free: dict[int, list[int]] = {}
    for reg, at in last.items():
        if reg >= 0:
            free.setdefault(at, []).append(reg)
    for at, regs in free.items():
        instrs[at].free = tuple(regs)


def _used(instr: Instr) -> list[int]:
    used = [*instr.args, instr.out]
    if instr.row:
        used += [slot[0] for slot in instr.row.slots]
        used += [*instr.row.inputs, *instr.row.outputs]
    if instr.comm:
        used += [reg for _, _, reg in instr.comm.transfers]
        used += instr.comm.options.get("splits", ())
    return used
