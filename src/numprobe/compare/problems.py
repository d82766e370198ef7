"""What a comparison lacks: ranks, ends of files, structure, tensors. By rank, with the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numprobe.align.calls import Calls
from numprobe.compare.measure import DIGEST, FLOAT, Measures
from numprobe.compare.result import PREMISES, Problem, RankPair
from numprobe.formats.dump import RankDump
from numprobe.formats.layout import RankFolder, StepFolder
from numprobe.record.errors import NumprobeError
from numprobe.record.names import PARAMETERS_GRAD
from numprobe.report.terminal import encodable

if TYPE_CHECKING:
    from numprobe.compare.custom import PairMetrics

ENOUGH = 0.5  # of what both sides recorded has to be compared for a verdict of pass
SIDES = ("target", "golden")
READING = ("E-FMT-010", "E-FMT-011", "E-FMT-012")  # errors that have a text of their own
DAMAGE = {"truncated": "cut", "live": "growing"}  # the rest: damaged
ONLY = {"L0": ("module", PARAMETERS_GRAD), "L1": ("api",)}  # kinds of records of a level
CODE = re.compile(r"E-[A-Z]{3}-\d{3}")
AS_ASKED = {"tensor": "no_tensors", "digest": "no_digests"}  # by figures alone, what has none is not compared


# --- whole ranks -----------------------------------------------------------------------------------------------------


def absent_ranks(a: StepFolder, b: StepFolder) -> tuple[list[RankPair], list[Problem]]:
    """Ranks of either side that are known and cannot be read."""
    pairs, problems = [], []
    missing = [{r.rank for r in step.ranks if r.problem == "missing"} for step in (a, b)]
    for side, step in enumerate((a, b)):
        for rank in (r for r in step.ranks if r.problem):
            pairs.append(RankPair(a.step, rank.rank, *_keys(rank.key, side), "missing", _note(rank)))
            if rank.problem != "missing":
                problems.append(_of_rank("unreadable", side, a.step, rank, why=rank.problem))
            elif rank.rank not in missing[1 - side]:
                problems.append(_of_rank("missing", side, a.step, rank))
            elif side == 0:
                problems.append(Problem("on_no_side", "", a.step, rank.key, _text(rank.folder)))
    return pairs, problems


def lonely_ranks(side: int, ranks: Iterable[RankFolder], other: StepFolder, step: int | None) -> list[Problem]:
    """Ranks that were read, whose number the other side has not; none for those that nobody asked for there."""
    known = {r.rank for r in other.ranks}
    return [
        _of_rank("missing", 1 - side, step, r, folder=other.folder / r.key)
        for r in ranks
        if r.rank not in known and (other.asked is None or r.rank in other.asked)
    ]


def unpaired(kind: str, side: int, step: int | None, ranks: Iterable[RankFolder]) -> list[Problem]:
    """Ranks that hold nothing that the other side holds too (``unpaired``), or a copy of what was compared (``copy``)."""
    return [_of_rank(kind, side, step, rank) for rank in ranks]


def unreadable(
    error: NumprobeError, places: Sequence[tuple[str, RankFolder]], step: int | None, rank: RankFolder
) -> Problem:
    """A rank whose dump cannot be read; ``places`` are those that it may be, by side."""
    side, place = next(((s, r) for s, r in places if error.where.startswith(str(r.folder))), ("", rank))
    why = error.code if error.code in READING else "other"
    return Problem("unreadable", side, step, place.key, encodable(error.where or str(place.dump)), {"why": why})


def steps_apart(one: Sequence[StepFolder], other: Sequence[StepFolder], compared: set[int | None]) -> list[Problem]:
    """Steps that only one side has."""
    found = []
    for side, steps in enumerate((one, other)):
        alone = [s for s in steps if s.step not in compared]
        if alone:
            numbers = ", ".join(str(s.step) for s in alone[:6]) + (", ..." if len(alone) > 6 else "")
            values: dict[str, str | int | float] = {"steps": numbers, "count": len(alone)}
            found.append(Problem("steps", SIDES[side], None, "", _text(alone[0].folder.parent), values))
    return found


def _of_rank(
    kind: str, side: int, step: int | None, rank: RankFolder, why: str = "", folder: Path | None = None
) -> Problem:
    return Problem(
        kind, SIDES[side], step, rank.key, _text((folder or rank.folder) / rank.file), {"why": why} if why else {}
    )


def _keys(key: str, side: int) -> tuple[str, str]:
    return (key, "") if side == 0 else ("", key)


def _note(rank: RankFolder) -> str:
    return "" if rank.problem == "missing" else f"E-FMT-015  {rank.problem}"


def _text(path: Path) -> str:
    return encodable(str(path))


# --- inside a pair of ranks ------------------------------------------------------------------------------------------


def of_dump(dump: RankDump, side: str, step: int | None, *, tensors: bool = False) -> list[Problem]:
    """Damage of one rank's files; with ``tensors``, also a folder of them that lies elsewhere."""
    place, key = dump.place, dump.place.key
    found = []
    if damage := dump.index.damage:
        kind = DAMAGE.get(damage.reason, "damaged")
        values: dict[str, str | int | float] = {"offset": damage.offset, "op": encodable(damage.record)}
        found.append(Problem(kind, side, step, key, _text(place.dump), values))
    for name, file, damaged in (
        ("construct", place.construct, dump.tree.damage),
        ("stack", place.stack, dump.stacks.damage),
    ):
        if damaged:
            found.append(Problem(name, side, step, key, _text(file), {"why": damaged}))
    folder = place.tensors
    if tensors and folder.is_symlink() and folder.is_dir():
        found.append(Problem("linked", side, step, key, _text(folder), {"real": _text(folder.resolve())}))
    return found


def of_levels(target: Calls, golden: Calls) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows of both tables, the target's first: are they of a kind that both levels record?"""
    levels = {calls.dump.index.info.level for calls in (target, golden)}
    kinds = [set(ONLY[level]) for level in levels if level in ONLY] if len(levels) > 1 else []
    every = []
    for calls in (target, golden):
        of_op = np.array([all(op.kind in k or op.kind not in _LEVELLED for k in kinds) for op in calls.ops], bool)
        every.append(of_op[calls.values.op_of()])
    return np.concatenate(every)


_LEVELLED = {kind for kinds in ONLY.values() for kind in kinds}


def of_amount(
    pair: RankPair, own: tuple[int, int], judged: int, recorded: int, files: tuple[str, str]
) -> list[Problem]:
    """Too little of a rank was compared. ``own``: leaves of each side; ``judged`` of the ``recorded`` ones of both have been."""
    if not any(own):
        return [Problem("nothing", "", pair.step, pair.target, encodable(files[0]))]
    for side, name in enumerate(SIDES):
        if not own[side] and own[1 - side]:
            key = (pair.target, pair.golden)[side]
            return [Problem("empty", name, pair.step, key, encodable(files[side]), {"count": own[1 - side]})]
    share = 2 * judged / recorded if recorded else 0.0
    if share < ENOUGH:
        return [Problem("little", "", pair.step, pair.target, encodable(files[0]), {"coverage": round(share, 4)})]
    return []


def of_tensors(pair: RankPair, measures: Measures, file: str) -> list[Problem]:
    """Tensors that could not be read; ``why`` has the codes of their errors."""
    unread = measures.problems.values()
    if not unread:
        return []
    codes = sorted({found[0] for text in unread if (found := CODE.search(text))})
    values: dict[str, str | int | float] = {"count": len(unread), "why": ", ".join(codes)}
    return [Problem("tensors", "", pair.step, pair.target, encodable(file), values)]


def of_mode(by: str, pair: RankPair, measures: Measures, file: str) -> list[Problem]:
    """What was compared in another way than the one that was asked for."""
    if by not in AS_ASKED:
        return []
    done = measures.is_float & (measures.reason == 0)
    digests, floats = done & (measures.by == DIGEST), done & (measures.by == FLOAT)
    asked = int((floats & measures.from_tensors if by == "tensor" else digests).sum())
    all_ = int((floats | digests).sum())
    if asked == all_:
        return []
    values: dict[str, str | int | float] = {"count": all_ - asked, "all": all_, "by": by}
    return [Problem("some_otherwise" if asked else AS_ASKED[by], "", pair.step, pair.target, encodable(file), values)]


def of_metrics(pair: RankPair, custom: PairMetrics | None, file: str) -> list[Problem]:
    """Metrics of the user's that failed, or had nothing to look at."""
    if custom is None:
        return []
    if not custom.rows:
        return [Problem("no_metrics", "", pair.step, pair.target, encodable(file))]
    return [
        Problem("metric", "", pair.step, pair.target, encodable(file), {"column": column, "count": count, "why": why})
        for column, count, why in custom.reasons()
    ]


def premise_of(problems: Iterable[Problem]) -> str:
    """The first premise of :data:`PREMISES` that a problem breaks; empty if none does."""
    broken = {problem.premise for problem in problems}
    return next((name for name in PREMISES if name in broken), "")
