"""What the tellers of all skills share: saying, citing, and what is said where there is no answer."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from numprobe.agent.answer import Answer, Lines
from numprobe.agent.follow import names
from numprobe.agent.follow.question import Question
from numprobe.agent.follow.records import Records
from numprobe.agent.messages import CATALOGUE
from numprobe.agent.runs import FinishedRun
from numprobe.report import numbers
from numprobe.report.messages import Catalogue, Mark, Piece
from numprobe.report.terminal import shortened

MOST_EVIDENCE, MOST_CHECKS = 5, 3
MOST_STEPS = 64
MOST_ASKED = 8  # names of a question that are repeated


class Said(Protocol):
    """A message of a skill that is not worded yet."""

    @property
    def key(self) -> str: ...
    @property
    def values(self) -> Mapping[str, object]: ...


class Term(Protocol):
    """A part of a confidence."""

    @property
    def value(self) -> float: ...
    @property
    def message(self) -> Said: ...


@dataclass
class Teller(ABC):
    """Builds one answer on one run. ``words`` is the catalogue of the run's skill."""

    words: ClassVar[Catalogue]
    run: FinishedRun
    lang: str
    answer: Answer = field(default_factory=Answer)

    @abstractmethod
    def conclusion(self) -> Answer:
        """The verdict with its evidence, what to check, and what the verdict does not cover."""

    @abstractmethod
    def reply(self, q: Question) -> Answer:
        """The answer to a question; what the data does not say is said to be unknown."""

    def say(self, key: str, *cites: str, bullet: bool = False, **values: object) -> None:
        """A sentence of the agent's own catalogue."""
        self.answer.say(CATALOGUE.pieces(self.lang, key, values), *cites, bullet=bullet)

    def word(self, said: Said, *cites: str, bullet: bool = False, before: str = "") -> None:
        """A sentence of the skill; ``before``: key of the agent's words in front of it."""
        start = CATALOGUE.pieces(self.lang, before, {}) if before else []
        self.answer.say([*start, *self.words.pieces(self.lang, said.key, said.values)], *cites, bullet=bullet)

    def text(self, key: str, **values: object) -> str:
        return CATALOGUE.say(self.lang, key, **values)

    def heads(self, *keys: str) -> list[str]:
        return [self.text(f"head.{key}") for key in keys]

    def rows(self, count: int) -> str:
        """What a citation of a table says: ``512 rows``."""
        return self.text("cite.rows", n=count)

    def other_steps(self, q: Question, answered: Sequence[int]) -> bool:
        """Tell what a question asks of steps that the run does not answer for; was that all of them?"""
        asked = [step for step in q.steps if step not in answered]
        if not asked:
            return False
        there = sorted({step for path in self.run.inputs.values() for step in Records(path).steps})
        absent = [step for step in asked if step not in there] if there else []
        left = [step for step in asked if step not in absent]
        if absent:
            self.say("answer.step.none", steps=absent[:MOST_STEPS], there=there)
        if left and answered:
            self.say("answer.step.other", answered=list(answered), asked=left[:MOST_STEPS])
        self.answer.known = len(asked) < len(q.steps)
        return not self.answer.known

    def understood(self, q: Question, known: Sequence[str]) -> Question:
        """The question without the ordinary words that no record has as a part of its name."""
        parts = {part for name in known for part in name.lower().split(".")}
        kept = tuple(w for w in q.names if not re.fullmatch(r"[a-z]+|[A-Z]?[a-z]+", w) or w.lower() in parts)
        return replace(q, names=kept)

    def unknown(self) -> Answer:
        """The question is of no kind that the data could answer."""
        self.answer.known = False
        self.say(f"answer.unknown.{self.run.skill}")
        return self.answer

    def nothing(self, q: Question, known: Sequence[str]) -> Answer:
        """No record has this name: the nearest ones. A name that some record has is only told together with what it lacks."""
        self.answer.known = False
        absent = [word for word in q.names if not any(names.holds(name, word) for name in known)]
        asked = absent or [*q.names, *q.parts]
        if not asked and q.layer is None:
            return self.unknown()
        near = names.nearest(asked, known)
        shown = [shortened(name) for name in asked[:MOST_ASKED]]
        if not absent:
            layer = [] if q.layer is None else [self.text("answer.layer", layer=q.layer)]
            shown = [" + ".join([*shown, *layer])]
        self.say("answer.no_such_name" if near else "answer.no_such_name.at_all", names=shown)
        for name in near:
            self.answer.say([Mark("op", name)], bullet=True)
        return self.answer

    def tell_confidence(self, value: float, level: str, terms: Sequence[Term], place: str) -> Answer:
        """The confidence of the first finding with its terms; ``place``: where in the result they stand."""
        mark = self.answer.cite(f"result.json {place}.terms")
        self.say("answer.confidence", mark, value=f"{value:.2f}", level=self.text(f"confidence.{level}"))
        for term in terms:
            said = self.words.pieces(self.lang, term.message.key, term.message.values)
            self.answer.say([f"{numbers.signed(term.value)}  ", *said], bullet=True)
        return self.answer

    def files(self) -> Answer:
        """The run's folder and what lies in it."""
        self.say("answer.files", folder=self.run.folder.as_posix())
        self.answer.blocks.append(Lines([artifact["name"] for artifact in self.run.manifest.artifacts]))
        return self.answer


def frames(stack: Sequence[str]) -> list[str]:
    """Frames as Python shows them: the place, below it the line of code."""
    lines = []
    for frame in stack:
        place, _, code = frame.partition("\n")
        lines += [place.rstrip(", "), *([f"  {code.strip()}"] if code.strip() else [])]
    return lines


def sentence(pieces: Sequence[Sequence[Piece]], space: str) -> list[Piece]:
    """Sentences one after another; the first begins with a capital, unless it begins with a name."""
    out: list[Piece] = []
    for n, part in enumerate(pieces):
        out += [space, *part] if n else part
    if out and isinstance(out[0], str):
        out[0] = out[0][:1].upper() + out[0][1:]
    return out
