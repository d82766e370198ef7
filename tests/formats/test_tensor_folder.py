"""Tensors by their data_name, in both forms that the collector writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from numprobe.collect.pytorch.tensor_files import TensorWriter
from numprobe.formats.tensors import TensorFolder
from numprobe.record.errors import NumprobeError

VALUES = {
    "Torch.exp.0.forward.output.0.pt": torch.arange(6.0).reshape(2, 3),
    "Torch.exp.1.forward.output.0.pt": torch.ones(4, dtype=torch.bfloat16),
    "Torch.fft.0.forward.output.0.pt": torch.arange(6).to(torch.complex128).reshape(3, 2),
}


def written(folder: Path, form: str) -> dict[str, torch.Tensor]:
    """By data_name."""
    writer = TensorWriter(folder, form)
    names = {writer.put(value, name): value for name, value in VALUES.items()}
    assert writer.flush() == []
    return {name: value for name, value in names.items() if name}


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_what_the_collector_writes(form: str, tmp_path: Path):
    names = written(tmp_path, form)
    assert len(names) == 3
    folder = TensorFolder(tmp_path)
    for name, value in names.items():
        found = folder.open(name, tuple(value.shape))
        assert found.shape == tuple(value.shape)
        assert found.array().tolist() == value.tolist()


def test_a_shape_that_does_not_fit_is_not_taken(tmp_path: Path):
    (name,) = (n for n in written(tmp_path, "safetensors") if "fft" in n)
    assert TensorFolder(tmp_path).open(name, (7, 2)).shape == (6,)
    assert TensorFolder(tmp_path).open(name).shape == (6,)


def test_a_name_that_is_not_there(tmp_path: Path):
    written(tmp_path, "safetensors")
    with pytest.raises(NumprobeError) as caught:
        TensorFolder(tmp_path).open("gone.pt")
    assert caught.value.code == "E-FMT-010"
    with pytest.raises(NumprobeError) as caught:
        TensorFolder(tmp_path).open("../secret.pt")
    assert caught.value.code in ("E-FMT-010", "E-FMT-033")


def test_an_index_that_lies(tmp_path: Path):
    name = next(iter(written(tmp_path, "safetensors")))
    key = name.removesuffix(".pt")
    index = tmp_path / "index.jsonl"
    for line, code in (
        (f'{{"file": "../m.safetensors", "tensors": ["{key}"]}}', "E-FMT-033"),
        (f'{{"file": "gone.safetensors", "tensors": ["{key}"]}}', "E-FMT-010"),
        ('{"file": "tensors-00000.safetensors", "tensors": ["other"]}', "E-FMT-035"),
        ("nothing\n{}", "E-FMT-031"),
    ):
        (tmp_path.parent / "m.safetensors").touch()
        index.write_text(line + "\n")
        with pytest.raises(NumprobeError) as caught:
            TensorFolder(tmp_path).open("other.pt" if "other" in line else name)
        assert caught.value.code == code


def test_an_index_whose_last_line_is_cut_short(tmp_path: Path):
    name = next(iter(written(tmp_path, "safetensors")))
    index = tmp_path / "index.jsonl"
    index.write_text(index.read_text() + '{"file": "tensors-00001.saf')
    assert TensorFolder(tmp_path).open(name).shape == (2, 3)
