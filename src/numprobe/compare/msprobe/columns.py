"""The columns of msProbe's result tables, by the mode of the comparison."""

from __future__ import annotations

from enum import Enum

from numprobe.metrics.reference import STATISTICS_COLUMNS, TENSOR_COLUMNS


class Mode(str, Enum):
    """What the two dumps hold: tensors in files, statistics, or checksums."""

    TENSOR = "tensor"
    STATISTICS = "statistics"
    MD5 = "md5"


BASIC = (
    "NPU Name",
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
    "NPU Requires_grad",
    "Bench Requires_grad",
)
METRICS = TENSOR_COLUMNS
DIFFERENCES = STATISTICS_COLUMNS
STATISTICS = ("NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm")
CHECKSUMS = ("NPU MD5", "BENCH MD5")
CONSISTENT = "Requires_grad Consistent"
VERDICT = ("Result", "Err_message")
STACK = "NPU_Stack_Info"
FILES = "Data_name"

FIGURES = {Mode.TENSOR: METRICS, Mode.STATISTICS: DIFFERENCES, Mode.MD5: ()}


def header(mode: Mode, *, stack: bool, custom: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The header row. ``stack``: a stack.json lies beside the target's dump; ``custom``: columns of the user's own metrics."""
    shown = CHECKSUMS if mode is Mode.MD5 else STATISTICS
    last = ((STACK,) if stack else ()) + ((FILES,) if mode is Mode.TENSOR else ())
    return (*BASIC, *FIGURES[mode], *custom, *shown, CONSISTENT, *VERDICT, *last)
