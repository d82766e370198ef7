"""The report of the NaN-overflow skill as Markdown, in one language, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from numprobe.diagnose.nan_overflow.messages import CATALOGUE, say
from numprobe.diagnose.nan_overflow.page import view
from numprobe.diagnose.nan_overflow.result import Candidate, Citation, NanResult, Params, RankRow, Slot
from numprobe.report import numbers
from numprobe.report.markdown import block, code, escape, joined, table


def render_markdown(result: NanResult, lang: str) -> str:
    """The report. Equal arguments give equal bytes."""
    first = view.best(result)
    parts = [
        _verdict(result, first, lang),
        _evidence(result, lang),
        _confidence(first, lang),
        _ranks(result, lang),
        _spread(result, lang),
        _operator(result, first, lang),
        _excluded(result, lang),
        _competing(result, lang),
        _limits(result, first, lang),
        _next(result, lang),
        _steps(result, lang),
        _records(result, lang),
        _input(result, lang),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _message(lang: str, message: Params) -> str:
    return joined(CATALOGUE.pieces(lang, message.key, message.values))


def _text(lang: str, key: str, values: Mapping[str, object] | None = None) -> str:
    return joined(CATALOGUE.pieces(lang, key, values or {}))


def _heading(lang: str, key: str) -> list[str]:
    return [f"## {_text(lang, key)}", ""]


def _bullets(lang: str, messages: Sequence[Params]) -> list[str]:
    return [f"- {_message(lang, message)}" for message in messages]


def _cite(citation: Citation) -> str:
    return code(f"{citation.label} {citation.slot}".strip())


def _verdict(result: NanResult, first: Candidate | None, lang: str) -> list[str]:
    comma = say(lang, "list.comma")
    tags = [f"**{_text(lang, f'verdict.{result.verdict}')}**", escape(view.where(result, lang))]
    tags.append(_text(lang, "page.exit", {"code": result.exit_code}))
    lines = [
        f"# numprobe nan: {code(result.dump)}",
        "",
        comma.join(tag for tag in tags if tag),
        "",
        say(lang, "list.sentence").join(_message(lang, sentence) for sentence in view.headline(result)),
    ]
    if first and result.verdict != "no_overflow":
        rows = [
            [_text(lang, "fact.rank", {"n": len(first.ranks)}), numbers.ranges(first.ranks) or escape(first.rank_key)],
            [_text(lang, "fact.class"), f"{code(first.clazz)}: {_text(lang, f'class.{first.clazz}')}"],
            [_text(lang, "fact.confidence"), _confident(first, lang)],
        ]
        lines += ["", *table(["", ""], rows)]
    return lines


def _confident(candidate: Candidate, lang: str) -> str:
    return f"{candidate.confidence:.2f} {say(lang, f'confidence.{view.confidence_word(candidate.confidence)}')}"


def _none(section: str, result: NanResult) -> str:
    """The key of what an empty section says: nothing wrong is one claim, nothing known another."""
    return f"{section}.none" if result.verdict == "no_overflow" else f"{section}.none_undecided"


def _evidence(result: NanResult, lang: str) -> list[str]:
    lines = _heading(lang, "section.evidence")
    for item in result.evidence:
        observed = "" if item.proves else _text(lang, "evidence.observation")
        cites = "".join(f" {_cite(citation)}" for citation in item.citations)
        lines.append(f"- **{item.id}** {_message(lang, item.message)}{observed}{cites}")
    return lines if result.evidence else [*lines, _text(lang, _none("evidence", result))]


def _confidence(first: Candidate | None, lang: str) -> list[str]:
    lines = _heading(lang, "section.confidence")
    if first is None:
        return []
    if not first.terms:
        return [*lines, _text(lang, "confidence.none")]
    rows = [[numbers.signed(term.value), _message(lang, term.message)] for term in first.terms]
    rows.append(
        [f"**{first.confidence:.2f}**", _text(lang, f"page.confidence.{view.confidence_word(first.confidence)}")]
    )
    return lines + table([_text(lang, "page.confidence.term"), _text(lang, "page.confidence.because")], rows, right=[0])


def _ranks(result: NanResult, lang: str) -> list[str]:
    lines = _heading(lang, "section.ranks")
    if not result.ranks:
        return [*lines, _text(lang, "ranks.none")]
    counts = view.role_counts(result)
    summary = [f"{_text(lang, f'role.{role}')} {numbers.count(n)}" for role, n in counts.items() if n]
    if partly := view.partly_read(result):
        summary.append(_text(lang, "ranks.partly", {"n": partly}))
    head = [_text(lang, key) for key in ("head.role", "head.count", "head.first_dirty", "head.ranks")]
    rows = [
        [
            _text(lang, f"role.{arrival.role}"),
            numbers.count(len(arrival.ranks)),
            code(arrival.first_dirty) or "-",
            escape(view.ranks_text(arrival.ranks)),
        ]
        for arrival in view.arrivals(result)
    ]
    return [*lines, say(lang, "list.comma").join(summary), "", *table(head, rows, right=[1])]


def _spread(result: NanResult, lang: str) -> list[str]:
    lines = _heading(lang, "section.spread")
    if not result.spread:
        return [] if result.verdict == "no_overflow" else [*lines, _text(lang, "spread.unknown")]
    rows = [
        [
            str(number),
            code(row.op_name),
            numbers.count(row.instances) if row.order else "-",
            _text(lang, f"join.{row.join}") if row.order else _text(lang, "spread.born"),
            f"+{numbers.count(len(row.new_ranks))}",
            numbers.count(row.total_dirty),
            numbers.ranges(row.new_ranks),
        ]
        for number, row in enumerate(result.spread, 1)
    ]
    head = [
        "",
        _text(lang, "head.instance"),
        _text(lang, "head.count"),
        _text(lang, "head.join"),
        _text(lang, "head.new"),
        _text(lang, "head.dirty"),
        _text(lang, "head.ranks"),
    ]
    return lines + table(head, rows, right=[0, 2, 4, 5])


def _operator(result: NanResult, first: Candidate | None, lang: str) -> list[str]:
    lines = _heading(lang, "section.operator")
    if first is None:
        return [] if result.verdict == "no_overflow" else [*lines, _text(lang, "operator.none_undecided")]
    lines += [f"{code(first.op_name)} ({view.who(first)} #{first.op_index})", ""]
    if first.gap_after:
        lines += [f"{_text(lang, 'operator.gap')}: {code(first.gap_after)}", ""]
    if first.chain:
        state = {None: "-", False: _text(lang, "state.finite"), True: escape(first.kinds)}
        rows = [[code(link.name), state[link.dirty_input], state[link.dirty_output]] for link in first.chain]
        lines += [*table([_text(lang, key) for key in ("head.record", "head.in", "head.out")], rows), ""]
    if first.frame:
        lines += [f"{code(f'{first.frame.file}:{first.frame.line}')} {escape(first.frame.function)}", ""]
        lines += [*block(first.frame.code, "python"), ""] if first.frame.code else []
    if first.slots:
        head = [
            _text(lang, "head.slot"),
            _text(lang, "head.dtype"),
            "Max",
            "Min",
            "Mean",
            "Norm",
            _text(lang, "head.state"),
        ]
        rows = [
            [
                code(slot.slot),
                escape(f"{numbers.dtype(slot.dtype)} {numbers.shape(slot.shape)}" if slot.dtype else slot.type),
                *_figures(slot),
                state_text(lang, slot.state),
            ]
            for slot in first.slots
        ]  # fmt: skip
        lines += [*table(head, rows, right=[2, 3, 4, 5]), ""]
    bound = first.bound
    if bound and bound.applicable:
        values = {"formula": bound.formula, "bound": bound.value, "dtype": bound.dtype, "limit": bound.dtype_max}
        lines.append(f"{_text(lang, 'fact.bound')}: {_text(lang, 'screen.bound_text', values)}")
    elif bound:
        reason = f": {_message(lang, bound.reason)}" if bound.reason else ""
        lines.append(f"{_text(lang, 'operator.bound.na')}{reason}")
    return lines


def _figures(slot: Slot) -> list[str]:
    if slot.value:
        return [code(slot.value), "", "", ""]
    return [numbers.stat(value) for value in (slot.max, slot.min, slot.mean, slot.norm)]


def state_text(lang: str, state: str) -> str:
    """``finite`` and ``unknown`` in words; non-finite values are the same in every language."""
    return say(lang, f"state.{state}") if state in ("finite", "unknown") else state or "-"


def _excluded(result: NanResult, lang: str) -> list[str]:
    lines = _heading(lang, "section.excluded")
    if not result.excluded:
        return [*lines, _text(lang, "excluded.none", {"records": result.records})]
    keys = (
        "head.looks_like",
        "head.records",
        "head.ranks",
        "head.value",
        "head.why_not",
        "head.lineage",
        "head.example",
    )
    rows = [
        [
            code(item.op),
            numbers.count(item.count),
            numbers.count(item.ranks),
            escape(item.kinds),
            _text(lang, f"reason.{item.reason}"),
            _text(lang, f"lineage.{item.lineage}"),
            _cite(item.example),
        ]
        for item in result.excluded
    ]
    return lines + table([_text(lang, key) for key in keys], rows, right=[1, 2])


def _competing(result: NanResult, lang: str) -> list[str]:
    lines = _heading(lang, "section.competing")
    rows = [
        [
            _confident(candidate, lang),
            code(candidate.op_name),
            escape(numbers.ranges(candidate.ranks) or candidate.rank_key),
            f"{code(candidate.clazz)}: {_text(lang, f'candidate.{candidate.kind}')}",
            _text(lang, group),
        ]
        for group, candidates in (
            ("competing.sources", result.sources[1:]),
            ("competing.alternatives", result.alternatives if result.sources else result.alternatives[1:]),
        )
        for candidate in candidates
    ]
    if not rows:
        if result.verdict == "no_overflow":
            return []
        return [*lines, _text(lang, "competing.none" if view.best(result) else "competing.none_clean")]
    keys = ("head.confidence", "head.candidate", "head.ranks", "head.class")
    return lines + table([*(_text(lang, key) for key in keys), ""], rows)


def _read(lang: str, row: RankRow) -> str:
    if row.note:
        return _message(lang, row.note)
    return _text(lang, "page.records_count", {"n": row.records}) if row.records else _text(lang, "limits.nothing_read")


def _limits(result: NanResult, first: Candidate | None, lang: str) -> list[str]:
    lines = _heading(lang, "section.limits")
    rows = [
        [
            escape(view.ranks_text(together)),
            _text(lang, f"status.{row.status}"),
            _read(lang, row),
            _text(lang, "depends.none" if first is None else "depends.yes" if row.depends else "depends.no"),
        ]
        for together in view.unread_together(result)
        for row in together[:1]
    ]
    keys = ("head.rank", "head.state", "head.read", "head.depends")
    if rows:
        lines += [*table([_text(lang, key) for key in keys], rows), ""]
    elif result.ranks:
        lines += [_text(lang, "limits.ranks_full", {"n": len(result.ranks)}), ""]
    join = result.join
    figures = {name: getattr(join, name) for name in join.__struct_fields__ if name != "notes"}
    lines += [_text(lang, "limits.joins.text", figures) if join.instances else _text(lang, "limits.joins.none")]
    messages = [*result.limits, *join.notes, *result.notes]
    return [*lines, "", *_bullets(lang, messages)] if messages else lines


def _next(result: NanResult, lang: str) -> list[str]:
    lines = _heading(lang, "section.next")
    for number, check in enumerate(result.next_checks, 1):
        lines.append(f"{number}. {_message(lang, check)}")
        command = check.values.get("command")
        if command:
            lines += ["", *("   " + line for line in block(str(command))), ""]
    return lines if result.next_checks else [*lines, _text(lang, _none("next", result))]


def _steps(result: NanResult, lang: str) -> list[str]:
    if len(result.steps) < 2:
        return []
    keys = ("head.step", "head.state", "head.ranks", "head.dirty", "head.records")
    rows = [
        [
            str(row.step if row.step is not None else "-"),
            _text(lang, f"step.{row.state}"),
            numbers.count(row.ranks),
            numbers.count(row.dirty_ranks) if row.state != "not_scanned" else "-",
            numbers.count(row.records) if row.state != "not_scanned" else "-",
        ]
        for row in result.steps
    ]
    return _heading(lang, "section.steps") + table([_text(lang, key) for key in keys], rows, right=[2, 3, 4])


def _records(result: NanResult, lang: str) -> list[str]:
    lines = _heading(lang, "section.records")
    cited = view.cited(result)
    if not cited:
        return [*lines, _text(lang, "records.none")]
    rows = [
        [
            citation.label,
            code(citation.op_name),
            code(citation.slot) or "-",
            code(citation.file) or "-",
            numbers.count(citation.offset) if citation.offset >= 0 else "-",
        ]
        for citation in cited
    ]
    head = [_text(lang, "page.cited.record"), "", _text(lang, "page.cited.slot"), _text(lang, "page.cited.file"), ""]
    return lines + table(head, rows, right=[4])


def _input(result: NanResult, lang: str) -> list[str]:
    comma = say(lang, "list.comma")
    recorded = [result.framework, say(lang, "input.level", level=result.level) if result.level else ""]
    read = [say(lang, "page.ranks_count", n=len(result.ranks)), say(lang, "page.records_count", n=result.records)]
    rows = [
        [_text(lang, "input.dump"), escape(result.dump)],
        [_text(lang, "input.recorded"), escape(comma.join(part for part in recorded if part)) or "-"],
        [_text(lang, "input.read"), comma.join([*read, *([numbers.size(result.bytes)] if result.bytes else [])])],
    ]
    if result.user_excluded:
        rows.append([_text(lang, "input.excluded"), comma.join(map(code, result.user_excluded))])
    return _heading(lang, "section.manifest") + table(["", ""], rows)
