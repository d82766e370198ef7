"""The conclusion as Markdown: finding, figures, mapping."""

from __future__ import annotations

from numprobe.diagnose.rl_consistency.messages import CATALOGUE, say
from numprobe.diagnose.rl_consistency.page import view
from numprobe.diagnose.rl_consistency.result import Figures, Finding, Key, RlResult
from numprobe.report import numbers
from numprobe.report.markdown import code, escape, joined, table


def render_markdown(result: RlResult, lang: str) -> str:
    """The whole report. Equal arguments give equal bytes."""
    said = view.headline(result)
    values = {"train": len(result.unmatched_train), "rollout": len(result.unmatched_rollout)}
    coverage = say(lang, "screen.coverage_text", coverage=result.coverage, compared=view.compared(result), **values)
    lines = [
        f"# {say(lang, f'verdict.{result.verdict}')}",
        "",
        joined(CATALOGUE.pieces(lang, said.key, said.values)),
        "",
        f"- {say(lang, 'screen.coverage')}{say(lang, 'list.colon')}{escape(coverage)}",
    ]
    joined_calls = view.steps(result)
    if joined_calls is not None:
        text = say(lang, joined_calls.key, **joined_calls.values)
        lines.append(f"- {say(lang, 'screen.steps')}{say(lang, 'list.colon')}{escape(text)}")
    if result.tensors:
        text = say(lang, "screen.tensors_text", n=result.tensors, compared=view.compared(result))
        lines.append(f"- {say(lang, 'screen.tensors')}{say(lang, 'list.colon')}{escape(text)}")
    elif result.detection_limit is not None:
        limit = say(lang, "screen.limit_text", limit=result.detection_limit)
        lines.append(f"- {say(lang, 'screen.limit')}{say(lang, 'list.colon')}{escape(limit)}")
    lines += [f"- {joined(CATALOGUE.pieces(lang, s.key, s.values))}" for s in view.notes(result)]
    steps = view.next_steps(result)
    if steps:
        lines += ["", f"## {say(lang, 'page.next_steps')}", ""]
        lines += [f"- {joined(CATALOGUE.pieces(lang, s.key, s.values))}" for s in steps]
    if result.findings:
        lines += ["", f"## {say(lang, 'page.findings')}"]
        for number, finding in enumerate(result.findings[:20], 1):
            lines += ["", *_finding(result, number, finding, lang)]
    lines += ["", f"## {say(lang, 'page.mapping')}", "", *_mapping(result, lang)]
    for name, records in (("train", result.unmatched_train), ("rollout", result.unmatched_rollout)):
        if records:
            lines += ["", f"## {say(lang, 'page.unmatched')}: {say(lang, f'side.{name}')}", ""]
            lines += [f"- {code(record)}" for record in records[:200]]
    return "\n".join([*lines, ""])


def _finding(result: RlResult, number: int, f: Finding, lang: str) -> list[str]:
    colon, comma = say(lang, "list.colon"), say(lang, "list.comma")
    lines = [f"### {number}. {f.clazz} ({f.kind})", ""]
    if number > 1:  # the first is the headline
        said = view.sentence(f)
        lines += [joined(CATALOGUE.pieces(lang, said.key, said.values)), ""]

    def fact(key: str, text: str) -> None:
        lines.append(f"- {say(lang, key)}{colon}{text}")

    def sides(found: Key | None) -> str:
        both = (("train", found.train), ("rollout", found.rollout)) if found else ()
        return comma.join(f"{say(lang, f'side.{side}')} {code(name)}" for side, name in both if name)

    between = view.between(f)
    labels = (("side.train", between.train), ("side.rollout", between.rollout))
    named = [f"{say(lang, label)} {code(name)}" for label, names in labels for name in names]
    fact("screen.confidence", escape(view.confidence(f, lang)))
    if f.anchor:
        fact("screen.anchor", sides(f.anchor))
    if named:
        fact("screen.segment", comma.join(named))
    fact("screen.suspect", sides(f.suspect))
    if f.layers:
        fact("screen.layers", say(lang, "screen.layers_text", layers=f.layers, all=result.layers))
    if f.probe:
        fact("screen.probe", escape(view.probed(f, lang)))
    if f.transform:
        fact("page.transform", f"{code(f.transform)} {say(lang, f'kind.{f.transform}')}")
    if f.blind:
        fact("page.blind", comma.join(say(lang, f"page.blind.{name}") for name in f.blind))
    for name, figures in (("page.figures.anchor", f.anchor_figures), ("page.figures.suspect", f.figures)):
        if figures:
            lines += ["", f"**{say(lang, name)}**", "", *_figures(figures, lang)]
    return lines


def _figures(figures: list[Figures], lang: str) -> list[str]:
    names = ("slot", "side", "max", "min", "mean", "norm", "error", "expected", "verdict")
    rows = []
    for f in figures:
        for side, four in (("train", f.train), ("rollout", f.rollout)):
            first = side == "train"
            tail = (
                [view.percent(f.error), view.percent(f.expected), say(lang, f"verdict.row.{f.verdict}")]
                if first
                else ["", "", ""]
            )
            rows.append(
                [code(f.slot) if first else "", say(lang, f"side.{side}"), *(numbers.stat(x) for x in four), *tail]
            )
    return table([say(lang, f"head.{n}") for n in names], rows)


def _mapping(result: RlResult, lang: str) -> list[str]:
    head = [say(lang, f"head.{n}") for n in ("place", "train", "rollout", "verdict", "error")]
    rows = [
        [
            code(pair.place),
            ", ".join(code(n) for n in pair.train) or "-",
            ", ".join(code(n) for n in pair.rollout) or "-",
            say(lang, f"verdict.row.{pair.verdict}"),
            view.percent(pair.error),
        ]
        for pair in result.mapping[:500]
    ]
    return table(head, rows)
