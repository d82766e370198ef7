"""One turn after another: a new question, one on the last run, or the path that was still missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from numprobe.agent.ask import Asked, Audience, ask, inspected, new_folder
from numprobe.agent.follow.answering import follow, rerun
from numprobe.agent.router import route
from numprobe.agent.runs import load_run
from numprobe.agent.sentence import Sentence, read_sentence
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import OUT


@dataclass
class Conversation:
    """``run`` is the folder that questions without a path are about; ``pending`` a sentence that waits for its path.

    ``lang`` None: each answer is in the language of its question. ``folder`` is where runs are written.
    """

    audience: Audience
    folder: Path = OUT
    lang: str | None = None
    run: Path | None = None
    pending: str = ""
    runs: list[Path] = field(default_factory=list)

    def heard(self, text: str) -> Sentence:
        """The next sentence; the path that another one waits for makes one of both.

        Raises:
            NumprobeError: E-AGT-011 it is too long.
        """
        sentence = read_sentence(text)
        return read_sentence(f"{self.pending} {text}") if self.pending and sentence.paths else sentence

    def turn(self, sentence: Sentence) -> Asked:
        """Answer a sentence.

        Raises:
            NumprobeError: a path is not there, or what a skill raises. The conversation goes on, and a sentence that waits for
                its path still does.
        """
        asked = self._follow(sentence) or ask(sentence, self.audience, lang=self.lang, folder=self.folder)
        self.pending = sentence.text if asked.missing and asked.missing != ["question"] else ""
        if asked.run is not None:
            self.take_up(asked.run)
        return asked

    def take_up(self, run: Path) -> None:
        """Make a run the one that questions are about."""
        self.run = run
        self.runs = [*(one for one in self.runs if one != run), run]

    def correct(self, lang: str, *, exclude: tuple[str, ...] = (), mapping: str = "") -> Asked:
        """The last run again with a correction, which is kept beside it; ``lang`` is that of the answer.

        Raises:
            NumprobeError: E-AGT-009 there is no run, or one that takes no such correction; what the skill raises.
        """
        if self.run is None:
            raise NumprobeError("E-AGT-009", "there is no run to correct", do="ask a question with a path first")
        run = load_run(self.run)
        out = new_folder(run.skill, self.folder)
        asked = rerun(run, self.audience, lang, out, exclude=exclude, mapping=mapping)
        self.take_up(out)
        return asked

    def _follow(self, sentence: Sentence) -> Asked | None:
        """The answer from the last run; None where the sentence is no question on it."""
        if self.run is None or sentence.paths:
            return None
        intent = route(sentence, []).intent
        if intent == "help":
            return None
        if intent == "inspect":  # "what is in it?"
            return inspected(next(iter(load_run(self.run).inputs.values())), self.lang or sentence.lang)
        asked = follow(self.run, sentence, self.audience, lang=self.lang, folder=self.folder)
        unsure = not asked.answer.known and intent not in ("", "follow_up")
        return None if unsure else asked
