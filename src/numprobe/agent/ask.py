"""One question: choose the skill, run it, answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from numprobe.agent.answer import Answer, Lines
from numprobe.agent.messages import say
from numprobe.agent.probe import RUNS, Probe, probe
from numprobe.agent.router import UNSUPPORTED, Route, route
from numprobe.agent.sentence import Sentence
from numprobe.agent.skills.skill import Done, Pipeline, Skill
from numprobe.execution.stages import Listener, ignore
from numprobe.formats.dump import open_dump
from numprobe.formats.near import near_path
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import OUT, default_folder
from numprobe.report.terminal import shortened

if TYPE_CHECKING:
    from numprobe.agent.llm.brain import Brain, Listening, Reply
    from numprobe.agent.runs import FinishedRun

NOT_ANSWERED = 2  # exit code: something is missing
_ONLY = ("only", "just", "只", "仅")


class Audience(Protocol):
    """Who asks: a terminal, a conversation, a program."""

    def chosen(self, line: str) -> None:
        """What was understood, before anything runs."""

    def stages(self, pipeline: Pipeline, lang: str) -> AbstractContextManager[Listener]:
        """Inside, the stages of a run are shown."""


class Silent:
    """Nobody watches."""

    def chosen(self, line: str) -> None:
        """Nothing is said."""

    def stages(self, pipeline: Pipeline, lang: str) -> AbstractContextManager[Listener]:
        return nullcontext(ignore)


@dataclass
class Asked:
    """The answer. ``skill`` is the id of what ran, or the intent; ``missing`` names inputs that were not given.

    ``said`` is what a language model adds to it; ``warning`` why it adds nothing.
    """

    skill: str
    answer: Answer
    result: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)
    exit_code: int = 0
    run: Path | None = None
    said: Reply | None = None
    warning: NumprobeError | None = None


def ask(
    sentence: Sentence, audience: Audience, *, lang: str | None = None, out: Path | None = None, folder: Path = OUT
) -> Asked:
    """Answer a sentence by rules. ``lang``: of the answer, where it is not that of the sentence; ``out``: the run's folder, else
    a new one in ``folder``.

    Raises:
        NumprobeError: E-AGT-002 a path is not there, or what the skill that runs raises.
    """
    lang = lang or sentence.lang
    probes = [probe(path) for path in sentence.paths]
    _refuse_missing(probes)
    chosen = route(sentence, probes)
    if chosen.intent == "follow_up":
        return _followed(sentence, chosen, audience, lang, out, folder)
    if chosen.intent in ("", "help", *UNSUPPORTED):
        return _not_run(chosen, lang)
    _refuse_unreadable(probes, chosen)
    if chosen.missing:
        return _missing(chosen, lang)
    if chosen.intent == "inspect":
        return inspected(chosen.inputs["dump"], lang)
    return _ran(sentence, chosen, audience, lang, out or new_folder(chosen.intent, folder))


def ended(run: FinishedRun, answer: Answer) -> Asked:
    """What is said of a run that has just ended."""
    return Asked(run.skill, answer, run.told, exit_code=run.result.exit_code, run=run.folder)


def worded(asked: Asked, text: str, brain: Brain, on: Listening | None, paths: Sequence[str] = ()) -> Asked:
    """The answer with what a model says to it: an answer that rules gave in its words, else what its tools find.

    ``paths`` are those of the question, ``on`` hears the model speak. A model that fails costs nothing but its words.
    """
    from numprobe.agent.follow.reply import conclusion
    from numprobe.agent.runs import load_run

    facts = [asked.answer.to_markdown()]
    if asked.run is not None:
        brain.toolbox.runs[asked.run.name] = asked.run
        facts[0] = f"run_id {asked.run.name}, skill {asked.skill}\n\n{facts[0]}"
    elif paths:
        facts = [f"paths in the question: {', '.join(paths)}", *facts]
    try:
        said = brain.ask(text, facts, on)
    except NumprobeError as error:
        return replace(asked, warning=error)
    if said.runs and asked.run is None:  # the model found out what was meant: the conclusion is that of the run
        run = load_run(brain.toolbox.runs[said.runs[-1]])
        asked = ended(run, conclusion(run, brain.toolbox.lang))
    return replace(asked, said=said)


def _refuse_missing(probes: Sequence[Probe]) -> None:
    for found in probes:
        if found.kind == "missing":
            close = near_path(found.path)
            raise NumprobeError(
                "E-AGT-002",
                "no such file or folder",
                where=shortened(found.path),
                do="did you mean {near}?" if close else "check the path; put quotes around it if it has spaces",
                near=close,
            )


def _refuse_unreadable(probes: Sequence[Probe], chosen: Route) -> None:
    """A path that is no dump is an error where a dump is missing: the reader's own message says what is wrong.

    Of a run's folder it says which dumps the run has read.
    """
    for found in probes if chosen.missing else ():
        if found.kind == "run":
            open_dump(found.path)
        if found.kind == "unknown" and found.problem is not None:
            raise found.problem


def _followed(
    sentence: Sentence, chosen: Route, audience: Audience, lang: str, out: Path | None, folder: Path
) -> Asked:
    from numprobe.agent.follow.answering import follow

    return follow(chosen.inputs["run"], sentence, audience, lang=lang, out=out, folder=folder)


def _not_run(chosen: Route, lang: str) -> Asked:
    answer = Answer(known=False)
    if chosen.intent in UNSUPPORTED:
        answer.say(say(lang, f"ask.unsupported.{chosen.intent}"))
        return Asked(chosen.intent, answer, exit_code=NOT_ANSWERED)
    answer.say(say(lang, "ask.help"))
    if chosen.intent == "help":
        answer.known = True
        return Asked("help", answer)
    return Asked("", answer, missing=["question"], exit_code=NOT_ANSWERED)


def _missing(chosen: Route, lang: str) -> Asked:
    answer = Answer(known=False)
    wanted = [say(lang, f"ask.missing.{name}") for name in chosen.missing]
    answer.say(say(lang, "ask.missing", skill=chosen.intent, wanted=say(lang, "list.comma").join(wanted)))
    answer.blocks.append(Lines([say(lang, f"ask.command.{chosen.intent}")]))
    return Asked(chosen.intent, answer, missing=list(chosen.missing), exit_code=NOT_ANSWERED)


def inspected(path: str, lang: str) -> Asked:
    """What lies in a dump."""
    from numprobe.diagnose import overview
    from numprobe.report.terminal import Style

    found = overview.inspect(path)
    answer = Answer()
    answer.blocks.append(Lines(overview.render(found, lang, Style(width=None)).splitlines()))
    answer.cite(path)
    return Asked("inspect", answer, msgspec.json.decode(overview.as_json(found)))


def _ran(sentence: Sentence, chosen: Route, audience: Audience, lang: str, out: Path) -> Asked:
    from numprobe.agent.follow.question import question_of, read_question
    from numprobe.agent.follow.reply import conclusion, extent, reply
    from numprobe.agent.runs import load_run

    skill = skill_of(chosen.intent)
    audience.chosen(_line(chosen, sentence, lang))
    done = run_skill(skill, chosen.inputs, _options(skill, sentence), audience, lang, out)
    run = load_run(done.folder)
    if chosen.intent == "map":
        return replace(ended(run, reply(run, read_question("mapping", lang))), skill="map")
    answer = conclusion(run, lang)
    if (sentence.ranks or sentence.steps) and chosen.intent == "nan_overflow" and not _only(sentence):
        answer.blocks += extent(run, question_of(sentence, lang)).blocks
    return ended(run, answer)


def skill_of(intent: str) -> Skill:
    """The skill of an intent; the mapping of two dumps is part of the RL skill."""
    from numprobe.agent.skills.builtin import BUILTIN

    return next(skill for skill in BUILTIN if skill.id == ("rl_consistency" if intent == "map" else intent))


def new_folder(skill: str, root: Path = OUT) -> Path:
    """The folder of a new run of a skill, named as the command of the skill does."""
    names = {"map": "rl"} | {known: name for name, known in RUNS.items()}
    return default_folder(names.get(skill, skill), root)


def run_skill(
    skill: Skill, inputs: dict[str, str], options: dict[str, Any], audience: Audience, lang: str, out: Path | None
) -> Done:
    """Run a skill while its stages are shown. ``options`` by name.

    Raises:
        NumprobeError: what the skill raises.
    """
    pipeline = skill.load()
    with audience.stages(pipeline, lang) as listener:
        return pipeline.run(inputs, msgspec.convert(options, skill.options), out, lang, listener)


def _only(sentence: Sentence) -> bool:
    return any(word in sentence.words for word in _ONLY)


def _options(skill: Skill, sentence: Sentence) -> dict[str, Any]:
    """Steps and ranks of the sentence. A NaN that was seen on rank 40 may come from another: only ``only`` leaves others out."""
    if skill.id == "nan_overflow" and not _only(sentence):
        return {}
    return {name: value for name, value in (("step", sentence.steps), ("rank", sentence.ranks)) if value}


def _line(chosen: Route, sentence: Sentence, lang: str) -> str:
    inputs = say(lang, "list.comma").join(
        path if len(chosen.inputs) == 1 else f"{say(lang, f'ask.input.{name}')} {path}"
        for name, path in chosen.inputs.items()
    )
    narrowed = _options(skill_of(chosen.intent), sentence)
    extent = say(lang, "ask.extent.all")
    if narrowed:
        extent = say(lang, "ask.extent", steps=narrowed.get("step"), ranks=narrowed.get("rank")).strip()
    line = say(lang, "ask.skill", skill=chosen.intent, inputs=inputs, extent=extent)
    if chosen.by == "order":
        line += f"\n{say(lang, 'ask.sides.order')}"
    if chosen.surplus:
        line += "\n" + say(lang, "ask.surplus", paths=list(chosen.surplus))
    return line
