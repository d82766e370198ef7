"""msProbe's tables of the kernels of static graphs: ``compare_result_<rank>_<step>_<time>``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numprobe.compare.kernels.read import Kernel, numbered
from numprobe.compare.msprobe.columns import BASIC, STATISTICS
from numprobe.compare.msprobe.files import result_sheets, write_csv, write_xlsx
from numprobe.formats.tensors import TensorFile, open_tensor
from numprobe.metrics.reference import (
    NAN,
    NOT_APPLICABLE,
    SHAPE_UNMATCHED,
    STATISTICS_COLUMNS,
    TENSOR_COLUMNS,
    Cell,
    tensor_columns,
)
from numprobe.record.errors import NumprobeError

VERDICT = ("Accuracy Reached or Not", "Err_message")
TENSORS = (*BASIC[:6], *STATISTICS, *VERDICT, *TENSOR_COLUMNS)
TABLES = (*BASIC[:6], *STATISTICS, *VERDICT, *STATISTICS_COLUMNS, "NPU CSV File", "Bench CSV File")
_NO_FIGURES: tuple[Cell, ...] = ("",) * 4

_NO_ARRAY = "Dump file is not ndarray.\n"
_SCALAR = "This is type of scalar data, can not compare.\n"
_SHAPES = "Shape of NPU and bench Tensor do not match.\n"
_DTYPES = "Dtype of NPU and bench Tensor do not match. Skipped.\n"
_PLACES = "The position of inf or nan in NPU and bench Tensor do not match.\n"
_TABLE_SHAPES = "Tensor shapes do not match.\n"
_LENGTH_1 = "This is a 1-d tensor of length 1."
_ZERO = "Cannot compare by Cosine Similarity, All the data is Zero in {} dump data."


def write_tables(
    folder: Path, name: str, target: Sequence[Kernel], golden: Sequence[Kernel], *, xlsx: bool = False
) -> None:
    """Write one rank and step. Kernels pair by key, the k-th in time with the k-th; what has no partner has a row of its own.

    Raises:
        NumprobeError: E-CMP-030 the file exists, E-OUT-002 it cannot be written.
    """
    tables = any(kernel.figures is not None for kernel in (*target, *golden))
    line = _table_line if tables else _tensor_line
    lines: Iterable[Sequence[object]] = (line(t, g) for t, g in _paired(target, golden))
    head = TABLES if tables else TENSORS
    if xlsx:
        write_xlsx(folder / f"{name}.xlsx", result_sheets(head, lines))
    else:
        write_csv(folder, name, head, lines)


def _paired(target: Sequence[Kernel], golden: Sequence[Kernel]) -> Iterator[tuple[Kernel | None, Kernel | None]]:
    one, other = ({(k.key, number): k for number, k in numbered(side)} for side in (target, golden))
    for key in sorted({*one, *other}):
        yield one.get(key), other.get(key)


def _tensor_line(target: Kernel | None, golden: Kernel | None) -> list[object]:
    sides = [_open(kernel) for kernel in (target, golden)]
    verdict, message, cells = _compared(*sides)
    return [
        *("" if k is None else str(k.file) for k in (target, golden)),
        *("" if t is None else str(t.element) for t in sides),
        *(str(None) if t is None else _shape(t.shape) for t in sides),
        *(cell for t in sides for cell in (_NO_FIGURES if t is None else _figures(t))),
        verdict,
        message,
        *cells,
    ]


def _open(kernel: Kernel | None) -> TensorFile | None:
    try:
        return None if kernel is None else open_tensor(kernel.file)
    except NumprobeError:
        return None


def _compared(target: TensorFile | None, golden: TensorFile | None) -> tuple[str, str, Sequence[Cell]]:
    """Verdict, message and metrics of two tensors."""
    none: Sequence[Cell] = ("",) * len(TENSOR_COLUMNS)
    if target is None or golden is None:
        return "", _NO_ARRAY, none
    if not target.shape or not golden.shape:
        return "", _SCALAR, none
    message = (_SHAPES if target.shape != golden.shape else "") + (_DTYPES if target.element != golden.element else "")
    if message:
        return "", message, none
    cells = tensor_columns(target, golden)
    if NOT_APPLICABLE in cells:
        return "", _PLACES, none
    if SHAPE_UNMATCHED in cells or not target.numel:
        return "", _SHAPES, cells
    if target.numel == 1:
        return str(None), _LENGTH_1, _of_one_element(target, golden, cells)
    cosine, largest = cells[0], cells[2]
    far = isinstance(largest, float) and (
        largest > 1 or (isinstance(cosine, float) and cosine < 0.99 and largest > 0.001)
    )
    reached = not far and not (isinstance(cosine, float) and cosine < 0.9)
    zero = ""
    if cosine == NAN:
        zero = _ZERO.format("npu" if not _figures(target)[3] else "Bench")
    return "Yes" if reached else "No", zero, cells


def _of_one_element(target: TensorFile, golden: TensorFile, cells: Sequence[Cell]) -> Sequence[Cell]:
    """Here, other than in msProbe's other tables, all but the cosine is computed."""
    t, g = (complex(tensor.array().item()).real for tensor in (target, golden))
    relative = cells[3]
    shares = [float(isinstance(relative, float) and relative < limit) for limit in (0.001, 0.005)]
    return cells[0], abs(t - g), *cells[2:4], *shares


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{str(tuple(shape))[1:-1]}]"


def _figures(tensor: TensorFile) -> tuple[Cell, ...]:
    """Max, min, mean and norm as numpy computes them in the tensor's own dtype."""
    array: Any = tensor.array()
    if not array.size:
        return _NO_FIGURES
    with np.errstate(all="ignore"):
        found = (array.mean(), np.linalg.norm(array.ravel()))
        extremes = [float(str(x)) if x.dtype.kind == "f" else x for x in (array.max(), array.min())]
    return tuple(_cell(value) for value in (*extremes, *found))


def _cell(value: Any) -> Cell:
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, (bool, complex)):
        return str(plain)
    return "" if plain != plain else plain


def _table_line(target: Kernel | None, golden: Kernel | None) -> list[object]:
    sides = (target, golden)
    message = ""
    if target is None or golden is None or target.shape != golden.shape:
        message += _TABLE_SHAPES
    if target is None or golden is None or target.dtype != golden.dtype:
        message += _DTYPES
    verdict, cells = ("", ("",) * len(STATISTICS_COLUMNS)) if message else _differences(target, golden)  # type: ignore[arg-type]
    return [
        *("" if k is None else k.key for k in sides),
        *("" if k is None else k.dtype for k in sides),
        *("nan" if k is None or k.shape is None else _shape(k.shape) for k in sides),
        *(_cell(value) if value is not None else "" for k in sides for value in ((k and k.figures) or (None,) * 4)),
        verdict,
        message,
        *cells,
        *("" if k is None else str(k.file) for k in sides),
    ]


def _differences(target: Kernel, golden: Kernel) -> tuple[str, tuple[Cell, ...]]:
    """``Yes`` where the maxima differ by at most half of the larger one; differences, and those relative to golden."""
    apart: list[Cell] = []
    relative: list[Cell] = []
    nan = float("nan")
    pairs = [
        (nan if t is None else t, nan if g is None else g)
        for t, g in zip(target.figures or (), golden.figures or (), strict=True)
    ]
    for t, g in pairs:
        d = t - g
        apart.append(_cell(d))
        relative.append(NAN if d != d else NOT_APPLICABLE if g == 0 else f"{abs(d / g) * 100}%")
    t, g = pairs[0]
    reached = abs(t - g) / (max(t, g) + 1e-10) <= 0.5
    return "Yes" if reached else "No", (*apart, *relative)
