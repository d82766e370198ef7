"""The columns of a tensor parallel group as one: which record and leaf of each is which."""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Iterator, Sequence

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.leaves import pair_leaves
from numprobe.align.records import RecordPairs, pair_records
from numprobe.align.shards.joined import JoinedCalls, Origin, assembled
from numprobe.align.shards.tables import Rows
from numprobe.record.names import OpName

_NUMBER = re.compile(r"\d+")


def fold_columns(columns: Sequence[JoinedCalls]) -> JoinedCalls:
    """The records of the first column, with ``parts`` of all. What only another column has (its experts, say) stands behind the
    record that it follows there. Figures are still those of the first column that has a leaf."""
    lead, ranks = columns[0], columns[0].ranks
    if len(columns) == 1:
        return lead
    width = len(columns)
    parts = np.full((len(lead.values), width), -1, np.int64)
    parts[:, 0] = lead.parts[:, 0]
    known, more = [parts], []
    positions: list[tuple[int, int, int]] = [(i, 0, i) for i in range(len(lead.ops))]  # behind which, column, record
    same: list[list[int]] = [list(range(len(lead.ops)))]  # by column: the record of the first that each is, -1
    for c, column in enumerate(columns[1:], 1):
        pairs = pair_records(column, lead)
        partner = [-1] * len(column.ops)
        for t, g in zip(pairs.target, pairs.golden, strict=True):
            if t >= 0 and g >= 0 and _path(column, t) == _path(lead, g):
                partner[t] = g
        same.append(partner)
        leaves = pair_leaves(RecordPairs(tuple(range(len(partner))), tuple(partner)), column.values, lead.values)
        both = leaves.both
        parts[leaves.golden[both], c] = column.parts[leaves.target[both], 0]
        for i, behind in _places_of_own(column, lead, partner):
            positions.append((behind, c, i))
            more += column.parts[column.values.rows(i), 0].tolist()
        alone = np.full((len(more), width), -1, np.int64)
        alone[:, c] = more
        known.append(alone)
        more = []
    positions.sort()
    place = {(c, i): n for n, (_, c, i) in enumerate(positions)}
    records: list[Origin] = []
    ops: list[OpName] = []
    parent: list[int] = []
    rows: list[Sequence[int]] = []
    for _, c, i in positions:
        column = columns[c]
        records.append(column.records[i])
        ops.append(column.ops[i])
        above = column.parent[i]
        first = same[c][above] if above >= 0 else -1
        parent.append(-1 if above < 0 else place[(0, first) if first >= 0 else (c, above)])
        rows.append(column.parts[column.values.rows(i), 0].tolist())
    return assembled(ranks, records, ops, parent, rows, lambda chosen: _looked_up(np.concatenate(known), chosen))


def _places_of_own(column: JoinedCalls, lead: JoinedCalls, partner: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Records that the first column does not have, each with the record there that it stands behind: the last module of its kind
    (the experts of all ranks one after the other), else what it follows on its own rank."""
    last: dict[Hashable, int] = {}
    for g, op in enumerate(lead.ops):
        if op.is_module:
            last[lead.parent[g], _sibling(op)] = g
    behind, at = -1, [-1] * len(partner)
    for i, g in enumerate(partner):
        behind = g if g >= 0 else behind
        at[i] = behind
    for i, g in enumerate(partner):
        if g >= 0:
            continue
        root, above = i, column.parent[i]
        while above >= 0 and partner[above] < 0:
            root, above = above, column.parent[above]
        key = partner[above] if above >= 0 else -1, _sibling(column.ops[root])
        yield i, last.get(key, at[i])


def _sibling(op: OpName) -> Hashable:
    return op.api, op.direction, op.kind, _NUMBER.sub("#", op.path)


def _path(calls: Calls, i: int) -> str:
    """The module that a record is, or the one around it: experts of two ranks are alike, and not the same."""
    while i >= 0 and not calls.ops[i].is_module:
        i = calls.parent[i]
    return calls.ops[i].path if i >= 0 else ""


def without(side: JoinedCalls, dropped: Container[int]) -> JoinedCalls:
    """The side without these records of communication, which go into ``talk``."""
    kept = [i for i in range(len(side.ops)) if i not in dropped]
    place = {i: n for n, i in enumerate(kept)}
    found = assembled(
        side.ranks,
        [side.records[i] for i in kept],
        [side.ops[i] for i in kept],
        [place.get(side.parent[i], -1) for i in kept],
        [side.parts[side.values.rows(i), side.column[side.values.rows(i)]].tolist() for i in kept],
        lambda chosen: _looked_up(side.parts, chosen),
    )
    for i, op in enumerate(side.ops):
        if i in dropped and side.parent[i] in place:
            line = op, side.parts[side.values.rows(i)]
            found.talk.setdefault(place[side.parent[i]], []).append(line)
    return found


def _looked_up(known: Rows, chosen: Rows) -> Rows:
    """The lines of ``known`` whose first entry that is no -1 is the chosen row."""
    leading = known[np.arange(len(known)), np.argmax(known >= 0, 1)]
    order = np.argsort(leading, kind="stable")
    found: Rows = known[order[np.searchsorted(leading[order], chosen)]]
    return found
