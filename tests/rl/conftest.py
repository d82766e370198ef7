"""Dumps of small decoders, each recorded once a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from .models import Run
from .recorded import record

Dump = Callable[..., Path]


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    """``dump(run, level="mix", batches=None, task="statistics")``.

    The folder of a run, of one call of the model for every batch of prompts."""
    made: dict[str, Path] = {}

    def dumped(
        run: Run,
        level: str = "mix",
        batches: Sequence[Sequence[Tensor]] | None = None,
        task: str = "statistics",
    ) -> Path:
        key = f"{run} {level} {batches} {task}"
        if key not in made:
            made[key] = record(tmp_path_factory.mktemp("dump"), run, level, batches, task)
        return made[key]

    return dumped
