"""The figures of records on a run of the NaN-overflow skill, from its dump or, where that is gone, from what the run kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from numprobe.agent.answer import Answer, Block, Table
from numprobe.agent.follow import names
from numprobe.agent.follow.question import Question
from numprobe.agent.follow.records import Records, record_of
from numprobe.agent.follow.teller import Teller
from numprobe.diagnose.nan_overflow.local import edges_of
from numprobe.diagnose.nan_overflow.messages import CATALOGUE
from numprobe.diagnose.nan_overflow.page import view
from numprobe.diagnose.nan_overflow.result import Candidate, Citation, NanResult, RankRow
from numprobe.formats.dump import RankDump
from numprobe.record.errors import NumprobeError
from numprobe.record.nonfinite import DIRTY
from numprobe.record.trace import Value
from numprobe.report import numbers

MOST_RANKS = 16  # of one record, side by side
MOST_ROWS = 24
NEAR = 4  # records of one name


class Figures(Teller):
    """What a name in a question means, and the figures of that."""

    words = CATALOGUE

    @property
    def result(self) -> NanResult:
        assert isinstance(self.run.result, NanResult)
        return self.run.result

    @cached_property
    def records(self) -> Records:
        return Records(self.run.inputs.get("dump", ""))

    @property
    def first(self) -> Candidate | None:
        return view.best(self.result) if self.result.verdict != "no_overflow" else None

    def _where(self, c: Citation) -> str:
        return f"{c.file or c.rank_key} #{c.op_index} {c.op_name} {c.slot}".rstrip()

    def _figures(self, c: Citation) -> str:
        slot = view.slot_of(self.result, c)
        if slot is None or (slot.max is None and slot.min is None):
            return ""
        return f"Max {numbers.stat(slot.max)}  Min {numbers.stat(slot.min)}"

    @cached_property
    def _spoken(self) -> list[str]:
        """Names of records: those of the source's rank, or what the result speaks of."""
        first = self.first
        key = first.rank_key if first else next((row.rank_key for row in self.result.ranks if row.records), "")
        rank = self.records.rank(key, self._step)
        told = [c.op_name for c in (*self.result.sources, *self.result.alternatives)] + [
            x.op for x in self.result.excluded
        ]
        slots = [slot.slot for slot in first.slots] if first else []
        return [*(rank.index.names if rank else ()), *told, *slots]

    @property
    def _step(self) -> int | None:
        return self.first.step if self.first and self.first.step is not None else self.result.step

    def _row(self, rank: int) -> RankRow | None:
        return next((row for row in self.result.ranks if row.rank == rank), None)

    def table(self, q: Question) -> Answer:
        """The figures of the records that a name means: on the ranks of the question, else on the source's.

        A name that no record has but a slot of the first anomaly (``group_list``) means that slot of that record.
        """
        if not self.records.there:
            return self._from_result(q)
        first = self.first
        every = (
            re.search(r"every rank|all ranks|each rank|每张卡|各张?卡|所有卡|全部卡|每个rank", q.text.lower())
            is not None
        )
        keys = self._keys(q, every)
        if q.ranks and not self._are_read(q.ranks):
            return self.answer
        slots = [] if first is None else [w for w in q.names if self._only_slot(w, first)]
        words = [w for w in q.names if w not in slots]
        wanted = replace(q, names=tuple(words))
        rows: list[list[str]] = []
        known: list[str] = []
        for key in keys:
            rank = self.records.rank(key, self._step)
            if rank is None:
                continue
            known += rank.index.names
            if slots and not words and first is not None:
                hits = [first.op_name] if rank.find(first.op_name) is not None else []
            else:
                hits = names.matching(wanted, rank.index.names)
            chosen = self._telling(hits, rank.index.names)
            for name in chosen:
                rows += self._record_rows(rank, name, slots)
            if len(hits) > len(chosen) and len(keys) == 1:
                self.say("answer.more_records", count=len(hits), shown=len(chosen))
        if not rows:
            return self.nothing(q, known)
        self.answer.blocks[:0] = self._record_tables(rows)
        if changed := self._changed(keys):
            self.say("nan.dump_changed", files=changed[:MOST_RANKS])
        return self.answer

    def _changed(self, keys: Sequence[str]) -> list[str]:
        """The files of these ranks that are not what the run has read."""
        then = {str(entry.get("file", "")): entry for entry in self.run.manifest.input_files}
        changed = []
        for rank in (self.records.rank(key, self._step) for key in keys):
            if rank is None:
                continue
            name = self.records.file(rank)
            entry = next((e for file, e in then.items() if f"/{file}".endswith(f"/{name}")), None)
            if entry is not None and not _same_file(rank.place.dump, entry):
                changed.append(name)
        return changed

    def _are_read(self, ranks: Sequence[int]) -> bool:
        """Whether one of the ranks was; the others are told."""
        read = False
        for rank in ranks:
            row = self._row(rank)
            if row is None:
                self._tell_absent([rank])
            elif row.status in ("missing", "unreadable"):
                mark = self.answer.cite(f"5_ranks.csv {row.rank_key}")
                self.say("nan.rank.not_read", mark, rank=rank, status=CATALOGUE.say(self.lang, f"status.{row.status}"))
            else:
                read = True
        self.answer.known = read
        return read

    def _tell_absent(self, ranks: Sequence[int]) -> None:
        """Ranks that this run has no row of: they were left out by a choice, or there are none of these numbers."""
        chosen = next((limit.values["ranks"] for limit in self.result.limits if limit.key == "limit.left_out"), [])
        left_out = set(chosen) if isinstance(chosen, list) else set()
        for key, told in (
            ("nan.rank.left_out", [r for r in ranks if r in left_out]),
            ("nan.rank.none", [r for r in ranks if r not in left_out]),
        ):
            if told:
                self.say(key, ranks=told, there=self.records.ranks or None)

    def _record_tables(self, rows: list[list[str]]) -> list[Block]:
        """One table for each record; one for all where it is the same record of several ranks."""
        figures = ("slot", "shape", "max", "min", "mean", "norm", "state")
        begins = [n for n, row in enumerate(rows) if row[2]]
        names_of = {rows[n][2] for n in begins}
        if len(names_of) == 1 and len(begins) > 1:
            head = self.heads("cite", "rank", *figures)
            body = [[row[0], row[1] if row[2] else "", *row[3:]] for row in rows]
            return [Table(head, body, (4, 5, 6, 7), names_of.pop())]
        several = len({row[1] for row in rows}) > 1
        tables: list[Block] = []
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
            mark, rank, name = rows[begin][:3]
            title = f"{self.text('head.rank')} {rank}  {name} {mark}" if several else f"{name} {mark}"
            tables.append(Table(self.heads(*figures), [row[3:] for row in rows[begin:end]], (2, 3, 4, 5), title))
        return tables

    def _keys(self, q: Question, every: bool) -> list[str]:
        """The folders of the ranks to look at."""
        asked = [row.rank_key for rank in q.ranks if (row := self._row(rank))]
        if asked:
            return asked[:MOST_RANKS]
        read = [row.rank_key for row in self.result.ranks if row.records]
        source = self.first.rank_key if self.first else next(iter(read), "")
        if not every:
            return [source]
        op = self.first.op_name if self.first else ""
        peers = [
            key
            for key in read
            if key != source and (rank := self.records.rank(key, self._step)) and rank.find(op) is not None
        ]
        return [source, *peers[: MOST_RANKS - 1]]

    def _only_slot(self, word: str, first: Candidate) -> bool:
        """Does the word name a slot of the first anomaly, and no record?"""
        return any(word.lower() in s.slot.lower().split(".") for s in first.slots) and not any(
            names.holds(name, word) for name in self._spoken if name not in {s.slot for s in first.slots}
        )

    def _record_rows(self, rank: RankDump, name: str, slots: Sequence[str]) -> list[list[str]]:
        position = rank.find(name)
        record = record_of(rank, position) if position is not None else None
        if record is None:
            return []
        values = [v for v in record.values if not slots or any(w.lower() in v.path.lower().split(".") for w in slots)]
        mark = self.answer.cite(f"{self.records.file(rank)} #{position} {name}") if values else ""
        who = str(rank.place.rank) if rank.place.rank is not None else rank.place.key
        return [
            [f"[{mark}]" if n == 0 else "", who, name if n == 0 else "", *_figures_of(v, self.lang)]
            for n, v in enumerate(values)
        ]

    def _telling(self, hits: Sequence[str], order: Sequence[str]) -> list[str]:
        """Of many records those nearest to the first anomaly."""
        if len(hits) <= NEAR:
            return list(hits)
        at = {name: n for n, name in enumerate(order)}
        centre = self.first.op_index if self.first else 0
        return sorted(sorted(hits, key=lambda name: abs(at[name] - centre))[:NEAR], key=lambda name: at[name])

    def _from_result(self, q: Question) -> Answer:
        """Where the dump is gone: what the run kept of its first anomaly."""
        first = self.first
        if first is None or not names.matching(q, [first.op_name]):
            self.answer.known = False
            self.say("answer.dump_gone", path=self.records.path)
            return self.answer
        mark = self.answer.cite("result.json sources", first.op_name)
        head = self.heads("slot", "shape", "max", "min", "mean", "norm", "state")
        rows = [
            [
                s.slot,
                "x".join(map(str, s.shape or ())),
                *(numbers.stat(x) for x in (s.max, s.min, s.mean, s.norm)),
                s.state,
            ]
            for s in first.slots
        ]
        self.answer.blocks.append(Table(head, rows, (2, 3, 4, 5), f"{first.op_name} [{mark}]"))
        return self.answer


def _same_file(file: Path, then: Mapping[str, object]) -> bool:
    """Is a file as it was read? One that was copied since has another time, and the same content."""
    try:
        now = file.stat()
        if now.st_size != then.get("size"):
            return False
        return now.st_mtime_ns == then.get("mtime_ns") or edges_of(file) == then.get("edges_blake2b")
    except (OSError, NumprobeError):
        return False


def _figures_of(v: Value, lang: str) -> list[str]:
    """Slot, shape, four statistics and state of one leaf; a scalar has its text in the place of Max."""
    if not v.is_tensor:
        return [v.path, v.value_type, str(v.scalar)[:40] if v.scalar is not None else "-", "", "", "", ""]
    state = v.kinds.words() if v.kinds & DIRTY else CATALOGUE.say(lang, f"state.{v.kinds.words()}")
    shape = "x".join(map(str, v.shape)) if v.shape is not None else "-"
    return [v.path, shape, *(numbers.stat(x) for x in (v.max, v.min, v.mean, v.norm)), state]
