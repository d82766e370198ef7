"""From a scenario's name to dump folders and the truth about them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from zlib import crc32

from numprobe.synth.checks import refuse_unknown, refuse_used
from numprobe.synth.nan.machine import Machine
from numprobe.synth.nan.program import Label, Program
from numprobe.synth.nan.rank import Effect, Job, Rank
from numprobe.synth.nan.scenarios import SCENARIOS, Plan
from numprobe.synth.nan.settings import UNIT, Settings, Size
from numprobe.synth.nan.stage import Variant
from numprobe.synth.nan.step import step_program
from numprobe.synth.nan.truth import Truth, judge


def simulate(scenario: str, out: Path, *, seed: int = 0, size: Size = UNIT, **overrides: object) -> Truth:
    """Write the dump of ``scenario`` to ``out/step<n>/rank<r>`` and the truth to ``out/truth.json``.

    Args:
        scenario: a name of :data:`SCENARIOS`.
        out: a folder, made if need be; must not hold step folders yet.
        seed: draws the fault's place, the job's settings and every number.
        size: the job.
        overrides: fields of :class:`Settings` to fix instead of drawing them.

    Raises:
        NumprobeError: E-USE-008 for an unknown scenario, E-OUT-001 if ``out`` holds a dump already.
    """
    refuse_unknown(scenario, SCENARIOS)
    refuse_used(out, any(out.glob("step*")))
    draw = Random(crc32(scenario.encode()) * 1_000_003 + seed)
    plan = SCENARIOS[scenario](draw, size)
    size = plan.size or size
    settings = replace(drawn_settings(draw, size, plan), **{**plan.force, **overrides})  # type: ignore[arg-type]
    ranks: list[Rank] = []
    for step in range(plan.steps):
        ranks = _run_step(size, settings, seed, step, plan, out)
    for r in settings.partial:
        for folder in out.glob(f"step*/rank{r}"):
            _truncate(folder / "dump.json", draw)
    truth = judge(scenario, seed, size, settings, plan, ranks, out)
    (out / "truth.json").write_text(json.dumps(truth.as_json(), indent=1) + "\n", encoding="ascii")
    return truth


def drawn_settings(draw: Random, size: Size, plan: Plan) -> Settings:
    """Settings as a seed draws them: how the job runs, what the collector keeps, and the noise."""

    def some(share: float, of: int = size.world) -> tuple[int, ...]:
        count = round(share * of)
        return tuple(sorted(draw.sample(range(of), count)))

    others = [r for r in range(size.world) if r not in plan.avoid]
    partial = (draw.choice(others),) if others and draw.random() < 0.2 else ()
    missing = (draw.choice(others),) if others and draw.random() < 0.15 else ()
    schedule = draw.choice(("1f1b", "afab"))
    level = draw.choices(("mix", "L1", "L0"), (7, 2, 1))[0]
    if level == "L0":  # without communication records nothing can be said about a rank that is not there
        partial = missing = ()
    return Settings(
        level=level,
        risk=draw.choices(("ALL", "FOCUS", "CORE"), (5, 3, 1))[0],
        schedule=schedule,
        p2p=draw.choice(("isend", "send", "batch")),
        p2p_keywords=draw.random() < 0.5,
        recompute=draw.random() < 0.25 and not size.lean,
        grads=draw.choice(("reduce_scatter", "all_reduce", "async_all_reduce")),
        loss_first=draw.random() < 0.5,
        mask_first=draw.random() < 0.5,
        norm=draw.choice(("layer_norm", "npu_rms_norm")),
        micro_steps=draw.random() < 0.3 and not size.lean,
        grouped_stacks=draw.random() < 0.8 or size.lean,
        harmless_division=some(1 / 16),
        unwritten=some(0.3),
        old_style=some(0.1),
        quoted=some(0.2),
        partial=partial,
        missing=tuple(m for m in missing if m not in partial),
    )


def _run_step(size: Size, settings: Settings, seed: int, step: int, plan: Plan, out: Path) -> list[Rank]:
    faulty = step == plan.step
    unwritten, division = frozenset(settings.unwritten), frozenset(settings.harmless_division)

    @cache
    def program(variant: Variant) -> Program:
        return step_program(size, settings, variant, seed)

    def program_of(rank: int) -> Program:
        uses = plan.uses_unwritten
        used = uses[1:] if uses and uses[0] == rank and faulty else None
        return program(Variant(size.place(rank)[0], rank in unwritten, rank in division, used))

    def folder_of(rank: int) -> Path | None:
        if rank in settings.missing:
            return None
        folder = out / f"step{step}" / ("proc123" if size.world == 1 else f"rank{rank}")
        folder.mkdir(parents=True)
        return folder

    machine = Machine(
        Job(size, settings, seed, step), _present(plan, settings) if faulty else {}, plan.leaf_effects if faulty else {}
    )
    return machine.run(program_of, folder_of)


def _present(plan: Plan, settings: Settings) -> dict[tuple[int, Label], Effect]:
    """The plan's effects without those in a recomputation that does not take place."""
    return {at: e for at, e in plan.effects.items() if at[1].phase != "recompute" or settings.recompute}


def _truncate(dump: Path, draw: Random) -> None:
    """Cut the file in the middle of a record, after 50 to 95 % of it, as a killed job leaves it."""
    text = dump.read_bytes()
    at = text.rfind(b'"Max": ', 0, int(len(text) * (0.5 + 0.45 * draw.random())))
    if at > 0:
        dump.write_bytes(text[: at + 9])
