"""The mapping by itself: to look at, and to keep."""

from __future__ import annotations

import csv
from pathlib import Path

from numprobe.diagnose.rl_consistency.messages import CATALOGUE, say
from numprobe.diagnose.rl_consistency.page.view import unknown_names
from numprobe.diagnose.rl_consistency.result import RlResult
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse
from numprobe.record.errors import NumprobeError
from numprobe.report.json_text import json_text
from numprobe.report.run_folder import writing
from numprobe.report.terminal import Style, joined, soft, table, wrap

HEAD = ("place", "train", "rollout")


def mapping_of(
    a: str | Path, b: str | Path, steps: frozenset[int] | None, ranks: frozenset[int] | None, mapping: str = ""
) -> RlResult:
    """Pair the modules of two dumps; ``mapping`` is a file that says which belong together."""
    return analyse(a, b, RlOptions(steps, ranks, mapping=mapping, as_given=True))


def write_mapping(result: RlResult, path: Path) -> None:
    """As csv, one row a place.

    Raises:
        NumprobeError: E-OUT-001 the file exists, E-OUT-002 it cannot be written.
    """
    if path.exists():
        raise NumprobeError("E-OUT-001", "the output file exists", where=str(path), do="choose another -o")
    with writing(path.parent), path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(HEAD)
        rows.writerows([p.place, "; ".join(p.train), "; ".join(p.rollout)] for p in result.mapping)
        rows.writerows(["", name, ""] for name in result.unmatched_train if not _placed(result, name))
        rows.writerows(["", "", name] for name in result.unmatched_rollout if not _placed(result, name))


def _placed(result: RlResult, name: str) -> bool:
    return any(name in (*p.train, *p.rollout) for p in result.mapping)


def render_mapping(result: RlResult, lang: str, style: Style, *, as_json: bool) -> str:
    """A table, or one JSON object: place -> the records of both sides."""
    if as_json:
        content = {
            "mapping": {p.place: {"a": p.train, "b": p.rollout} for p in result.mapping},
            "unknown_names": result.unknown_names,
            "unmatched": {"a": result.unmatched_train, "b": result.unmatched_rollout},
        }
        return json_text(content)
    rows = [[p.place, soft(", ".join(p.train) or "-"), soft(", ".join(p.rollout) or "-")] for p in result.mapping]
    lines = table([say(lang, "head.place"), "A", "B"], rows, (), style)
    for side, names in (("A", result.unmatched_train), ("B", result.unmatched_rollout)):
        label = f"{say(lang, 'page.unmatched')} ({side}):"
        for name in names:
            lines += wrap(soft(name), style.width, f"{label}  ", "    ")
    for said in unknown_names(result):
        lines += wrap(joined(CATALOGUE.pieces(lang, said.key, said.values), style), style.width, "", "  ")
    return "\n".join(lines)
