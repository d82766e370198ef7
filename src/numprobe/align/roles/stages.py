"""Pipeline stages of one side as the whole model: which ranks hold which layers, told from what only the ends have.

The first stage embeds tokens, the last one has the final norm. Ranks are numbered stage by stage (Megatron, vLLM), as many a
stage as embed. A stage may number its layers from 0 (Megatron) or go on where the one before ended (vLLM).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.roles.form import modules_of
from numprobe.align.roles.rules import Role, Rules
from numprobe.align.shards.columns import Stage, join_stages
from numprobe.align.shards.joined import Ranks
from numprobe.align.shards.tables import concatenated

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


def whole_models(calls: Sequence[Calls], rules: Rules | None = None) -> list[Calls]:
    """The ranks of a side, of stages one for every column of them; as they are where each has a whole model."""
    if len(calls) == 1:
        return list(calls)
    roles = [[(m.role, one.ops[m.record].path) for m in modules_of(one, rules)] for one in calls]
    first, last = (
        [any(role.name == name and not role.tower and role.layer is None for role, _ in of) for of in roles]
        for name in ("embed", "final_norm")
    )
    size = sum(first)
    if not 0 < size < len(calls) or len(calls) % size:
        return list(calls)
    ends = [n < size for n in range(len(calls))], [n >= len(calls) - size for n in range(len(calls))]
    if first != ends[0] or last != ends[1]:
        return list(calls)
    layers = [{role.layer for role, _ in of if role.layer is not None and not role.tower} for of in roles]
    stages = [layers[n] for n in range(0, len(calls), size)]
    if any(layers[n] != stages[n // size] or not stages[n // size] for n in range(len(calls))):
        return list(calls)
    offsets, end = [], 0
    for stage in stages:
        offsets.append(end - min(stage) if min(stage) < end else 0)
        end = max(stage) + offsets[-1] + 1
    places = [
        tuple((prefix, offsets[n // size]) for prefix in _prefixes(of) if offsets[n // size])
        for n, of in enumerate(roles)
    ]
    ranks = Ranks(calls, concatenated([c.values for c in calls]), np.cumsum([0, *(len(c.values) for c in calls[:-1])]))
    return [
        join_stages(ranks, [Stage(n, places[n]) for n in range(column, len(calls), size)]) for column in range(size)
    ]


def _prefixes(roles: Sequence[tuple[Role, str]]) -> list[str]:
    """Module paths in front of the numbers of layers, with other numbers as ``#``."""
    found: dict[str, None] = {}
    for role, path in roles:
        at = f"{path}.".find(f".{role.layer}.") if role.layer is not None and not role.tower else -1
        if at > 0:
            found.setdefault(_NUMBER.sub("#", path[:at]))
    return list(found)
