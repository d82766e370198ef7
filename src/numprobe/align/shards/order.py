"""In which order parts of a tensor lie in the whole: one behind the other, or each group by itself.

Of ``[gate, up]`` rank 0 has ``[gate 0, up 0]``; of a dimension that counts heads within a batch, rank 0 has its heads of every
sequence; of a sequence that context parallel ranks share, rank 0 has the first chunk and the last. Which orders are possible is
fixed: parameters lie in groups only where one joins gate and up, other tensors also by the length of a dimension that activations
have, or in zig-zag. Among those the order is one for all layers, found from the first layers by
majority, so that a layer that is wrong stays wrong.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable

from numprobe.align.calls import Calls
from numprobe.align.shards.merged import MergedCalls
from numprobe.align.shards.tables import Rows
from numprobe.align.shards.tensor import ZIGZAG
from numprobe.metrics.distance import distance
from numprobe.record.errors import NumprobeError
from numprobe.record.trace import PARAMETER, PARAMETER_GRAD

LOOKED_AT = 5  # leaves of one kind
FITS = 0.2  # relative distance of tensors in the same order; elements in another order are about 1.4 apart
SURELY = 0.01  # and where it is no more, others are not tried
GATED = re.compile(r"(^|\.)(linear_fc1|gate_up_proj|gate_up|w13|dense_h_to_4h)$")  # modules that join gate and up


def choose_orders(side: MergedCalls, other: Calls, partner: Rows) -> None:
    """Set ``groups`` of the split rows. A tensor is looked at only where more than one order is possible."""
    parameters = {_figures(side, row) for row in side.spread.split if _role(side, row) in (PARAMETER, PARAMETER_GRAD)}
    lengths = {n for shape in other.values.shapes if shape is not None and len(shape) > 2 for n in shape}
    kinds: dict[tuple[Hashable, bool], list[int]] = defaultdict(list)
    for row in side.spread.split:
        if row in side.values.files and int(partner[row]) in other.values.files:
            kinds[side.kind_of(row), _figures(side, row) in parameters].append(row)
    for (_, is_parameter), rows in kinds.items():
        candidates = _candidates(side, rows[0], set() if is_parameter else lengths)
        groups = _chosen(side, other, partner, rows, candidates) if len(candidates) > 1 else 1
        if groups != 1:
            side.groups.update(dict.fromkeys(rows, groups))


def _chosen(side: MergedCalls, other: Calls, partner: Rows, rows: list[int], candidates: list[int]) -> int:
    """The number of groups in which most of the first rows fit; 1 where none does."""
    votes: Counter[int] = Counter()
    for row in rows[:LOOKED_AT]:
        found = 1
        nearest = math.inf
        for groups in candidates:
            apart = _distance(side, other, row, int(partner[row]), groups)
            found, nearest = (groups, apart) if apart < nearest else (found, nearest)
            if nearest <= SURELY:
                break
        if nearest <= FITS:
            votes[found] += 1
        if found == 1 and len(votes) == 1:
            break  # the usual order, and it fits
    return votes.most_common(1)[0][0] if votes else 1


def _role(side: MergedCalls, row: int) -> str:
    role, _ = side.values.slots[side.values.slot[row]]
    return str(role)


def _figures(side: MergedCalls, row: int) -> bytes:
    """The same for a parameter and whatever a call is given of it."""
    return bytes(side.values.figures[row].tobytes())


def _candidates(side: MergedCalls, row: int, lengths: set[int]) -> list[int]:
    """Numbers of groups that parts may lie in. ``lengths``: of dimensions, where the tensor is no parameter."""
    split, table = side.spread.split[row], side.ranks.table
    sizes = {(table.shapes[table.shape[p]] or ())[split.dim] for p in side.own_parts(row)}
    if len(sizes) != 1 or split.padded:
        return [1]
    [size] = sizes
    possible = {2, *lengths} if lengths or GATED.search(side.path_of(row)) else set()
    found = [1, *sorted(g for g in possible if 1 < g <= size and size % g == 0)]
    return [*found, ZIGZAG] if lengths and size % 2 == 0 else found


def _distance(side: MergedCalls, other: Calls, row: int, there: int, groups: int) -> float:
    """Relative distance of a tensor in this order from that of the other side, and the share of elements that are not finite on
    one of them alone; infinite where it cannot be told."""
    side.groups[row] = groups
    try:
        tensors = side.tensors.open(side.values.files[row]), other.tensors.open(other.values.files[there])
        found = distance(*tensors, threads=1)
        return found.relative_l2 + found.nonfinite_mismatch / max(found.numel, 1)
    except (NumprobeError, ValueError):
        return math.inf
    finally:
        del side.groups[row]
