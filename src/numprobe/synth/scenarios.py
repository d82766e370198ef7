"""The faults that can be simulated. Each scenario draws where it strikes and says what a correct analysis must conclude."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from numprobe.synth import tensor as T
from numprobe.synth.machine import Effect
from numprobe.synth.program import Label
from numprobe.synth.settings import Size
from numprobe.synth.tensor import NAN


@dataclass(frozen=True)
class Plan:
    """A fault and its right answer, as far as it is known before the run; the rest follows from the simulated state.

    ``classes`` are the acceptable classes, best first; none: the dump is clean. ``force`` are settings without which the
    scenario would not be what its name says. ``avoid`` are ranks that must neither be missing nor partial. ``leaf``: the
    dirt is in a parameter or in the input data, so that a dirty input of the first record is no gap.
    """

    classes: tuple[str, ...] = ()
    effects: Mapping[tuple[int, Label], Effect] = field(default_factory=dict)
    leaf_effects: Mapping[tuple[int, str], Effect] = field(default_factory=dict)
    force: Mapping[str, object] = field(default_factory=dict)
    avoid: frozenset[int] = frozenset()
    verdict: str = ""
    leaf: bool = False
    uses_unwritten: tuple[int, int, int] | None = None  # rank, micro-batch, layer
    step: int = 0
    steps: int = 1


Scenario: TypeAlias = Callable[[Random, Size], Plan]


def becomes(kinds: int, slices: frozenset[int] | None = None) -> Effect:
    """The output gets non-finite values of ``kinds``, in the given slices or anywhere."""
    return lambda t, rank: T.with_kinds(t, kinds, taint=True, slices=slices)


def _position(draw: Random, size: Size) -> tuple[int, int, int]:
    """A rank, a micro-batch and a layer index."""
    return draw.randrange(size.world), draw.randrange(size.micro_batches), draw.randrange(size.layers)


def grouped_matmul_nan(draw: Random, size: Size) -> Plan:
    """The second grouped matmul of an expert layer turns modest finite inputs into NaN on one rank."""
    rank, mb, layer = _position(draw, size)
    force: dict[str, object] = {}
    if size.name == "ci":
        rank, mb, layer = 168, 0, 3
        force = {"partial": (311,), "missing": (77,), "harmless_division": (40,), "level": "mix"}
    slices = frozenset(draw.sample(range(size.ep), max(1, size.ep // 4)))
    effects = {(rank, Label(phase, mb, layer, "gmm2")): becomes(NAN, slices) for phase in ("forward", "recompute")}
    return Plan(("kernel_fault",), effects, force=force, avoid=frozenset({rank}))


def clean(draw: Random, size: Size) -> Plan:
    """No fault; all the look-alikes of one."""
    return Plan(force={"partial": (), "missing": ()})


SCENARIOS: dict[str, Scenario] = {f.__name__: f for f in (grouped_matmul_nan, clean)}
HELD_OUT: frozenset[str] = frozenset()
