"""What lies at a path: steps, ranks, a single dump.json."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from numprobe.formats.near import near_path
from numprobe.record.errors import NumprobeError

DUMP_FILES = ("dump.json", "debug.json")
_STEP = re.compile(r"step_?([0-9]+)\Z")
_RANK = re.compile(r"rank_?([0-9]*)\Z")
_PROC = re.compile(r"proc_?([0-9]+)\Z")
MAX_RANK = 10_000_000  # a larger number is no rank
MAX_STEP = 1 << 53  # and no step
MOST_MANIFEST = 1 << 26  # bytes of the run.json of a run


@dataclass(frozen=True)
class RankFolder:
    """One rank of one step. ``rank`` is None for a process folder (``proc<pid>``), whose rank nobody recorded.

    ``file`` is the name of its dump.json. ``problem`` is empty, ``missing`` (no folder, no dump.json), ``outside`` (a link
    that leads out of the dump) or ``ring`` (links that lead to each other). ``outside`` names construct.json and stack.json
    where they are links out of the dump: not to be read.
    """

    key: str
    rank: int | None
    folder: Path
    problem: str = ""
    file: str = DUMP_FILES[0]
    outside: tuple[str, ...] = ()

    @property
    def dump(self) -> Path:
        return self.folder / self.file

    @property
    def size(self) -> int:
        """Bytes of its dump.json; 0 where there is none that may be read."""
        try:
            return 0 if self.problem else self.dump.stat().st_size
        except OSError:
            return 0

    @property
    def construct(self) -> Path:
        return self.folder / "construct.json"

    @property
    def stack(self) -> Path:
        return self.folder / "stack.json"

    @property
    def tensors(self) -> Path:
        return self.folder / "dump_tensor_data"


@dataclass(frozen=True)
class StepFolder:
    """One step: its number (None if the path names no step) and its ranks, in rank order.

    ``left_out``: numbers of further ranks that nobody asked for. ``asked``: the rank numbers that somebody did ask for, None
    where it was all.
    """

    step: int | None
    folder: Path
    ranks: tuple[RankFolder, ...]
    left_out: tuple[int, ...] = ()
    asked: frozenset[int] | None = None

    @property
    def numbers(self) -> frozenset[int]:
        """Every rank number that is known here, read or not."""
        return frozenset((*(r.rank for r in self.ranks if r.rank is not None), *self.left_out))

    def choose(self, ranks: frozenset[int]) -> StepFolder:
        """These ranks alone; the others are left out. Folders without a number stay."""
        kept = tuple(r for r in self.ranks if r.rank is None or r.rank in ranks)
        return replace(self, ranks=kept, left_out=tuple(sorted(self.numbers - ranks)), asked=ranks)

    def with_absent(self, numbers: Iterable[int]) -> StepFolder:
        """With these ranks, of which no folder is here, as missing ones; as left out, those that nobody asked for."""
        new = frozenset(numbers) - self.numbers
        wanted = new if self.asked is None else new & self.asked
        absent = [_absent(self.folder, n) for n in wanted]
        ranks = sorted([*self.ranks, *absent], key=_order)
        return replace(self, ranks=tuple(ranks), left_out=tuple(sorted({*self.left_out, *new - wanted})))

    @property
    def missing(self) -> list[RankFolder]:
        return [r for r in self.ranks if r.problem]


@dataclass(frozen=True)
class DumpLayout:
    """The steps below a path, in order. ``root`` is the folder that all files lie in; ``sparse``: numbers of single ranks lie
    so far off that those between were probably never recorded; ``ignored``: folders whose number is too large for a rank or step.
    """

    root: Path
    steps: tuple[StepFolder, ...]
    sparse: bool = False
    unknown: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def find_layout(path: Path) -> DumpLayout:
    """Recognise a dump.json, a rank folder, ``proc<pid>``, a step folder or a folder of steps.

    A folder that holds nothing but one further folder of these kinds is looked into.

    Raises:
        NumprobeError: E-FMT-001 no such path, E-FMT-002 nothing to read there, E-FMT-003 folders of two jobs.
    """
    try:
        if path.is_file():
            return _single(path.resolve())  # what is named itself may be a link
        if path.is_dir():
            return _folder(path, depth=0)
        there = path.exists()
    except PermissionError as error:
        where = str(error.filename or path)
        if os.access(where, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise NumprobeError(
                "E-FMT-010",
                "the folder cannot be entered",
                where=where,
                do="check that its execute bit is set for you",
            ) from None
        raise NumprobeError(
            "E-FMT-010", "the folder cannot be read", where=where, do="check that you may read it"
        ) from None
    except OSError as error:  # a name too long, a ring of links
        raise NumprobeError(
            "E-FMT-001",
            "no such file or folder: {reason}",
            where=str(path)[:300],
            do="check the path",
            reason=error.strerror or str(error),
        ) from None
    if there:
        raise NumprobeError(
            "E-FMT-002",
            "{name} is neither file nor folder",
            where=str(path),
            do="give a dump.json, a rank folder or a step folder",
            name=path.name,
        )
    close = near_path(path)
    raise NumprobeError(
        "E-FMT-001",
        "no such file or folder",
        where=str(path),
        do="did you mean {near}?" if close else "check the path",
        near=close,
    )


def _single(path: Path) -> DumpLayout:
    if path.suffix != ".json" or path.name in ("construct.json", "stack.json"):
        raise NumprobeError(
            "E-FMT-002",
            "{file} is no dump",
            where=str(path),
            do="give a dump.json, a rank folder or a step folder",
            file=path.name,
        )
    step = path.parent.parent
    rank = replace(_rank_folder(path.parent, step), file=path.name, problem="")
    return DumpLayout(path.parent, (_one_rank(rank, step),))


def _one_rank(rank: RankFolder, step: Path) -> StepFolder:
    """A step of which one rank was named; the ranks beside it are left out."""
    beside: set[int] = set()
    if rank.rank is not None:
        with suppress(OSError):
            beside = {n for p in step.iterdir() if (n := _rank_of(p)) is not None}
    asked = None if rank.rank is None else frozenset({rank.rank})
    return StepFolder(_step_of(step), step, (rank,), tuple(sorted(beside - {rank.rank})), asked)


def _folder(path: Path, depth: int) -> DumpLayout:
    _enter(path)
    children = sorted(p for p in path.iterdir() if _is_folder(p))
    steps = sorted((s, p) for p in children if (s := _step_of(p)) is not None)
    if steps:
        twice = [p.name for s, p in steps if sum(s == other for other, _ in steps) > 1]
        if twice:
            raise NumprobeError(
                "E-FMT-003",
                "two folders have one step number",
                where=str(path),
                found="{folders}",
                do="move one of them elsewhere",
                folders=", ".join(twice),
            )
        found = [_step(p, s, path) for s, p in steps]
        unknown = tuple(p.name for p in children if _step_of(p) is None)
        ignored = _ignored(path, children, *(list(p.iterdir()) for _, p in steps))
        return _complete(DumpLayout(path, tuple(f for f in found if f.ranks), unknown=unknown, ignored=ignored), path)
    if any((path / name).exists() for name in DUMP_FILES):
        return DumpLayout(path, (_one_rank(_rank_folder(path, path), path.resolve().parent),))
    if any(_is_rank(p) for p in children):
        unknown = tuple(p.name for p in children if not _is_rank(p))
        ignored = _ignored(path, children)
        return _complete(DumpLayout(path, (_step(path, _step_of(path), path),), unknown=unknown, ignored=ignored), path)
    inner = [p for p in children if depth < 2 and _looks_like_dump(p)]
    if len(inner) == 1:
        return _folder(inner[0], depth + 1)
    if inner:
        raise NumprobeError(
            "E-FMT-002",
            "several dumps lie here",
            where=str(path),
            found="{folders}",
            do="give one of them, for example {example}",
            folders=", ".join(p.name for p in inner[:8]),
            example=inner[0].name,
        )
    if read := _read_by_run(path):
        raise NumprobeError(
            "E-FMT-002",
            "no dump here, but the results of a numprobe run",
            where=str(path),
            do="give the dump that the run read: {inputs}",
            inputs=", ".join(read),
        )
    raise NumprobeError(
        "E-FMT-002",
        "no dump here: no step<N>, rank<N> or proc<pid> folder and no dump.json",
        where=str(path),
        found="{folders}" if children else "nothing",
        do="give the folder that the collector wrote (dump_path)",
        folders=", ".join(p.name for p in children[:8]),
    )


def _read_by_run(folder: Path) -> list[str]:
    """The dumps that a run of numprobe read, where the folder is that of one."""
    manifest = folder / "run.json"
    try:
        if not manifest.is_file() or manifest.stat().st_size > MOST_MANIFEST:
            return []
        content = json.loads(manifest.read_bytes())
        inputs = content["inputs"] if "skill" in content else {}
        return [path for path in inputs.values() if isinstance(path, str)]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return []


def _looks_like_dump(path: Path) -> bool:
    try:
        names = [p.name for p in path.iterdir()]
    except OSError:
        return False
    return any(_STEP.match(n) or _RANK.match(n) or _PROC.match(n) or n in DUMP_FILES for n in names)


def _enter(folder: Path) -> None:
    """Fail where a folder's names may be listed and nothing in it looked at.

    Raises:
        PermissionError: its execute bit is not set.
    """
    if not os.access(folder, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _step_of(folder: Path) -> int | None:
    found = _STEP.match(folder.name)
    number = int(found.group(1)) if found else MAX_STEP + 1
    return number if number <= MAX_STEP else None


def _rank_of(folder: Path) -> int | None:
    """The number in a rank folder's name, 0 where a single process wrote none; None for any other folder."""
    found = _RANK.match(folder.name)
    number = int(found.group(1) or 0) if found else MAX_RANK + 1
    return number if number <= MAX_RANK else None


def _is_rank(folder: Path) -> bool:
    return _rank_of(folder) is not None or bool(_PROC.match(folder.name))


def _ignored(path: Path, *listings: Sequence[Path]) -> tuple[str, ...]:
    """Folders that are named like ranks or steps, with a number that neither can have."""
    return tuple(
        sorted(
            p.relative_to(path).as_posix()
            for listing in listings
            for p in listing
            if (_RANK.match(p.name) or _STEP.match(p.name)) and _rank_of(p) is None and _step_of(p) is None
        )
    )


def _order(rank: RankFolder) -> tuple[bool, int, str]:
    return rank.rank is None, rank.rank or 0, rank.key


def _absent(step: Path, number: int) -> RankFolder:
    return RankFolder(f"rank{number}", number, step / f"rank{number}", "missing")


def _rank_folder(folder: Path, root: Path, *, parent_inside: bool = False) -> RankFolder:
    """``parent_inside``: the folder that holds it is known to lie in ``root``, so only a link can lead out."""
    rank = _rank_of(folder)
    try:
        if _link(folder, root) if parent_inside else not folder.resolve().is_relative_to(root.resolve()):
            return RankFolder(folder.name, rank, folder, "outside")
        outside = tuple(n for n in ("construct.json", "stack.json") if _link(folder / n, root) == "outside")
        for name in DUMP_FILES:
            if problem := _link(folder / name, root):
                return RankFolder(folder.name, rank, folder, problem, name, outside)
            if (folder / name).exists():
                return RankFolder(folder.name, rank, folder, "", name, outside)
    except OSError:  # no permission: whoever reads it will say so
        return RankFolder(folder.name, rank, folder)
    return RankFolder(folder.name, rank, folder, "missing", outside=outside)


def _link(path: Path, root: Path) -> str:
    """``outside`` for a link that leads out of ``root``, ``ring`` for links that lead to each other, else empty."""
    if not path.is_symlink():
        return ""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "ring"
    return "" if path.resolve().is_relative_to(root.resolve()) else "outside"


def _step(folder: Path, step: int | None, root: Path) -> StepFolder:
    _enter(folder)
    inside = folder.resolve().is_relative_to(root.resolve())
    ranks = [_rank_folder(p, root, parent_inside=inside) for p in folder.iterdir() if _is_rank(p) and _is_folder(p)]
    ranks.sort(key=_order)
    numbered = [r for r in ranks if r.rank is not None]
    if len({r.rank for r in numbered}) != len(numbered):
        twice = sorted(r.key for r in numbered if sum(o.rank == r.rank for o in numbered) > 1)
        raise NumprobeError(
            "E-FMT-003",
            _TWO_JOBS,
            where=str(folder),
            found="{folders}",
            do="move the folders of one job elsewhere",
            folders=", ".join(twice),
        )
    if numbered and len(numbered) != len(ranks):
        raise NumprobeError(
            "E-FMT-003",
            _TWO_JOBS,
            where=str(folder),
            found="{first} to {last}, and {others}",
            do="give one process folder, as in {step}/{process}, or move {others} elsewhere to read the ranks",
            first=numbered[0].key,
            last=numbered[-1].key,
            others=", ".join(r.key for r in ranks if r.rank is None),
            step=folder.name,
            process=ranks[-1].key,
        )
    return StepFolder(step, folder, tuple(ranks))


_TWO_JOBS = "folders of two jobs lie in one step"


def _complete(layout: DumpLayout, path: Path) -> DumpLayout:
    """Add the ranks that have no folder, up to where more than half of the numbers have one.

    Numbers beyond are strays, or a choice of ranks to record: nothing is known of those between.
    """
    if not any(step.ranks for step in layout.steps):
        raise NumprobeError(
            "E-FMT-002",
            "no rank here",
            where=str(path),
            found="{folders}" if layout.ignored else "",
            do="give the folder that the collector wrote (dump_path)",
            folders=", ".join(layout.ignored[:8]),
        )
    numbers = {r.rank for step in layout.steps for r in step.ranks if r.rank is not None}
    if not numbers:
        return layout
    world = max((n + 1 for count, n in enumerate(sorted(numbers), 1) if count * 2 > n + 1), default=0)
    steps = tuple(s.with_absent(range(world)) for s in layout.steps)
    return replace(layout, steps=steps, sparse=world <= max(numbers))


def choose_steps(
    steps: Sequence[StepFolder], numbers: frozenset[int] | None, ranks: frozenset[int] | None
) -> list[StepFolder]:
    """The steps with these numbers, each with these ranks only; None chooses all.

    Raises:
        NumprobeError: E-USE-005 nothing is left.
    """
    chosen = [s for s in steps if numbers is None or s.step is None or s.step in numbers]
    if not chosen:
        have = ", ".join(str(s.step) for s in steps)
        raise NumprobeError(
            "E-USE-005", "--step leaves no step", found="steps {steps}", do="choose one of these", steps=have
        )
    if ranks is None:
        return chosen
    left = [one for s in chosen if (one := s.choose(ranks)).ranks]
    if not left:
        known = frozenset().union(*(s.numbers for s in chosen))
        raise NumprobeError(
            "E-USE-005",
            "--rank leaves no rank",
            found="ranks {first} to {last}" if known else "no rank",
            do="choose some of these",
            first=min(known, default=0),
            last=max(known, default=0),
        )
    return left


def link_error(rank: RankFolder) -> NumprobeError:
    """E-FMT-015: why a rank whose ``problem`` is ``outside`` or ``ring`` is not read."""
    if rank.problem == "ring":
        return NumprobeError("E-FMT-015", "a link that leads to itself")
    return NumprobeError("E-FMT-015", "a link that leads out of the dump folder")


def none_readable(where: Path, reasons: Sequence[str]) -> NumprobeError:
    """E-FMT-014, with the first reasons."""
    return NumprobeError(
        "E-FMT-014",
        "no rank could be read",
        where=str(where),
        found="{reasons}",
        do="check that the folder holds dump.json files that you may read",
        reasons="; ".join(reasons[:3]),
    )
