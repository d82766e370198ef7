"""What a program may do: look at a path, run a skill, ask a run. The same for a model in the chat and for an MCP client.

Inputs are only read, below the roots that were allowed; runs are written below one folder.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from numprobe.agent.answer import Answer
from numprobe.agent.ask import Audience, new_folder, run_skill, skill_of
from numprobe.agent.follow.question import Question, read_question
from numprobe.agent.follow.reply import conclusion, reply
from numprobe.agent.probe import Probe, probe
from numprobe.agent.runs import FinishedRun, load_run
from numprobe.agent.skills.skill import Pipeline
from numprobe.agent.sql import query
from numprobe.execution.progress import Progress
from numprobe.execution.stages import Listener
from numprobe.formats.near import near_path
from numprobe.record.errors import NumprobeError
from numprobe.report.terminal import shortened

LONGEST_ANSWER = 20_000  # characters; what is longer is a resource


@dataclass
class Toolbox:
    """``roots``: folders below which dumps may be read, None for all; ``folder``: where runs are written; ``cancelled``: set by
    another thread, it ends a run as Ctrl-C does."""

    audience: Audience
    folder: Path
    lang: str = "en"
    roots: list[Path] | None = None
    runs: dict[str, Path] = field(default_factory=dict)  # by id, the name of the folder
    cancelled: threading.Event = field(default_factory=threading.Event)

    def probe_path(self, path: str) -> dict[str, Any]:
        """What lies at a path: kind, framework, task, level, ranks, and which skills apply.

        Raises:
            NumprobeError: E-AGT-002 nothing there, E-AGT-006 outside of the roots.
        """
        found = probe(self._allowed(path))
        if found.kind == "missing":
            close = near_path(path)
            raise NumprobeError(
                "E-AGT-002",
                "no such file or folder",
                where=shortened(path),
                do="did you mean {near}?" if close else "check the path",
                near=close,
            )
        return _told(found)

    def run(self, skill: str, inputs: Mapping[str, str], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a skill. The result is that of ``--json``, with ``run_id`` and the conclusion in words as ``answer``.

        Raises:
            NumprobeError: E-AGT-006, or what the skill raises.
        """
        paths = {name: self._allowed(path) for name, path in inputs.items()}
        chosen = skill_of(skill)
        audience = _Cancellable(self.audience, self.cancelled)
        done = run_skill(chosen, paths, dict(options or {}), audience, self.lang, new_folder(skill, self.folder))
        run_id = done.folder.name
        self.runs[run_id] = done.folder
        answer = conclusion(load_run(done.folder), self.lang)
        return {"run_id": run_id, **done.result, **_words(answer)}

    def map_modules(self, a: str, b: str) -> dict[str, Any]:
        """Pair the modules of two dumps, by layer and role.

        Raises:
            NumprobeError: E-AGT-006, or what the reader raises.
        """
        from numprobe.diagnose.rl_consistency.mapping import mapping_of

        found = mapping_of(self._allowed(a), self._allowed(b), None, None)
        return {
            "mapping": {pair.place: {"a": pair.train, "b": pair.rollout} for pair in found.mapping},
            "unmatched": {"a": found.unmatched_train, "b": found.unmatched_rollout},
        }

    def ask_run(self, run_id: str, question: str) -> dict[str, Any]:
        """Answer a question in words from what a run wrote.

        Raises:
            NumprobeError: as :meth:`run_of`.
        """
        return _words(reply(self.run_of(run_id), read_question(question, self.lang)))

    def get_record(self, run_id: str, name: str) -> dict[str, Any]:
        """The figures of the records that a name means, with their files and indices.

        Raises:
            NumprobeError: as :meth:`run_of`.
        """
        return _words(reply(self.run_of(run_id), self._about(name, "")))

    def explain(self, run_id: str, name: str = "") -> dict[str, Any]:
        """Why a record is the cause or is not; without a name, the evidence of the conclusion and its confidence.

        Raises:
            NumprobeError: as :meth:`run_of`.
        """
        return _words(reply(self.run_of(run_id), self._about(name, "why_not")))

    def list_excluded(self, run_id: str) -> dict[str, Any]:
        """What looked like the cause and was ruled out, with the rule.

        Raises:
            NumprobeError: as :meth:`run_of`.
        """
        return _words(reply(self.run_of(run_id), self._about("", "excluded")))

    def query_run(self, run_id: str, sql: str) -> dict[str, Any]:
        """One SELECT over the tables of a run.

        Raises:
            NumprobeError: as :func:`~numprobe.agent.sql.query` and :meth:`run_of`.
        """
        return asdict(query(self.run_of(run_id), sql))

    def run_of(self, run_id: str) -> FinishedRun:
        """The run of an id, of this session or of the folder of runs.

        Raises:
            NumprobeError: as :func:`~numprobe.agent.runs.load_run`; E-AGT-003 where the id is a path out of the folder.
        """
        if run_id in self.runs:
            return load_run(self.runs[run_id])
        if Path(run_id).name != run_id:
            raise NumprobeError(
                "E-AGT-003", "{run_id} is no id of a run", do="name one that a run gave", run_id=run_id, where=run_id
            )
        return load_run(self.folder / run_id)

    def _about(self, name: str, kind: str) -> Question:
        asked = read_question(name, self.lang)
        return replace(
            asked, kind=kind, kinds=(kind,) if kind else (), names=(name,) if name and not asked.parts else asked.names
        )

    def _allowed(self, path: str) -> str:
        """The path, if it lies below a root.

        Raises:
            NumprobeError: E-AGT-006.
        """
        try:
            place = Path(path).expanduser().resolve()
        except (OSError, ValueError, RuntimeError):  # a NUL, a user that there is not, links in a circle
            raise NumprobeError(
                "E-AGT-002", "no such file or folder", where=shortened(path), do="check the path"
            ) from None
        if self.roots is None:
            return path
        if any(place == root or place.is_relative_to(root) for root in map(Path.resolve, self.roots)):
            return path
        raise NumprobeError(
            "E-AGT-006",
            "this path may not be read here",
            where=shortened(path),
            do="name it in the question, or allow its folder: numprobe mcp --root DIR",
        )


@dataclass(frozen=True)
class _Cancellable:
    """An audience during whose stages a run can be ended from another thread."""

    audience: Audience
    cancelled: threading.Event

    def chosen(self, line: str) -> None:
        self.audience.chosen(line)

    @contextmanager
    def stages(self, pipeline: Pipeline, lang: str) -> Iterator[Listener]:
        with self.audience.stages(pipeline, lang) as shown:

            def listen(event: Progress) -> None:
                if self.cancelled.is_set() and event.state != "interrupted":
                    raise KeyboardInterrupt
                shown(event)

            yield listen


def _words(answer: Answer) -> dict[str, Any]:
    text = answer.to_markdown()
    cites = [{"mark": c.mark, "where": c.where, "figures": c.figures} for c in answer.cites]
    return {"answer": text, "known": answer.known, "citations": cites}


def _told(found: Probe) -> dict[str, Any]:
    if found.kind == "dumps":
        return {"path": found.path, "kind": "dumps", "inside": [_told(one) for one in found.inside]}
    skills = []
    if found.kind == "dump":
        skills += ["nan_overflow"] if found.task != "structure" else []
        skills += ["compare"] if found.modules or found.apis else []
        skills += ["rl_consistency"] if found.modules else []
    told = asdict(replace(found, problem=None, inside=()))
    for name in ("inside", "problem"):
        told.pop(name)
    return {**told, "skills": skills, "problem": str(found.problem) if found.problem else ""}
