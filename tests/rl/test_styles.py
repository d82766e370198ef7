"""One model in three styles: no difference where there is none, whatever the names, layouts, dtypes and batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, permutations

import pytest
import torch

from .conftest import Dump
from .models import STYLES, Decoder, Run, make_tokens
from .recorded import compared

DENSE, MIXTURE = Decoder(), Decoder(experts=4)
FUSED = replace(DENSE, fused_norm=True)
PAIRS = list(permutations(STYLES, 2))


def test_the_three_styles_compute_the_same() -> None:
    """What the tests below rest on, without numprobe."""
    for config in (DENSE, MIXTURE):
        hf, megatron, engine = (Run(style, config).build()(make_tokens()).detach() for style in STYLES)
        torch.testing.assert_close(megatron.transpose(0, 1), hf, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(engine, hf[:, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("pair", combinations_with_replacement(STYLES, 2), ids="|".join)
def test_clean_against_fp32(dump: Dump, config: Decoder, precision: torch.dtype, pair: tuple[str, str]) -> None:
    result = compared(dump(Run(pair[0], config, precision)), dump(Run(pair[1], config)))
    assert (result.verdict, result.reason, result.findings) == ("no_difference", "", [])
    assert result.counts["error"] == 0
    assert result.coverage > 0.8
    assert result.counts["pass"] + result.counts["warning"] > 40
    if precision is torch.float32:
        assert result.counts["warning"] == 0
        assert result.detection_limit is None or result.detection_limit < 0.01


@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_bf16_against_bf16_at_level_l0(dump: Dump, pair: tuple[str, str]) -> None:
    train, rollout = (dump(Run(style, DENSE, torch.bfloat16), "L0") for style in pair)
    result = compared(train, rollout)
    assert (result.verdict, result.counts["error"], result.counts["warning"]) == ("no_difference", 0, 0)


@pytest.mark.parametrize("other", [Run(style, DENSE) for style in STYLES], ids=list(STYLES))
def test_a_norm_inside_of_a_linear(dump: Dump, other: Run) -> None:
    """The other side's norm and linear are compared as one."""
    result = compared(dump(Run("megatron", FUSED)), dump(other))
    assert (result.verdict, result.counts["error"]) == ("no_difference", 0)
    assert result.coverage > 0.85
    places = {pair.place: pair for pair in result.mapping}
    assert "layers.0.attn_norm" not in places
    both = places["layers.0.qkv"]
    assert len(both.train) == 1
    assert any("input_layernorm" in name for name in both.rollout)


def test_an_activation_that_is_no_module(dump: Dump) -> None:
    """On both sides inside of the block: nothing is missing where nothing differs."""
    result = compared(dump(Run("megatron"), "L0"), dump(Run("engine", replace(DENSE, separate_activation=False)), "L0"))
    assert (result.verdict, result.findings) == ("no_difference", [])


def test_weights_that_an_engine_has_moved(dump: Dump) -> None:
    result = compared(dump(Run("hf")), dump(Run("engine", replace(DENSE, packed_weights=True))))
    assert (result.verdict, result.counts["error"]) == ("no_difference", 0)
    assert result.coverage > 0.7


@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_prompts_in_another_order(dump: Dump, pair: tuple[str, str]) -> None:
    train, rollout = dump(Run(pair[0])), dump(Run(pair[1]), "mix", [make_tokens()[::-1]])
    assert compared(train, rollout).verdict == "no_difference"


def test_a_warm_up_call_comes_first(dump: Dump) -> None:
    warm_up = make_tokens((40,), seed=1)
    result = compared(dump(Run("megatron")), dump(Run("engine"), "mix", [warm_up, make_tokens()]))
    assert result.verdict == "no_difference"
    assert result.coverage > 0.9


@pytest.mark.parametrize("style", ["hf", "megatron"])
def test_one_prompt_a_call(dump: Dump, style: str) -> None:
    """The engine took the prompts one after the other: its calls together are the batch."""
    calls = [[prompt] for prompt in make_tokens()]
    result = compared(dump(Run(style)), dump(Run("engine"), "mix", calls))
    assert (result.verdict, result.counts["error"]) == ("no_difference", 0)
    wrong = compared(dump(Run(style, replace(DENSE, epsilon=1e-2))), dump(Run("engine"), "mix", calls))
    assert wrong.findings[0].role == "attn_norm"


def test_every_pair_names_its_records(dump: Dump) -> None:
    """What was merged is told by the names in the dumps."""
    places = {pair.place: pair for pair in compared(dump(Run("hf")), dump(Run("megatron"))).mapping}
    assert [name.split(".")[-4] for name in places["layers.2.qkv"].train] == ["q_proj", "k_proj", "v_proj"]
    assert places["layers.2.qkv"].rollout == [
        "Module.decoder.layers.2.self_attention.linear_qkv.ColumnParallelLinear.forward.0"
    ]
    assert {place.split(".")[-1] for place, pair in places.items() if not pair.train} == {"core"}
