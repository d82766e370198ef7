"""What is true of a simulated dump, read off the state in which the simulator has left the ranks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from numprobe.synth.nan.rank import Rank
from numprobe.synth.nan.scenarios import Plan
from numprobe.synth.nan.settings import Settings, Size

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

    ``source_ranks`` are all ranks that held the fault's dirt before receiving any, ``suspects`` those of them without a
    folder. ``first_ops`` are the acceptable names of the first operator, ``first_op`` the best one; where the operator
    itself left no record it is the first record that shows the fault, and ``gap_after`` the last record before it.
    ``roles``: a *relay* received the dirt and was the first to bring it to some other rank, a *victim* received it and
    brought it to nobody. ``first_dirty`` gives for every rank that the fault reached the first record showing it (null if
    that is lost), and the communication by which it came (``api@group#ordinal``, or ``send@from->to#ordinal``; null where
    it arose by itself).
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
    suspects: tuple[int, ...]
    settings: dict[str, object]

    def as_json(self) -> dict[str, object]:
        """The object of truth.json: ``cls`` is spelled ``class``."""
        value = asdict(self)
        value["class"] = value.pop("cls")
        for source in value["sources"]:
            source["class"] = source.pop("cls")
        return value


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


def judge(scenario: str, seed: int, size: Size, settings: Settings, plan: Plan, ranks: list[Rank], out: Path) -> Truth:
    """The truth about a dump in ``out`` from the state in which its ranks (of the faulty step) have ended."""
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
    if classes and (settings.level == "L0" or any(name.startswith("Module.") for name in first_ops)):
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
        suspects=tuple(r.rank for r in sources if r.rank in settings.missing) if classes else (),
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
