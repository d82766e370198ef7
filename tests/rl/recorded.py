"""Dumps of the small decoder, made by numprobe's own collector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from numprobe.diagnose.rl_consistency.result import Finding, RlResult
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse
from numprobe.pytorch import PrecisionDebugger

from .models import Run, make_tokens


def record(
    folder: Path,
    run: Run,
    level: str = "mix",
    batches: Sequence[Sequence[Tensor]] | None = None,
    task: str = "statistics",
) -> Path:
    """The folder of a dump of forward passes, one for every batch of prompts."""
    with PrecisionDebugger(task=task, dump_path=str(folder), level=level) as debugger:
        record_with(debugger, run, batches)
    return folder


def record_with(debugger: PrecisionDebugger, run: Run, batches: Sequence[Sequence[Tensor]] | None = None) -> None:
    """Record forward passes, one for every batch of prompts."""
    model = run.build()
    with torch.no_grad():
        debugger.start(model=model)
        for prompts in [make_tokens(vocab=run.config.vocab)] if batches is None else batches:
            model(prompts)
        debugger.stop()
        debugger.step()


def compared(train: Path, rollout: Path) -> RlResult:
    return analyse(train, rollout, RlOptions(use_cache=False, as_given=True))


def told(f: Finding) -> str:
    """``class/kind role layers`` of a finding."""
    return f"{f.clazz}/{f.kind} {f.role} {f.layers}"


def only(result: RlResult) -> Finding:
    """The one finding of a result."""
    assert result.verdict == "difference_found"
    assert len(result.findings) == 1, [told(f) for f in result.findings]
    return result.findings[0]
