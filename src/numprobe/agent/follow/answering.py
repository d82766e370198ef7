"""A follow-up question from start to end: the run, the question, an answer, or a run anew with what the user corrects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import fields

from numprobe.agent.answer import Answer
from numprobe.agent.ask import NOT_ANSWERED, Asked, Audience, ended, new_folder, run_skill, skill_of
from numprobe.agent.follow import names
from numprobe.agent.follow.question import Question, question_of
from numprobe.agent.follow.reply import conclusion, reply
from numprobe.agent.messages import CATALOGUE
from numprobe.agent.runs import FinishedRun, load_run
from numprobe.agent.sentence import Sentence
from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.diagnose.rl_consistency.result import RlResult
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name
from numprobe.report.run_folder import OUT, writing

CORRECTIONS = "corrections.json"  # beside a run's artifacts: what the user said of it


def follow(
    path: str | Path,
    sentence: Sentence,
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
    question = question_of(sentence, lang)
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
    return rerun(run, audience, q.lang, out, exclude=q.names)


def rerun(
    run: FinishedRun, audience: Audience, lang: str, out: Path, *, exclude: Sequence[str] = (), mapping: str = ""
) -> Asked:
    """The run again, with its own options and a correction: records to leave out, or a mapping of modules. It is kept beside
    the run.

    Raises:
        NumprobeError: E-AGT-009 the run's skill takes no such correction; what the skill raises.
    """
    options = _options(run)
    told: dict[str, object]
    if exclude and isinstance(run.result, NanResult):
        new = [_prefix(word, run.result) for word in exclude]
        correction: dict[str, object] = {"exclude": list(dict.fromkeys([*_excluded(run), *new]))}
        told = {"names": new}
    elif mapping and isinstance(run.result, RlResult):
        correction = {"mapping": str(Path(mapping).expanduser().resolve())}
        told = {"mapping": mapping}
    else:
        raise NumprobeError(
            "E-AGT-009",
            "a run of {skill} takes no such correction",
            do="/exclude is for nan_overflow, /mapping for rl_consistency",
            skill=run.skill,
        )
    done = run_skill(skill_of(run.skill), run.inputs, {**options, **correction}, audience, lang, out)
    store_corrections(run.folder, correction)
    new_run = load_run(done.folder)
    answer = conclusion(new_run, lang)
    first = Answer()
    file = (run.folder / CORRECTIONS).as_posix()
    first.say(CATALOGUE.pieces(lang, f"rerun.{run.skill}", {**told, "file": file}))
    answer.blocks = [*first.blocks, *answer.blocks]
    return ended(new_run, answer)


def _options(run: FinishedRun) -> dict[str, Any]:
    """The options of a run, as its skill takes them."""
    known = run.manifest.options
    chosen = {field.name: known[field.name] for field in fields(skill_of(run.skill).options) if known.get(field.name)}
    for name in ("step", "rank"):  # numbers in a manifest, text on a command line
        if name in chosen:
            chosen[name] = ",".join(map(str, chosen[name]))
    return chosen


def _excluded(run: FinishedRun) -> list[str]:
    """The records that the run left out, and those that earlier questions on it have excluded."""
    kept = _corrections(run.folder).get("exclude")
    before = [*(run.manifest.options.get("exclude") or []), *(kept if isinstance(kept, list) else [])]
    return [str(name) for name in before]


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
