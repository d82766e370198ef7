"""Dumps of the small decoder, made by numprobe's own collector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tests.rl.models import Run, make_tokens
from torch import Tensor

from numprobe.diagnose.rl_consistency.result import Finding, RlResult
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse
from numprobe.pytorch import PrecisionDebugger


def record(
    folder: Path, run: Run, prompts: Sequence[Tensor] | None = None, level: str = "mix", **settings: object
) -> Path:
    """The folder of a dump of one forward pass."""
    model = run.build()
    prompts = make_tokens(vocab=run.config.vocab) if prompts is None else prompts
    task = str(settings.pop("task", "statistics"))
    with torch.no_grad(), PrecisionDebugger(task=task, dump_path=str(folder), level=level, **settings) as debugger:
        debugger.start(model=model)
        model(prompts)
        debugger.stop()
        debugger.step()
    return folder


def compared(train: Path, rollout: Path) -> RlResult:
    return analyse(train, rollout, RlOptions(use_cache=False))


def told(f: Finding) -> str:
    """``class/kind role layers`` of a finding, for messages of tests."""
    return f"{f.clazz}/{f.kind} {f.role} {f.layers} {f.slot} {f.error} {f.suspect}"
