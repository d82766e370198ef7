"""The conclusion on a terminal, the report's path last."""

from __future__ import annotations

import json
from collections.abc import Sequence

from numprobe.diagnose.rl_consistency.messages import CATALOGUE, say
from numprobe.diagnose.rl_consistency.page import view
from numprobe.diagnose.rl_consistency.result import Figures, Finding, RlResult
from numprobe.report import numbers
from numprobe.report.run_folder import plain
from numprobe.report.terminal import Cell, Style, columns, joined, pad, printable, soft, table, wrap

SYMBOLS = {
    "difference_found": "error",
    "no_difference": "pass",
    "premise_broken": "undecided",
    "inconclusive": "undecided",
}
MOST_SEGMENT = 6


def render_terminal(result: RlResult, lang: str, style: Style, report_path: str) -> str:
    """The final screen, without a line break at the end."""
    symbol = style.symbol(SYMBOLS[result.verdict])
    verdict = style.paint(say(lang, f"verdict.{result.verdict}"), "strong")
    said = view.headline(result)
    sentence = f"{verdict}{say(lang, 'list.colon')}{joined(CATALOGUE.pieces(lang, said.key, said.values), style)}"
    first = result.findings[0] if result.findings else None
    blocks = [
        wrap(sentence, style.width, f"{symbol} ", " " * (columns(symbol) + 1)),
        _facts(result, first, lang, style),
        _figures([*first.anchor_figures, *first.figures], lang, style) if first else [],
        _also(result.findings[1:5], lang, style),
        _next(result, lang, style),
    ]
    text = "\n\n".join("\n".join(lines) for lines in blocks if lines)
    return f"{text}\n\n{say(lang, 'screen.report')}  {printable(report_path)}"


def _facts(result: RlResult, first: Finding | None, lang: str, style: Style) -> list[str]:
    rows: list[tuple[str, str]] = []
    if first is not None:
        text = say(lang, "list.comma").join([say(lang, f"class.{first.clazz}"), say(lang, f"kind.{first.kind}")])
        rows.append(("screen.class", f"{first.clazz}{say(lang, 'list.colon')}{text}"))
        rows.append(("screen.confidence", view.confidence(first, lang)))
        for name, found in (("screen.anchor", first.anchor), ("screen.suspect", first.suspect)):
            for side in ("train", "rollout"):
                if found and getattr(found, side):
                    rows.append((name, f"{say(lang, f'side.{side}')}  {soft(getattr(found, side))}"))
        if first.segment:
            rows += [("screen.segment", soft(name)) for name in first.segment[:MOST_SEGMENT]]
        if first.layers:
            rows.append(("screen.layers", say(lang, "screen.layers_text", layers=first.layers, all=result.layers)))
    values = {"train": len(result.unmatched_train), "rollout": len(result.unmatched_rollout)}
    coverage = say(lang, "screen.coverage_text", coverage=result.coverage, compared=view.compared(result), **values)
    rows.append(("screen.coverage", coverage))
    if result.merged:
        rows.append(("screen.merged", say(lang, "screen.merged_text", **result.merged)))
    if result.detection_limit is not None:
        rows.append(("screen.limit", say(lang, "screen.limit_text", limit=result.detection_limit)))
    width = max(columns(say(lang, key)) for key, _ in rows)
    lines: list[str] = []
    before = ""
    for key, text in rows:
        label = say(lang, key) if key != before else ""
        lines += wrap(text, style.width, f"  {pad(label, width)}  ", " " * (width + 4))
        before = key
    return lines


def _figures(figures: Sequence[Figures], lang: str, style: Style) -> list[str]:
    names = ("slot", "side", "max", "min", "mean", "norm", "error", "expected", "verdict")
    rows: list[list[str | Cell]] = []
    for f in figures:
        role = f.verdict if f.verdict in ("error", "warning") else ""
        tail: list[str | Cell] = [_percent(f.error), _percent(f.expected), Cell(say(lang, f"row.{f.verdict}"), role)]
        for side, four in (("train", f.train), ("rollout", f.rollout)):
            first = side == "train"
            shown: list[str | Cell] = [numbers.stat(x) for x in four]
            rows.append(
                [f.slot if first else "", say(lang, f"side.{side}"), *shown, *(tail if first else ["", "", ""])]
            )
    return table([say(lang, f"head.{n}") for n in names], rows, (2, 3, 4, 5, 6, 7), style) if rows else []


def _percent(value: float | None) -> str:
    return numbers.ABSENT if value is None else "inf" if value == float("inf") else numbers.percent(value)


def _also(findings: Sequence[Finding], lang: str, style: Style) -> list[str]:
    lines: list[str] = []
    for f in findings:
        said = view.sentence(f)
        text = joined(CATALOGUE.pieces(lang, said.key, said.values), style)
        lines += wrap(text, style.width, f"{style.symbol('error')} ", "  ")
    return lines


def _next(result: RlResult, lang: str, style: Style) -> list[str]:
    steps = view.next_steps(result)
    lines = [say(lang, "screen.next")] if steps else []
    for said in steps:
        lines += wrap(joined(CATALOGUE.pieces(lang, said.key, said.values), style), style.width, "  ", "  ")
    return lines


def render_json_line(result: RlResult, out: str, *, ascii_only: bool = False) -> str:
    """What ``--json`` prints: one object, with the keys of the contract first."""
    content = {
        "verdict": result.verdict,
        "coverage": result.coverage,
        "out": out,
        "findings": [
            {
                "class": f.clazz,
                "kind": f.kind,
                "confidence": f.confidence,
                "anchor": f.anchor,
                "suspect": f.suspect,
                "segment": f.segment,
                "layers": f.layers,
                "transform": f.transform,
                "role": f.role,
                "slot": f.slot,
                "error": f.error,
                "expected": f.expected,
                "ratio": f.ratio,
            }
            for f in result.findings
        ],
        "reason": result.reason,
        "counts": result.counts,
        "unmatched": {"train": result.unmatched_train, "rollout": result.unmatched_rollout},
        "detection_limit": result.detection_limit,
    }
    return json.dumps(plain(content), ensure_ascii=ascii_only)
