"""The report page of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from numprobe.compare.expected import ERROR, WARNING
from numprobe.compare.messages import CATALOGUE, say
from numprobe.compare.page import view
from numprobe.compare.page.heat import HANDED_ON, heat_maps
from numprobe.compare.page.rows import Row
from numprobe.compare.result import CompareResult, Finding, RankPair
from numprobe.report import numbers
from numprobe.report.html import heat, render_page, script_data
from numprobe.report.html.heat import LETTERS, HeatMap, drawn, heat_values, ratio, script_words, wrapped
from numprobe.report.names import telling_part
from numprobe.report.terminal import printable

MOST_FINDINGS = 40  # with their figures; the rest is in result.json
MOST_RANKS = 512
MOST_NAMES = 12  # of records without partner, in a finding
WITHOUT_SCRIPT = 50  # rows of the table that stand in the page itself
BADGES = {"pass": "pass", "fail": "error", "inconclusive": "undecided"}
SYMBOLS = {"pass": "✓", "fail": "✗", "inconclusive": "?"}
ROW_BADGES = {
    "pass": ("pass", "✓"),
    "warning": ("warning", "!"),
    "error": ("error", "✗"),
    "incomparable": ("undecided", "?"),
    "unmatched": ("missing", "×"),
    "unmatched_target": ("missing", "×"),
    "unmatched_golden": ("missing", "×"),
}
SCRIPT_WORDS = (
    *("page.copy", "page.copied", "page.filter", "page.shown", "page.previous", "page.next", "page.pages"),
    *("page.golden_op", "head.verdict", "page.head.phase"),
    *heat.SCRIPT_WORDS,
)


def render_html(
    result: CompareResult,
    lang: str,
    *,
    artifacts: Sequence[str] = (),
    rows: Sequence[Row] = (),
    custom: Sequence[str] = (),
) -> str:
    """The page, in both languages, showing ``lang`` first. Equal arguments give equal bytes.

    ``artifacts`` are the names of the files next to the page, ``rows`` those of the table that do not pass, or the first of them;
    ``custom`` has the names of the user's own metrics.
    """
    first = result.findings[0] if result.findings else None
    maps = heat_maps(result)
    context = {
        "r": result,
        "v": view,
        "first": first,
        "others": result.findings[1:MOST_FINDINGS],
        "more_findings": max(len(result.findings) - MOST_FINDINGS, 0) + result.more_findings,
        "most_names": MOST_NAMES,
        "title": _title(result, first),
        "badge_kind": BADGES[result.verdict],
        "symbol": SYMBOLS[result.verdict],
        "row_badges": ROW_BADGES,
        "limits": {"warning": f"{WARNING:g}", "error": f"{ERROR:g}"},
        "ratio": ratio,
        "of": lambda function, *values: lambda language: function(*values, language),
        "wrapped": wrapped,
        "infinite": math.inf,
        "notes": view.limits(result),
        "compared": sum(pair.compared for pair in result.ranks),
        "maps": [drawn(heat_map) for heat_map in maps],
        "shown_map": _shown_map(maps, first),
        "rows": rows[:WITHOUT_SCRIPT],
        "n_rows": len(rows),
        "custom": custom,
        "cell": _cell,
        "all_rows": sum(n for verdict, n in result.counts.items() if verdict != "pass"),
        "several_steps": len({pair.step for pair in result.ranks}) > 1,
        "by_step": len({row.step for row in rows}) > 1,
        "by_rank": len({row.rank for row in rows}) > 1,
        "rank_counts": [verdict for verdict, n in result.counts.items() if n or verdict == "pass"],
        "rank_rows": _rank_rows(result.ranks),
        "table": next((name for name in artifacts if name.endswith(".parquet")), ""),
        "artifacts": artifacts,
        "script_json": script_data(
            {
                "words": _words(result, rows),
                "maps": heat_values(maps),
                "verdict": "verdict.row.",
                "rows": _columns(rows),
            }
        ),
    }
    folder = Path(__file__).parent
    styles, scripts = ("two_sides.css",), ("heat.js", "two_sides.js")
    return render_page(folder, "page.html.j2", CATALOGUE, lang, context, styles=styles, scripts=scripts)


def _title(result: CompareResult, first: Finding | None) -> str:
    name = (first.op or first.golden_op or "") if first and result.verdict == "fail" else ""
    start, end = telling_part(name)
    return f"numprobe compare: {name[start:end] or name or say('en', f'verdict.{result.verdict}')}"


def _rank_rows(ranks: Sequence[RankPair]) -> list[RankPair]:
    """All pairs of ranks, or those with the most errors, in their order."""
    if len(ranks) <= MOST_RANKS:
        return list(ranks)
    worst = sorted(ranks, key=lambda pair: (pair.status == "ok", -pair.counts.get("error", 0)))
    kept = set(map(id, worst[:MOST_RANKS]))
    return [pair for pair in ranks if id(pair) in kept]


def _shown_map(maps: Sequence[HeatMap], first: Finding | None) -> str:
    phases = [heat_map.phase for heat_map in maps]
    return first.phase if first and first.phase in phases else phases[0] if phases else ""


# --- the table of records --------------------------------------------------------------------------------------------


def _words(result: CompareResult, rows: Sequence[Row]) -> dict[str, list[str]]:
    keys = [
        *SCRIPT_WORDS,
        *(f"verdict.row.{verdict}" for verdict in LETTERS),
        *(f"verdict.row.{verdict}" for verdict in dict.fromkeys(row.verdict for row in rows)),
        *(f"phase.{phase}" for phase in dict.fromkeys([*(c.phase for c in result.heat), *(row.phase for row in rows)])),
        *(f"status.{status}" for status in dict.fromkeys([HANDED_ON, *(row.status for row in rows)]) if status),
        *(f"reason.{reason}" for reason in dict.fromkeys(row.reason for row in rows) if reason),
    ]
    return script_words(CATALOGUE, keys)


def _cell(value: float | str | None) -> str:
    """What a metric of the user's gave."""
    return "" if value is None else printable(value) if isinstance(value, str) else numbers.stat(value)


def _columns(rows: Sequence[Row]) -> dict[str, object]:
    """Columns of equal length; texts that repeat are stored once and given by number, figures as they are shown."""
    texts: dict[str, int] = {"": 0}
    known: dict[str | None, int] = {}

    def number(text: str | None) -> int:
        found = known.get(text)
        if found is None:
            found = known[text] = texts.setdefault(printable(text or ""), len(texts))
        return found

    columns: dict[str, object] = {
        "step": [row.step for row in rows] if len({row.step for row in rows}) > 1 else None,
        "rank": [row.rank for row in rows] if len({row.rank for row in rows}) > 1 else None,
        "index": [row.op_index for row in rows],
        "op": [number(row.target_op or row.golden_op) for row in rows],
        "golden": [number(row.golden_op if row.target_op != row.golden_op and row.target_op else "") for row in rows],
        **{
            name: [number(getattr(row, name)) for row in rows]
            for name in ("phase", "path", "verdict", "status", "reason")
        },
        "error": ["" if row.error is None else view.percent(row.error) for row in rows],
        "expected": ["" if row.expected is None else view.percent(row.expected) for row in rows],
        "ratio": ["" if row.rho is None else ratio(row.rho) for row in rows],
        "custom": [list(map(_cell, row.custom)) for row in rows] if any(row.custom for row in rows) else None,
    }
    return {**columns, "texts": list(texts)}
