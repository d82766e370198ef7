"""Recording a function in this process, and comparing a record with a tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from numprobe.pytorch import PrecisionDebugger

from .dumps import Dump, Json, only

torch.set_num_threads(1)


def recorded(
    out: Path, program: Callable[[], object], *, model: Any = None, level: str = "L1", **settings: Any
) -> Dump:
    """What one step that is ``program()`` leaves; every API counts."""
    settings.setdefault("risk_level", "ALL")
    with PrecisionDebugger(dump_path=out / "dump", level=level, **settings) as debugger:
        debugger.start(model=model)
        program()
        debugger.stop()
        debugger.step()
    return only(out / "dump")


def is_of(record: Json | None, tensor: torch.Tensor) -> bool:
    """Are these the figures of this tensor, to float32's rounding of sums?"""
    if record is None:
        return False
    exact = tensor.detach().double()
    size = exact.norm().item() or 1.0
    return (
        record["shape"] == list(tensor.shape)
        and record["dtype"] == str(tensor.dtype)
        and record["Max"] == pytest.approx(exact.max().item(), abs=1e-6 * size)
        and record["Min"] == pytest.approx(exact.min().item(), abs=1e-6 * size)
        and record["Mean"] == pytest.approx(exact.mean().item(), abs=1e-6 * size)
        and record["Norm"] == pytest.approx(exact.norm().item(), abs=1e-5 * size)
    )


def assert_is(record: Json | None, tensor: torch.Tensor) -> None:
    assert is_of(record, tensor), (record, tensor.shape, tensor.max(), tensor.min(), tensor.mean(), tensor.norm())
