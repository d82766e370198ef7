"""Which framework recorded a dump, and on which side of a reinforcement-learning run it stands, by the names of its modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numprobe.align.calls import Calls
from numprobe.align.roles.rules import Rules, standard_rules
from numprobe.record.names import BACKWARD, PARAMETERS_GRAD

TRAIN, ROLLOUT = "train", "rollout"


@dataclass(frozen=True)
class Framework:
    """``name`` is one of ``frameworks`` in ``rules.json``, or empty; ``side`` is train, rollout, or empty where nothing tells."""

    name: str = ""
    side: str = ""


def framework_of(calls: Calls, rules: Rules | None = None) -> Framework:
    """By the module names that only one framework has; engines have no backward pass. Towers (vision, speech) say nothing."""
    rules = rules or standard_rules()
    towers = frozenset(rules.towers)
    names = {
        f"{op.path.rpartition('.')[2]}.{op.api}"
        for op in calls.ops
        if op.is_module and towers.isdisjoint(op.path.split("."))
    }
    found = rules.framework(names)
    trains = any(phase in (BACKWARD, PARAMETERS_GRAD) for phase in calls.phase)
    return Framework(found[0], TRAIN if trains else found[1])


def are_exchanged(sides: Sequence[Framework]) -> bool:
    """Is the first an engine and the second a trainer?"""
    return [f.side for f in sides] == [ROLLOUT, TRAIN]
