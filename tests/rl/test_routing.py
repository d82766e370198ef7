"""A token that two experts want about equally may go to the other one: noise, however far off its own elements are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from . import models
from .models import Decoder, Run
from .recorded import compared, record

MIXTURE = Decoder(experts=4)


def tie_goes_the_other_way(logits: Tensor, config: Decoder) -> tuple[Tensor, Tensor]:
    """As the model's routing, but for the token whose last choice was closest."""
    chances = logits.float().softmax(-1)
    values, chosen = chances.topk(config.chosen + 1, -1)
    token = int((values[:, -2] - values[:, -1]).argmin())
    chosen[token, -2], values[token, -2] = chosen[token, -1].clone(), values[token, -1].clone()
    values, chosen = values[:, :-1], chosen[:, :-1]
    if config.renormalise:
        values = values / values.sum(-1, keepdim=True)
    return values.to(logits.dtype), chosen


@pytest.mark.parametrize("train", ["megatron", "hf"])
def test_one_token_of_another_expert_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: str
) -> None:
    one = record(tmp_path / "train", Run(train, MIXTURE, torch.bfloat16), task="tensor")
    monkeypatch.setattr(models, "routing", tie_goes_the_other_way)
    other = record(tmp_path / "rollout", Run("engine", MIXTURE, torch.bfloat16), task="tensor")
    result = compared(one, other)
    assert (result.verdict, result.findings) == ("no_difference", [])


def test_a_wrong_weight_behind_the_mixture_is_still_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = record(tmp_path / "train", Run("megatron", MIXTURE, torch.bfloat16), task="tensor")
    monkeypatch.setattr(models, "routing", tie_goes_the_other_way)
    run = Run("engine", MIXTURE, torch.bfloat16, {"1.o": 1.3})
    found = compared(one, record(tmp_path / "rollout", run, task="tensor")).findings
    assert found
    assert found[0].layers == [1]
