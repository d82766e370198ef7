"""Answers on a run of the RL-consistency skill."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cached_property

from numprobe.agent.answer import Answer, Table
from numprobe.agent.follow import names
from numprobe.agent.follow.question import Question
from numprobe.agent.follow.records import Records
from numprobe.agent.follow.teller import MOST_EVIDENCE, Teller, sentence
from numprobe.agent.messages import CATALOGUE as AGENT
from numprobe.diagnose.rl_consistency import slots
from numprobe.diagnose.rl_consistency.messages import CATALOGUE
from numprobe.diagnose.rl_consistency.page import view
from numprobe.diagnose.rl_consistency.result import Figures, Finding, Key, Pair, RlResult
from numprobe.record.names import parse_name
from numprobe.report import numbers

FOUR = ("Max", "Min", "Mean", "Norm")
MOST_PLACES = 12
MOST_NAMES = 16
WARNING_RATIO = 4.0  # a warning: found over expected
COMPARED = ("pass", "warning", "error")  # verdicts of slots that were
SHORT = ("qkv", "gate", "up", "down", "act", "core", "embed")  # roles that people ask for by these words


class RlTeller(Teller):
    words = CATALOGUE

    @property
    def result(self) -> RlResult:
        assert isinstance(self.run.result, RlResult)
        return self.run.result

    @property
    def first(self) -> Finding | None:
        return self.result.findings[0] if self.result.findings else None

    @cached_property
    def figures(self) -> dict[str, list[Figures]]:
        """The figures of every place, from the run's table; those of the findings alone where it has none."""
        found: dict[str, list[Figures]] = {}
        table = self.run.artifact(slots.FILE)
        try:
            if table is not None:
                with table.open(encoding="utf-8", newline="") as file:
                    for row in csv.DictReader(file):
                        found.setdefault(row["place"], []).append(_figures(row))
        except (OSError, KeyError, ValueError, csv.Error):
            found = {}
        for finding in self.result.findings:
            for key, figures in ((finding.suspect, finding.figures), (finding.anchor, finding.anchor_figures)):
                place = self._place_of(key)
                if place:
                    found.setdefault(place, list(figures))
        return found

    def _place_of(self, key: Key | None) -> str:
        wanted = {name for name in (key.train, key.rollout) if name} if key else set()
        return next((p.place for p in self.result.mapping if wanted & {*p.train, *p.rollout}), "")

    # conclusion

    def conclusion(self) -> Answer:
        result, first = self.result, self.first
        said = view.headline(result)
        verdict = [*CATALOGUE.pieces(self.lang, f"verdict.{result.verdict}", {}), self.text("list.colon")]
        parts = [[*verdict, *CATALOGUE.pieces(self.lang, said.key, said.values)]]
        if first is not None:
            values = {"value": f"{first.confidence:.2f}", "clazz": first.clazz, "kind": first.kind or None}
            parts.append(AGENT.pieces(self.lang, "rl.confidence", values))
        self.answer.say(sentence(parts, self.text("list.sentence")), *(self._cited_suspect(first) if first else ()))
        for note in view.notes(result):
            self.word(note, bullet=True)
        if first is not None:
            self._tell_finding(first)
        others = result.findings[1:]
        if others:
            self.say(
                "rl.others",
                self.answer.cite("result.json findings", str(len(result.findings))),
                count=len(others),
                bullet=True,
            )
        warnings = result.warnings or None
        self.say(
            "rl.coverage", self.answer.cite("mapping.csv"), coverage=result.coverage, warnings=warnings, bullet=True
        )
        if result.detection_limit is not None and result.verdict in ("no_difference", "difference_found"):
            self.say("rl.limit", limit=result.detection_limit, bullet=True)
        for check in view.next_steps(result):
            self.word(check, bullet=True, before="answer.check")
        if first is not None:
            self._table(self._place_of(first.suspect), view.telling(first))
        return self.answer

    def _cited_suspect(self, f: Finding) -> list[str]:
        marks = []
        figures = next((x for x in f.figures if x.slot == f.slot), None)
        for side, name in (("train", f.suspect.train), ("rollout", f.suspect.rollout)):
            if name:
                norm = getattr(figures, side)[3] if figures else None
                shown = f"Norm {numbers.stat(norm)}" if norm is not None else ""
                marks.append(self.answer.cite(f"{side} {name} {f.slot}".rstrip(), shown))
        return marks

    def _tell_finding(self, f: Finding) -> None:
        if f.anchor is not None:
            cited = [
                self.answer.cite(f"{s} {n}") for s, n in (("train", f.anchor.train), ("rollout", f.anchor.rollout)) if n
            ]
            self.say(
                "rl.anchor",
                *cited,
                anchor=view.short(view.key(f.anchor)),
                suspect=view.short(view.suspect(f)),
                bullet=True,
            )
        between = view.between(f)
        for side, found in (("train", between.train), ("rollout", between.rollout)):
            if found:
                label = CATALOGUE.say(self.lang, f"side.{side}")
                cited = [self.answer.cite(f"{side} {name}") for name in found[:MOST_EVIDENCE]]
                self.say("rl.between", *cited, side=label, names=found[:MOST_EVIDENCE], bullet=True)
        if len(f.layers) > 1:
            self.say("rl.layers", count=len(f.layers), layers=f.layers, all=self.result.layers, bullet=True)
        if probed := view.probed(f, self.lang):
            self.say("rl.probed", what=probed, bullet=True)

    def _table(self, place: str, figures: Sequence[Figures]) -> None:
        """Training above rollout for every slot, as the report has it."""
        if not figures:
            return
        head = self.heads("slot", "max", "min", "mean", "norm", "error", "expected", "verdict")
        rows = []
        for x in figures:
            verdict = self.text(f"verdict.row.{x.verdict}")
            tail = [view.percent(x.error), view.percent(x.expected), verdict]
            rows.append([x.slot, "", "", "", "", *tail])
            for side, four in (("train", x.train), ("rollout", x.rollout)):
                if any(figure is not None for figure in (*x.train, *x.rollout)):
                    rows.append([f"  {CATALOGUE.say(self.lang, f'side.{side}')}", *map(numbers.stat, four), "", "", ""])
        file = slots.FILE if self.run.artifact(slots.FILE) is not None else "result.json"
        mark = self.answer.cite(f"{file} {place}")
        self.answer.blocks.append(Table(head, rows, (1, 2, 3, 4, 5, 6), f"{place} [{mark}]"))

    # questions

    def reply(self, q: Question) -> Answer:
        if self.other_steps(
            q, self.run.manifest.options.get("step") or Records(self.run.inputs.get("train", "")).steps
        ):
            return self.answer
        q = self.understood(q, [*self._known_names(), *(p.place for p in self.result.mapping), *SHORT])
        whole = {
            "weights": self.weights,
            "activation": self.activation,
            "differing": self.differing,
            "cause": self.evidence,
        }
        if q.kind in whole:
            return whole[q.kind]()
        if q.kind == "why_not" and (q.names or q.layer is not None or q.parts):
            return self.why(q)
        if q.kind == "mapping" and (q.names or q.layer is not None or q.parts):
            return self.mapping(self._places(q), q)
        if q.names or q.layer is not None or q.parts:
            return self.places(q)
        if q.kind == "mapping":
            return self.mapping(self.result.mapping, q)
        kinds = {
            "why_not": self.evidence,
            "confirm": self.confirm,
            "next": self.confirm,
            "confidence": self.confidence,
            "excluded": self.filtered,
            "alternatives": self.alternatives,
            "evidence": self.evidence,
            "unmatched": self.unmatched,
            "files": self.files,
            "conclusion": self.conclusion,
            "stack": self.no_stack,
            "first_op": self.evidence,
        }
        return kinds.get(q.kind or ("conclusion" if q.steps else ""), self.unknown)()

    def _places(self, q: Question) -> list[Pair]:
        """The rows of the mapping that a question means: by the names of either side, by layer, by part of a layer."""
        rows = [p for p in self.result.mapping if q.layer is None or _layer(p) == q.layer]
        if q.parts:
            rows = [p for p in rows if names.in_parts(map(_path, (*p.train, *p.rollout)), q.parts)]
        for word in q.names:
            texts = {p.place: [p.place, *p.train, *p.rollout] for p in rows}
            exact = [p for p in rows if any(f".{word.lower()}." in f".{t.lower()}." for t in texts[p.place])]
            held = [p for p in rows if any(names.holds(t, word) for t in texts[p.place])]
            rows = exact or held or self._of_role(rows, word)
        return rows

    def _of_role(self, rows: Sequence[Pair], word: str) -> list[Pair]:
        """``q_proj`` where the sides have one module for q, k and v: by the role that the rules give the name."""
        from numprobe.align.roles.rules import standard_rules

        rules = standard_rules()
        found = set()
        for block in ("self_attn", "mlp"):
            role = rules.role(f"model.layers.0.{block}.{word.rpartition('.')[2]}", "layers")
            if role.known:
                found |= {role.name, *(whole for whole, parts in rules.merged.items() if role.name in parts)}
        return [p for p in rows if p.place.rpartition(".")[2] in found]

    def _known_names(self) -> list[str]:
        return (
            [n for p in self.result.mapping for n in (*p.train, *p.rollout)]
            + self.result.unmatched_train
            + self.result.unmatched_rollout
        )

    def places(self, q: Question) -> Answer:
        """The figures of the places that a question means; of several the first that differs, with a line for each."""
        rows = self._places(q)
        if not rows:
            return self.nothing(q, self._known_names())
        shown = self._telling(rows)
        if len(rows) > 1:
            self._overview(rows)
        self._name_sides(shown)
        self._table(shown.place, self.figures.get(shown.place, []))
        if shown.place not in self.figures:
            self.say("rl.no_figures", self.answer.cite(f"mapping.csv {shown.place}"), place=shown.place)
        return self.answer

    def _telling(self, rows: Sequence[Pair]) -> Pair:
        """The suspect where it is among them, else the worst of the first layer that differs, else the first."""
        suspects = {self._place_of(f.suspect) for f in self.result.findings}
        return next(
            (p for p in rows if p.place in suspects),
            next(
                (p for p in rows if p.verdict == "error"), next((p for p in rows if p.verdict != "unmatched"), rows[0])
            ),
        )

    def _name_sides(self, p: Pair) -> None:
        cited = [self.answer.cite(f"mapping.csv {p.place}")]
        self.say(
            "rl.pair",
            *cited,
            place=p.place,
            train=", ".join(p.train) or self.text("rl.none"),
            rollout=", ".join(p.rollout) or self.text("rl.none"),
            verdict=self._verdict(p),
        )

    def _compared(self, place: str) -> tuple[list[str], list[str]]:
        """The slots of a place that were compared, and those that were not."""
        figures = self.figures.get(place, [])
        compared = [x.slot for x in figures if x.verdict in COMPARED]
        return compared, [x.slot for x in figures if x.verdict not in COMPARED]

    def _is_part(self, p: Pair) -> bool:
        """Does a place agree in its parameters alone, since what it computes was not compared?"""
        compared, left = self._compared(p.place)
        only_parameters = bool(compared) and all(slot.startswith("parameters.") for slot in compared)
        return p.verdict in ("pass", "warning") and bool(left) and only_parameters

    def _verdict(self, p: Pair) -> str:
        verdict = self.text(f"verdict.row.{p.verdict}")
        return self.text("rl.only_parameters", verdict=verdict) if self._is_part(p) else verdict

    def _overview(self, rows: Sequence[Pair]) -> None:
        self._listed("rl.places", self.answer.cite("mapping.csv", self.rows(len(rows))), rows)

    def _listed(self, key: str, mark: str, rows: Sequence[Pair]) -> None:
        """A line a place, after a sentence that counts them."""
        self.say(key, mark, count=len(rows), shown=min(len(rows), MOST_PLACES))
        head = self.heads("place", "verdict", "error", "ratio")
        table = [
            [
                p.place,
                self._verdict(p),
                view.percent(p.error),
                numbers.stat(p.ratio, 3) if p.ratio is not None else numbers.ABSENT,
            ]
            for p in rows[:MOST_PLACES]
        ]
        self.answer.blocks.append(Table(head, table, (2, 3)))

    def why(self, q: Question) -> Answer:
        """Why a module is not the suspect, or why it is: its own figures against what the arithmetic explains."""
        rows = self._places(q)
        if not rows:
            alone = [
                n
                for n in (*self.result.unmatched_train, *self.result.unmatched_rollout)
                if all(names.holds(n, w) for w in q.names)
            ]
            if alone and q.names:
                self.say("rl.why.alone", self.answer.cite("result.json unmatched"), name=alone[0])
                return self.answer
            return self.nothing(q, self._known_names())
        suspects = {self._place_of(f.suspect): f for f in self.result.findings}
        hit = next((p for p in rows if p.place in suspects), None)
        if hit is not None:
            f = suspects[hit.place]
            self.say(
                "rl.why.suspect",
                *self._cited_suspect(f),
                place=hit.place,
                confidence=f"{f.confidence:.2f}",
                error=f.error,
                expected=f.expected,
            )
            self._table(hit.place, view.telling(f))
            return self.answer
        agree = [p for p in rows if p.verdict in ("pass", "warning")]
        worst = max((p.ratio or 0.0 for p in agree), default=0.0)
        shown = self._telling(rows)
        mark = self.answer.cite(f"mapping.csv {shown.place}", self.rows(len(rows)) if len(rows) > 1 else "")
        if len(agree) == len(rows):
            limit = numbers.stat(WARNING_RATIO, 1)
            key = (
                "rl.why.warns" if worst >= WARNING_RATIO else "rl.why.agrees" if len(rows) == 1 else "rl.why.all_agree"
            )
            if len(rows) > 1 or not self._is_part(shown):
                self.say(key, mark, count=len(rows), place=shown.place, worst=numbers.stat(worst, 2), limit=limit)
            for p in [p for p in rows if self._is_part(p)][:MOST_PLACES]:
                compared, left = self._compared(p.place)
                self.say("rl.why.part", mark, place=p.place, compared=compared, left=left)
        elif self.first is not None and shown.verdict == "error":
            cited = self._cited_suspect(self.first)
            self.say("rl.why.behind", mark, *cited, place=shown.place, suspect=view.short(view.suspect(self.first)))
        else:
            self.say("rl.why.not_compared", mark, place=shown.place)
        self._table(shown.place, self.figures.get(shown.place, []))
        return self.answer

    def mapping(self, rows: Sequence[Pair], q: Question) -> Answer:
        """Which modules belong together."""
        if not rows:
            return self.nothing(q, self._known_names())
        mark = self.answer.cite("mapping.csv", self.rows(len(self.result.mapping)))
        self.say("rl.mapping", mark, count=len(rows), shown=min(len(rows), MOST_PLACES))
        head = [
            self.text("head.place"),
            CATALOGUE.say(self.lang, "side.train"),
            CATALOGUE.say(self.lang, "side.rollout"),
        ]
        table = [[p.place, "\n".join(p.train) or "-", "\n".join(p.rollout) or "-"] for p in rows[:MOST_PLACES]]
        self.answer.blocks.append(Table(head, [[c.replace("\n", ", ") for c in row] for row in table]))
        return self.answer

    def confirm(self) -> Answer:
        """What would settle it: the next dump, the checks, what was not compared."""
        for check in view.next_steps(self.result):
            self.word(check, bullet=True)
        first = self.first
        if first is not None and first.blind:
            texts = [CATALOGUE.say(self.lang, f"page.blind.{name}") for name in first.blind]
            self.say("rl.blind", blind=self.text("list.comma").join(texts), bullet=True)
        for side, name in self.result.next.items():
            mark = self.answer.cite(name)
            self.say("rl.next_dump", mark, side=CATALOGUE.say(self.lang, f"side.{side}"), file=name, bullet=True)
        if not self.answer.blocks:
            self.say("answer.nothing_missing")
        return self.answer

    def confidence(self) -> Answer:
        first = self.first
        if first is None:
            self.answer.known = False
            self.say("rl.confidence.none")
            return self.answer
        return self.tell_confidence(first.confidence, view.level(first), view.terms(first), "findings[0]")

    def filtered(self) -> Answer:
        """What was set aside: places within the arithmetic, ranks put together, modules without partner."""
        counts = self.result.counts
        self.say(
            "rl.filtered",
            self.answer.cite("result.json counts"),
            passed=counts.get("pass", 0),
            warnings=counts.get("warning", 0),
            errors=counts.get("error", 0),
            unmatched=counts.get("unmatched", 0),
        )
        first = self.first
        if first is not None:
            cited = self._cited_suspect(first)
            self.say("rl.consequences", *cited, count=first.consequences, suspect=view.short(view.suspect(first)))
        return self.unmatched()

    def alternatives(self) -> Answer:
        others = self.result.findings[1:]
        mark = self.answer.cite("result.json findings", self.rows(len(self.result.findings)))
        if not others:
            self.say("rl.alternatives.none", mark)
        for f in others[:MOST_EVIDENCE]:
            said = view.sentence(f, first=False)
            self.word(said, mark, *self._cited_suspect(f), bullet=True)
        return self.answer

    def evidence(self) -> Answer:
        first = self.first
        if first is None:
            return self.conclusion()
        said = view.sentence(first)
        self.word(said, *self._cited_suspect(first))
        self._tell_finding(first)
        anchor = self._place_of(first.anchor)
        self._table(anchor, view.outputs(first.anchor_figures))
        self._table(self._place_of(first.suspect), view.telling(first))
        return self.answer

    def weights(self) -> Answer:
        """Do the parameters agree?"""
        rows = [
            (place, x)
            for place, figures in self.figures.items()
            for x in figures
            if x.slot.startswith("parameters.") and x.verdict in COMPARED
        ]
        if not rows:
            self.answer.known = False
            self.say("rl.weights.none")
            return self.answer
        wrong = [(place, x) for place, x in rows if x.verdict == "error"]
        mark = self.answer.cite(slots.FILE, self.rows(len(rows)))
        first = f"{wrong[0][0]} {wrong[0][1].slot}" if wrong else None
        self.say("rl.weights", mark, passed=len(rows) - len(wrong), all=len(rows), first=first)
        for place, x in wrong[:1]:
            self._table(place, [x])
        return self.answer

    def activation(self) -> Answer:
        """Which activation the figures or the tensors fit."""
        told = [(f, text) for f in self.result.findings if (text := view.probed(f, self.lang))]
        if not told:
            self.say("rl.activation.none", self.answer.cite("result.json findings"))
        for f, text in told[:1]:
            cited = self._cited_suspect(f)
            self.answer.say(AGENT.pieces(self.lang, "rl.probed", {"what": text}), *cited)
        return self.answer

    def differing(self) -> Answer:
        """Every place that differs."""
        rows = [p for p in self.result.mapping if p.verdict == "error"]
        mark = self.answer.cite("mapping.csv", self.rows(len(rows)))
        if not rows:
            self.say("rl.differing.none", mark)
            return self.answer
        self._listed("rl.differing", mark, rows)
        return self.answer

    def unmatched(self) -> Answer:
        for side in ("train", "rollout"):
            alone: list[str] = getattr(self.result, f"unmatched_{side}")
            mark = self.answer.cite(f"result.json unmatched_{side}", self.rows(len(alone)))
            label = CATALOGUE.say(self.lang, f"side.{side}")
            self.say("rl.unmatched", mark, side=label, count=len(alone), names=alone[:MOST_NAMES] or None, bullet=True)
        return self.answer

    def no_stack(self) -> Answer:
        self.answer.known = False
        self.say("rl.no_stack")
        return self.answer


def _layer(p: Pair) -> int | None:
    return next((n for n in map(names.layer_of, (p.place, *p.train, *p.rollout)) if n is not None), None)


def _path(name: str) -> str:
    op = parse_name(name)
    return op.path if op.is_module else name


def _figures(row: dict[str, str]) -> Figures:
    def number(text: str) -> float | None:
        return float(text) if text else None

    return Figures(
        row["slot"],
        [number(row[f"train_{s.lower()}"]) for s in FOUR],
        [number(row[f"rollout_{s.lower()}"]) for s in FOUR],
        number(row["error"]),
        number(row["expected"]),
        row["verdict"],
    )
