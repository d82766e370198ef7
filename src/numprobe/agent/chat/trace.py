"""A run of the agent as JSON lines, so that it can be audited: what was asked, which stages ran, what was written."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from numprobe.agent.ask import Asked, Audience
from numprobe.agent.skills.skill import Pipeline
from numprobe.execution.progress import Progress
from numprobe.execution.stages import Listener
from numprobe.record.errors import NumprobeError
from numprobe.report.json_text import json_text
from numprobe.report.run_folder import MANIFEST

LONGEST = 4000  # characters of a text; its length is told


@dataclass
class Trace:
    """Writes events to a file that is opened once; no file, no events. It ends with the first that cannot be written:
    ``failure`` tells why."""

    file: IO[str] | None = None
    failure: NumprobeError | None = None
    _begun: float = field(default_factory=time.monotonic)

    def event(self, kind: str, **values: Any) -> None:
        """One line: ``event``, ``at`` in seconds since the start, and the values."""
        if self.file is None:
            return
        told = {"event": kind, "at": round(time.monotonic() - self._begun, 3), **values}
        try:
            self.file.write(json_text(told) + "\n")
            self.file.flush()
        except OSError as error:  # what is left in the buffer fails again where the file is closed
            file, self.file = self.file, None
            with suppress(OSError):
                file.close()
            self.failure = NumprobeError(
                "E-OUT-002",
                "the output cannot be written: {reason}",
                where=file.name,
                do="free space, or choose another --trace",
                reason=error.strerror or str(error),
            )

    def text(self, kind: str, text: str, **values: Any) -> None:
        """An event with a text, which is cut where it is long."""
        cut = {"length": len(text)} if len(text) > LONGEST else {}
        self.event(kind, text=text[:LONGEST], **cut, **values)

    def answered(self, asked: Asked) -> None:
        """The events of an answer: what it said, what a model used and cost, what was written."""
        self.text("assistant_message", asked.answer.to_markdown(), skill=asked.skill, exit_code=asked.exit_code)
        if asked.warning is not None:
            self.failed(asked.warning)
        if asked.said is not None:
            said = asked.said
            self.text("model_message", said.text, unsupported=said.unsupported, cut=said.cut)
            self.event("token_usage", sent=said.input_tokens, received=said.output_tokens, cost=said.cost)
        if asked.run is not None and asked.result is not None:
            for name, digest in _artifacts(asked.run):
                self.event("artifact_written", path=(asked.run / name).as_posix(), sha256=digest)

    def failed(self, error: NumprobeError) -> None:
        """The event of an error."""
        self.text("error", str(error), code=error.code, where=error.where)


def _artifacts(folder: Path) -> Iterator[tuple[str, str]]:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes())
        for artifact in manifest["artifacts"]:
            yield artifact["name"], hashlib.sha256((folder / artifact["name"]).read_bytes()).hexdigest()
    except (OSError, msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return


@dataclass(frozen=True)
class Traced:
    """An audience whose stages are traced too."""

    audience: Audience
    trace: Trace

    def chosen(self, line: str) -> None:
        self.trace.event("skill_chosen", line=line)
        self.audience.chosen(line)

    @contextmanager
    def stages(self, pipeline: Pipeline, lang: str) -> Iterator[Listener]:
        with self.audience.stages(pipeline, lang) as shown:
            begun: set[int] = set()

            def listen(event: Progress) -> None:
                if event.stage not in begun:
                    begun.add(event.stage)
                    self.trace.event("stage_started", stage=event.stage, of=event.of, name=event.name)
                if event.state != "running":
                    values = {"stage": event.stage, "state": event.state, "note": event.note}
                    self.trace.event("stage_finished", **values, seconds=round(event.elapsed_s, 3))
                shown(event)

            yield listen
