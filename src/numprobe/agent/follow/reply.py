"""A question on a run, and its answer."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from numprobe.agent.answer import Answer
from numprobe.agent.follow.question import Question
from numprobe.agent.runs import FinishedRun


def conclusion(run: FinishedRun, lang: str) -> Answer:
    """What a run found, in zh or en."""
    found: Answer = _teller(run).conclusion(run, lang)
    return found


def reply(run: FinishedRun, question: Question) -> Answer:
    """Answer a question from what the run wrote and the records that it looked at. Nothing is computed anew."""
    found: Answer = _teller(run).reply(run, question)
    return found


def _teller(run: FinishedRun) -> Any:
    return import_module(f"numprobe.agent.follow.{run.skill}")  # one of a fixed list: see runs.load_run
