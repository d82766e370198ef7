"""From a scenario's name to the dumps of two sides and the truth about them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from zlib import crc32

import numpy as np

from numprobe.synth.checks import refuse_unknown, refuse_used
from numprobe.synth.rl.arithmetic import Array
from numprobe.synth.rl.engine import Engine
from numprobe.synth.rl.hf import HuggingFace
from numprobe.synth.rl.megatron import Megatron
from numprobe.synth.rl.model import Model, Weights, make_weights
from numprobe.synth.rl.recorder import Recorder
from numprobe.synth.rl.scenarios import NONE, SCENARIOS, UNJOINED, Expected, Plan
from numprobe.synth.rl.side import Runner, Side

STYLES: dict[str, type[Runner]] = {"megatron": Megatron, "hf": HuggingFace, "engine": Engine}
CODE = {"train": "/train/model", "rollout": "/engine/models"}
SHORT, EXACT = 2.0**-8, 2.0**-20  # the rounding of a figure
SEEN = 40.0  # times what another order of summation changes: a fault that has to be found


@dataclass(frozen=True)
class Truth:
    """``places``: place -> the names of the leaf modules that fill it, on both sides. The rest as in :class:`Plan`."""

    scenario: str
    seed: int
    verdicts: tuple[str, ...]
    figures: Expected
    tensors: Expected
    blind: str
    ratio: float | None
    places: dict[str, dict[str, list[str]]]
    settings: dict[str, object]


def simulate(
    scenario: str,
    out: Path,
    *,
    seed: int = 0,
    tensors: bool = False,
    layers: int | None = None,
    tokens: int | None = None,
) -> Truth:
    """Write ``out/train/step0/rank<r>``, ``out/rollout/step0/rank<r>`` and ``out/truth.json``.

    Args:
        scenario: a name of :data:`SCENARIOS`.
        out: a folder, made if need be; must not hold dumps yet.
        seed: draws the model, its weights and the fault's place.
        tensors: also every tensor, as task ``tensor`` does.
        layers: of the model, instead of a drawn number.
        tokens: of the prompt, instead of a drawn number.

    Raises:
        NumprobeError: E-USE-008 for an unknown scenario, E-OUT-001 if ``out`` holds dumps already.
    """
    refuse_unknown(scenario, SCENARIOS)
    refuse_used(out, any((out / side).exists() for side in CODE))
    mixed = crc32(scenario.encode()) * 1_000_003 + seed
    plan = SCENARIOS[scenario](Random(mixed))
    drawn = plan.model
    plan = replace(plan, model=replace(drawn, layers=layers or drawn.layers, tokens=tokens or drawn.tokens))
    numbers = np.random.default_rng(mixed)
    weights = make_weights(plan.model, numbers)
    ids = numbers.integers(0, plan.model.vocab, plan.model.tokens + 1)
    made = {name: run(plan.model, getattr(plan, name), weights, ids, CODE[name], tensors=tensors) for name in CODE}
    if plan.shown_by and (not tensors or plan.same_order):
        sides = {name: getattr(plan, name).healthy() for name in CODE}
        control = {name: run(plan.model, side, weights, ids, "", tensors=tensors) for name, side in sides.items()}
        plan = _visible(plan, made, control)
    for name, recorder in made.items():
        recorder.write(out / name / "step0")
    truth = Truth(
        scenario,
        seed,
        UNJOINED if plan.unjoined and not tensors else plan.verdicts,
        plan.figures,
        plan.tensors,
        plan.blind,
        plan.ratio,
        _places(made["train"], made["rollout"]),
        {"model": asdict(plan.model), "train": _set(plan.train), "rollout": _set(plan.rollout)},
    )
    (out / "truth.json").write_text(json.dumps(asdict(truth), indent=1) + "\n", encoding="ascii")
    return truth


def run(model: Model, side: Side, weights: Weights, ids: Array, code: str, *, tensors: bool) -> Recorder:
    """The records of one side; ``ids`` has one token more than the prompt, for a side that reads it shifted."""
    recorder = Recorder(side.world, side.dtype, side.level, code, tensors=tensors, short=side.short_figures)
    runner = STYLES[side.style](model, side, weights, recorder)
    if side.warm_up:
        runner.forward(np.zeros(side.warm_up, np.int64))
        recorder.places.clear()
    first = 0
    for count in side.steps or (model.tokens,):
        runner.forward(ids[side.shift + first : side.shift + first + count], first)
        first += count
    return recorder


def _set(side: Side) -> dict[str, object]:
    """What is not as by default."""
    plain = asdict(Side(side.style))
    return {k: v for k, v in asdict(side).items() if k in ("style", "dtype", "level") or v != plain[k]}


def _places(train: Recorder, rollout: Recorder) -> dict[str, dict[str, list[str]]]:
    names = dict.fromkeys((*train.places, *rollout.places))
    return {p: {"train": train.places.get(p, []), "rollout": rollout.places.get(p, [])} for p in names}


def _visible(plan: Plan, made: dict[str, Recorder], control: dict[str, Recorder]) -> Plan:
    """Whether the fault has to be found, from how far the place is apart, with the fault and without."""
    short = any(recorder.short for recorder in made.values())
    near = max(_apart(control, plan), SHORT if short else EXACT)
    if _apart(made, plan) > SEEN * near:
        return plan
    return replace(plan, verdicts=(*plan.verdicts, *NONE, "inconclusive"))


def _apart(sides: dict[str, Recorder], plan: Plan) -> float:
    """The largest relative distance of Max, Min and Norm, or the distance of all elements where they are recorded."""
    place, role = plan.figures.places[0], plan.shown_by
    one, other = sides.values()
    if one.tensors:
        a, b = (np.float64(side.elements(place, role)) for side in (one, other))
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))
    pairs = zip(one.figures(place, role), other.figures(place, role), strict=True)
    return max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs)
