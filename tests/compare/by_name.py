"""msProbe's default matching of records: by name alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from numprobe.record.names import BACKWARD, PARAMETERS_GRAD, OpName


def pair_by_name(target: Sequence[OpName], golden: Sequence[OpName]) -> list[tuple[int, int | None]]:
    """For every target record, in order, the golden record of the same name; golden records without partner are not told.

    The call number of a backward record is not that of its name but how many of its kind came before: a recomputed call has
    another number on either side.
    """
    places = {key: i for i, key in enumerate(_keys(golden))}
    return [(i, places.get(key)) for i, key in enumerate(_keys(target))]


def _keys(ops: Iterable[OpName]) -> list[Hashable]:
    arrived: dict[Hashable, int] = defaultdict(int)
    keys: list[Hashable] = []
    for op in ops:
        if op.direction != BACKWARD or op.kind == PARAMETERS_GRAD:
            keys.append(op.name)
            continue
        kind = (op.kind, op.prefix, op.path, op.api)
        keys.append((kind, arrived[kind]))
        arrived[kind] += 1
    return keys
