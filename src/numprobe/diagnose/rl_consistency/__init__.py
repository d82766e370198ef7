"""Why training and rollout of an RL run differ.

::

    from numprobe.diagnose import rl_consistency

    found = rl_consistency.run("train/step0", "rollout/step0", out="out")
    found.verdict, found.findings[0].clazz, found.findings[0].suspect
    rl_consistency.table(found, "linear_fc2")      # the rows of the mapping that a name is part of
    rl_consistency.layer(found, 0)
    rl_consistency.why_not(found, "linear_qkv")    # why a module is not the suspect
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numprobe.diagnose.rl_consistency.result import Pair, RlResult


def run(
    train: str | Path,
    rollout: str | Path,
    *,
    out: str | Path | None = None,
    step: set[int] | None = None,
    rank: set[int] | None = None,
    mapping: str | Path | None = None,
    lang: str = "en",
    compat: bool = False,
) -> RlResult:
    """Run the skill and write its folder. ``mapping``: a file that says which modules belong together.
    ``compat``: the files of msProbe's skill too.

    Raises:
        NumprobeError: nothing can be read, or ``out`` holds something else.
    """
    from numprobe.diagnose.rl_consistency.command import run_to_folder
    from numprobe.diagnose.rl_consistency.skill import RlOptions

    options = RlOptions(frozenset(step) if step else None, frozenset(rank) if rank else None)
    if mapping:
        options = replace(options, mapping=str(mapping))
    return run_to_folder(train, rollout, options, Path(out) if out else None, lang=lang, compat=compat)[0]


def table(result: RlResult, name: str) -> list[Pair]:
    """The rows of the mapping whose place or records hold this name."""
    return [pair for pair in result.mapping if any(name in text for text in (pair.place, *pair.train, *pair.rollout))]


def layer(result: RlResult, number: int) -> list[Pair]:
    """The rows of one layer."""
    return [pair for pair in result.mapping if f"layers.{number}." in f"{pair.place}."]


def why_not(result: RlResult, name: str) -> str:
    """Why a module is not the suspect, in one sentence of English; why it is, where it is."""
    rows = table(result, name)
    if not rows:
        alone = [n for n in (*result.unmatched_train, *result.unmatched_rollout) if name in n]
        return f"{alone[0]} has no partner on the other side." if alone else f"no record holds {name!r}"
    suspects = {key for f in result.findings for key in (f.suspect.train, f.suspect.rollout)}
    if any(key in suspects for row in rows for key in (*row.train, *row.rollout)):
        return f"{rows[0].place} is a suspect."
    agree = [row for row in rows if row.verdict in ("pass", "warning")]
    worst = max((row.ratio or 0.0 for row in agree), default=0.0)
    if len(agree) == len(rows):
        return f"{len(rows)} places of {name!r} agree: at most {worst:.2g} times what the arithmetic explains (4 is a warning)."
    behind = next(row for row in rows if row not in agree)
    return f"{behind.place} differs, but its input differed already: it is behind the first difference."
