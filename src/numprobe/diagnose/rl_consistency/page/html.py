"""The report page of the RL-consistency skill."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from numprobe.compare.expected import ERROR, WARNING
from numprobe.diagnose.rl_consistency.messages import CATALOGUE, say
from numprobe.diagnose.rl_consistency.page import view
from numprobe.diagnose.rl_consistency.page.heat import PHASE, heat_maps
from numprobe.diagnose.rl_consistency.result import Pair, RlResult
from numprobe.report.html import heat, render_page, script_data
from numprobe.report.html.heat import LETTERS, drawn, heat_values, ratio, script_words, wrapped
from numprobe.report.terminal import printable

MOST_FINDINGS = 40  # with their figures; the rest is in result.json
MOST_NAMES = 12  # between anchor and suspect
MOST_ALONE = 200  # records without partner, a side
MOST_ROWS = 4_000  # of the mapping, for the script; the rest is in mapping.csv
WITHOUT_SCRIPT = 120  # of them that stand in the page itself
BADGES = {
    "difference_found": ("error", "✗"),
    "no_difference": ("pass", "✓"),
    "premise_broken": ("undecided", "?"),
    "inconclusive": ("undecided", "?"),
}
ROW_BADGES = {
    "pass": ("pass", "✓"),
    "warning": ("warning", "!"),
    "error": ("error", "✗"),
    "incomparable": ("undecided", "?"),
    "unmatched": ("missing", "×"),
}
SCRIPT_WORDS = (
    *("page.copy", "page.copied", "page.filter", "page.shown", "page.previous", "page.next", "page.pages"),
    *("head.verdict", *(f"verdict.row.{verdict}" for verdict in LETTERS)),
    *heat.SCRIPT_WORDS,
)


def render_html(result: RlResult, lang: str, *, artifacts: Sequence[str] = ()) -> str:
    """The page, in both languages, showing ``lang`` first. Equal arguments give equal bytes.

    ``artifacts`` are the names of the files next to the page.
    """
    first = result.findings[0] if result.findings else None
    maps = heat_maps(result)
    rows = result.mapping[:MOST_ROWS]
    context = {
        "r": result,
        "v": view,
        "first": first,
        "others": result.findings[1:MOST_FINDINGS],
        "more_findings": max(len(result.findings) - MOST_FINDINGS, 0),
        "most_names": MOST_NAMES,
        "most_alone": MOST_ALONE,
        "title": f"numprobe rl: {view.short(view.suspect(first)) if first else say('en', f'verdict.{result.verdict}')}",
        "badge": BADGES[result.verdict],
        "row_badges": ROW_BADGES,
        "limits": {"warning": f"{WARNING:g}", "error": f"{ERROR:g}"},
        "ratio": ratio,
        "wrapped": wrapped,
        "maps": [drawn(heat_map) for heat_map in maps],
        "phase": PHASE,
        "differ": [pair for pair in result.mapping if pair.verdict == "error"],
        "map_command": shlex.join(["numprobe", "map", result.train, result.rollout]),
        "rows": rows[:WITHOUT_SCRIPT],
        "n_rows": len(rows),
        "artifacts": artifacts,
        "script_json": script_data(
            {
                "words": script_words(CATALOGUE, SCRIPT_WORDS),
                "maps": heat_values(maps),
                "verdict": "verdict.row.",
                "rows": _columns(rows) if len(rows) > WITHOUT_SCRIPT else None,
            }
        ),
    }
    folder = Path(__file__).parent
    styles, scripts = ("two_sides.css",), ("heat.js", "two_sides.js")
    return render_page(folder, "page.html.j2", CATALOGUE, lang, context, styles=styles, scripts=scripts)


def _columns(rows: Sequence[Pair]) -> dict[str, object]:
    """Columns of equal length, figures as they are shown."""
    return {
        "place": [printable(pair.place) for pair in rows],
        "train": [[printable(name) for name in pair.train] for pair in rows],
        "rollout": [[printable(name) for name in pair.rollout] for pair in rows],
        "verdict": [pair.verdict for pair in rows],
        "error": ["" if pair.error is None else view.percent(pair.error) for pair in rows],
        "ratio": ["" if pair.ratio is None else ratio(pair.ratio) for pair in rows],
    }
