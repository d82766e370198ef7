"""From a scenario's name to dump folders and the truth about them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from random import Random
from zlib import crc32

from numprobe.record.errors import NumprobeError
from numprobe.synth.machine import Machine
from numprobe.synth.program import Label, Program
from numprobe.synth.rank import Effect, Job, Rank
from numprobe.synth.scenarios import SCENARIOS, Plan
from numprobe.synth.settings import UNIT, Settings, Size
from numprobe.synth.stage import Variant
from numprobe.synth.step import step_program

EXIT_CODES = {"no_overflow": 0, "overflow_found": 1, "inconclusive": 3}
_BY_MODULE = ("kernel_fault", "unknown")  # what is left of a class where only modules are recorded


@dataclass(frozen=True)
class Source:
    """Ranks on which the same fault arose at the same place without having been received."""

    ranks: tuple[int, ...]
    first_op: str | None
    cls: str | None


@dataclass(frozen=True)
class Truth:
    """What an analysis of the dump must find. Written to truth.json; it comes from the simulator's state alone.

    ``source_ranks`` are all ranks that held the fault's dirt before receiving any. ``first_ops`` are the acceptable names
    of the first operator, ``first_op`` the best one; where the operator itself left no record it is the first record that
    shows the fault, and ``gap_after`` the last record before it. ``roles``: a *relay* received the dirt and was the first
    to bring it to some other rank, a *victim* received it and brought it to nobody. ``first_dirty`` gives for every rank
    that the fault reached the first record showing it, and the communication by which it came (``api@group#ordinal``, or
    ``send@from->to#ordinal``; null where it arose).
    """

    scenario: str
    seed: int
    size: str
    verdict: str
    exit_code: int
    cls: str | None
    classes: tuple[str, ...]
    step: int | None
    source_ranks: tuple[int, ...]
    first_op: str | None
    first_ops: tuple[str, ...]
    gap_after: str | None
    sources: tuple[Source, ...]
    roles: dict[int, str]
    first_dirty: dict[int, dict[str, str | None]]
    partial: tuple[int, ...]
    missing: tuple[int, ...]
    settings: dict[str, object]

    def as_json(self) -> dict[str, object]:
        """The object of truth.json: ``cls`` is spelled ``class``."""
        value = asdict(self)
        value["class"] = value.pop("cls")
        for source in value["sources"]:
            source["class"] = source.pop("cls")
        return value


def simulate(scenario: str, out: Path, *, seed: int = 0, size: Size = UNIT, **overrides: object) -> Truth:
    """Write the dump of ``scenario`` to ``out/step<n>/rank<r>`` and the truth to ``out/truth.json``.

    Args:
        scenario: a name of :data:`SCENARIOS`.
        out: a folder, made if need be; must not hold step folders yet.
        seed: draws the fault's place, the job's settings and every number.
        size: the job.
        overrides: fields of :class:`Settings` to fix instead of drawing them.

    Raises:
        NumprobeError: E-USE-010 for an unknown scenario, E-OUT-010 if ``out`` holds a dump already.
    """
    if scenario not in SCENARIOS:
        raise NumprobeError("E-USE-010", f"no scenario {scenario!r}", do="one of: " + ", ".join(sorted(SCENARIOS)))
    if any(out.glob("step*")):
        raise NumprobeError("E-OUT-010", f"{out} holds a dump already", do="name a new folder")
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
    truth = _truth(scenario, seed, size, settings, plan, ranks, out)
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
    return Settings(
        level=draw.choices(("mix", "L1", "L0"), (7, 2, 1))[0],
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


def _shown(rank: Rank, out: Path, settings: Settings) -> str | None:
    """The name of the first record that shows the fault, if it is in the part of the file that is left."""
    if rank.first_row is None or rank.rank in settings.missing:
        return None
    if rank.rank in settings.partial and rank.folder is not None:
        text = (rank.folder / "dump.json").read_text(encoding="ascii")
        start = text.find(f'\n  "{rank.first_row.name}": {{')
        if start < 0 or text.find("\n  }", start) < 0:
            return None
    return rank.first_row.name


def _truth(scenario: str, seed: int, size: Size, settings: Settings, plan: Plan, ranks: list[Rank], out: Path) -> Truth:
    sources = [r for r in ranks if r.tainted and r.arrival is None]
    roles, first_dirty = {}, {}
    for r in ranks:
        if not r.tainted:
            roles[r.rank] = "clean"
            continue
        roles[r.rank] = "source" if r.arrival is None else "relay" if r.infected else "victim"
        first_dirty[r.rank] = {
            "op": _shown(r, out, settings),
            "instance": r.arrival.instance if r.arrival else r.born_in,
        }
    verdict = plan.verdict or ("overflow_found" if plan.classes else "no_overflow")
    classes = plan.classes if verdict != "no_overflow" else ()
    groups: dict[str, list[int]] = {}
    name_of: dict[str, str | None] = {}
    first_ops: list[str] = []
    gap: str | None = None
    for r in sources:
        name = _shown(r, out, settings)
        groups.setdefault(str(r.birth), []).append(r.rank)
        if name_of.get(str(r.birth)) is None:
            name_of[str(r.birth)] = name
        if name is None or r.first_row is None:
            continue
        first_ops += [n for n in _names(r, name, plan) if n not in first_ops]
        if r.first_row_dirty_input and gap is None and r.first_row.index > 0:
            gap = r.program.rows[r.first_row.index - 1]
    if classes and settings.level == "L0":
        classes = (*classes, *(c for c in _BY_MODULE if c not in classes))
    if classes and gap is not None and "unknown" not in classes:
        classes = (*classes, "unknown")
    found = verdict == "overflow_found"
    best = classes[0] if classes else None
    return Truth(
        scenario=scenario,
        seed=seed,
        size=size.name,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        cls=best,
        classes=classes,
        step=plan.step if classes else None,
        source_ranks=tuple(r.rank for r in sources) if classes else (),
        first_op=first_ops[0] if first_ops and classes else None,
        first_ops=tuple(first_ops) if classes else (),
        gap_after=gap if found else None,
        sources=tuple(Source(tuple(who), name_of[place], best) for place, who in groups.items()) if classes else (),
        roles=roles,
        first_dirty=first_dirty,
        partial=settings.partial,
        missing=settings.missing,
        settings={f.name: _plain(getattr(settings, f.name)) for f in fields(settings)},
    )


def _names(r: Rank, name: str, plan: Plan) -> list[str]:
    """Acceptable names for the first operator of a source: the record itself, and its equivalents."""
    names = [name]
    if ".parameters_grad." in name:
        names.append(name.replace(".parameters_grad.", ".backward."))
    if plan.uses_unwritten and r.first_row is not None:
        before = r.program.rows[max(0, r.first_row.index - 4) : r.first_row.index]
        names += [n for n in before if n.startswith(("Torch.empty", "Tensor.new_empty", "Tensor.clone"))]
    return names


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else json.loads(json.dumps(value))
