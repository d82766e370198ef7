"""The conclusion of the NaN-overflow skill on a terminal: below 50 lines at 80 columns, the report's path last."""

from __future__ import annotations

from collections import Counter

from numprobe.diagnose.nan_overflow.messages import CATALOGUE, say, word
from numprobe.diagnose.nan_overflow.page import view
from numprobe.diagnose.nan_overflow.page.markdown import state_text
from numprobe.diagnose.nan_overflow.result import Candidate, Citation, NanResult, Params
from numprobe.report import numbers
from numprobe.report.json_text import json_text
from numprobe.report.terminal import Cell, Style, columns, joined, pad, printable, soft, table, unbroken, wrap

SYMBOLS = {"overflow_found": "error", "no_overflow": "pass", "inconclusive": "undecided"}
MAP_LETTERS = {"source": "S", "relay": "r", "victim": "v", "clean": ".", "partial": "p", "missing": "x"}
MOST_SLOTS = 8
MOST_STAGES = 8
MOST_SOURCES = 4
MOST_CHECKS = 3


def render_terminal(result: NanResult, lang: str, style: Style, report_path: str) -> str:
    """The final screen, without a line break at the end."""
    first = view.best(result) if result.verdict != "no_overflow" else None
    symbol = style.symbol(SYMBOLS[result.verdict])
    verdict = say(lang, f"verdict.{result.verdict}")
    sentence = say(lang, "screen.verdict", verdict=style.paint(verdict, "strong")) + _sentences(result, lang, style)
    blocks = [
        wrap(sentence, style.width, f"{symbol} ", " " * (columns(symbol) + 1)),
        _facts(result, first, lang, style),
        _slots(first, lang, style) if first else [],
        _stages(result, lang, style),
        _next(result, lang, style),
    ]
    label = say(lang, "screen.report")
    text = "\n\n".join("\n".join(lines) for lines in blocks if lines)
    return f"{text}\n{label}  {printable(report_path)}" if report_path else text


def render_json_line(result: NanResult, out: str, *, ascii_only: bool = False) -> str:
    """What ``--json`` prints: one object, with the keys of design.md first."""
    first = view.best(result) if result.verdict != "no_overflow" else None
    anomaly = (
        {
            "op_name": first.op_name,
            "gap_after": first.gap_after,
            "exec_order": first.op_index,
            "kind": first.kind,
            "rank_key": first.rank_key,
            "phase": first.phase,
            "micro_batch": first.micro_batch,
            "layer": first.layer,
        }
        if first
        else None
    )
    return json_text(
        {
            "verdict": result.verdict,
            "step": result.step,
            "source_ranks": result.source_ranks,
            "rank": result.rank,
            "class": result.clazz,
            "confidence": result.confidence,
            "first_anomaly": anomaly,
            "partial_ranks": result.partial_ranks,
            "missing_ranks": result.missing_ranks,
            "out": out,
            "reason": "".join(word("en", m) for m in ([result.headline] if result.headline else [])),
            "suspect_ranks": first.suspects if first else [],
            "sources": [
                {"ranks": c.ranks, "op_name": c.op_name, "class": c.clazz, "confidence": c.confidence}
                for c in result.sources
            ],
            "notes": [m.key for m in result.notes],
        },
        ascii_only=ascii_only,
    )


def render_rank_map(result: NanResult, lang: str, style: Style) -> str:
    """One letter a rank, 32 a line, for ``--verbose``; ASCII only."""
    legend = "   ".join(
        f"{style.paint(letter, role)} {say(lang, f'role.{role}')}" for role, letter in MAP_LETTERS.items()
    )
    group = max(view.tp_size(result), 1)
    group = group if group in (2, 4, 8, 16) else 8
    lines = [legend, ""]
    blocks = view.blocks(result)
    labels = max((columns(block.label) for block in blocks), default=0)
    numbers_wide = max((len(view.rank_name(row)) for row in result.ranks), default=1)
    for block in blocks:
        members = block.members
        for start in range(0, len(members), 32):
            row = members[start : start + 32]
            letters = [_letter(result, index, style) for index in row]
            runs = " ".join("".join(letters[at : at + group]) for at in range(0, len(letters), group))
            label = pad(block.label if start == 0 else "", labels)
            first = pad(view.rank_name(result.ranks[row[0]]), numbers_wide, right=True)
            lines.append(f"  {label + '  ' if labels else ''}{printable(first)}  {runs}")
    return "\n".join(lines)


def _letter(result: NanResult, index: int, style: Style) -> str:
    row = result.ranks[index]
    role = "partial" if row.status == "partial" and row.role != "source" else view.shown_role(row)
    return style.paint(MAP_LETTERS[role], role)


def _sentences(result: NanResult, lang: str, style: Style) -> str:
    worded = [joined(CATALOGUE.pieces(lang, said.key, said.values), style) for said in view.headline(result)]
    return say(lang, "list.sentence").join(worded)


def _message(lang: str, message: Params, style: Style | None = None) -> str:
    return joined(CATALOGUE.pieces(lang, message.key, message.values), style)


def _facts(result: NanResult, first: Candidate | None, lang: str, style: Style) -> list[str]:
    rows: list[tuple[str, str]] = []
    if first:
        rows.append(("screen.class", say(lang, "screen.class_text", name=first.clazz)))
        rows.append(("screen.confidence", _confidence(first, lang)))
        rows.append(("screen.where", _place(result, first, lang)))
        if first.suspects:
            rows.append(("screen.suspects", numbers.ranges(first.suspects, say(lang, "list.numbers"))))
        bound = first.bound
        if bound and bound.applicable:
            values = {"formula": bound.formula, "bound": bound.value, "dtype": bound.dtype, "limit": bound.dtype_max}
            rows.append(("screen.bound_line", say(lang, "screen.bound_text", **values)))
        others, alternatives = (
            len(result.sources[1:]),
            len(result.alternatives if result.sources else result.alternatives[1:]),
        )
        also = [say(lang, "screen.sources", n=others)] if others else []
        also += [say(lang, "screen.alternatives", n=alternatives)] if alternatives else []
        also += [
            f"{printable(view.who(c))} {soft(c.op_name)} {c.confidence:.2f}" for c in result.sources[1:][:MOST_SOURCES]
        ]
        if also:
            rows.append(("screen.also", say(lang, "list.comma").join(also)))
    else:
        read = [say(lang, "page.ranks_count", n=len(result.ranks)), say(lang, "page.records_count", n=result.records)]
        read += [numbers.size(result.bytes)] if result.bytes else []
        rows.append(("screen.looked_at", say(lang, "list.comma").join(read)))
        if result.verdict == "inconclusive":
            rows.append(("screen.candidate", say(lang, "screen.none")))
    if result.evidence:
        cites = [unbroken(f"[{item.id}] {_cites(item.citations)}") for item in result.evidence if item.citations][:4]
        rows.append(("screen.evidence", "  ".join(cites)))
    if not first and result.excluded:
        total = sum(item.count for item in result.excluded)
        top = say(lang, "list.comma").join(soft(item.op) for item in result.excluded[:3])
        rows.append(("screen.excluded_line", say(lang, "screen.excluded_text", n=total, top=top)))
    notes = sorted(result.notes, key=lambda note: note.key != "note.exclude_unused")  # a slip of the pen comes first
    rows += [("screen.notes", _message(lang, note)) for note in notes[:2]]
    if not first:
        rows += [("screen.limits", _message(lang, limit)) for limit in result.limits[:2]]
    rows += [("screen.undecided", text) for text in _undecided(result, lang)]
    labels = [say(lang, key) for key, _ in rows]
    width = max(map(columns, labels), default=0)
    lines = []
    for label, (_, text) in zip(labels, rows, strict=True):
        lines += wrap(text, style.width, f"  {pad(label, width)}  ", " " * (width + 4))
    return lines


def _cites(citations: list[Citation]) -> str:
    return ", ".join(f"{citation.label} {citation.slot}".strip() for citation in citations[:1])


def _confidence(first: Candidate, lang: str) -> str:
    word = say(lang, f"confidence.{view.confidence_word(first.confidence)}")
    text = f"{first.confidence:.2f} {word}"
    for n, term in enumerate(first.terms):
        sign = ("+ " if term.value >= 0 else "- ") if n else "-" if term.value < 0 else ""
        short = say(lang, f"{term.message.key}.short", **term.message.values)
        text += f" {'= ' if n == 0 else ''}{sign}{abs(term.value):.2f} {printable(short)}"
    return text


def _place(result: NanResult, first: Candidate, lang: str) -> str:
    parts = [view.where(result, lang)]
    if first.frame:
        parts.append(f"{soft(first.frame.file)}:{first.frame.line} {printable(first.frame.function)}")
    return say(lang, "list.comma").join(part for part in parts if part)


def _undecided(result: NanResult, lang: str) -> list[str]:
    """Unread ranks on which the conclusion depends; without a conclusion, all of them."""
    rows = [row for row in view.unread(result) if row.depends or not result.first]
    worded = []
    for status in ("missing", "partial", "unreadable"):
        named = [row for row in rows if row.status == status]
        if named:
            key = "screen.depends" if result.first else "screen.unread_ranks"
            ranks = printable(view.ranks_text(named, say(lang, "list.numbers")))
            worded.append(say(lang, key, ranks=ranks, status=status, n=len(named)))
    return worded


def _slots(first: Candidate, lang: str, style: Style) -> list[str]:
    shown = [slot for slot in first.slots if not slot.value]
    dirty_first = sorted(shown, key=lambda slot: slot.state in ("", "finite", "unknown"))[:MOST_SLOTS]
    rows = []
    for slot in (slot for slot in shown if slot in dirty_first):
        figures = [_figure(value) for value in (slot.max, slot.min, slot.mean, slot.norm)]
        known = slot.state in ("", "finite", "unknown")
        state = Cell(state_text(lang, slot.state), "" if known else "bad")
        rows.append([Cell(soft(slot.slot)), *figures, state])
    head = [say(lang, "head.slot"), "Max", "Min", "Mean", "Norm", say(lang, "head.state")]
    return table(head, rows, [1, 2, 3, 4], style) if rows else []


def _figure(value: float | int | bool | None) -> Cell:
    text = numbers.stat(value)
    return Cell(text, "bad" if text in ("NaN", "inf", "-inf") else "")


def _stages(result: NanResult, lang: str, style: Style) -> list[str]:
    """How many ranks of each block have which role, and through what they first became dirty."""
    blocks = view.blocks(result)
    if result.verdict != "overflow_found" or len(result.ranks) < 2 or len(blocks) > MOST_STAGES:
        return []
    clean_too = any(view.shown_role(row) == "clean" for row in result.ranks)
    roles = ["source", "relay", "victim", *(["clean"] if clean_too else [])]
    rows = []
    for number, block in enumerate(blocks):
        members = [result.ranks[index] for index in block.members]
        counts = Counter(view.shown_role(row) for row in members)
        unread = [f"{view.rank_name(row)} {say(lang, f'status.{row.status}')}" for row in members if row.status != "ok"]
        through = Counter(row.first_dirty for row in members if row.role in ("relay", "victim") and row.first_dirty)
        most = through.most_common(1)[0][0] if through else "-"
        label = block.label or block.span or str(number)
        rows.append(
            [
                Cell(label),
                *(
                    Cell(numbers.count(counts[role]), role if role == "source" and counts[role] else "")
                    for role in roles
                ),
                Cell(_few(unread)),
                Cell(soft(most)),
            ]
        )
    head = [
        say(lang, "head.stage"),
        *(say(lang, f"role.{role}") for role in roles),
        say(lang, "screen.unread"),
        say(lang, "screen.through"),
    ]
    return table(head, rows, range(1, len(roles) + 1), style)


def _few(texts: list[str]) -> str:
    if not texts:
        return "-"
    return printable(", ".join(texts)) if len(texts) <= 3 else numbers.count(len(texts))


def _next(result: NanResult, lang: str, style: Style) -> list[str]:
    """The first checks; commands stand alone and are not wrapped."""
    lines: list[str] = []
    runnable = [n for n, check in enumerate(result.next_checks) if _command(check)]
    chosen = sorted([*runnable, *(n for n in range(len(result.next_checks)) if n not in runnable)][:MOST_CHECKS])
    for check in (result.next_checks[n] for n in chosen):
        lines += wrap(_message(lang, check), style.width, "  ", "  ")
        if _command(check):
            lines.append(f"    {printable(_command(check))}")
    return [say(lang, "screen.next"), *lines] if lines else []


def _command(check: Params) -> str:
    """The check's command if it is one line."""
    command = str(check.values.get("command", ""))
    return "" if "\n" in command else command
