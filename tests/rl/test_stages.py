"""Pipeline stages: local layer numbers become those of the whole model, alone and together with tensor parallel ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Dump
from .models import Run
from .ranks import split_over_ranks, split_over_stages
from .recorded import compared, only


@pytest.mark.parametrize("local", [True, False], ids=["local", "global"])
@pytest.mark.parametrize("style", ["hf", "megatron"])
def test_two_stages(dump: Dump, tmp_path: Path, style: str, local: bool) -> None:
    """As from one rank: the same places, all of them."""
    whole, rollout = dump(Run(style), task="tensor"), dump(Run("engine"), task="tensor")
    expected = compared(whole, rollout)
    result = compared(split_over_stages(whole, tmp_path, 2, local=local), rollout)
    assert (result.verdict, result.findings) == ("no_difference", [])
    assert [pair.place for pair in result.mapping] == [pair.place for pair in expected.mapping]
    assert (result.coverage, result.layers) == (expected.coverage, 3)
    assert result.tensors == expected.tensors


@pytest.mark.parametrize("ends", [(1, 2, 3), (1, 1, 2)], ids=["no layer in the last", "no layer in the second"])
@pytest.mark.parametrize("style", ["hf", "megatron"])
def test_an_interleaved_pipeline(dump: Dump, tmp_path: Path, style: str, ends: tuple[int, ...]) -> None:
    """Two stages a rank, recorded as a list of two models: the third stage is on the first rank."""
    whole, rollout = dump(Run(style), task="tensor"), dump(Run("engine"), task="tensor")
    result, expected = compared(split_over_stages(whole, tmp_path, *ends, chunks=2), rollout), compared(whole, rollout)
    if ends == (1, 2, 3):
        assert (result.verdict, result.findings) == ("no_difference", [])
        assert [pair.place for pair in result.mapping] == [pair.place for pair in expected.mapping]
        assert (result.coverage, result.layers, result.tensors) == (expected.coverage, 3, expected.tensors)
    else:  # a stage between others that has nothing to do is none
        assert result.verdict == "inconclusive"


def test_a_fault_in_an_interleaved_pipeline(dump: Dump, tmp_path: Path) -> None:
    whole = dump(Run("megatron", changed={"2.down": 1.03}), task="tensor")
    f = only(compared(split_over_stages(whole, tmp_path, 1, 2, 3, chunks=2), dump(Run("hf"), task="tensor")))
    assert (f.clazz, f.role, f.layers) == ("parameter_difference", "down", [2])
    assert "layers.2.mlp.linear_fc2" in str(f.suspect.train)


def test_two_models_of_a_list_are_no_stages(dump: Dump, tmp_path: Path) -> None:
    """An actor and a critic on each of two tensor parallel ranks: which of them is the rollout's cannot be told."""
    ranks = split_over_ranks(dump(Run("megatron"), task="tensor"), tmp_path, 2)
    for file in ranks.rglob("dump.json"):
        content = json.loads(file.read_text())
        data = {k.replace("Module.", f"Module.{n}.", 1): v for n in range(2) for k, v in content["data"].items()}
        file.write_text(json.dumps({**content, "data": data}))
    result = compared(ranks, dump(Run("hf"), task="tensor"))
    assert (result.verdict, result.findings) == ("inconclusive", [])


@pytest.mark.parametrize("side", ["train", "rollout"])
def test_a_fault_of_the_second_stage(dump: Dump, tmp_path: Path, side: str) -> None:
    """It is named by the layer of the whole model, and by the record that has it."""
    stages = split_over_stages(dump(Run("megatron", changed={"2.down": 1.03}), task="tensor"), tmp_path, 1)
    other = dump(Run("hf"), task="tensor")
    f = only(compared(stages, other) if side == "train" else compared(other, stages))
    assert (f.clazz, f.role, f.layers) == ("parameter_difference", "down", [2])
    assert "layers.2.mlp.linear_fc2" in str(getattr(f.suspect, side))


def test_stages_of_tensor_parallel_ranks(dump: Dump, tmp_path: Path) -> None:
    ranks = split_over_ranks(dump(Run("megatron"), task="tensor"), tmp_path / "tp", 2)
    stages = split_over_stages(ranks, tmp_path / "pp", 1)
    assert len(list(stages.rglob("dump.json"))) == 4
    rollout = dump(Run("engine"), task="tensor")
    result, expected = compared(stages, rollout), compared(ranks, rollout)
    assert (result.verdict, result.counts, result.merged) == ("no_difference", expected.counts, expected.merged)
    assert result.tensors == expected.tensors


def test_ranks_with_a_whole_model_each_are_no_stages(dump: Dump, tmp_path: Path) -> None:
    ranks = split_over_ranks(dump(Run("megatron"), task="tensor"), tmp_path, 2)
    assert compared(ranks, dump(Run("hf"), task="tensor")).layers == 3
