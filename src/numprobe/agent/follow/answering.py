"""A follow-up question from start to end: the run, the question, an answer, or a run anew with what the user corrects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from numprobe.agent.answer import Answer
from numprobe.agent.ask import NOT_ANSWERED, Asked, Audience, run_skill, skill_of
from numprobe.agent.follow import names
from numprobe.agent.follow.question import Question, read_question
from numprobe.agent.follow.reply import conclusion, reply
from numprobe.agent.messages import CATALOGUE
from numprobe.agent.runs import FinishedRun, load_run
from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name
from numprobe.report.run_folder import writing

CORRECTIONS = "corrections.json"  # beside a run's artifacts: what the user said of it


def follow(
    path: str | Path, text: str, audience: Audience, *, lang: str | None = None, out: Path | None = None
) -> Asked:
    """Answer a question on a run. ``out``: the folder of a new run, where the question asks for one.

    Raises:
        NumprobeError: as :func:`~numprobe.agent.runs.load_run`; what a new run raises.
    """
    run = load_run(path)
    question = read_question(text, lang)
    if question.kind == "rerun":
        return _again(run, question, audience, out)
    answer = reply(run, question)
    return Asked(run.skill, answer, exit_code=0 if answer.known else 3, run=run.folder)


def _again(run: FinishedRun, q: Question, audience: Audience, out: Path | None) -> Asked:
    """The same run without the records that the question names."""
    answer = Answer(known=False)
    if not isinstance(run.result, NanResult) or not q.names:
        key = "rerun.no_name" if isinstance(run.result, NanResult) else "rerun.not_here"
        answer.say(CATALOGUE.pieces(q.lang, key, {}))
        return Asked(run.skill, answer, exit_code=NOT_ANSWERED, run=run.folder)
    before = [str(name) for name in run.manifest.options.get("exclude") or []]
    new = [_prefix(word, run.result) for word in q.names]
    excluded = list(dict.fromkeys([*before, *_stored(run.folder), *new]))
    _store(run.folder, excluded)
    options: dict[str, Any] = {"exclude": excluded, "top": run.manifest.options.get("top") or 1}
    for name in ("step", "rank"):
        if chosen := run.manifest.options.get(name):
            options[name] = ",".join(map(str, chosen))
    done = run_skill(skill_of(run.skill), run.inputs, options, audience, q.lang, out)
    answer = conclusion(load_run(done.folder), q.lang)
    told = Answer()
    told.say(CATALOGUE.pieces(q.lang, "rerun.nan", {"names": new, "file": (run.folder / CORRECTIONS).as_posix()}))
    answer.blocks = [*told.blocks, *answer.blocks]
    return Asked(run.skill, answer, done.result, exit_code=done.exit_code, run=done.folder)


def _prefix(word: str, result: NanResult) -> str:
    """What ``--exclude`` takes: a name as it is, or of a part of a name the API of the record that the run speaks of."""
    spoken = [c.op_name for c in (*result.sources, *result.alternatives)] + [
        item.example.op_name for item in result.excluded
    ]
    if "." in word and any(name == word or name.startswith(f"{word}.") for name in spoken):
        return word
    for name in spoken:
        if names.holds(name, word):
            op = parse_name(name)
            if op.kind == "api":
                return f"{op.prefix}.{op.api}" if "." not in word else word
            return name
    return word


def _stored(folder: Path) -> list[str]:
    try:
        content = msgspec.json.decode((folder / CORRECTIONS).read_bytes())
    except (OSError, msgspec.DecodeError):
        return []
    found = content.get("exclude", []) if isinstance(content, dict) else []
    return [str(name) for name in found] if isinstance(found, list) else []


def _store(folder: Path, excluded: list[str]) -> None:
    try:
        with writing(folder):
            (folder / CORRECTIONS).write_text(
                json.dumps({"exclude": excluded}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
            )
    except NumprobeError:  # a run that may only be read is still good for a new one
        return
