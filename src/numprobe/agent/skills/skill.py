"""A skill: a name, typed inputs and options, and a function that runs it and writes a run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from numprobe.execution.stages import Listener
from numprobe.report.messages import Catalogue
from numprobe.report.terminal import Style


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every skill takes. ``step`` and ``rank`` are written as on the command line: ``0,3,8-15``; empty for all.

    The description of a field is the help of its flag, and stands in the schema.
    """

    step: Annotated[str, Meta(description="Steps to read, as in 0,3,8-15.")] = ""
    rank: Annotated[str, Meta(description="Ranks to read, as in 0,3,8-15.")] = ""


@dataclass(frozen=True)
class Input:
    """A path that a skill reads."""

    name: str  # dump | train | rollout | target | golden
    about: str


@dataclass(frozen=True)
class Done:
    """A run that ended. ``result`` is the object that ``--json`` prints, ``folder`` the run's folder."""

    result: dict[str, Any]
    folder: Path
    exit_code: int


@dataclass(frozen=True)
class Screen:
    """How a run is shown: ``as_json`` the result as one object on stdout, ``progress`` auto or json."""

    out: Style
    err: Style
    as_json: bool = False
    progress: str = "auto"
    quiet: bool = False


Run: TypeAlias = "Callable[[Mapping[str, str], Any, Path | None, str, Listener], Done]"
"""Inputs by name, options, output folder (None: a new one), language, listener of the stages."""

Show: TypeAlias = "Callable[[Mapping[str, str], Any, Path | None, str, Screen], int]"
"""The same for a person at a terminal; the exit code."""


@dataclass(frozen=True)
class Pipeline:
    """What a skill does: ``stages`` are message keys in ``catalogue``, which also words the skill's conclusions.

    ``show`` runs it with a page of its own on the terminal; without one, what the result says is listed.
    """

    stages: tuple[str, ...]
    catalogue: Catalogue
    run: Run
    show: Show | None = None


@dataclass(frozen=True)
class Skill:
    """What can be asked for. ``name`` as in SKILL.md (nan-overflow); ``id`` as in Python and JSON (nan_overflow).

    ``version`` is that of inputs, options and result: it grows when one of them changes its meaning. ``load`` imports the
    pipeline. ``result`` is the type of what ``--json`` prints, a ``msgspec.Struct``; ``about`` one sentence.
    """

    name: str
    version: int
    inputs: tuple[Input, ...]
    options: type[Options]
    load: Callable[[], Pipeline]
    result: Any = dict[str, Any]
    about: str = ""

    @property
    def id(self) -> str:
        return self.name.replace("-", "_")
