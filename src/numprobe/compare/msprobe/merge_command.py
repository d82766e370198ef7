"""Merging from start to end: folder, files, screen, exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numprobe.compare.messages import CATALOGUE, say
from numprobe.compare.msprobe.agreement import Disagreement, disagreements
from numprobe.compare.msprobe.files import timestamp
from numprobe.compare.msprobe.inputs import read_results
from numprobe.compare.msprobe.merge import Merged, merge, write_merged
from numprobe.compare.msprobe.merged_table import merged_table
from numprobe.compare.msprobe.results import RankResult
from numprobe.compare.msprobe.selection import Selection, read_selection
from numprobe.compare.table import write_parquet
from numprobe.execution.memory import without_collector
from numprobe.execution.stages import ignore
from numprobe.report.json_text import json_text
from numprobe.report.language import is_utf8
from numprobe.report.run_folder import RunFolder, open_run, writing
from numprobe.report.running import Told, marked, print_conclusion
from numprobe.report.terminal import Style, columns, joined, printable, table, wrap

TABLE = "merge.parquet"
MOST = 5  # disagreements on the screen


@dataclass(frozen=True)
class MergeOutcome:
    """What was merged, and what is wrong in it: ``disagreements`` are outputs that should be equal on all ranks of a group."""

    results: Sequence[RankResult]
    merged: Merged
    disagreements: Sequence[Disagreement]

    @property
    def wrong(self) -> list[Disagreement]:
        """The disagreements that the golden run does not have as well."""
        return [one for one in self.disagreements if one.golden_agrees is not False]

    @property
    def errors(self) -> int:
        return sum(result.counts.get("error", 0) for result in self.results)

    @property
    def exit_code(self) -> int:
        return 1 if self.wrong or self.errors else 0


def merge_to_folder(
    paths: Sequence[Path],
    config: Path | None = None,
    out: Path | None = None,
    *,
    step: int | None = None,
    csv: bool = False,
) -> tuple[MergeOutcome, RunFolder]:
    """Merge and write the run's folder.

    Raises:
        NumprobeError: as :func:`~numprobe.compare.msprobe.inputs.read_results` and
            :func:`~numprobe.compare.msprobe.selection.read_selection`, E-CMP-036 no row that was asked for, E-OUT-001 or
            E-OUT-002 the folder cannot be used.
    """
    selection = read_selection(config) if config is not None else Selection()
    with without_collector():
        results = read_results(paths, selection, step)
        merged = merge(results, selection)
        outcome = MergeOutcome(results, merged, disagreements(results, selection.groups))
        inputs: dict[str, object] = {"results": [str(file.resolve()) for result in results for file in result.files]}
        chosen = {"api": selection.apis, "compare_index": selection.indices, "groups": selection.groups}
        run = open_run("merge", out, inputs, {**chosen, "step": step, "csv": csv})
        with marked(run, Told(ignore)):
            _write(run, outcome, selection, csv)
    run.finish("done")
    return outcome, run


def _write(run: RunFolder, outcome: MergeOutcome, selection: Selection, csv: bool) -> None:
    with writing(run.path):
        for old in run.path.glob("multi_ranks_compare_merge_*"):  # of this run, when it was made before
            old.unlink()
        write_parquet(merged_table(outcome.merged), run.path / TABLE)
    groups, found = selection.groups, outcome.disagreements
    files = write_merged(run.path, timestamp(), outcome.merged, groups=groups, disagreements=found, xlsx=not csv)
    run.artifacts += [TABLE, *(file.name for file in files)]
    run.write_json("result.json", as_object(outcome, ""))


def as_object(outcome: MergeOutcome, out: str) -> dict[str, object]:
    """The conclusion as one object."""
    return {
        "verdict": "fail" if outcome.exit_code else "pass",
        "out": out,
        "ranks": [
            {"rank": result.rank, "rows": len(result.keys), **{k: result.counts.get(k, 0) for k in _COUNTS}}
            for result in outcome.results
        ],
        "rows": len(outcome.merged.names),
        "columns": list(outcome.merged.tables),
        "disagreements": [
            {
                "op": one.name,
                "group": one.group,
                "what": one.what,
                "ranks": one.others,
                "golden_agrees": one.golden_agrees,
            }
            for one in outcome.disagreements
        ],
    }


_COUNTS = ("error", "warning", "pass")


def render(outcome: MergeOutcome, lang: str, style: Style, files: Sequence[str]) -> str:
    """The final screen, without a line break at the end."""
    key = "merge.disagree" if outcome.wrong else "merge.errors" if outcome.errors else "merge.agree"
    more = {"disagree": ("outputs", len(outcome.wrong)), "errors": ("errors", outcome.errors)}
    name, number = more.get(key.removeprefix("merge."), ("rows", len(outcome.merged.names)))
    symbol = style.symbol("error" if outcome.exit_code else "pass")
    sentence = joined(CATALOGUE.pieces(lang, key, {"ranks": len(outcome.results), name: number}), style)
    head = [say(lang, f"merge.head.{name}") for name in ("rank", "rows", *_COUNTS)]
    rows = [
        [str(n) for n in (r.rank, len(r.keys), *(r.counts.get(name, 0) for name in _COUNTS))] for r in outcome.results
    ]
    blocks = [
        wrap(sentence, style.width, f"{symbol} ", " " * (columns(symbol) + 1)),
        [line for one in outcome.disagreements[:MOST] for line in _line(one, lang, style)] + _more(outcome, lang),
        table(head, rows, (0, 1, 2, 3, 4), style),
        [f"{say(lang, 'merge.file')}  {printable(file)}" for file in files],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _line(one: Disagreement, lang: str, style: Style) -> list[str]:
    values: dict[str, object] = {"name": one.name, "group": one.group}
    if one.what == "values":
        values["others"] = one.others
    text = joined(CATALOGUE.pieces(lang, f"merge.{one.what}", values), style)
    if one.golden_agrees is False:
        text += f" ({say(lang, 'merge.golden')})"
    mark = style.symbol("undecided" if one.golden_agrees is False else "error")
    return wrap(text, style.width, f"{mark} ", "  ")


def _more(outcome: MergeOutcome, lang: str) -> list[str]:
    left = len(outcome.disagreements) - MOST
    return [f"  {say(lang, 'merge.more', count=left)}"] if left > 0 else []


def run_command(
    paths: Sequence[Path],
    config: Path | None,
    *,
    style_out: Style,
    lang: str,
    out: Path | None = None,
    step: int | None = None,
    csv: bool = False,
    as_json: bool = False,
) -> int:
    """The command: the conclusion on stdout, the exit code 1 where something is wrong, else 0."""
    outcome, run = merge_to_folder(paths, config, out, step=step, csv=csv)
    folder = run.path.as_posix()
    if as_json:
        ascii_only = not is_utf8(sys.stdout.encoding)
        print_conclusion(json_text(as_object(outcome, folder), ascii_only=ascii_only))
    else:
        files = [f"{folder}/{name}" for name in run.artifacts if name != "result.json"]
        print_conclusion(render(outcome, lang, style_out, files))
    return outcome.exit_code
