"""Two runs in canonical form side by side: by place, never by likeness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from numprobe.align.calls import Calls
from numprobe.align.records import RecordPairs
from numprobe.align.roles.figures import Slot, rows_by_slot
from numprobe.align.roles.form import EXPERTS, Module, common_calls, common_form, modules_of, sizes_of_calls
from numprobe.align.roles.given import NOTHING_GIVEN, Given
from numprobe.align.roles.ranks import joined
from numprobe.align.roles.rules import Rules
from numprobe.align.roles.side import RoleSide, canonical
from numprobe.align.roles.tensors import calls_by_ids, with_tensors
from numprobe.formats.msprobe.values import ABSENT
from numprobe.record.names import parse_name
from numprobe.record.trace import INPUT, PARAMETER


def both_sides(
    train: Sequence[Calls], rollout: Sequence[Calls], rules: Rules | None = None, given: Given = NOTHING_GIVEN
) -> tuple[RoleSide, RoleSide, dict[str, int]]:
    """Both runs, each of all its ranks, in the form that they have in common; and how many slots were joined in which way."""
    sides = [
        [(calls, modules_of(calls, rules, roles)) for calls in ranks]
        for ranks, roles in ((train, given.train), (rollout, given.rollout))
    ]
    form = common_form(side for ranks in sides for side in ranks)
    first = sides[0][0], sides[1][0]
    shares = [_shares(ranks) for ranks in sides]
    by_ids = calls_by_ids(*first) if shares == [1, 1] else None
    sizes = ([n * share for n in of] for of, share in zip(sizes_of_calls(*first), shares, strict=True))
    numberings = by_ids or common_calls(*sizes)
    one, other = (
        [canonical(calls, modules, form, numbering, rules) for calls, modules in ranks]
        for ranks, numbering in zip(sides, numberings, strict=True)
    )
    whole, merged_one = joined(one, other)
    counterpart, merged_other = joined(other, [whole])
    kinds = {kind: merged_one.get(kind, 0) + merged_other.get(kind, 0) for kind in (*merged_one, *merged_other)}
    return *with_tensors(*_comparable(whole, counterpart), rules), kinds


def _shares(ranks: Sequence[tuple[Calls, Sequence[Module]]]) -> int:
    """How many ranks have tokens of their own: parts of a batch, or of sequences."""
    return len({_first_ids(calls, modules) for calls, modules in ranks})


def _first_ids(calls: Calls, modules: Sequence[Module]) -> bytes:
    """Figures of what the embedding got first; the same where it is not there, or has none."""
    values = calls.values
    embeds = (m.record for m in modules if m.role.name == "embed" and m.role.layer is None and not m.role.tower)
    record = next(embeds, -1)
    rows = values.rows(record) if record >= 0 else range(0)
    given = [row for row in rows if values.slots[values.slot[row]][0] == INPUT and values.kinds[values.kind[row]][2]]
    return values.figures[given[0]].tobytes() if given else b""


def pair_places(train: RoleSide, rollout: RoleSide) -> RecordPairs:
    """The records of two sides by name: a place and a call. Those of the rollout alone stand behind the one that they follow."""
    golden = {name: i for i, name in enumerate(rollout.calls.values.names)}
    mine = [golden.get(name, -1) for name in train.calls.values.names]
    taken = set(mine)
    pairs: list[tuple[int, int]] = []
    waiting = [g for g in range(len(golden)) if g not in taken]
    for t, g in enumerate(mine):
        while g >= 0 and waiting and waiting[0] < g:
            pairs.append((-1, waiting.pop(0)))
        pairs.append((t, g))
    pairs += [(-1, g) for g in waiting]
    return RecordPairs(tuple(t for t, _ in pairs), tuple(g for _, g in pairs))


def _comparable(one: RoleSide, other: RoleSide) -> tuple[RoleSide, RoleSide]:
    """Without figures where the sizes differ for a reason that is no fault."""
    sizes = [
        {slot: int(side.calls.values.numel[row]) for slot, row in rows_by_slot(side.calls.values).items()}
        for side in (one, other)
    ]
    unequal = {slot for slot, size in sizes[0].items() if sizes[1].get(slot, size) != size and _is_free(slot)}
    return _without(one, unequal), _without(other, unequal)


def _is_free(slot: Slot) -> bool:
    """Vocabularies are padded, logits computed for some tokens only, tokens sent to other experts by a near-tie, and experts that
    got none not called."""
    name, (role, _) = slot
    path = parse_name(name).path.split(".")
    if path[-1] in ("embed", "moe"):
        return role == PARAMETER
    return path[-1] == "head" or EXPERTS in path


def _without(side: RoleSide, slots: set[Slot]) -> RoleSide:
    if not slots:
        return side
    values = side.calls.values
    status, numel, shape = values.status.copy(), values.numel.copy(), values.shape.copy()
    for slot, row in rows_by_slot(values).items():
        if slot in slots:
            status[row], numel[row], shape[row] = ABSENT, 1, len(values.shapes)
    table = replace(values, status=status, numel=numel, shape=shape, shapes=[*values.shapes, None])
    return replace(side, calls=replace(side.calls, values=table))
