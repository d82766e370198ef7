"""In which order parts of a tensor lie in the whole: one behind the other, or each group by itself.

Of ``[gate, up]`` rank 0 has ``[gate 0, up 0]``; of a dimension that counts heads within a batch, rank 0 has its heads of every
sequence. The order is one for all layers: it is found from the first layers, by majority, and then holds for every layer, so
that a layer that is wrong stays wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable

from numprobe.align.calls import Calls
from numprobe.align.shards.merged import MergedCalls
from numprobe.align.shards.tables import Rows
from numprobe.metrics.distance import distance
from numprobe.record.errors import NumprobeError

LOOKED_AT = 5  # leaves of one kind
FITS = 0.2  # relative distance of tensors in the same order; elements in another order are about 1.4 apart


def choose_orders(side: MergedCalls, other: Calls, partner: Rows) -> None:
    """Set ``groups`` of the split rows. Only where a file says more than one order is possible is a tensor looked at."""
    kinds: dict[Hashable, list[int]] = defaultdict(list)
    for row in side.spread.split:
        if row in side.values.files and int(partner[row]) in other.values.files:
            kinds[side.kind_of(row)].append(row)
    for rows in kinds.values():
        candidates = _candidates(side, rows[0])
        if len(candidates) == 1:
            continue
        votes: Counter[int] = Counter()
        for row in rows[:LOOKED_AT]:
            found = next((g for g in candidates if _fits(side, other, row, int(partner[row]), g)), None)
            if found is not None:
                votes[found] += 1
            if votes and votes.most_common(1)[0] == (1, 1) and found == 1:
                break  # the usual order, and it fits
        groups = votes.most_common(1)[0][0] if votes else 1
        if groups > 1:
            side.groups.update(dict.fromkeys(rows, groups))


def _candidates(side: MergedCalls, row: int) -> list[int]:
    """Numbers of groups: none, two (gate and up), or the other dimensions of the model that divide the part (a batch)."""
    split, table = side.spread.split[row], side.ranks.table
    sizes = {(table.shapes[table.shape[p]] or ())[split.dim] for p in side.own_parts(row)}
    if len(sizes) != 1 or split.padded:
        return [1]
    size = sizes.pop()
    return [1, *(g for g in range(2, min(size, 64) + 1) if size % g == 0)]


def _fits(side: MergedCalls, other: Calls, row: int, there: int, groups: int) -> bool:
    side.groups[row] = groups
    try:
        tensors = side.tensors.open(side.values.files[row]), other.tensors.open(other.values.files[there])
        return distance(*tensors, threads=1).relative_l2 <= FITS
    except (NumprobeError, ValueError):
        return False
    finally:
        del side.groups[row]
