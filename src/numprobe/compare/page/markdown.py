"""The conclusion of a comparison as Markdown."""

from __future__ import annotations

from numprobe.compare.messages import CATALOGUE, say
from numprobe.compare.page import view
from numprobe.compare.result import CompareResult, Finding, Side
from numprobe.report import numbers
from numprobe.report.markdown import code, escape, joined, table

MOST_FINDINGS = 40


def render_markdown(result: CompareResult, lang: str) -> str:
    """The whole report. Equal arguments give equal bytes."""
    said = view.headline(result)
    lines = [
        f"# {say(lang, f'verdict.{result.verdict}')}",
        "",
        joined(CATALOGUE.pieces(lang, said.key, said.values)),
        "",
        say(lang, "screen.coverage_text", coverage=result.coverage, counts=view.counts(result, lang)),
    ]
    if result.detection_limit is not None:
        lines += ["", say(lang, "screen.limit_text", limit=result.detection_limit)]
    for note in view.limits(result):
        lines += ["", joined(CATALOGUE.pieces(lang, note.key, note.values))]
    steps = view.next_steps(result)
    if steps:
        lines += ["", f"## {say(lang, 'screen.next')}", ""]
        lines += [f"- {joined(CATALOGUE.pieces(lang, s.key, s.values))}" for s in steps]
    if result.findings:
        lines += ["", f"## {say(lang, 'page.findings')}"]
        for number, finding in enumerate(result.findings[:MOST_FINDINGS], 1):
            lines += ["", *_finding(number, finding, lang)]
        more = len(result.findings) - MOST_FINDINGS + result.more_findings
        if more > 0:
            lines += ["", say(lang, "finding.more", count=more)]
        if result.later_findings:
            lines += ["", say(lang, "finding.later", count=result.later_findings)]
    lines += ["", f"## {say(lang, 'page.ranks')}", "", *_ranks(result, lang), ""]
    return "\n".join(lines)


def _finding(number: int, f: Finding, lang: str) -> list[str]:
    said = view.sentence(f, first=number == 1)
    lines = [
        f"### {number}. {view.cause(f, lang)}: {code(f.op or f.golden_op or '')}",
        "",
        joined(CATALOGUE.pieces(lang, said.key, said.values)),
        "",
        f"- {say(lang, 'screen.where')}: {view.place(f, lang)}",
    ]
    if inside := view.modules(f):
        lines.append(f"- {say(lang, 'screen.inside')}: " + " < ".join(code(m) for m in inside))
    for name, call in view.calls_alone(f):
        lines += [f"- {say(lang, f'screen.{name}')}: {code(call.op)}, {code(line)}" for line in view.code(call)[:1]]
    lines += [f"- {say(lang, 'screen.code')}: {code(line)}" for line in view.code(f)[:3]]
    if order := view.layout(f):
        lines.append(f"- {joined(CATALOGUE.pieces(lang, order.key, order.values))}")
    if f.consequences:
        lines.append(f"- {say(lang, 'consequences', count=f.consequences)}")
    leaves = view.cited(f, 16)
    if leaves:
        names = ("slot", "side", "dtype", "shape", "max", "min", "mean", "norm", "error", "expected", "verdict")
        rows = []
        for leaf in leaves:
            for name, side in (("target", leaf.target), ("golden", leaf.golden)):
                tail = (
                    [view.percent(leaf.error), view.percent(leaf.expected), say(lang, f"verdict.row.{leaf.verdict}")]
                    if name == "target"
                    else ["", "", ""]
                )
                rows.append(
                    [code(leaf.path) if name == "target" else "", say(lang, f"side.{name}"), *_figures(side), *tail]
                )
        lines += ["", *table([say(lang, f"head.{n}") for n in names], rows)]
    return lines


def _figures(side: Side | None) -> list[str]:
    if side is None:
        return [numbers.ABSENT] * 6
    shape = "x".join(map(str, side.shape)) if side.shape is not None else ""
    if side.scalar:
        return [escape(side.dtype), shape, escape(side.scalar), "", "", ""]
    return [side.dtype, shape, *(numbers.stat(f) for f in (side.max, side.min, side.mean, side.norm))]


def _ranks(result: CompareResult, lang: str) -> list[str]:
    by_step = len({pair.step for pair in result.ranks}) > 1
    head = [say(lang, "page.head.step")] if by_step else []
    head += [say(lang, f"head.{n}") for n in ("rank", "status", "records", "leaves")]
    head += [say(lang, f"verdict.row.{v}") for v in result.counts]
    rows = [
        [
            *([str(pair.step) if pair.step is not None else ""] if by_step else []),
            escape(pair.target or pair.golden),
            pair.status + (f": {escape(pair.note)}" if pair.note else ""),
            str(pair.records),
            str(pair.leaves),
            *(str(pair.counts.get(v, 0)) for v in result.counts),
        ]
        for pair in result.ranks
    ]
    return table(head, rows)
