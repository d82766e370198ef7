"""A skill: a name, typed inputs and options, and a function that runs it and writes a run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from numprobe.execution.stages import Listener
from numprobe.report.messages import Catalogue


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every skill takes. ``step`` and ``rank`` are written as on the command line: ``0,3,8-15``; empty for all."""

    step: str = ""
    rank: str = ""


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


Run: TypeAlias = "Callable[[Mapping[str, str], Any, Path | None, str, Listener], Done]"
"""Inputs by name, options, output folder (None: a new one), language, listener of the stages."""


@dataclass(frozen=True)
class Pipeline:
    """What a skill does: ``stages`` are message keys in ``catalogue``, which also words the skill's conclusions."""

    stages: tuple[str, ...]
    catalogue: Catalogue
    run: Run


@dataclass(frozen=True)
class Skill:
    """What can be asked for. ``name`` as in SKILL.md (nan-overflow); ``id`` as in Python and JSON (nan_overflow).

    ``version`` is that of inputs, options and result: it grows when one of them changes its meaning. ``load`` imports the
    pipeline.
    """

    name: str
    version: int
    inputs: tuple[Input, ...]
    options: type[Options]
    load: Callable[[], Pipeline]

    @property
    def id(self) -> str:
        return self.name.replace("-", "_")
