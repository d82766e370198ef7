"""Format parquet: the table holds what dump.json says, leaf by leaf."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
parquet = pytest.importorskip("pyarrow.parquet")

from numprobe.collect.pytorch import parquet as module  # noqa: E402
from numprobe.formats.msprobe.members import flatten  # noqa: E402
from numprobe.pytorch import PrecisionDebugger  # noqa: E402
from numprobe.record.errors import NumprobeError  # noqa: E402
from numprobe.record.names import parse_name  # noqa: E402

from .dumps import Dump, only  # noqa: E402
from .on_device import Net  # noqa: E402
from .recording import recorded  # noqa: E402


def program() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    torch.add(torch.log(x), torch.tensor([2**62 + 1]), alpha=3).sum().backward()
    torch.stack([torch.ones(2), torch.empty(2).fill_(math.inf)], dim=0)
    torch.softmax(x, -1, dtype=torch.float64)
    torch.any(torch.tensor([True, False]))
    torch.full((2,), -math.inf)
    torch.mul(torch.empty(0, 3), 2.0)


def rows_of(dump: Dump) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(dump.folder / "dump.parquet").to_pylist()
    return rows


def same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize("settings", [{}, {"summary_mode": "md5"}, {"summary_mode": "xor"}, {"summary_mode": "hash"}])
def test_every_leaf_is_a_row(tmp_path: Path, settings: dict[str, str]):
    dump = recorded(tmp_path, program, format="parquet", **settings)
    rows = iter(rows_of(dump))
    kind = {"md5": "crc32", "hash": "hash64", "xor": "xor"}.get(settings.get("summary_mode", ""))
    count = 0
    for index, (name, body) in enumerate(dump.data.items()):
        named = body.pop("grad_of", [])
        for leaf in flatten(parse_name(name), body):
            row = next(rows)
            place = leaf.path.removeprefix("output.")
            assert row["grad_of"] == (named[int(place)] if named and place.isdecimal() else None)
            count += 1
            assert (row["step"], row["rank_key"], row["op_index"], row["name"]) == (0, dump.folder.name, index, name)
            assert (row["role"], row["path"], row["value_type"]) == (leaf.role, leaf.path, leaf.value_type)
            assert row["dtype"] == (leaf.dtype or None)
            assert row["shape"] == (None if leaf.shape is None else list(leaf.shape))
            assert row["numel"] == leaf.numel
            assert row["requires_grad"] == leaf.requires_grad
            for figure in ("max", "min", "mean", "norm"):
                value = getattr(leaf, figure)
                assert same(row[figure], None if value is None else float(value)), (name, figure)
                status = "value" if value is not None else "null" if figure in leaf.present else "absent"
                assert row[f"{figure}_status"] == status
            digest = leaf.attributes.get("md5")
            assert row["digest"] == (None if digest is None else str(digest))
            assert row["digest_kind"] == (None if digest is None else kind)
            if leaf.scalar is not None:
                assert json.loads(row["scalar"]) == leaf.scalar
    assert next(rows, None) is None
    assert count > 25


def test_figures_by_hand(tmp_path: Path):
    dump = recorded(tmp_path, program, format="parquet")
    rows = {(row["name"], row["path"]): row for row in rows_of(dump)}
    whole = rows["Torch.add.0.forward", "input_args.1"]
    assert whole["max_int"] == 2**62 + 1, "which no float64 holds"
    log = rows["Torch.log.0.forward", "output.0"]
    assert math.isnan(log["max"])
    assert log["nan"] > 0
    assert (log["pos_inf"], log["max_int"], log["stat_dtype"]) == (0, None, "float64")
    empty = rows["Torch.mul.0.forward", "input_args.0"]
    assert (empty["numel"], empty["max"], empty["max_status"]) == (0, None, "null")
    assert rows["Torch.add.0.forward", "input_kwargs.alpha"]["scalar"] == "3"
    mask = rows["Torch.any.0.forward", "input_args.0"]
    assert (mask["max"], mask["min_int"], mask["mean_status"]) == (1.0, 0, "null")


def test_the_document_names_every_column():
    text = (Path(__file__).parents[2] / "docs" / "collect.md").read_text(encoding="utf-8")
    table = text.partition("## Parquet")[2]
    for column in module.COLUMNS:
        assert f"`{column}`" in table, column


def test_columns_and_metadata(tmp_path: Path):
    dump = recorded(tmp_path, program, format="parquet")
    file = parquet.ParquetFile(dump.folder / "dump.parquet")
    assert file.schema_arrow.names == list(module.COLUMNS)
    metadata = {k.decode(): json.loads(v) for k, v in file.metadata.metadata.items() if k.startswith(b"numprobe.")}
    assert metadata["numprobe.task"] == "statistics"
    assert metadata["numprobe.level"] == "L1"
    assert metadata["numprobe.grad_kind"] == "true"


def test_modules_tensor_files_and_two_steps(tmp_path: Path):
    model, ids = Net(), torch.arange(12).view(2, 6)
    with PrecisionDebugger(dump_path=tmp_path, level="mix", task="tensor", format="parquet") as debugger:
        for _ in range(2):
            debugger.start(model=model)
            model(ids).sum().backward()
            debugger.stop()
            debugger.step()
    for step in range(2):
        dump = only(tmp_path, step)
        rows = rows_of(dump)
        assert {row["step"] for row in rows} == {step}
        assert {row["role"] for row in rows} == {"input", "output", "parameter", "parameter_grad"}
        files = {row["file"] for row in rows if row["file"]}
        assert files == {p.name for p in (dump.folder / "dump_tensor_data").iterdir()}
        assert not list(dump.folder.glob(".*"))


def test_several_batches_make_one_file(tmp_path: Path):
    dump = recorded(tmp_path, lambda: [torch.cos(torch.ones(1)) for _ in range(2500)], format="parquet")
    rows = rows_of(dump)
    assert [row["op_index"] for row in rows if row["role"] == "output" and "cos" in row["name"]] == [
        i for i, name in enumerate(dump.names) if "cos" in name
    ]
    assert parquet.ParquetFile(dump.folder / "dump.parquet").num_row_groups >= 3


def test_an_empty_step(tmp_path: Path):
    dump = recorded(tmp_path, lambda: None, format="parquet")
    assert rows_of(dump) == []


def test_before_the_end_of_the_step_there_is_only_the_journal(tmp_path: Path):
    with PrecisionDebugger(dump_path=tmp_path, level="L1", risk_level="ALL", format="parquet") as debugger:
        debugger.start()
        torch.cos(torch.ones(1))
        debugger.stop()
        folder = only(tmp_path).folder
        assert (folder / "dump.json").exists()
        assert not (folder / "dump.parquet").exists()
        debugger.start()
        torch.cos(torch.ones(1))
        debugger.stop()
        debugger.step()
        assert len(only(tmp_path).data) == 2
        assert len({row["name"] for row in rows_of(only(tmp_path))}) == 2


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_a_folder_that_cannot_be_written_does_not_end_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    caplog.set_level(logging.ERROR)
    dump = recorded(tmp_path, lambda: torch.cos(torch.ones(1)), format="parquet")
    assert dump.names == ["Torch.cos.0.forward"]
    assert "No space left on device" in caplog.text


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(NumprobeError, match="E-CFG-012") as raised:
        PrecisionDebugger(dump_path=tmp_path, level="L1", format="parquet")
    assert "numprobe[sql]" in raised.value.do
