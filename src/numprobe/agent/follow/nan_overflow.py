"""Answers on a run of the NaN-overflow skill: the conclusion, ranks, causes and what was ruled out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from numprobe.agent.answer import Answer, Lines, Table
from numprobe.agent.follow import names
from numprobe.agent.follow.nan_figures import MOST_ROWS, Figures
from numprobe.agent.follow.question import Question
from numprobe.agent.follow.teller import MOST_CHECKS, MOST_EVIDENCE, frames, sentence
from numprobe.agent.messages import CATALOGUE as AGENT
from numprobe.diagnose.nan_overflow.messages import CATALOGUE
from numprobe.diagnose.nan_overflow.page import view
from numprobe.diagnose.nan_overflow.result import CLASSES, Candidate, Citation, RankRow
from numprobe.report import numbers

MOST_EXCLUDED = 3
MOST_TOLD = 64  # ranks, one sentence each
MOST_RANGES = 6  # of ranks in a cell


class NanTeller(Figures):
    def conclusion(self) -> Answer:
        result, first = self.result, self.first
        parts = [CATALOGUE.pieces(self.lang, said.key, said.values) for said in view.headline(result)]
        if first is not None:
            values = {"value": f"{first.confidence:.2f}", "clazz": first.clazz}
            parts.append(AGENT.pieces(self.lang, "nan.confidence", values))
        self.answer.say(sentence(parts, self.text("list.sentence")), *self._evidence_marks(1))
        for item in result.evidence[:MOST_EVIDENCE]:
            self.word(item.message, *self._cited(item.id, item.citations), bullet=True)
        self._excluded_in_short(bullet=True)
        for note in result.notes:
            self.word(note, bullet=True)
        for check in result.next_checks[:MOST_CHECKS]:
            self.word(check, bullet=True, before="answer.check")
        for limit in result.limits[:MOST_CHECKS]:
            self.word(limit, bullet=True, before="answer.limit")
        return self.answer

    def _evidence_marks(self, count: int) -> list[str]:
        return [mark for item in self.result.evidence[:count] for mark in self._cited(item.id, item.citations)]

    def _cited(self, mark: str, citations: Sequence[Citation]) -> list[str]:
        """Register the first record of a claim under the claim's own mark; a claim without a record cites the result."""
        if not citations:
            return [self.answer.cite("result.json evidence", mark=mark)]
        return [self.answer.cite(self._where(citations[0]), self._figures(citations[0]), mark)]

    def _excluded_in_short(self, *, bullet: bool) -> None:
        excluded = self.result.excluded
        if excluded:
            total = sum(item.count for item in excluded)
            shown = [item.op for item in excluded[:MOST_EXCLUDED]]
            mark = self.answer.cite("result.json excluded", self.rows(len(excluded)))
            more = len(excluded) - len(shown)
            key = "nan.excluded.short" if more else "nan.excluded.all"
            self.say(key, mark, count=total, ops=shown, more=more or None, bullet=bullet)

    def reply(self, q: Question) -> Answer:
        if self.other_steps(q, self._answered):
            return self.answer
        clazz = next((word for word in q.names if word in CLASSES), None)
        if clazz is not None:
            mark = self.answer.cite("result.json sources class")
            self.say("nan.class", mark, clazz=clazz, text=CATALOGUE.say(self.lang, f"class.{clazz}"))
            return self.answer
        q = self.understood(q, self._spoken)
        if q.kind == "cause" and self.first is not None:
            return self.table(replace(q, names=(self.first.op_name,), ranks=()))
        if q.kind == "why_not" and (q.ranks or not q.names):
            return self.why_rank(q.ranks[0]) if q.ranks else self.why()
        if q.kind == "why_not":
            return self.why_excluded(q)
        if q.kind == "stack" and not q.names:
            return self.stack(self.first)
        if q.names or q.layer is not None or q.parts:
            return self.table(q)
        if q.ranks and q.kind in ("", "first_op", "roles", "conclusion", "stack", "spread"):
            return self.ranks(q)
        if q.kind == "roles":
            return self.roles(q)
        kinds = {
            "first_op": self.first_op,
            "confirm": self.confirm,
            "next": self.confirm,
            "confidence": self.confidence,
            "excluded": self.excluded,
            "alternatives": self.alternatives,
            "differing": self.alternatives,
            "cause": self.conclusion,
            "spread": self.spread,
            "evidence": self.evidence,
            "files": self.files,
            "conclusion": self.conclusion,
        }
        return kinds.get(q.kind or ("conclusion" if q.steps else ""), self.unknown)()

    def _rank_cite(self, row: RankRow) -> str:
        return self.answer.cite(f"5_ranks.csv {row.rank_key}", f"{row.role} {row.first_dirty}".strip())

    @property
    def _answered(self) -> list[int]:
        return [self._step] if self._step is not None else []

    def extent(self, q: Question) -> Answer:
        """What the run says of the steps and ranks that a question names."""
        self.other_steps(q, self._answered)
        return self.ranks(q)

    def ranks(self, q: Question) -> Answer:
        """What role each of these ranks has, and its first dirty record."""
        rows = {row.rank: row for row in self.result.ranks}
        there = [rows[rank] for rank in q.ranks if rank in rows]
        for row in there[:MOST_TOLD]:
            self._tell_rank(row, asked=re.search("source|源", q.text.lower()) is not None)
        if len(there) > MOST_TOLD:
            self.say("nan.rank.more", self.answer.cite("5_ranks.csv"), count=len(there) - MOST_TOLD)
        if absent := [rank for rank in q.ranks if rank not in rows]:
            self.answer.known = False
            self._tell_absent(absent)
        return self.answer

    def _tell_rank(self, row: RankRow, *, asked: bool = False) -> None:
        """``asked``: whether it is a source, so that the answer begins with yes or no."""
        mark = self._rank_cite(row)
        role = view.shown_role(row)
        via = f"{row.first_dirty} ({row.via})" if row.via else row.first_dirty
        key = f"nan.rank.{'source' if role == 'source' else 'received' if row.first_dirty and row.from_ranks else role}"
        known = role in ("source", "relay", "victim", "clean")
        self.say(
            key,
            mark,
            yes=self.text("answer.yes" if role == "source" else "answer.no") if asked and known else None,
            rank=view.rank_name(row),
            role=CATALOGUE.say(self.lang, f"role.{role}"),
            op=row.first_dirty or None,
            index=row.first_dirty_index if row.first_dirty else None,
            via=via,
            sources=list(row.from_ranks),
            records=row.records,
            status=CATALOGUE.say(self.lang, f"status.{row.status}"),
        )
        if row.depends:
            self.say("nan.rank.depends", bullet=True)
        if role == "source":
            for c in self.result.sources:
                if row.rank in c.ranks or c.rank_key == row.rank_key:
                    place = c.citation
                    cited = [self.answer.cite(self._where(place), self._figures(place))] if place else []
                    self.say("nan.rank.source_op", *cited, op=c.op_name, index=c.op_index, clazz=c.clazz, bullet=True)

    def why_rank(self, rank: int) -> Answer:
        """Why a rank is not the source, or why it is."""
        row = self._row(rank)
        if row is None:
            self.answer.known = False
            self._tell_absent([rank])
            return self.answer
        self._tell_rank(row)
        if view.shown_role(row) in ("source", "missing"):
            return self.answer
        if self.result.first is not None:
            first = self.result.first
            self.say("nan.why.source", *self._evidence_marks(1), ranks=first.ranks, op=first.op_name)
        elif self.first is not None and self.result.headline is not None:
            self.word(self.result.headline, *self._evidence_marks(1))
        return self.answer

    def why(self) -> Answer:
        """Why this conclusion: its evidence and the terms of its confidence."""
        self.evidence()
        return self.confidence()

    def why_excluded(self, q: Question) -> Answer:
        """Why a record is not the cause: the rule that ruled it out, or its role in the finding."""
        hits = [item for item in self.result.excluded if all(_same_api(item.op, word) for word in q.names)]
        if hits:
            for item in hits:
                mark = self.answer.cite(self._where(item.example))
                self.say(
                    "nan.why.excluded",
                    mark,
                    op=item.op,
                    count=item.count,
                    ranks=item.ranks,
                    kinds=item.kinds,
                    reason=CATALOGUE.say(self.lang, f"reason.{item.reason}"),
                )
            return self.answer
        for c in [*self.result.sources, *self.result.alternatives]:
            if all(names.holds(c.op_name, word) for word in q.names):
                cited = [self.answer.cite(self._where(c.citation), self._figures(c.citation))] if c.citation else []
                key = "nan.why.is_source" if c in self.result.sources else "nan.why.is_alternative"
                self.say(key, *cited, op=c.op_name, ranks=c.ranks, confidence=f"{c.confidence:.2f}")
                return self.answer
        found = self.table(q)
        if found.known and self.first is not None:
            self.say("nan.why.behind", *self._evidence_marks(1), op=self.first.op_name, index=self.first.op_index)
        return found

    def stack(self, c: Candidate | None) -> Answer:
        """The call stack of a candidate."""
        if c is None or not (c.stack or c.frame):
            self.answer.known = False
            self.say("nan.stack.none", op=c.op_name if c else None)
            return self.answer
        cited = [self.answer.cite(f"{c.rank_key}/stack.json {c.op_name}")]
        frame = f"{c.frame.file}:{c.frame.line} {c.frame.function}" if c.frame else None
        self.say("nan.stack", *cited, op=c.op_name, frame=frame)
        self.answer.blocks.append(Lines(frames(c.stack)))
        if c.chain:
            title = self.text("nan.stack.chain")
            self.answer.blocks.append(
                Lines([f"{'  ' * n}{link.name}" for n, link in enumerate(reversed(c.chain))], title)
            )
        return self.answer

    def roles(self, q: Question) -> Answer:
        """The ranks of the roles that the question names, else of all roles."""
        lower = q.text.lower()
        words = {
            "source": ("source", "源头", "源卡"),
            "relay": ("relay", "中继", "转发"),
            "victim": ("victim", "受害", "被传染"),
            "clean": ("clean", "干净", "正常"),
            "missing": ("missing", "缺失", "没读到", "缺了"),
            "partial": ("partial", "不完整", "截断"),
        }
        asked = [role for role, texts in words.items() if any(t in lower for t in texts)] or list(words)
        mark = self.answer.cite("5_ranks.csv", self.rows(len(self.result.ranks)))
        for role in asked:
            rows = [
                row
                for row in self.result.ranks
                if view.shown_role(row) == role or (role == "partial" and row.status == "partial")
            ]
            label = CATALOGUE.say(self.lang, f"role.{role}")
            text = view.ranks_text(rows, self.text("list.numbers")) or None
            self.say("nan.roles", mark, role=label, count=len(rows), ranks=text, bullet=len(asked) > 1)
        return self.answer

    def first_op(self) -> Answer:
        first = self.first
        if first is None:
            return self.conclusion()
        cited = [self.answer.cite(self._where(first.citation), self._figures(first.citation))] if first.citation else []
        self.say("nan.first_op", *cited, op=first.op_name, ranks=first.ranks or [first.rank_key], index=first.op_index)
        return self.answer

    def confirm(self) -> Answer:
        """What would settle it: what was not read, then the checks."""
        result = self.result
        for row in [row for row in view.unread(result) if row.depends]:
            mark = self._rank_cite(row)
            self.say(
                "nan.confirm.rank",
                mark,
                rank=view.rank_name(row),
                status=CATALOGUE.say(self.lang, f"status.{row.status}"),
                bullet=True,
            )
        for check in result.next_checks:
            self.word(check, bullet=True)
        for limit in result.limits:
            self.word(limit, bullet=True, before="answer.limit")
        if not self.answer.blocks:
            self.say("answer.nothing_missing")
        return self.answer

    def confidence(self) -> Answer:
        first = self.first
        if first is None:
            self.answer.known = False
            self.say("nan.confidence.none")
            return self.answer
        place = "sources[0]" if self.result.first else "alternatives[0]"
        level = view.confidence_word(first.confidence)
        return self.tell_confidence(first.confidence, level, first.terms, place)

    def excluded(self) -> Answer:
        if not self.result.excluded:
            self.say("nan.excluded.none")
            return self.answer
        self._excluded_in_short(bullet=False)
        head = self.heads("record", "count", "ranks", "kinds", "reason", "example")
        rows = [
            [
                item.op,
                numbers.count(item.count),
                numbers.count(item.ranks),
                item.kinds,
                CATALOGUE.say(self.lang, f"reason.{item.reason}"),
                f"{item.example.label} {item.example.op_name}",
            ]
            for item in self.result.excluded[:MOST_ROWS]
        ]
        self.answer.blocks.append(Table(head, rows, (1, 2)))
        return self.answer

    def alternatives(self) -> Answer:
        others = [*self.result.sources[1:], *self.result.alternatives]
        mark = self.answer.cite("4_sources.json")
        if not others:
            self.say("nan.alternatives.none", mark)
        for c in others[:MOST_EVIDENCE]:
            who: list[int] | list[str] = c.ranks or [c.rank_key]
            self.say(
                "nan.alternative",
                mark,
                op=c.op_name,
                ranks=who,
                confidence=f"{c.confidence:.2f}",
                clazz=c.clazz,
                bullet=True,
            )
        return self.answer

    def spread(self) -> Answer:
        if not self.result.spread:
            self.answer.known = False
            self.say("nan.spread.none")
            return self.answer
        mark = self.answer.cite("result.json spread")
        total = max(row.total_dirty for row in self.result.spread)
        self.say("nan.spread", mark, steps=len(self.result.spread) - 1, ranks=total)
        head = self.heads("order", "through", "new", "total", "ranks")
        comma = self.text("list.numbers")
        rows = [
            [
                str(row.order),
                row.op_name,
                f"+{len(row.new_ranks)}",
                numbers.count(row.total_dirty),
                _few(row.new_ranks, comma),
            ]
            for row in self.result.spread[:MOST_ROWS]
        ]
        self.answer.blocks.append(Table(head, rows, (0, 2, 3)))
        if len(rows) < len(self.result.spread):
            self.say("nan.spread.more", mark, shown=len(rows), all=len(self.result.spread))
        return self.answer

    def evidence(self) -> Answer:
        for item in self.result.evidence:
            self.word(item.message, *self._cited(item.id, item.citations), bullet=True)
        if not self.result.evidence:
            self.answer.known = False
            self.say("answer.no_evidence")
        return self.answer


def _few(ranks: list[int], comma: str) -> str:
    """The first ranges of ranks; the rest is in the artifact."""
    parts = numbers.ranges(ranks, "\0").split("\0")
    return comma.join(parts[:MOST_RANGES]) + (" ..." if len(parts) > MOST_RANGES else "")


def _same_api(op: str, word: str) -> bool:
    """``Tensor.masked_fill`` of the list of exclusions, ``masked_fill`` or ``Tensor.masked_fill.3.forward`` of a question."""
    return names.holds(op, word) or word.lower().startswith(f"{op.lower()}.")
