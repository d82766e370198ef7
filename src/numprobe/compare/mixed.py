"""Dumps of programs that run in part as static graphs: MindSpore's tree has children ``graph`` and ``pynative``, each a dump."""

from __future__ import annotations

from pathlib import Path

from numprobe.record.errors import NumprobeError

KINDS = ("graph", "pynative")


def kinds_of(target: str | Path, golden: str | Path) -> tuple[list[str], list[str]]:
    """The kinds that both sides have, and those that only one has; none where a side is no such tree.

    Raises:
        NumprobeError: E-CMP-021 both are, and have no kind in common.
    """
    sides = [[kind for kind in KINDS if _is_folder(path, kind)] for path in (target, golden)]
    if not all(sides):
        return [], []
    common = [kind for kind in KINDS if kind in sides[0] and kind in sides[1]]
    if not common:
        raise NumprobeError(
            "E-CMP-021",
            "the target has {target} alone, the golden run {golden}",
            where=f"{target}, {golden}",
            do="give two dumps that ran in the same way",
            target=sides[0][0],
            golden=sides[1][0],
        )
    return common, [kind for kind in KINDS if (kind in sides[0]) != (kind in sides[1])]


def not_compared(target: str | Path, golden: str | Path, kind: str) -> NumprobeError:
    """Not raised: a kind that only one side has."""
    lacking = golden if _is_folder(target, kind) else target
    return NumprobeError(
        "E-CMP-021",
        "{kind} lies on one side alone, and was not compared",
        where=str(Path(lacking, kind)),
        do="copy it there, or record it again",
        kind=kind,
    )


def _is_folder(path: str | Path, kind: str) -> bool:
    try:
        return Path(path, kind).is_dir()
    except OSError:  # it may not be entered, which is told where it is opened
        return False
