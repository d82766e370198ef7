"""msProbe's own verdict on a row: columns ``Result`` and ``Err_message``.

The rules are the reference's, with their known faults (a sign flip passes in statistics mode, parameters count as inputs,
the ratio rule says 0.6 and tests 0.1): this is the compatible verdict, which stands beside numprobe's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from numprobe.compare.msprobe.columns import DIFFERENCES, METRICS, Mode
from numprobe.compare.msprobe.items import Cell, Item
from numprobe.metrics.reference import NAN, NOT_APPLICABLE

PASS, WARNING, ERROR = "pass", "warning", "error"

# second part of the name: no rule at all
IGNORED = frozenset(
    (
        "empty",
        "empty_like",
        "numpy",
        "to",
        "__setitem__",
        "empty_with_format",
        "new_empty_strided",
        "new_empty",
        "empty_strided",
    )
)
# only outputs are looked at, and not against inputs
OUTPUTS_ONLY = frozenset(("_reduce_scatter_base", "_all_gather_base", "all_to_all_single", "batch_isend_irecv"))

NON_FINITE = "error: There is nan/inf/-inf in the maximum or minimum value of NPU."
OUTPUT_NORM = "error: The NormRelativeErr of output is greater than 0.5."
OUTPUT_RATIO = "error: The input/parameters of One Thousandth Err Ratio > 0.9 while the output < 0.6."
REQUIRES_GRAD = "error: The Required_Grad of NPU and Bench are inconsistent"
SCALAR = "error: The scalar parameters of NPU and Bench are inconsistent."
DTYPE = "error: The dtype of NPU and Bench are inconsistent."
SHAPE = "error: The shape of NPU and Bench are inconsistent."
NORM_GROWS = "warning: The norm relative error of output is 10 times that of input."
COSINE_FALLS = "warning: The input/parameters of Cosine > 0.9, and input/parameters - output > 0.1"
CHECKSUM = "error: The CRC-32 value of NPU differs from that of the bench."
UNMATCHED = "warning: The parameter of NPU does not match the bench."

Compared: TypeAlias = "tuple[Item, Item | None, Sequence[Cell]]"

_NORM = DIFFERENCES.index("NormRelativeErr")
_COSINE = METRICS.index("Cosine")
_RATIO = METRICS.index("One Thousandth Err Ratio")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``messages`` are in the order of the rules."""

    messages: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        if not self.messages:
            return PASS
        return ERROR if any(m.startswith(ERROR) for m in self.messages) else WARNING

    @property
    def err_message(self) -> str:
        return json.dumps(self.messages)


_PASSED = Verdict()


def judge(rows: Sequence[Compared], mode: Mode) -> list[Verdict]:
    """The verdicts on all rows of one record."""
    first = next((t.name for t, _, _ in rows if not t.is_output), "")  # an op without inputs is never ignored
    api = first.split(".", 2)[1] if "." in first else ""
    if api in IGNORED:
        return [_PASSED] * len(rows)
    marked: list[list[str]] = [[] for _ in rows]
    alone = api in OUTPUTS_ONLY
    looked_at = [i for i, (t, _, _) in enumerate(rows) if t.is_output or not alone]
    if mode is Mode.MD5:
        for i in looked_at:
            marked[i] += _checksum(rows[i])
    else:
        for i in looked_at:
            marked[i] += _non_finite(rows[i])
        outputs = [i for i in looked_at if rows[i][0].is_output and not alone]
        for i in outputs and _worse_than_inputs(rows, outputs, mode):
            marked[i].append(OUTPUT_NORM if mode is Mode.STATISTICS else OUTPUT_RATIO)
        for i in looked_at:
            marked[i] += _properties(rows[i])
        if outputs and _grows(rows, mode):
            marked[outputs[0]].append(NORM_GROWS if mode is Mode.STATISTICS else COSINE_FALLS)
    return [Verdict(tuple(messages)) if messages else _PASSED for messages in marked]


def _checksum(row: Compared) -> list[str]:
    target, golden, _ = row
    one, other = target.md5, golden.md5 if golden else NOT_APPLICABLE
    if one == other:
        return []
    return [UNMATCHED if {one, other} & {NOT_APPLICABLE, NAN, ""} else CHECKSUM]


def _non_finite(row: Compared) -> list[str]:
    target, golden, _ = row
    dirty = _infinite(target.max) or _infinite(target.min)
    clean = golden is None or not (_infinite(golden.max) or _infinite(golden.min))
    return [NON_FINITE] if dirty and clean else []


def _infinite(cell: Cell) -> bool:
    return cell == NAN or (isinstance(cell, float) and math.isinf(cell))


def _properties(row: Compared) -> list[str]:
    target, golden, _ = row
    if golden is None:
        return []
    found: list[str] = []
    if target.requires_grad != golden.requires_grad:
        found.append(REQUIRES_GRAD)
    if not target.is_output and target.is_scalar and golden.is_scalar and target.max != golden.max:
        found.append(SCALAR)
    if target.dtype != golden.dtype and not any(part in golden.name for part in ("qkv", "gate_up")):
        found.append(DTYPE)
    if target.shape != golden.shape:
        found.append(SHAPE)
    return found


def _worse_than_inputs(rows: Sequence[Compared], outputs: Sequence[int], mode: Mode) -> list[int]:
    """The outputs that are far off although all inputs are close."""
    if mode is Mode.TENSOR:
        off = _lowest(rows, _RATIO, of_outputs=False) > 0.9 and _lowest(rows, _RATIO, of_outputs=True) < 0.1
        return [outputs[0]] if off else []
    if _highest(rows, _NORM, of_outputs=False) >= 0.1:
        return []
    errors = [(i, _ratio(rows[i][2][_NORM])) for i in outputs]
    return [i for i, error in errors if error is not None and abs(error) > 0.5]  # an infinite one of either sign too


def _grows(rows: Sequence[Compared], mode: Mode) -> bool:
    """Whether the outputs are clearly further off than the inputs."""
    if mode is Mode.TENSOR:
        before = _lowest(rows, _COSINE, of_outputs=False)
        return before > 0.9 and before - _lowest(rows, _COSINE, of_outputs=True) > 0.1
    before, after = _highest(rows, _NORM, of_outputs=False), _highest(rows, _NORM, of_outputs=True)
    return after / before > 10 if before else after > 0.1


def _highest(rows: Sequence[Compared], column: int, *, of_outputs: bool) -> float:
    return max(_finite(rows, column, of_outputs), default=0.0)


def _lowest(rows: Sequence[Compared], column: int, *, of_outputs: bool) -> float:
    return min(_finite(rows, column, of_outputs), default=1.0)


def _finite(rows: Sequence[Compared], column: int, of_outputs: bool) -> list[float]:
    values = [_ratio(figures[column]) for t, _, figures in rows if t.is_output == of_outputs]
    return [value for value in values if value is not None and math.isfinite(value)]


def _ratio(cell: Cell) -> float | None:
    """A figure as a number, a percentage as its ratio; None for texts and NaN."""
    text = str(cell)
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
