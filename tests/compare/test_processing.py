"""``compare --config``: tensors that are multiplied with a matrix before they are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray

from cli.shell import Ran, numprobe

from .msprobe_tables import csv_table, the_csv

Array = NDArray[np.floating]
RIGHT, LEFT = (
    np.linalg.qr(np.random.default_rng(i).normal(size=(n, n)))[0].astype(np.float32) for i, n in ((0, 5), (1, 4))
)
OUTPUT = "Functional.{}.0.forward.output.0.pt"


def dump(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """One call without inputs for every tensor."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for name, tensor in tensors.items():
        file = OUTPUT.format(name)
        torch.save(tensor, folder / "dump_tensor_data" / file)
        x = tensor.double()
        figures = {"Max": x.max().item(), "Min": x.min().item(), "Mean": x.mean().item(), "Norm": x.norm().item()}
        leaf = {"type": "torch.Tensor", "dtype": str(tensor.dtype), "shape": list(tensor.shape), **figures}
        data[f"Functional.{name}.0.forward"] = {
            "input_args": [],
            "input_kwargs": {},
            "output": [{**leaf, "data_name": file}],
        }
    content = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
    (folder / "dump.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def rotated(tmp_path: Path) -> Path:
    """A target whose tensors are rotated on one side or both."""
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(4, 5)).astype(np.float32))
    right, left = torch.from_numpy(RIGHT), torch.from_numpy(LEFT)
    dump(tmp_path / "golden", {"plain": x, "right": x, "left": x, "both": x[None], "half": x})
    turned = {"plain": x, "right": x @ right.T, "left": left.T @ x, "both": (left.T @ x @ right.T)[None]}
    dump(tmp_path / "target", {**turned, "half": (x @ right.T).bfloat16()})
    torch.save(right, tmp_path / "right.pt")
    np.save(tmp_path / "left.npy", LEFT)
    return tmp_path


def config(folder: Path, text: str) -> Path:
    path = folder / "config" / "process.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


ALL = f"""left_right_matmul:
  left_target_tensor_map: {{left.npy: [{OUTPUT.format("both")}]}}
  right_target_tensor_map: {{right.pt: [{OUTPUT.format("both")}]}}
left_matmul:
  target_tensor_map: {{left.npy: [{OUTPUT.format("left")}]}}
right_matmul:
  target_tensor_map:
    right.pt:
      - {OUTPUT.format("right")}
      - {OUTPUT.format("half")}
  golden_tensor_map:
"""


def compare(cwd: Path, *options: object) -> Ran:
    return numprobe(cwd, "compare", "target", "golden", "-o", "out", "--compat", "msprobe", "--no-cache", *options)


def test_rotated_tensors_agree_when_they_are_turned_back(rotated: Path) -> None:
    assert numprobe(rotated, "compare", "target", "golden", "-o", "without", "--no-cache").code == 1
    ran = compare(rotated, "--config", config(rotated, ALL))
    assert ran.code == 0, ran.out
    head, lines = csv_table(the_csv(rotated / "out"))
    cosine = {line[0]: float(line[head.index("Cosine")]) for line in lines}
    assert cosine == {
        f"{OUTPUT.format(n)[:-3]}": pytest.approx(1.0, abs=1e-5) for n in ("plain", "right", "left", "both", "half")
    }
    error = pl.read_parquet(rotated / "out" / "compare.parquet")["error"].to_list()
    assert error[0] == 0.0
    assert all(0 < e < 1e-6 for e in error[1:4])
    assert 1e-3 < error[4] < 1e-2  # the rounding of bfloat16


def test_the_golden_side_can_be_turned_too(rotated: Path) -> None:
    """And the product is the one that numpy gives."""
    np.save(rotated / "back.npy", RIGHT.T)
    text = f"right_matmul: {{golden_tensor_map: {{back.npy: [{OUTPUT.format('right')}]}}}}"
    compare(rotated, "--config", config(rotated, text))
    head, lines = csv_table(the_csv(rotated / "out"))
    (line,) = (line for line in lines if line[0].startswith("Functional.right"))
    one, other = (
        torch.load(rotated / s / "dump_tensor_data" / OUTPUT.format("right")).double().numpy()
        for s in ("target", "golden")
    )
    expected = np.linalg.norm(one - (other @ RIGHT.T.astype(np.float64)).astype(np.float32))
    assert float(line[head.index("EucDist")]) == pytest.approx(expected, rel=1e-12)


def test_a_matrix_that_does_not_fit_is_a_row_with_a_reason(rotated: Path) -> None:
    text = f"right_matmul: {{target_tensor_map: {{left.npy: [{OUTPUT.format('plain')}]}}}}"
    compare(rotated, "--config", config(rotated, text))
    row = pl.read_parquet(rotated / "out" / "compare.parquet").row(0, named=True)
    assert (row["verdict"], row["reason"]) == ("incomparable", "file")
    head, lines = csv_table(the_csv(rotated / "out"))
    assert lines[0][head.index("Cosine")] == "unsupported"


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("middle_matmul: {target_tensor_map: {}}", "E-CMP-012", "middle_matmul"),
        ("right_matmul: {tensor_map: {}}", "E-CMP-012", "tensor_map"),
        ("right_matmul: {target_tensor_map: [right.pt]}", "E-CMP-012", "line 1"),
        ("right_matmul:\n  target_tensor_map: {right.pt: name}", "E-CMP-012", "line 2"),
        ("right_matmul: {target_tensor_map: {nowhere.pt: [a]}}", "E-FMT-010", "nowhere.pt"),
        ("right_matmul: {", "E-CMP-011", "line 1"),
    ],
)
def test_a_damaged_configuration_is_one_error(text: str, code: str, word: str, rotated: Path) -> None:
    ran = compare(rotated, "--config", config(rotated, text))
    assert (ran.code, ran.out) == (2, "")
    assert code in ran.err
    assert word in ran.err
    assert not (rotated / "out").exists()
