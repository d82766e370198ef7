"""A question on a run, and its answer."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from numprobe.agent.answer import Answer
from numprobe.agent.follow.question import Question
from numprobe.agent.messages import say
from numprobe.agent.runs import FinishedRun
from numprobe.diagnose.nan_overflow.result import NanResult


def conclusion(run: FinishedRun, lang: str) -> Answer:
    """What a run found, in zh or en."""
    found: Answer = _teller(run).conclusion(run, lang)
    return found


def reply(run: FinishedRun, question: Question) -> Answer:
    """Answer a question from what the run wrote and the records that it looked at. Nothing is computed anew."""
    found: Answer = _teller(run).reply(run, question)
    return found


def example(run: FinishedRun, lang: str) -> str:
    """A question that this run can answer."""
    if isinstance(run.result, NanResult):
        others = [row.rank for row in run.result.ranks if row.role in ("victim", "relay") and row.rank is not None]
        return say(lang, "ask.example.nan_overflow", rank=others[0]) if others else say(lang, "ask.example.sure")
    return say(lang, f"ask.example.{run.skill}")


def _teller(run: FinishedRun) -> Any:
    return import_module(f"numprobe.agent.follow.{run.skill}")  # one of a fixed list: see runs.load_run
