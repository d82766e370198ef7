"""What all three renderings derive from the result: counts, extent, blocks of ranks, cited records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numprobe.diagnose.nan_overflow.messages import say
from numprobe.diagnose.nan_overflow.result import Bound, Candidate, Citation, NanResult, Params, RankRow, Slot
from numprobe.report import numbers

HIGH, MEDIUM = 0.75, 0.5
COORDS = ("pp", "tp", "ep", "dp", "cp")  # shown in this order, others after them
ROLE_ORDER = ("source", "relay", "victim", "clean", "partial", "missing")
WORST_FIRST = ("source", "missing", "partial", "relay", "victim", "clean")
MOST_CELLS = 1024
BLOCK = 128  # ranks in a block where pipeline stages are unknown


@dataclass(frozen=True)
class Block:
    """Ranks drawn together: a pipeline stage, or a run of ranks. ``cells`` hold indices into ``result.ranks``."""

    label: str
    span: str
    cells: list[list[int]]

    @property
    def members(self) -> list[int]:
        return [index for cell in self.cells for index in cell]


@dataclass(frozen=True)
class Arrival:
    """Ranks of one role that became dirty at records of one name."""

    role: str
    first_dirty: str
    ranks: list[RankRow]


def shown_role(row: RankRow) -> str:
    """The role to draw: what could not be read is shown by its status unless it is known to be dirty."""
    if row.status in ("missing", "unreadable"):
        return "missing"
    if row.status == "partial" and row.role not in ("source", "relay", "victim"):
        return "partial"
    return row.role if row.role in ROLE_ORDER else "clean"


def worst_role(rows: Sequence[RankRow]) -> str:
    """The role that a cell of several ranks shows."""
    return min(map(shown_role, rows), key=WORST_FIRST.index)


def role_counts(result: NanResult) -> dict[str, int]:
    """Ranks a role, all of them once."""
    counts = Counter(shown_role(row) for row in result.ranks)
    return {role: counts[role] for role in ROLE_ORDER}


def partly_read(result: NanResult) -> int:
    """Ranks that were read in part and have another role than ``partial``: what was read of them is dirty."""
    return sum(row.status == "partial" and shown_role(row) != "partial" for row in result.ranks)


def rank_name(row: RankRow) -> str:
    """The rank's number, or its folder where there is none."""
    return str(row.rank) if row.rank is not None else row.rank_key


def who(candidate: Candidate) -> str:
    return f"r{candidate.rank}" if candidate.rank is not None else candidate.rank_key


def confidence_word(value: float) -> str:
    return "high" if value >= HIGH else "medium" if value >= MEDIUM else "low"


def best(result: NanResult) -> Candidate | None:
    """The first source, or without one the best alternative: an inconclusive page shows it too."""
    return result.first or (result.alternatives[0] if result.alternatives else None)


def headline(result: NanResult) -> list[Params]:
    """The verdict's sentence, and how far the dirt got."""
    said = [result.headline] if result.headline else [Params(f"verdict.{result.verdict}")]
    return [*said, *extent(result)]


def extent(result: NanResult) -> list[Params]:
    """How many of the other readable ranks received it; nothing to say without other ranks or without a finding."""
    if result.verdict != "overflow_found":
        return []
    roles = Counter(row.role for row in result.ranks if row.status in ("ok", "partial") and row.role != "source")
    others, received = sum(roles.values()), roles["relay"] + roles["victim"]
    if not others:
        return []
    if received == others:
        return [Params("extent.one") if others == 1 else Params("extent.all", {"others": others})]
    if not received:
        return [Params("extent.none")] if result.join.instances else []
    return [Params("extent.some", {"received": received, "others": others})]


def where(result: NanResult, lang: str) -> str:
    """``step 0, micro-batch 0, forward``, as far as it is known."""
    first = best(result)
    parts = []
    step = first.step if first and first.step is not None else result.step
    if step is not None:
        parts.append(say(lang, "page.where.step", step=step))
    if first and result.verdict != "no_overflow":
        if first.micro_batch is not None:
            parts.append(say(lang, "page.where.micro_batch", micro_batch=first.micro_batch))
        parts.append(say(lang, f"phase.{first.phase}"))
        if first.layer is not None:
            parts.append(say(lang, "page.where.layer", layer=first.layer))
    return say(lang, "list.comma").join(parts)


def coords(row: RankRow) -> str:
    """``PP 1 TP 0 EP 10``."""
    return " ".join(f"{name.upper()} {row.coords[name]}" for name in coordinate_names([row]))


def coordinate_names(rows: Sequence[RankRow]) -> list[str]:
    """The coordinates that any of the ranks has."""
    known = {name for row in rows for name in row.coords}
    return [name for name in COORDS if name in known] + sorted(known.difference(COORDS))


def tp_size(result: NanResult) -> int:
    """Width of the tensor-parallel groups if they are runs of consecutive ranks, else 1."""
    places = [row.coords.get("tp") for row in result.ranks]
    known = [place for place in places if place is not None]
    if not known or len(known) != len(places):
        return 1
    size = max(known) + 1
    runs = all(place == index % size for index, place in enumerate(known))
    return size if runs and size in (2, 4, 8, 16) else 1


def group_size(result: NanResult) -> int:
    """Ranks a cell: 1 up to 1,024 ranks, above that a tensor-parallel group or as many as it takes."""
    total = len(result.ranks)
    if total <= MOST_CELLS:
        return 1
    size = tp_size(result)
    return max(size, 1 << math.ceil(math.log2(total / MOST_CELLS)))


def blocks(result: NanResult) -> list[Block]:
    """The ranks in their order, by pipeline stage where each has one."""
    stages = [row.coords.get("pp") for row in result.ranks]
    if result.ranks and None not in stages and len(set(stages)) > 1:
        runs = [
            (f"PP {stage}", [i for i, s in enumerate(stages) if s == stage]) for stage in sorted(set(stages), key=str)
        ]
        runs.sort(key=lambda run: run[1][0])
    else:
        at_a_time = BLOCK * group_size(result)
        every = list(range(len(result.ranks)))
        runs = [("", every[start : start + at_a_time]) for start in range(0, len(every), at_a_time)]
    size = group_size(result)
    return [
        Block(
            label,
            span_of([result.ranks[index] for index in members]),
            [members[start : start + size] for start in range(0, len(members), size)],
        )
        for label, members in runs
    ]


def span_of(rows: Sequence[RankRow]) -> str:
    """``0-127``; folder names where ranks have no number."""
    ranks = [row.rank for row in rows if row.rank is not None]
    if len(ranks) == len(rows):
        return numbers.ranges(ranks)
    return rows[0].rank_key if len(rows) == 1 else f"{rows[0].rank_key} - {rows[-1].rank_key}"


def waves(result: NanResult) -> list[int]:
    """For each rank the line of the spread at which it became dirty; the last line where that is not known."""
    order = {rank: line for line, row in reversed(list(enumerate(result.spread))) for rank in row.new_ranks}
    last = max(len(result.spread) - 1, 0)
    return [
        order.get(row.rank if row.rank is not None else -1, 0 if row.role == "source" else last) for row in result.ranks
    ]


def arrivals(result: NanResult) -> list[Arrival]:
    """All ranks, grouped by role and by the name of the first dirty record."""
    grouped: dict[tuple[str, str], list[RankRow]] = {}
    for row in result.ranks:
        grouped.setdefault((shown_role(row), row.first_dirty), []).append(row)
    ordered = sorted(grouped.items(), key=lambda item: ROLE_ORDER.index(item[0][0]))
    return [Arrival(role, first_dirty, rows) for (role, first_dirty), rows in ordered]


def ranks_text(rows: Sequence[RankRow], comma: str = ", ") -> str:
    """All of them: numbers as ranges, then the folders that have no number."""
    numbered = numbers.ranges((row.rank for row in rows if row.rank is not None), comma)
    named = [row.rank_key for row in rows if row.rank is None]
    return comma.join([numbered, *named] if numbered else named)


def unread(result: NanResult) -> list[RankRow]:
    return [row for row in result.ranks if row.status != "ok"]


def unread_together(result: NanResult) -> list[list[RankRow]]:
    """The same, with ranks in one place of which nothing is known but their number."""
    together: dict[object, list[RankRow]] = {}
    for row in unread(result):
        together.setdefault(row.rank_key if row.note else (row.status, row.depends), []).append(row)
    return list(together.values())


def cited(result: NanResult) -> dict[Citation, int]:
    """Every cited record with its number on the page, in the order of reading."""
    numbered: dict[Citation, int] = {}
    for citation in _citations(result):
        numbered.setdefault(citation, len(numbered) + 1)
    return numbered


def _citations(result: NanResult) -> Iterator[Citation]:
    for evidence in result.evidence:
        yield from evidence.citations
    for candidate in (*result.sources, *result.alternatives):
        if candidate.citation is not None:
            yield candidate.citation
    for excluded in result.excluded:
        yield excluded.example


def slot_of(result: NanResult, citation: Citation) -> Slot | None:
    """The cited slot's statistics, where the result holds them."""
    for candidate in (*result.sources, *result.alternatives):
        same = candidate.rank_key == citation.rank_key and candidate.op_name == citation.op_name
        if same and candidate.op_index == citation.op_index:
            return next((slot for slot in candidate.slots if slot.slot == citation.slot), None)
    return None


def running_sums(candidate: Candidate) -> list[tuple[float, float]]:
    """Where each term of the confidence starts and ends."""
    sums, at = [], 0.0
    for term in candidate.terms:
        sums.append((at, round(at + term.value, 6)))
        at = round(at + term.value, 6)
    return sums


def bound_marks(candidate: Candidate, bound: Bound) -> list[tuple[str, float]]:
    """The largest magnitude of each finite input, by slot, for the line from the inputs to the end of the dtype."""
    marks = []
    for slot in candidate.slots:
        if slot.role in ("output", "placeholder") or slot.state != "finite" or "float" not in slot.dtype.lower():
            continue
        largest = max((abs(float(value)) for value in (slot.max, slot.min) if value is not None), default=0.0)
        if largest > 0 and math.isfinite(largest):
            marks.append((slot.slot, largest))
    return marks
