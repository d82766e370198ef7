"""The pipeline stages of one column of ranks behind each other, as a run without stages would have recorded them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from numprobe.align.calls import Calls
from numprobe.align.shards.joined import JoinedCalls, Origin, Ranks, assembled, named
from numprobe.record.names import BACKWARD, OpName
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER, PARAMETER_GRAD


@dataclass(frozen=True)
class Stage:
    """One rank of a column. ``offsets``: what has to be added to the numbers behind a module path (``decoder.layers``,
    ``decoder.layers.#.mlp.experts``) to get those of the whole model."""

    rank: int
    offsets: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class _Entry:
    """A record: where it was recorded, its name in the whole model, its rows, and records of other stages that are the same."""

    origin: Origin
    op: OpName
    rows: Sequence[int]
    same: tuple[Origin, ...] = ()


def join_stages(ranks: Ranks, stages: Sequence[Stage]) -> JoinedCalls:
    """The calls of one column, its stages in order."""
    found = [
        (key, _Entry((s.rank, i), op, _rows(ranks, s.rank, i)))
        for n, s in enumerate(stages)
        for (key, i), op in zip(_order(ranks.calls[s.rank], n), _ops(ranks.calls[s.rank], s), strict=True)
    ]
    if len(stages) > 1:
        found = sorted(_containers_once(ranks, found), key=lambda f: f[0])
    entries = [entry for _, entry in found]
    place = {origin: i for i, e in enumerate(entries) for origin in (e.origin, *e.same)}
    return assembled(
        ranks,
        [e.origin for e in entries],
        [e.op for e in entries],
        [place.get((rank, ranks.calls[rank].parent[record]), -1) for rank, record in (e.origin for e in entries)],
        [e.rows for e in entries],
        lambda rows: rows[:, None],
    )


_Key = tuple[int, bool, int, int]


def _rows(ranks: Ranks, rank: int, record: int) -> range:
    first, base = ranks.calls[rank].values.first, int(ranks.base[rank])
    return range(int(first[record]) + base, int(first[record + 1]) + base)


def _ops(calls: Calls, stage: Stage) -> list[OpName]:
    offsets = dict(stage.offsets)
    if not offsets:
        return calls.ops
    return [named(op, renumbered(op.path, offsets), op.call) if op.path else op for op in calls.ops]


def renumbered(path: str, offsets: Mapping[str, int]) -> str:
    """A module path with the numbers of the whole model.

    >>> renumbered("decoder.layers.1.mlp", {"decoder.layers": 2})
    'decoder.layers.3.mlp'
    """
    parts, pattern = [], ""
    for part in path.split("."):
        number = part.isdecimal()
        parts.append(str(int(part) + offsets.get(pattern, 0)) if number else part)
        pattern = ".".join(p for p in (pattern, "#" if number else part) if p)
    return ".".join(parts)


def _order(calls: Calls, stage: int) -> list[tuple[_Key, int]]:
    """Where each record belongs: micro-batches one after the other, forward from the first stage to the last, backward from the
    last to the first. Calls outside of modules belong to the module that follows, in backward to the one before."""
    micro: list[int] = []
    for i, parent in enumerate(calls.parent):
        while parent >= 0:
            i, parent = parent, calls.parent[parent]
        micro.append(calls.ops[i].call if calls.ops[i].is_module else -1)
    back = _of_backward(calls, micro)
    for way, indices in ((False, range(len(micro) - 1, -1, -1)), (True, range(len(micro)))):
        near = -1
        for i in indices:
            if back[i] == way:
                near = micro[i] = micro[i] if micro[i] >= 0 else near
    last = max(micro, default=0)
    return [
        ((last if calls.around[i] or m < 0 else m, back[i], -stage if back[i] else stage, i), i)
        for i, m in enumerate(micro)
    ]


def _of_backward(calls: Calls, micro: Sequence[int]) -> list[bool]:
    """Does a record belong to the backward pass? A forward call outside of modules does (a collective, say) that stands behind
    backward records, and not before a module's forward."""
    back = [op.direction == BACKWARD for op in calls.ops]
    loose = [not b and m < 0 for b, m in zip(back, micro, strict=True)]
    follows = False  # the next record that is not loose is one of forward
    ahead = []
    for b, free in zip(reversed(back), reversed(loose), strict=True):
        follows = follows if free else not b
        ahead.append(follows)
    behind = False
    found = []
    for b, free, forward in zip(back, loose, reversed(ahead), strict=True):
        behind = behind if free else b
        found.append(b or (free and behind and not forward))
    return found


def _containers_once(ranks: Ranks, found: Sequence[tuple[_Key, _Entry]]) -> list[tuple[_Key, _Entry]]:
    """A module that spans stages (the model, the block of all layers) is one record: what went into its first stage, and what
    came out of its last."""
    by_name: dict[str, list[tuple[_Key, _Entry]]] = defaultdict(list)
    for key, entry in found:
        by_name[entry.op.name if entry.op.is_module else f"{entry.origin}"].append((key, entry))
    once = []
    for group in by_name.values():
        key, entry = group[-1]
        if len(group) > 1:
            ends = [e for _, e in (group[::-1] if entry.op.direction == BACKWARD else group)]
            same: list[Origin] = [e.origin for e in ends if e is not entry]
            entry = replace(entry, rows=_rows_of_ends(ranks, ends), same=tuple(same))
        once.append((key, entry))
    return once


def _rows_of_ends(ranks: Ranks, entries: Sequence[_Entry]) -> list[int]:
    """Inputs of the first entry, outputs of the last, parameters of all (once each)."""
    table = ranks.table
    taken: dict[int, int] = {}
    for number, entry in enumerate(entries):
        for row in entry.rows:
            role = table.slots[table.slot[row]][0]
            first, last = number == 0, number == len(entries) - 1
            if role in (PARAMETER, PARAMETER_GRAD) or (role == INPUT and first) or (role == OUTPUT and last):
                taken.setdefault(int(table.slot[row]), row)
    order = {INPUT: 0, PARAMETER: 2, PARAMETER_GRAD: 2}
    return sorted(taken.values(), key=lambda row: (order.get(table.slots[table.slot[row]][0], 1), row))
