"""A follow-up question from start to end: the run, the question, an answer, or a run anew with what the user corrects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from numprobe.agent.answer import Answer
from numprobe.agent.ask import NOT_ANSWERED, Asked, Audience, new_folder, run_skill, skill_of
from numprobe.agent.follow import names
from numprobe.agent.follow.question import Question, read_question
from numprobe.agent.follow.reply import conclusion, reply
from numprobe.agent.messages import CATALOGUE
from numprobe.agent.runs import FinishedRun, load_run
from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name
from numprobe.report.run_folder import OUT, writing

CORRECTIONS = "corrections.json"  # beside a run's artifacts: what the user said of it


def follow(
    path: str | Path,
    text: str,
    audience: Audience,
    *,
    lang: str | None = None,
    out: Path | None = None,
    folder: Path = OUT,
) -> Asked:
    """Answer a question on a run. ``out``: the folder of a new run, where the question asks for one, else a new one in
    ``folder``.

    Raises:
        NumprobeError: as :func:`~numprobe.agent.runs.load_run`; what a new run raises.
    """
    run = load_run(path)
    question = read_question(text, lang)
    if question.kind == "rerun":
        return _again(run, question, audience, out or new_folder(run.skill, folder))
    answer = reply(run, question)
    return Asked(run.skill, answer, exit_code=0 if answer.known else 3, run=run.folder)


def _again(run: FinishedRun, q: Question, audience: Audience, out: Path) -> Asked:
    """The same run without the records that the question names."""
    answer = Answer(known=False)
    if not isinstance(run.result, NanResult) or not q.names:
        key = "rerun.no_name" if isinstance(run.result, NanResult) else "rerun.not_here"
        answer.say(CATALOGUE.pieces(q.lang, key, {}))
        return Asked(run.skill, answer, exit_code=NOT_ANSWERED, run=run.folder)
    before = [str(name) for name in run.manifest.options.get("exclude") or []]
    new = [_prefix(word, run.result) for word in q.names]
    excluded = list(dict.fromkeys([*before, *kept_corrections(run.folder), *new]))
    store_corrections(run.folder, {"exclude": excluded})
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


def kept_corrections(folder: Path) -> list[str]:
    """The records that earlier questions on a run have excluded."""
    found = _corrections(folder).get("exclude", [])
    return [str(name) for name in found] if isinstance(found, list) else []


def store_corrections(folder: Path, new: Mapping[str, object]) -> None:
    """Keep what a user corrected beside the run: ``exclude``, ``mapping``. A run that may only be read keeps nothing."""
    with suppress(NumprobeError), writing(folder):
        text = json.dumps({**_corrections(folder), **new}, ensure_ascii=False, indent=1) + "\n"
        part = folder / f".{CORRECTIONS}.part"
        part.unlink(missing_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(folder / CORRECTIONS)  # a link or a pipe of this name is replaced, not written through


def _corrections(folder: Path) -> dict[str, Any]:
    file = folder / CORRECTIONS
    try:
        content = msgspec.json.decode(file.read_bytes()) if file.is_file() else {}
    except (OSError, msgspec.DecodeError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
