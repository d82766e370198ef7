"""The conclusion on a terminal, the report's path last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from numprobe.diagnose.rl_consistency.messages import CATALOGUE, say
from numprobe.diagnose.rl_consistency.page import view
from numprobe.diagnose.rl_consistency.result import Finding, Key, RlResult
from numprobe.report import numbers
from numprobe.report.json_text import json_text
from numprobe.report.terminal import HARD, Cell, Style, columns, joined, pad, printable, soft, table, wrap

SYMBOLS = {
    "difference_found": "error",
    "no_difference": "pass",
    "premise_broken": "undecided",
    "inconclusive": "undecided",
}
MOST_SEGMENT = 6
SHOWN_AS = {"pass": "pass", "warning": "warning", "error": "error"}


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
        _figures(first, lang, style) if first else [],
        _also(result.findings[1:5], lang, style),
        _notes(result, lang, style),
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
        rows += _side_rows("screen.anchor", _names(first.anchor), lang)
        rows += _side_rows("screen.segment", _between(first), lang)
        rows += _side_rows("screen.suspect", _names(first.suspect), lang)
        if first.layers:
            rows.append(("screen.layers", say(lang, "screen.layers_text", layers=first.layers, all=result.layers)))
        if first.probe and not view.sentence(first).values.get("rollout"):  # else the headline says it
            rows.append(("screen.probe", view.probed(first, lang)))
        if len(first.layouts) == 2:
            rules = dict(zip(("train", "rollout"), first.layouts, strict=True))
            rows.append(("screen.layouts", say(lang, "screen.layouts_text", **rules)))
    values = {"train": len(result.unmatched_train), "rollout": len(result.unmatched_rollout)}
    coverage = say(lang, "screen.coverage_text", coverage=result.coverage, compared=view.compared(result), **values)
    rows.append(("screen.coverage", coverage))
    joined_calls = view.steps(result)
    if joined_calls is not None:
        rows.append(("screen.steps", say(lang, joined_calls.key, **joined_calls.values)))
    if result.merged:
        rows.append(("screen.merged", say(lang, "screen.merged_text", **result.merged)))
    if result.tensors:
        text = say(lang, "screen.tensors_text", n=result.tensors, compared=view.compared(result))
        rows.append(("screen.tensors", text))
    elif result.detection_limit is not None:
        rows.append(("screen.limit", say(lang, "screen.limit_text", limit=result.detection_limit)))
    width = max(columns(say(lang, key)) for key, _ in rows)
    lines: list[str] = []
    before = ""
    for key, text in rows:
        label = say(lang, key) if key != before else ""
        lines += wrap(text, style.width, f"  {pad(label, width)}  ", " " * (width + 4))
        before = key
    return lines


def _names(found: Key | None) -> list[tuple[str, str]]:
    """(side, name) of a record on both sides; a side that has none is left out."""
    both = (("train", found.train), ("rollout", found.rollout)) if found else ()
    return [(side, name) for side, name in both if name]


def _between(first: Finding) -> list[tuple[str, str]]:
    """Of each side as many, so that neither hides the other."""
    found = view.between(first)
    sides = [(side, names) for side, names in (("train", found.train), ("rollout", found.rollout)) if names]
    return [(side, name) for side, names in sides for name in names[: MOST_SEGMENT // len(sides)]]


def _side_rows(key: str, names: Sequence[tuple[str, str]], lang: str) -> list[tuple[str, str]]:
    """``training  Module...``, the names one below the other."""
    labels = {side: say(lang, f"side.{side}") for side in ("train", "rollout")}
    width = max(map(columns, labels.values()))
    return [(key, f"{pad(labels[side], width).replace(' ', HARD)}{HARD * 2}{soft(name)}") for side, name in names]


def _figures(first: Finding, lang: str, style: Style) -> list[str]:
    """One row a figure: the outputs of the anchor, then what tells of the suspect."""
    rows: list[list[str | Cell]] = []
    sign = replace(style, colour=False).symbol  # the cell brings the colour
    for name, figures in (("anchor", view.outputs(first.anchor_figures)), ("suspect", view.telling(first))):
        for n, f in enumerate(figures):
            role = SHOWN_AS.get(f.verdict, "undecided")
            verdict = Cell(f"{sign(role)} {say(lang, f'verdict.row.{f.verdict}')}", role)
            for stat, train, rollout in zip(view.FOUR, f.train, f.rollout, strict=True):
                top = stat == view.FOUR[0]
                rows.append(
                    [
                        say(lang, f"screen.{name}") if top and n == 0 else "",
                        soft(f.slot) if top else "",
                        stat,
                        numbers.stat(train),
                        numbers.stat(rollout),
                        view.percent(f.error) if top else "",
                        view.percent(f.expected) if top else "",
                        verdict if top else "",
                    ]
                )
    names = ("slot", "", "train", "rollout", "error", "expected", "verdict")
    head = ["", *(say(lang, f"head.{name}") if name else "" for name in names)]
    return table(head, rows, (3, 4, 5, 6), style) if rows else []


def _also(findings: Sequence[Finding], lang: str, style: Style) -> list[str]:
    lines: list[str] = []
    for f in findings:
        said = view.sentence(f, first=False)
        text = joined(CATALOGUE.pieces(lang, said.key, said.values), style)
        lines += wrap(text, style.width, f"{style.symbol('error')} ", "  ")
    return lines


def _notes(result: RlResult, lang: str, style: Style) -> list[str]:
    lines: list[str] = []
    for said in view.notes(result):
        text = joined(CATALOGUE.pieces(lang, said.key, said.values), style)
        lines += wrap(text, style.width, f"{style.symbol('undecided')} ", "  ")
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
                "segment_sides": f.segment_sides,
                "layers": f.layers,
                "transform": f.transform,
                "layouts": f.layouts,
                "probe": f.probe,
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
        "tensors": result.tensors,
        "unknown_names": result.unknown_names,
        "frameworks": result.frameworks,
        "exchanged": result.exchanged,
        "steps": result.steps,
        "note": result.note,
        "next": result.next,
    }
    return json_text(content, ascii_only=ascii_only)
