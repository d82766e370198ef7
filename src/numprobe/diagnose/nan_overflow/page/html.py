"""The report page of the NaN-overflow skill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from numprobe.diagnose.nan_overflow.messages import CATALOGUE, say
from numprobe.diagnose.nan_overflow.page import view
from numprobe.diagnose.nan_overflow.result import Bound, Candidate, NanResult
from numprobe.report import numbers
from numprobe.report.html import render_page, script_data
from numprobe.report.language import HTML_LANG
from numprobe.report.names import telling_part
from numprobe.report.terminal import printable

MOST_LINES = 40  # of the spread; what comes after is summed up
LETTERS = {"source": "s", "relay": "r", "victim": "v", "clean": "c", "partial": "p", "missing": "m"}
SYMBOLS = {"overflow_found": "✗", "no_overflow": "✓", "inconclusive": "?"}
BADGES = {"overflow_found": "error", "no_overflow": "pass", "inconclusive": "undecided"}
SCRIPT_WORDS = (
    *("page.copy", "page.copied", "page.filter", "page.shown", "page.previous", "page.next", "page.pages"),
    *("ranks.rank", "ranks.go", "ranks.as_of", "ranks.as_of_line"),
    *("head.first_dirty", "head.via", "head.from", "head.records", "head.read"),
    *(f"role.{role}" for role in LETTERS),
    *(f"role.{role}.text" for role in LETTERS),
    *(f"status.{status}" for status in ("partial", "missing", "unreadable")),
)


def render_html(result: NanResult, lang: str, *, dump_href: str = "", artifacts: Sequence[str] = ()) -> str:
    """The page, in both languages, showing ``lang`` first.

    ``dump_href`` is the dump folder relative to the page: cited files become links. ``artifacts`` are the names of the
    files next to the page. Equal arguments give equal bytes.
    """
    first = view.best(result)
    context = {
        "r": result,
        "first": first,
        "v": view,
        "badge_kind": BADGES[result.verdict],
        "symbol": SYMBOLS[result.verdict],
        "title": _title(result, first),
        "cited": view.cited(result),
        "figures": lambda citation: view.slot_of(result, citation),
        "counts": view.role_counts(result),
        "blocks": view.blocks(result),
        "letters": LETTERS,
        "waves": view.waves(result),
        "lines": _lines(result),
        "more": _more(result),
        "tp_style": Markup(_tp_style(view.tp_size(result))) if view.group_size(result) == 1 else "",
        "bound_figure": _bound_figure(first, first.bound) if first and first.bound else None,
        "where": lambda language: view.where(result, language),
        "confidence_text": lambda language: _confidence(first, language),
        "grid_intro": lambda language: _grid_intro(result, language),
        "cell_role": lambda cell: view.worst_role([result.ranks[index] for index in cell]),
        "dump_href": dump_href,
        "artifacts": artifacts,
        "ranks_csv": next((name for name in artifacts if name.endswith(".csv") and "rank" in name), ""),
        "script_json": script_data(_script_values(result)),
    }
    return render_page(Path(__file__).parent, "page.html.j2", CATALOGUE, lang, context)


def _title(result: NanResult, first: Candidate | None) -> str:
    if result.verdict == "overflow_found" and first:
        start, end = telling_part(first.op_name)
        return f"numprobe nan: {view.who(first)}, {first.op_name[start:end] or first.op_name}"
    return f"numprobe nan: {say('en', f'verdict.{result.verdict}')}"


def _confidence(first: Candidate | None, lang: str) -> str:
    return (
        f"{first.confidence:.2f} {say(lang, f'confidence.{view.confidence_word(first.confidence)}')}" if first else ""
    )


def _grid_intro(result: NanResult, lang: str) -> str:
    blocks = say(lang, "ranks.intro.pp") if any(block.label for block in view.blocks(result)) else ""
    size = view.tp_size(result)
    if size in (2, 4, 8):
        blocks += say(lang, "ranks.intro.tp", n=size)
    return say(lang, "ranks.intro", blocks=blocks) if blocks else say(lang, "ranks.intro_plain")


def _lines(result: NanResult) -> list[dict[str, object]]:
    """The lines of the spread with, for each block, the share that was dirty before and the share that is new."""
    blocks = [(set(_numbers(result, block)), len(block.members)) for block in view.blocks(result)]
    before: set[int] = set()
    lines: list[dict[str, object]] = []
    for row in result.spread[:MOST_LINES]:
        new = set(row.new_ranks) - before
        bars = [
            (100 * len(members & (before | new)) / size, 100 * len(members & before) / size, bool(members & new))
            for members, size in blocks
        ]
        lines.append({"row": row, "bars": bars})
        before |= new
    return lines


def _numbers(result: NanResult, block: view.Block) -> list[int]:
    return [rank for index in block.members if (rank := result.ranks[index].rank) is not None]


def _more(result: NanResult) -> dict[str, int]:
    rest = result.spread[MOST_LINES:]
    return {"lines": len(rest), "n": sum(len(row.new_ranks) for row in rest)}


def _tp_style(size: int) -> str:
    """Cells of a tensor-parallel group move together by a pixel or two; the columns stay where they are."""
    if size not in (2, 4, 8):
        return ""
    step = 2 / size
    shifts = [((size - 1) / 2 - place) * step for place in range(size)]
    return "".join(f".cells b:nth-child({size}n+{place + 1}){{left:{shift:g}px}}" for place, shift in enumerate(shifts))


def _bound_figure(candidate: Candidate, bound: Bound) -> dict[str, object] | None:
    """Positions on a log line from the inputs to the end of the dtype."""
    if not bound.applicable or not bound.value or not bound.dtype_max or not math.isfinite(bound.value):
        return None
    marks = view.bound_marks(candidate, bound)
    values = [value for _, value in marks] + [bound.value, bound.dtype_max]
    low = math.floor(math.log10(min(values))) - 1
    high = math.ceil(math.log10(max(values)))
    left, right = 22.0, 770.0

    def x(value: float) -> float:
        return round(left + (right - left) * (math.log10(value) - low) / (high - low), 1)

    every = next(step for step in (1, 2, 5, 10, 20, 50, 100) if (high - low) / step <= 9)
    ticks = [(x(10.0**power), numbers.limit(10.0**power) if power < 5 else f"1e{power}") for power in range(low, high + 1)
             if power % every == 0]  # fmt: skip
    lanes: list[float] = []  # where each lane of labels is free again
    placed = []
    for name, value in sorted(marks, key=lambda mark: mark[1]):
        label = f"max |{name}| {numbers.stat(value)}"
        start, wide = max(x(value) - 4, 0.0), 7.3 * len(label)
        start = min(start, max(790 - wide, 0.0))
        lane = next((n for n, free in enumerate(lanes) if start > free), len(lanes))
        lanes[lane : lane + 1] = [start + wide + 10]
        placed.append((x(value), label, lane, start))
    return {
        "ticks": ticks,
        "marks": placed,
        "lanes": len(lanes),
        "bound": x(bound.value),
        "limit": x(bound.dtype_max),
        "labels": {
            html_lang: (
                say(lang, "operator.bound.mark", bound=bound.value),
                say(lang, "operator.bound.limit", dtype=bound.dtype, limit=bound.dtype_max),
                say(lang, "operator.bound.headroom", n=math.floor(math.log10(bound.dtype_max / bound.value))),
            )
            for lang, html_lang in HTML_LANG.items()
        },
    }


def _script_values(result: NanResult) -> dict[str, object]:
    """What the script needs of each rank, as lists of equal length; names are stored once."""
    rows = result.ranks
    ops = sorted({row.first_dirty for row in rows if row.first_dirty})
    via = sorted({row.via for row in rows if row.via})
    sources = sorted({tuple(row.from_ranks) for row in rows if row.from_ranks})
    op_at, via_at = {name: n for n, name in enumerate(ops)}, {name: n for n, name in enumerate(via)}
    source_at = {group: n for n, group in enumerate(sources)}
    names = [printable(view.rank_name(row)) for row in rows]
    blocks = view.blocks(result)
    cells = [cell for block in blocks for cell in block.cells]
    starts = [sum(len(block.cells) for block in blocks[:n]) for n in range(len(blocks))]
    return {
        "words": {key: [CATALOGUE.templates(lang)[key] for lang in ("en", "zh")] for key in SCRIPT_WORDS},
        "blocks": [[start, start + len(block.cells) - 1] for start, block in zip(starts, blocks, strict=True)],
        "cells": cells if cells != [[n] for n in range(len(rows))] else None,
        "start": next((n for n, cell in enumerate(cells) if any(rows[i].role == "source" for i in cell)), 0),
        "ops": list(map(printable, ops)),
        "via": _front_coded(list(map(printable, via))),
        "from": [list(group) for group in sources],
        "coordinates": [
            {"name": name.upper(), "values": _packed([row.coords.get(name) for row in rows])}
            for name in view.coordinate_names(rows)
        ],
        "ranks": {
            "name": len(names) if names == list(map(str, range(len(names)))) else names,
            "role": "".join(LETTERS[view.shown_role(row)] for row in rows),
            "status": {n: row.status for n, row in enumerate(rows) if row.status != "ok"},
            "wave": _packed(view.waves(result)),
            "op": _packed([op_at.get(row.first_dirty, -1) for row in rows]),
            "index": _packed([row.first_dirty_index for row in rows]),
            "via": _packed([via_at.get(row.via, -1) for row in rows]),
            "from": _packed([source_at.get(tuple(row.from_ranks), -1) for row in rows]),
            "records": _packed([row.records for row in rows]),
        },
    }


def _front_coded(texts: Sequence[str]) -> list[object]:
    """Sorted texts as pairs: how many characters are those of the text before, and the rest."""
    coded: list[object] = []
    before = ""
    for text in texts:
        pairs = enumerate(zip(before, text, strict=False))
        same = next((n for n, (a, b) in pairs if a != b), min(len(before), len(text)))
        coded += [same, text[same:]]
        before = text
    return coded


def _packed(values: Sequence[int | None]) -> list[object] | dict[str, object]:
    """A list, or what is shorter: runs of equal values, or the cycle that the list repeats."""
    for length in (2, 4, 8, 16, 32, 64):
        cycle = list(values[:length])
        if len(values) > 2 * length and all(value == cycle[n % length] for n, value in enumerate(values)):
            return {"cycle": cycle, "of": len(values)}
    runs: list[list[int | None]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] = (runs[-1][1] or 0) + 1
        else:
            runs.append([value, 1])
    return {"runs": runs} if 3 * len(runs) < len(values) else list(values)
