"""The conclusion of a comparison on a terminal, the report's path last."""

from __future__ import annotations

from collections.abc import Sequence

from numprobe.compare.messages import CATALOGUE, say
from numprobe.compare.page import view
from numprobe.compare.result import CompareResult, Finding, Leaf
from numprobe.report import numbers
from numprobe.report.json_text import json_text
from numprobe.report.terminal import Cell, Style, columns, joined, pad, printable, soft, table, wrap

SYMBOLS = {"fail": "error", "pass": "pass", "inconclusive": "undecided"}
MOST_FRAMES = 2
MOST_LIMITS = 8


def render_terminal(
    result: CompareResult, lang: str, style: Style, report_path: str, *, files: Sequence[str] = (), most: int = 5
) -> str:
    """The final screen, without a line break at the end. ``files``: further ones that the user asked for; ``most``: how many
    findings are listed."""
    symbol = style.symbol(SYMBOLS[result.verdict])
    verdict = style.paint(say(lang, f"verdict.{result.verdict}"), "strong")
    said = view.headline(result)
    first = result.findings[0] if result.findings else None
    order = view.layout(first) if first else None
    sentences = [joined(CATALOGUE.pieces(lang, s.key, s.values), style) for s in (said, order) if s]
    sentence = f"{verdict}{say(lang, 'list.colon')}{say(lang, 'list.sentence').join(sentences)}"
    blocks = [
        wrap(sentence, style.width, f"{symbol} ", " " * (columns(symbol) + 1)),
        _facts(result, first, lang, style),
        _leaves(view.cited(first), lang, style) if first else [],
        _limits(result, lang, style),
        _others(result, lang, style, most - 1),
        _next(result, lang, style),
    ]
    text = "\n\n".join("\n".join(lines) for lines in blocks if lines)
    ends = [("screen.report", report_path)]
    if files:
        more = f" {say(lang, 'screen.more_files', count=len(files) - 1)}" if len(files) > 1 else ""
        ends.insert(0, ("screen.files", f"{files[0]}{more}"))
    width = max(columns(say(lang, key)) for key, _ in ends)
    last = [f"{pad(say(lang, key), width)}  {printable(path)}" for key, path in ends]
    return "\n".join([text, "", *last])


def _facts(result: CompareResult, first: Finding | None, lang: str, style: Style) -> list[str]:
    rows: list[tuple[str, str]] = []
    if first is not None:
        rows.append(("screen.cause", view.cause(first, lang)))
        rows.append(("screen.where", view.place(first, lang)))
        if inside := view.modules(first):
            rows.append(("screen.inside", printable(" < ".join(inside[:4]))))
        for name, call in view.calls_alone(first):
            rows += [(f"screen.{name}", printable(line)) for line in view.code(call)[:1]]
        rows += [("screen.code", printable(line)) for line in view.code(first)[:MOST_FRAMES]]
    rows.append(
        (
            "screen.coverage",
            say(lang, "screen.coverage_text", coverage=result.coverage, counts=view.counts(result, lang)),
        )
    )
    if result.detection_limit is not None:
        rows.append(("screen.limit", say(lang, "screen.limit_text", limit=result.detection_limit)))
    if missing := view.unread(result):
        rows.append(("screen.unread", printable(", ".join(missing[:8]))))
    width = max(columns(say(lang, key)) for key, _ in rows)
    lines: list[str] = []
    for key, text in rows:
        lines += wrap(text, style.width, f"  {pad(say(lang, key), width)}  ", " " * (width + 4))
    return lines


def _limits(result: CompareResult, lang: str, style: Style) -> list[str]:
    """What was not compared, or otherwise than one would think."""
    lines: list[str] = []
    for said in view.limits(result)[:MOST_LIMITS]:
        text = joined(CATALOGUE.pieces(lang, said.key, said.values), style)
        lines += wrap(text, style.width, f"{style.symbol('warning')} ", "  ")
    return lines


def _leaves(leaves: list[Leaf], lang: str, style: Style) -> list[str]:
    """Target above golden for every slot, with what was found and expected."""
    head = [
        say(lang, f"head.{name}")
        for name in ("slot", "side", "max", "min", "mean", "norm", "error", "expected", "verdict")
    ]
    rows: list[list[str | Cell]] = []
    for leaf in leaves:
        for number, (name, side) in enumerate((("target", leaf.target), ("golden", leaf.golden))):
            figures: list[str | Cell] = (
                [numbers.ABSENT] * 4
                if side is None
                else [printable(side.scalar), "", "", ""]
                if side.scalar
                else [numbers.stat(f) for f in (side.max, side.min, side.mean, side.norm)]
            )
            tail: list[str | Cell] = (
                [
                    view.percent(leaf.error),
                    view.percent(leaf.expected),
                    Cell(
                        say(lang, f"verdict.row.{leaf.verdict}"),
                        leaf.verdict if leaf.verdict in ("error", "warning") else "",
                    ),
                ]
                if number == 0
                else ["", "", ""]
            )
            rows.append([soft(leaf.path) if number == 0 else "", say(lang, f"side.{name}"), *figures, *tail])
    return table(head, rows, (2, 3, 4, 5, 6, 7), style) if rows else []


def _others(result: CompareResult, lang: str, style: Style, most: int) -> list[str]:
    findings, more = result.findings[1:], result.more_findings
    lines: list[str] = []
    for f in findings[:most]:
        said = view.sentence(f, first=False)
        mark = style.symbol(f.severity if f.severity in ("error", "warning") else "undecided")
        text = joined(CATALOGUE.pieces(lang, said.key, said.values), style)
        lines += wrap(text, style.width, f"{mark} ", "  ")
    if len(findings) + more > most:
        lines.append(f"  {say(lang, 'finding.more', count=len(findings) + more - most)}")
    if result.later_findings:
        lines += wrap(say(lang, "finding.later", count=result.later_findings), style.width, "  ", "  ")
    return lines


def _next(result: CompareResult, lang: str, style: Style) -> list[str]:
    steps = view.next_steps(result)
    if not steps:
        return []
    lines = [say(lang, "screen.next")]
    for said in steps:
        lines += wrap(joined(CATALOGUE.pieces(lang, said.key, said.values), style), style.width, "  ", "  ")
    return lines


def render_json_line(result: CompareResult, out: str, *, ascii_only: bool = False) -> str:
    """What ``--json`` prints: one object, with the keys of the contract first."""
    first = result.findings[0] if result.findings else None
    content = {
        "verdict": result.verdict,
        "coverage": result.coverage,
        "out": out,
        "first": _brief(first) if first else None,
        "counts": result.counts,
        "premise": result.premise,
        "mode": result.mode,
        "dtypes": result.dtypes,
        "detection_limit": result.detection_limit,
        "findings": [_brief(f) for f in result.findings],
        "not_compared": view.unread(result),
        "problems": [
            {"kind": p.kind, "side": p.side, "step": p.step, "rank": p.rank, "file": p.file} for p in result.problems
        ],
        "notes": result.notes,
    }
    return json_text(content, ascii_only=ascii_only)


def _brief(f: Finding) -> dict[str, object]:
    return {
        "op": f.op or f.golden_op,
        "cause": f.cause,
        "reason": f.reason,
        "severity": f.severity,
        "slot": f.slot,
        "golden_op": f.golden_op,
        "parameter": f.parameter,
        "after": f.after,
        "only_target": f.only_target,
        "only_golden": f.only_golden,
        "step": f.step,
        "ranks": f.ranks,
        "layer": f.layer,
        "error": f.error,
        "expected": f.expected,
    }
