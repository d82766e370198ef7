"""The form that two runs can both be brought to: which norms stay inside of a linear, how fine experts are, which calls are one.

A framework that fuses two operators has no tensor between them; one that computes all experts in one call has none of a single
expert; an engine that takes a prompt in chunks has several calls where training has one. The other side follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.roles.rules import Role, Rules, roles_of
from numprobe.record.names import FORWARD
from numprobe.record.trace import INPUT, PARAMETER

NORM_BEFORE = {"qkv": "attn_norm", "q": "attn_norm", "gate_up": "mlp_norm", "q_b": "q_a_norm", "kv_b": "kv_a_norm"}
EXPERTS = "experts"


@dataclass(frozen=True)
class Module:
    """A forward record of a module with its role."""

    record: int
    role: Role
    call: int


@dataclass(frozen=True)
class Form:
    """``fused`` are places (tower, layer, part, role) of linears whose norm is inside of them, ``together`` says that experts are
    compared all at once."""

    fused: frozenset[Hashable] = frozenset()
    together: bool = False


@dataclass(frozen=True)
class Numbering:
    """Call of the dump -> call that it is compared as. Several may become one; those that are not there are left out."""

    calls: dict[int, int] = field(default_factory=dict)
    left_out: int = 0


def modules_of(
    calls: Calls, rules: Rules | None = None, given: Mapping[str, Role | None] = MappingProxyType({})
) -> list[Module]:
    """The roles of all forward records of modules, in execution order, each with the number of the call of its path.

    ``given`` has, by path, roles that a user knows better (None: no place at all).

    Classes that hand on what they get (Megatron's ``IdentityOp`` in the place of a fused norm) are left out.
    """
    records = [
        i
        for i, op in enumerate(calls.ops)
        if op.kind == "module" and calls.phase[i] == FORWARD and "identity" not in op.api.lower()
    ]
    paths = [calls.ops[i].path for i in records]
    seen: dict[str, int] = defaultdict(int)
    found = []
    for i, path, role in zip(records, paths, roles_of(paths, rules), strict=True):
        if path in given:
            role = given[path] or replace(role, name=path, known=False)
        found.append(Module(i, role, seen[path]))
        seen[path] += 1
    return found


def has_norm_inside(calls: Calls, record: int) -> bool:
    """Is it a linear with a norm in front, as ``TELayerNormColumnParallelLinear``?"""
    name = calls.ops[record].api.lower()
    return "linear" in name and ("layernorm" in name or "rmsnorm" in name)


def common_form(sides: Iterable[tuple[Calls, Sequence[Module]]]) -> Form:
    """The finest form that all of them have."""
    fused = set()
    apart = []
    for calls, modules in sides:
        experts = False
        mixture = False
        for m in modules:
            if m.role.name in NORM_BEFORE and has_norm_inside(calls, m.record):
                fused.add((m.role.tower, m.role.layer, m.role.part, m.role.name))
            experts |= m.role.part.startswith(f"{EXPERTS}.")
            mixture |= m.role.name == "router"
        if mixture:
            apart.append(experts and not _some_of_the_experts(calls, modules))
    return Form(frozenset(fused), not all(apart))


def _some_of_the_experts(calls: Calls, modules: Sequence[Module]) -> bool:
    """Has this rank fewer experts than its router chooses from? Their numbers are its own then."""
    here: dict[int | None, set[str]] = defaultdict(set)
    for m in modules:
        if m.role.part.startswith(f"{EXPERTS}."):
            here[m.role.layer].add(m.role.part)
    return max(map(len, here.values()), default=0) < expert_count(calls, modules)


def expert_count(calls: Calls, modules: Sequence[Module]) -> int:
    """How many experts a layer has: rows of the weight of its router; 0: that is not recorded."""
    values = calls.values
    for m in modules:
        for row in values.rows(m.record) if m.role.name == "router" else ():
            shape = values.shapes[values.shape[row]]
            if values.slots[values.slot[row]] == (PARAMETER, "parameters.weight") and shape and len(shape) == 2:
                return int(shape[0])
    return 0


def common_calls(one: Sequence[int], other: Sequence[int]) -> tuple[Numbering, Numbering]:
    """Which calls of two runs are the same tokens, by how many tokens each took.

    Calls of equal size are paired in order (a warm-up call of another size is left out). Where there are none, a run of calls
    that together have as many tokens as a call of the other side is one call (chunked prefill, one request a call).
    """
    pairs = calls_in_order(one, other)
    if not pairs:
        for swapped, (single, several) in enumerate(((one, other), (other, one))):
            found = _adding_up(single, several)
            if found:
                call, run = found
                numberings = (
                    Numbering({call: 0}, len(single) - 1),
                    Numbering(dict.fromkeys(run, 0), len(several) - len(run)),
                )
                return numberings if not swapped else (numberings[1], numberings[0])
        pairs = list(zip(range(max(len(one), 1)), range(max(len(other), 1)), strict=False))
    return (
        Numbering({a: n for n, (a, _) in enumerate(pairs)}, max(len(one) - len(pairs), 0)),
        Numbering({b: n for n, (_, b) in enumerate(pairs)}, max(len(other) - len(pairs), 0)),
    )


def sizes_of_calls(
    one: tuple[Calls, Sequence[Module]], other: tuple[Calls, Sequence[Module]]
) -> tuple[list[int], list[int]]:
    """Elements that every call got, of a module that both have: the embedding, else the first that is not inside of another
    stack of layers."""
    found = [_calls_of_places(*side) for side in (one, other)]
    common = [role for role in found[0] if role in found[1] and not role.tower]
    first = min(common, key=lambda role: role.name != "embed", default=None)
    return (found[0][first], found[1][first]) if first is not None else ([], [])


def _calls_of_places(calls: Calls, modules: Sequence[Module]) -> dict[Role, list[int]]:
    """By role, the elements of the first tensor that every call got. Of modules that get keywords only there is none."""
    values = calls.values
    found: dict[Role, list[int]] = defaultdict(list)
    slot = next((n for n, s in enumerate(values.slots) if s == (INPUT, "input_args.0")), -1)
    tensor = np.array([bool(short) for _, _, short in values.kinds], bool)
    rows = np.flatnonzero((values.slot == slot) & tensor[values.kind]) if len(values) else np.zeros(0, np.int64)
    sizes = dict(zip(values.op_of()[rows][::-1].tolist(), values.numel[rows][::-1].tolist(), strict=True))
    for m in modules:
        if m.role.known and m.record in sizes:
            found[m.role].append(sizes[m.record])
    return found


def calls_in_order(one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    """The longest common subsequence, as pairs of positions; the latest of those, since warm-up calls come first."""
    length = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            length[i + 1][j + 1] = length[i][j] + 1 if a == b else max(length[i][j + 1], length[i + 1][j])
    pairs = []
    i, j = len(one), len(other)
    while i and j:
        if one[i - 1] == other[j - 1]:
            pairs.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        elif length[i - 1][j] >= length[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def _adding_up(single: Sequence[int], several: Sequence[int]) -> tuple[int, range] | None:
    """A call, and a run of calls of the other side that has as many tokens."""
    for call, wanted in enumerate(single):
        total = end = 0
        for begin, first in enumerate(several):
            while end < len(several) and total < wanted:
                total, end = total + several[end], end + 1
            if total == wanted and end - begin > 1:
                return call, range(begin, end)
            total -= first
    return None
