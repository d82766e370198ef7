"""Answers on a run of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numprobe.agent.answer import Answer, Lines, Table
from numprobe.agent.follow import names
from numprobe.agent.follow.question import Question
from numprobe.agent.follow.teller import MOST_EVIDENCE, Teller, frames, sentence
from numprobe.compare.messages import CATALOGUE
from numprobe.compare.page import view
from numprobe.compare.result import CompareResult, Finding, Leaf, Side
from numprobe.record.names import parse_name
from numprobe.report import numbers

if TYPE_CHECKING:
    import polars as pl

TABLE = "compare.parquet"
MOST_ROWS = 24
MOST_RECORDS = 12


class CompareTeller(Teller):
    words = CATALOGUE

    @property
    def result(self) -> CompareResult:
        assert isinstance(self.run.result, CompareResult)
        return self.run.result

    @property
    def first(self) -> Finding | None:
        return self.result.findings[0] if self.result.findings else None

    @cached_property
    def table(self) -> pl.DataFrame | None:
        import polars as pl

        file = self.run.artifact(TABLE)
        try:
            return pl.read_parquet(file) if file is not None else None
        except (OSError, pl.exceptions.PolarsError):
            return None

    def conclusion(self) -> Answer:
        result, first = self.result, self.first
        said = view.headline(result)
        verdict = [*CATALOGUE.pieces(self.lang, f"verdict.{result.verdict}", {}), self.text("list.colon")]
        parts = [[*verdict, *CATALOGUE.pieces(self.lang, said.key, said.values)]]
        self.answer.say(sentence(parts, self.text("list.sentence")), *(self._cited(first) if first else ()))
        if first is not None:
            self.say(
                "compare.cause", cause=view.cause(first, self.lang), place=view.place(first, self.lang), bullet=True
            )
            if inside := view.modules(first):
                self.say("compare.inside", names=inside[:4], bullet=True)
        for finding in result.findings[1:MOST_EVIDENCE]:
            self.word(view.sentence(finding, first=False), *self._cited(finding), bullet=True)
        mark = self.answer.cite("result.json counts")
        self.say("compare.coverage", mark, coverage=result.coverage, counts=view.counts(result, self.lang), bullet=True)
        for limit in view.limits(result):
            self.word(limit, bullet=True, before="answer.limit")
        for check in view.next_steps(result):
            self.word(check, bullet=True, before="answer.check")
        if first is not None:
            self._leaves(first)
        return self.answer

    def _cited(self, f: Finding) -> list[str]:
        marks = []
        for side, name, place in (("target", f.op, f.target_place), ("golden", f.golden_op, f.golden_place)):
            if name:
                marks.append(
                    self.answer.cite(
                        f"{side} {place.file if place else ''} {name} {f.slot}".replace("  ", " ").rstrip()
                    )
                )
        return marks

    def _leaves(self, f: Finding) -> None:
        self._figures(view.cited(f), f"{f.op or f.golden_op}", "result.json findings")

    def _figures(self, leaves: Sequence[Leaf], title: str, file: str) -> None:
        if not leaves:
            return
        head = self.heads("slot", "side", "max", "min", "mean", "norm", "error", "expected", "verdict")
        rows: list[list[str]] = []
        for leaf in leaves[:MOST_ROWS]:
            for n, (name, side) in enumerate((("target", leaf.target), ("golden", leaf.golden))):
                verdict = self.text(f"verdict.row.{leaf.verdict}")
                tail = [view.percent(leaf.error), view.percent(leaf.expected), verdict] if n == 0 else ["", "", ""]
                rows.append(
                    [leaf.path if n == 0 else "", CATALOGUE.say(self.lang, f"side.{name}"), *_four(side), *tail]
                )
        mark = self.answer.cite(f"{file} {title}")
        self.answer.blocks.append(Table(head, rows, (2, 3, 4, 5, 6, 7), f"{title} [{mark}]"))

    def reply(self, q: Question) -> Answer:
        if self.other_steps(q, sorted({pair.step for pair in self.result.ranks if pair.step is not None})):
            return self.answer
        q = self.understood(q, self._known_names())
        if q.names or q.layer is not None or q.parts:
            return self.records(q)
        kinds = {
            "why_not": self.evidence,
            "evidence": self.evidence,
            "confirm": self.confirm,
            "next": self.confirm,
            "alternatives": self.alternatives,
            "stack": self.stack,
            "unmatched": self.unmatched,
            "excluded": self.unmatched,
            "first_op": self.evidence,
            "cause": self.evidence,
            "differing": self.alternatives,
            "weights": self.conclusion,
            "files": self.files,
            "conclusion": self.conclusion,
        }
        return kinds.get(q.kind or ("conclusion" if q.steps else ""), self.unknown)()

    def _known_names(self) -> list[str]:
        if self.table is None:
            return [name for f in self.result.findings for name in (f.op, f.golden_op) if name]
        pairs = self.table.select("target_op", "golden_op").unique(maintain_order=True).rows()
        return [name for pair in pairs for name in pair if name]

    def records(self, q: Question) -> Answer:
        """The rows of the table that a question means: of the steps that it names, else of the first that differs."""
        if self.table is None:
            self.answer.known = False
            self.say("compare.no_table", file=TABLE)
            return self.answer
        import polars as pl

        ops = self.table.select("target_op", "golden_op").unique(maintain_order=True).rows()
        hits = [pair for pair in ops if self._meant(q, [name for name in pair if name])]
        if not hits:
            return self.nothing(q, self._known_names())
        worst = ("error", "incomparable", "warning", "unmatched_target", "unmatched_golden", "pass")
        first = self.first.step if self.first is not None else None
        steps = list(q.steps) or ([first] if first is not None else [])
        rows = self.table.filter(
            pl.struct("target_op", "golden_op").is_in([{"target_op": t, "golden_op": g} for t, g in hits])
        )
        of_steps = rows.filter(pl.col("step").is_in(steps))
        rows = of_steps if len(of_steps) else rows  # a record may be in other steps alone
        by_record = rows.group_by("target_op", "golden_op", maintain_order=True).agg("verdict", "rho")
        found = []
        for target, golden, verdicts, ratios in by_record.iter_rows():
            worst_ratio = max((r for r in ratios if r is not None), default=None)
            found.append((target, golden, next(v for v in worst if v in verdicts), worst_ratio))
        shown = next((r for r in found if r[2] in ("error", "incomparable")), found[0])
        if len(found) > 1:
            mark = self.answer.cite(TABLE, self.rows(len(found)))
            self.say("compare.records", mark, count=len(found), shown=min(len(found), MOST_RECORDS))
            head = self.heads("record", "verdict", "ratio")
            listed = [
                [t or g, self.text(f"verdict.row.{v}"), "-" if r is None else numbers.stat(r, 3)]
                for t, g, v, r in found[:MOST_RECORDS]
            ]
            self.answer.blocks.append(Table(head, listed, (2,)))
        if q.kind == "why_not":
            self._why(shown[0] or shown[1], shown[2])
        picked = rows.filter((pl.col("target_op").eq_missing(shown[0])) & (pl.col("golden_op").eq_missing(shown[1])))
        places = picked.select("step", "rank").unique(maintain_order=True)
        if len(places) > 1:  # the rows of one: side by side they would look like slots of one call
            told = picked.filter(pl.col("verdict") == shown[2])
            step, rank = told.select("step", "rank").row(0)
            picked = picked.filter(pl.col("step").eq_missing(step) & pl.col("rank").eq_missing(rank))
        title = [shown[0] or shown[1]]
        if len(places) > 1 or len({pair.step for pair in self.result.ranks}) > 1:
            step, rank = picked.select("step", "rank").row(0)
            title += [CATALOGUE.say(self.lang, "place.step", step=step)] if step is not None else []
            title += [CATALOGUE.say(self.lang, "place.rank", ranks=[rank])] if rank is not None else []
        self._figures([_leaf(row) for row in picked.iter_rows(named=True)], ", ".join(title), TABLE)
        return self.answer

    def _why(self, name: str, verdict: str) -> None:
        f = next((f for f in self.result.findings if name in (f.op, f.golden_op)), None)
        if f is not None:
            self.word(view.sentence(f, first=f is self.first), *self._cited(f))
        elif verdict in ("pass", "warning"):
            self.say("compare.why.agrees", self.answer.cite(f"{TABLE} {name}"), op=name)
        elif verdict != "error":  # incomparable, or of one side only
            mark = self.answer.cite(f"{TABLE} {name}")
            self.say(f"compare.why.{'incomparable' if verdict == 'incomparable' else 'alone'}", mark, op=name)
        elif self.first is not None:
            first = self.first.op or self.first.golden_op
            self.say(
                "compare.why.behind",
                self.answer.cite(f"{TABLE} {name}"),
                *self._cited(self.first),
                op=name,
                first=first,
            )

    def _meant(self, q: Question, texts: Sequence[str]) -> bool:
        if q.layer is not None and all(names.layer_of(t) != q.layer for t in texts):
            return False
        if q.parts and not names.in_parts([parse_name(t).path or t for t in texts], q.parts):
            return False
        return all(any(names.holds(t, word) for t in texts) for word in q.names)

    def evidence(self) -> Answer:
        f = self.first
        if f is None:
            return self.conclusion()
        self.word(view.sentence(f), *self._cited(f))
        if f.after:
            self.say("compare.after", op=f.after, bullet=True)
        self._leaves(f)
        return self.answer

    def confirm(self) -> Answer:
        for check in view.next_steps(self.result):
            self.word(check, bullet=True)
        for limit in view.limits(self.result):
            self.word(limit, bullet=True, before="answer.limit")
        if not self.answer.blocks:
            self.say("answer.nothing_missing")
        return self.answer

    def alternatives(self) -> Answer:
        mark = self.answer.cite("result.json findings", self.rows(len(self.result.findings)))
        for finding in self.result.findings[1 : MOST_EVIDENCE + 1]:
            self.word(view.sentence(finding, first=False), mark, *self._cited(finding), bullet=True)
        if len(self.result.findings) < 2:
            self.say("compare.alternatives.none", mark)
        return self.answer

    def stack(self) -> Answer:
        f = self.first
        if f is None or not f.stack:
            self.answer.known = False
            self.say("compare.no_stack")
            return self.answer
        self.say(
            "nan.stack", self.answer.cite(f"target stack.json {f.op}"), op=f.op, frame=next(iter(view.code(f)), None)
        )
        self.answer.blocks.append(Lines(frames(f.stack)))
        return self.answer

    def unmatched(self) -> Answer:
        counts = self.result.counts
        mark = self.answer.cite("result.json counts")
        self.say(
            "compare.unmatched",
            mark,
            target=counts.get("unmatched_target", 0),
            golden=counts.get("unmatched_golden", 0),
        )
        if self.table is not None:
            import polars as pl

            for side, column in (("unmatched_target", "target_op"), ("unmatched_golden", "golden_op")):
                alone = self.table.filter(pl.col("verdict") == side)[column].unique(maintain_order=True).to_list()
                if alone:
                    self.answer.blocks.append(Lines(alone[:MOST_ROWS], self.text(f"verdict.row.{side}")))
        return self.answer


def _four(side: Side | None) -> list[str]:
    if side is None:
        return [numbers.ABSENT] * 4
    return (
        [side.scalar, "", "", ""]
        if side.scalar
        else [numbers.stat(x) for x in (side.max, side.min, side.mean, side.norm)]
    )


def _leaf(row: dict[str, Any]) -> Leaf:
    def side(name: str) -> Side | None:
        if not row[f"{name}_op"]:
            return None
        return Side(max=row[f"{name}_max"], min=row[f"{name}_min"], mean=row[f"{name}_mean"], norm=row[f"{name}_norm"])

    return Leaf(
        row["role"],
        row["path"],
        side("target"),
        side("golden"),
        row["verdict"],
        row["status"] or "",
        row["reason"] or "",
        row["error"],
        row["expected"],
        row["rho"],
    )
