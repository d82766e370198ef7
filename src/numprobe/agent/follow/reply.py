"""A question on a run, and its answer."""

from __future__ import annotations

from numprobe.agent.answer import Answer
from numprobe.agent.follow.question import Question
from numprobe.agent.follow.teller import Teller
from numprobe.agent.messages import say
from numprobe.agent.runs import FinishedRun
from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.diagnose.rl_consistency.result import RlResult


def conclusion(run: FinishedRun, lang: str) -> Answer:
    """What a run found, in zh or en."""
    return _teller(run, lang).conclusion()


def reply(run: FinishedRun, question: Question) -> Answer:
    """Answer a question from what the run wrote and the records that it looked at. Nothing is computed anew."""
    return _teller(run, question.lang).reply(question)


def extent(run: FinishedRun, question: Question) -> Answer:
    """What a run of the NaN skill says of the steps and ranks that a question names."""
    from numprobe.agent.follow.nan_overflow import NanTeller

    return NanTeller(run, question.lang).extent(question)


def example(run: FinishedRun, lang: str) -> str:
    """A question that this run can answer."""
    if isinstance(run.result, NanResult):
        dirty = [row.rank for row in run.result.ranks if row.role in ("victim", "relay") and row.rank is not None]
        others = dirty if run.result.first is not None else []  # without a source no rank is one, or all may be
        if others:
            return say(lang, "ask.example.nan_overflow", rank=others[0])
        return say(lang, "ask.example.sure" if run.result.sources or run.result.alternatives else "ask.example.confirm")
    return say(lang, f"ask.example.{run.skill}")


def _teller(run: FinishedRun, lang: str) -> Teller:
    """The teller of the run's skill; the others are not loaded."""
    if isinstance(run.result, NanResult):
        from numprobe.agent.follow.nan_overflow import NanTeller

        return NanTeller(run, lang)
    if isinstance(run.result, RlResult):
        from numprobe.agent.follow.rl_consistency import RlTeller

        return RlTeller(run, lang)
    from numprobe.agent.follow.compare import CompareTeller

    return CompareTeller(run, lang)
