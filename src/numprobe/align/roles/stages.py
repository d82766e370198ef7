"""Pipeline stages of one side as the whole model: which ranks hold which layers, told from what only the ends have.

The first stage embeds tokens, the last one has the final norm. Ranks are numbered stage by stage (Megatron, vLLM), as many a
stage as embed. A stage may number its layers from 0 (Megatron) or go on where the one before ended (vLLM).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.naming import NO_LIST, model_of, unwrapped
from numprobe.align.roles.form import modules_of
from numprobe.align.roles.rules import Role, Rules
from numprobe.align.shards.columns import Stage, join_stages
from numprobe.align.shards.joined import Ranks
from numprobe.align.shards.tables import concatenated

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


@dataclass(frozen=True)
class _Part:
    """A rank, or a model of the list that it recorded: the roles of its modules, with their paths."""

    rank: int
    chunk: int | None
    roles: Sequence[tuple[Role, str]]

    def has(self, name: str) -> bool:
        return any(role.name == name and not role.tower and role.layer is None for role, _ in self.roles)

    @property
    def layers(self) -> frozenset[int]:
        return frozenset(role.layer for role, _ in self.roles if role.layer is not None and not role.tower)


def whole_models(calls: Sequence[Calls], rules: Rules | None = None) -> list[Calls]:
    """The ranks of a side, of stages one for every column of them; as they are where each has a whole model."""
    if len(calls) == 1:
        return list(calls)
    parts = _parts(calls, rules)
    size = sum(part.has("embed") for part in parts)
    count = len(parts)
    if not 0 < size < count or count % size or size > len(calls):  # so many where a list has whole models
        return list(calls)
    if any(
        part.has("embed") != (n < size) or part.has("final_norm") != (n >= count - size) for n, part in enumerate(parts)
    ):
        return list(calls)
    stages = [parts[n].layers for n in range(0, count, size)]
    if any(part.layers != stages[n // size] for n, part in enumerate(parts)) or not all(stages[1:-1]):
        return list(calls)  # the ends may have no layers
    offsets, end = [], 0
    for stage in stages:
        offsets.append(end - min(stage) if stage and min(stage) < end else 0)
        end = max(stage, default=end - 1 - offsets[-1]) + offsets[-1] + 1
    ranks = Ranks(calls, concatenated([c.values for c in calls]), np.cumsum([0, *(len(c.values) for c in calls[:-1])]))
    return [
        join_stages(ranks, [_stage(parts[n], offsets[n // size]) for n in range(column, count, size)])
        for column in range(size)
    ]


def _parts(calls: Sequence[Calls], rules: Rules | None) -> list[_Part]:
    """The ranks; where each lists several models, the first of every rank, then the second: an interleaved pipeline has its
    stages in that order."""
    roles = [[(m.role, one.ops[m.record].path) for m in modules_of(one, rules)] for one in calls]
    models = sorted({model_of(path) for of in roles for _, path in of})
    if len(models) < 2 or NO_LIST in models:
        return [_Part(rank, None, of) for rank, of in enumerate(roles)]
    return [
        _Part(rank, model, [(role, path) for role, path in of if model_of(path) == model])
        for model in models
        for rank, of in enumerate(roles)
    ]


def _stage(part: _Part, offset: int) -> Stage:
    places = [(prefix, offset) for prefix in _prefixes(part.roles) if offset]
    return Stage(part.rank, tuple([("", -part.chunk), *places] if part.chunk else places), part.chunk)


def _prefixes(roles: Sequence[tuple[Role, str]]) -> list[str]:
    """Module paths in front of the numbers of layers, without wrappers, with other numbers as ``#``."""
    found: dict[str, None] = {}
    for role, path in roles:
        at = f"{path}.".find(f".{role.layer}.") if role.layer is not None and not role.tower else -1
        if at > 0:
            found.setdefault(_NUMBER.sub("#", unwrapped(path[:at])))
    return list(found)
