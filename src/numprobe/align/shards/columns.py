"""The pipeline stages of one column of ranks behind each other, as a run without stages would have recorded them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from numprobe.align.calls import Calls
from numprobe.align.naming import NO_LIST, WRAPPERS, model_of
from numprobe.align.shards.joined import JoinedCalls, Origin, Ranks, assembled, named
from numprobe.record.names import BACKWARD, OpName
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER, PARAMETER_GRAD


@dataclass(frozen=True)
class Stage:
    """One rank of a column, or one of the models that it lists (``chunk``: its number there; of an interleaved pipeline a rank
    has several stages). ``offsets``: what has to be added to the numbers behind a module path (``decoder.layers``,
    ``decoder.layers.#.mlp.experts``) to get those of the whole model; behind the empty one, to that of the list."""

    rank: int
    offsets: tuple[tuple[str, int], ...] = ()
    chunk: int | None = None


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
        for (key, chunk, i), op in zip(_order(ranks.calls[s.rank], n), _ops(ranks.calls[s.rank], s), strict=True)
        if s.chunk in (None, chunk)
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
    >>> renumbered("1.module.decoder.layers.1.mlp", {"": -1, "decoder.layers": 2})
    '0.module.decoder.layers.3.mlp'
    """
    parts, pattern = [], ""
    for part in path.split("."):
        number = part.isdecimal()
        parts.append(str(int(part) + _offset(pattern, offsets)) if number else part)
        if part not in WRAPPERS:
            pattern = ".".join(p for p in (pattern, "#" if number else part) if p)
    return ".".join(parts)


def _offset(pattern: str, offsets: Mapping[str, int]) -> int:
    """Of the numbers behind this path: those of a list of models are not in the names of its parameters."""
    return offsets.get(pattern, offsets.get(pattern.removeprefix("#."), 0))


def _order(calls: Calls, stage: int) -> list[tuple[_Key, int, int]]:
    """Where each record belongs, the model of the list that it is of, and its number: micro-batches one after the other, forward
    from the first stage to the last, backward from the last to the first. Calls outside of modules belong to the module that
    follows, in backward to the one before; those around the modules of all micro-batches to the last."""
    owner = _outermost(calls)
    back = _in_backward(calls, owner)
    for way, indices in ((False, range(len(owner) - 1, -1, -1)), (True, range(len(owner)))):
        near: OpName | None = None
        for i in indices:
            if back[i] == way:
                near = owner[i] = owner[i] if owner[i] is not None else near
    last = max((op.call for op in owner if op is not None), default=0)
    behind = max((model_of(op.path) for op in owner if op is not None), default=NO_LIST)
    found = []
    for i, op in enumerate(owner):
        call, model = (op.call, model_of(op.path)) if op is not None and not calls.around[i] else (last, behind)
        found.append(((call if call >= 0 else last, back[i], -stage if back[i] else stage, i), model, i))
    return found


def _outermost(calls: Calls) -> list[OpName | None]:
    """By record, the outermost module that it is inside of."""
    found: list[OpName | None] = []
    for i, parent in enumerate(calls.parent):
        while parent >= 0:
            i, parent = parent, calls.parent[parent]
        found.append(calls.ops[i] if calls.ops[i].is_module else None)
    return found


def of_backward(calls: Calls) -> list[bool]:
    """Does a record belong to the backward pass? A forward call outside of modules does (a collective, say) that stands behind
    backward records, and not before a module's forward."""
    return _in_backward(calls, _outermost(calls))


def _in_backward(calls: Calls, outermost: Sequence[OpName | None]) -> list[bool]:
    back = [op.direction == BACKWARD for op in calls.ops]
    loose = [not b and owner is None for b, owner in zip(back, outermost, strict=True)]
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
