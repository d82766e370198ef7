"""The figures of msProbe: those of its own result tables, and those that it was asked for."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from numprobe.formats.tensors import TensorFile, open_tensor
from numprobe.metrics import stream
from numprobe.metrics.reference import STATISTICS_COLUMNS, TENSOR_COLUMNS, statistics_columns, tensor_columns

from .msprobe_pairs import STATISTICS, tensor_pairs

HERE = Path(__file__).parent
COMPARE = HERE.parent / "data" / "interop" / "compare"
ASKED = json.loads((HERE / "data" / "msprobe_tensors.json").read_text())
ASKED_STATISTICS = json.loads((HERE / "data" / "msprobe_statistics.json").read_text())
PAIRS = tensor_pairs()
# Of sums of many elements, float64 keeps fewer digits than are printed.
TOLERANCE = 1e-9


def shown(value: float | str) -> str:
    """As a result table has it: infinities get a leading space."""
    return f" {value}" if isinstance(value, float) and np.isinf(value) else str(value)


def assert_cells(found: tuple[float | str, ...], expected: list[str]) -> None:
    assert len(found) == len(expected)
    for cell, text in zip(found, expected, strict=True):
        if isinstance(cell, float) and np.isfinite(cell):
            assert cell == pytest.approx(float(text), rel=TOLERANCE, abs=0)
        else:
            assert shown(cell) == text


def test_every_pair_was_asked_for():
    assert PAIRS.keys() == ASKED.keys()
    assert len(PAIRS) > 150


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str, tmp_path: Path):
    files = []
    for side, value in zip("tg", PAIRS[name], strict=True):
        torch.save(value, tmp_path / f"{side}.pt")
        files.append(open_tensor(tmp_path / f"{side}.pt"))
    assert_cells(tensor_columns(*files), ASKED[name])


def tensor_rows() -> Iterator[tuple[str, dict[str, str], Path, Path]]:
    for folder, ranks in (("mlp/tensor", "step0/rank0"), ("edge/tensor", ""), ("edge/complex", "")):
        (table,) = (COMPARE / folder / "result").glob("*.csv")
        with table.open(newline="") as file:
            for row in csv.DictReader(file):
                sides = (COMPARE / folder / side / ranks / "dump_tensor_data" for side in ("target", "golden"))
                yield folder, row, *sides


def file_of(name: str, folder: Path) -> TensorFile | None:
    return None if name in ("-1", "N/A") else open_tensor(name, folder)


def test_tables_of_tensors():
    """Every metric cell of every row."""
    rows = 0
    for _, row, target, golden in tensor_rows():
        names = row["Data_name"].strip("[]").replace("'", "").split(", ")
        found = tensor_columns(file_of(names[0], target), file_of(names[1], golden))
        assert_cells(found, [row[column] for column in TENSOR_COLUMNS])
        rows += 1
    assert rows > 140


def statistic(text: str) -> object:
    """A cell of the table back to what dump.json had."""
    words = {"None": None, "True": True, "False": False, "Nan": float("nan")}
    if text in words:
        return words[text]
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def test_tables_of_statistics():
    rows = 0
    for folder in ("mlp/statistics", "edge/stats"):
        (table,) = (COMPARE / folder / "result").glob("*.csv")
        with table.open(newline="") as file:
            for row in csv.DictReader(file):
                sides = [
                    [statistic(row[f"{side} {s}"]) for s in ("max", "min", "mean", "l2norm")]
                    for side in ("NPU", "Bench")
                ]
                assert list(statistics_columns(*sides)) == [row[column] for column in STATISTICS_COLUMNS], row[
                    "NPU Name"
                ]
                rows += 1
    assert rows > 140


def test_statistics_of_every_kind():
    for target in STATISTICS:
        for golden in STATISTICS:
            difference, relative = ASKED_STATISTICS[repr(target)][repr(golden)]
            found = statistics_columns([target] * 4, [golden] * 4)
            assert found == (*[difference] * 4, *[relative] * 4), (target, golden)


def test_no_file():
    one = np.ones(2)
    assert tensor_columns(None, one) == tensor_columns(one, None) == ("unsupported",) * 6


def test_threads_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch):
    target, golden = (t.numpy() for t in PAIRS["large"])
    found = tensor_columns(target, golden, threads=1)
    assert found == tensor_columns(target, golden, threads=3)
    monkeypatch.setattr(stream, "BLOCK", 1000)
    assert tensor_columns(target, golden, threads=2) == pytest.approx(found, rel=1e-12)


def test_an_independent_calculation():
    """The formulas written out once more, over whole arrays."""
    rng = np.random.default_rng(7)
    b = rng.standard_normal(5000).astype(np.float32)
    n = (b * (1 + 0.01 * rng.standard_normal(5000).astype(np.float32))).astype(ml_dtypes.bfloat16)
    wide, n64, b64 = n.astype(np.float32), n.astype(float), b.astype(float)
    relative = np.abs((wide - b) / b)
    assert relative.dtype == np.float32
    assert tensor_columns(n, b) == pytest.approx(
        (
            round(n64 @ b64 / np.sqrt((n64 @ n64) * (b64 @ b64)), 6),
            np.linalg.norm(n64 - b64),
            np.abs(n64 - b64).max(),
            relative.max(),
            (relative < 0.001).mean(),
            (relative < 0.005).mean(),
        ),
        rel=1e-11,
    )
