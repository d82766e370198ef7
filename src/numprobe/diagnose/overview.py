"""What lies in a dump: steps, ranks, records, non-finite records, and which skills can work on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numprobe.execution.executor import choose
from numprobe.formats.dump import load_index, nothing_readable, open_dump
from numprobe.formats.layout import RankFolder, choose_steps, link_error
from numprobe.formats.msprobe.index import RankIndex
from numprobe.record.errors import NumprobeError
from numprobe.record.nonfinite import DIRTY
from numprobe.report import numbers
from numprobe.report.json_text import json_text
from numprobe.report.messages import GENERIC, Catalogue
from numprobe.report.terminal import Cell, Style, columns, pad, soft, table, wrap

CATALOGUE = Catalogue((Path(__file__).parent / "overview_messages", *GENERIC.folders))
say = CATALOGUE.say


@dataclass(frozen=True)
class KindOverview:
    """Records of one prefix (``Module``, ``NPU``, ...) in one rank; the example is the first non-finite one."""

    kind: str
    records: int
    nonfinite: int
    example: str


@dataclass(frozen=True)
class RankOverview:
    """One rank of one step. ``status``: ok | partial | missing | unreadable; ``note`` says what is wrong."""

    key: str
    rank: int | None
    status: str
    note: str = ""
    ops: int = 0
    nonfinite_ops: int = 0
    communication: int = 0
    size: int = 0
    has_extrema: bool = False
    framework: str = ""
    task: str = ""
    level: str = ""
    kinds: tuple[KindOverview, ...] = ()


@dataclass(frozen=True)
class StepOverview:
    step: int | None
    ranks: tuple[RankOverview, ...]

    def numbers(self, *status: str) -> list[int | str]:
        """Rank numbers (folder names where there is none) with one of these states."""
        return [r.rank if r.rank is not None else r.key for r in self.ranks if r.status in status]


@dataclass(frozen=True)
class Overview:
    name: str
    steps: tuple[StepOverview, ...]
    values: int

    @property
    def ranks(self) -> list[RankOverview]:
        return [r for s in self.steps for r in s.ranks]

    @property
    def readable(self) -> list[RankOverview]:
        return [r for r in self.ranks if r.status in ("ok", "partial")]

    def first(self, field: str) -> str:
        return next((str(v) for r in self.readable if (v := getattr(r, field))), "")

    @property
    def skills(self) -> list[str]:
        """Skills that can work on this dump alone."""
        return ["nan_overflow"] if any(r.has_extrema for r in self.readable) else []


def inspect(
    path: str | Path, steps: frozenset[int] | None = None, ranks: frozenset[int] | None = None, jobs: int | None = None
) -> Overview:
    """Look at every rank's index.

    Raises:
        NumprobeError: nothing readable at ``path`` (E-FMT-001 to 003, 014), or a choice that leaves nothing (E-USE-005).
    """
    dump = open_dump(path)
    folders = [(s, s.ranks) for s in choose_steps(dump.steps, steps, ranks)]
    tasks = [(r, dump.cache_to) for _, members in folders for r in members]
    size = sum(r.size for r, _ in tasks)
    seen: dict[tuple[int, str], RankOverview] = {}
    places = [(i, r.key) for i, (_, members) in enumerate(folders) for r in members]
    values = 0
    for position, (one, leaves) in choose(jobs, len(tasks), size)(_look, tasks):
        seen[places[position]] = one
        values += leaves
    if not any(one.status in ("ok", "partial") for one in seen.values()):
        reasons = [f"{one.key}: {one.note or one.status}" for one in seen.values()]
        raise nothing_readable(Path(path), [r for r, _ in tasks], reasons)
    found = tuple(
        StepOverview(s.step, tuple(seen[i, r.key] for r in members)) for i, (s, members) in enumerate(folders)
    )
    return Overview(dump.root.name, found, values)


def _look(task: tuple[RankFolder, Path | None]) -> tuple[RankOverview, int]:
    place, cache_to = task
    if place.problem:
        if place.problem == "missing":
            return RankOverview(place.key, place.rank, "missing", "missing"), 0
        return RankOverview(place.key, place.rank, "unreadable", str(link_error(place))), 0
    try:
        index = load_index(place.dump, cache_to)
    except NumprobeError as error:
        return RankOverview(place.key, place.rank, "unreadable", f"{error.code}  {error.what}"), 0
    damage = index.damage
    note = (
        f"{damage.reason} at byte {damage.offset:,} after {index.names[-1] if index.names else '-'}" if damage else ""
    )
    dirty = int(np.count_nonzero((index.input | index.output | index.parameter) & int(DIRTY)))
    calls = sum(1 for n in index.names if n.startswith(("Distributed.", "MintDistributed.")))
    info = index.info
    return (
        RankOverview(
            place.key,
            place.rank,
            index.status,
            note,
            len(index),
            dirty,
            calls,
            index.size,
            index.has_extrema,
            info.framework,
            info.task,
            info.level,
            _kinds(index),
        ),
        _tensor_leaves(place.dump),
    )


def as_json(found: Overview, *, ascii_only: bool = False) -> str:
    """The object of ``inspect --json`` (refinement 56), with what else is known."""
    return json_text(
        {
            "framework": found.first("framework"),
            "task": found.first("task"),
            "level": found.first("level"),
            "steps": [
                {
                    "step": s.step,
                    "ranks": s.numbers("ok", "partial"),
                    "partial": s.numbers("partial"),
                    "missing": s.numbers("missing", "unreadable"),
                }
                for s in found.steps
            ],
            "ops": sum(r.ops for r in found.ranks),
            "values": found.values,
            "nonfinite_ops": sum(r.nonfinite_ops for r in found.ranks),
            "skills": found.skills,
            "bytes": sum(r.size for r in found.ranks),
            "problems": [
                {"step": s.step, "rank": r.key, "status": r.status, "note": r.note}
                for s in found.steps
                for r in s.ranks
                if r.status != "ok"
            ],
        },
        ascii_only=ascii_only,
    )


def render(found: Overview, lang: str, style: Style) -> str:
    """The overview as text: facts, then the kinds of records of one rank: the first with non-finite ones, else the first."""
    problems = Counter(r.status for r in found.ranks if r.status != "ok")
    comma = say(lang, "list.comma")
    made = [m for m in (found.first("framework"), found.first("task"), found.first("level")) if m]
    steps = [s.step for s in found.steps if s.step is not None]
    first = found.steps[0]
    ranks = [say(lang, "inspect.ranks", ok=len(first.numbers("ok")), all=len(first.ranks))]
    for status in ("partial", "missing", "unreadable"):
        if problems[status]:
            who = _names(next(s for s in found.steps if s.numbers(status)).numbers(status))
            ranks.append(say(lang, f"inspect.{status}", count=len(first.numbers(status)) or problems[status], who=who))
    dirty = {r.key for r in found.ranks if r.nonfinite_ops}
    dirty_step = next((s.step for s in found.steps if any(r.nonfinite_ops for r in s.ranks)), None)
    size = sum(r.size for r in found.ranks)
    files = len(found.readable)
    ops = sum(r.ops for r in found.ranks)
    facts = [
        ("made", comma.join(made) or "-"),
        ("step", numbers.ranges(steps) if steps else "-"),
        ("rank", comma.join(ranks)),
        ("size", say(lang, "inspect.files", files=files, size=size, records=ops)),
        (
            "nonfinite",
            say(lang, "inspect.dirty", ranks=len(dirty), step=dirty_step if len(steps) > 1 else None)
            if dirty
            else say(lang, "inspect.clean"),
        ),
    ]
    labels = [say(lang, f"inspect.label.{key}") for key, _ in facts]
    width = max(columns(label) for label in labels)
    lines = []
    for label, (_, text) in zip(labels, facts, strict=True):
        lines += wrap(text, style.width, f"  {pad(label, width)}  ", " " * (width + 4))
    for s in found.steps:
        for r in s.ranks:
            if r.note and r.status != "missing" and len(lines) < 24:
                where = f"step{s.step}/{r.key}" if s.step is not None else r.key
                lines += wrap(f"{where}: {r.note}", style.width, f"  {style.symbol('warning')} ", "    ")
    whole = [(s.step, r) for s in found.steps for r in s.ranks if r.kinds]
    if whole:
        step, shown = next((one for one in whole if one[1].nonfinite_ops), whole[0])
        titles = [say(lang, f"inspect.column.{c}") for c in ("kind", "records", "nonfinite", "example")]
        rows = [
            [Cell(k.kind), Cell(numbers.count(k.records)), Cell(numbers.count(k.nonfinite)), Cell(soft(k.example))]
            for k in shown.kinds
        ]
        lines += ["", *table(titles, rows, (1, 2), style), ""]
        rank = shown.rank if shown.rank is not None else shown.key
        lines += wrap(say(lang, "inspect.shown", rank=rank, step=step if len(steps) > 1 else None), style.width)
    key = "inspect.skills" if found.skills else "inspect.no_skill"
    lines += wrap(say(lang, key, skills=comma.join(found.skills)), style.width)
    return "\n".join(lines)


def _names(ranks: Sequence[int | str]) -> str:
    whole = [r for r in ranks if isinstance(r, int)]
    return numbers.ranges(whole) if len(whole) == len(ranks) else ", ".join(map(str, ranks[:4]))


def _tensor_leaves(path: Path) -> int:
    """How many tensors a file describes: the places where a dtype is given as text."""
    total, rest = 0, b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            block = rest + block
            total += block.count(b'"dtype": "') + block.count(b'"dtype":"')
            rest = block[-9:]
            total -= rest.count(b'"dtype":"')
    return total + rest.count(b'"dtype":"')


def _kinds(index: RankIndex) -> tuple[KindOverview, ...]:
    dirty = (index.input | index.output | index.parameter) & int(DIRTY)
    count: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    example: dict[str, str] = {}
    for name, flag in zip(index.names, dirty.tolist(), strict=True):
        kind = name.partition(".")[0]
        count[kind] += 1
        if flag:
            bad[kind] += 1
        if kind not in example or (flag and bad[kind] == 1):
            example[kind] = name
    return tuple(KindOverview(k, n, bad[k], example[k]) for k, n in count.most_common(12))
