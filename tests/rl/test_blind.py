"""Faults that figures cannot see: the first place that shows them, and what may be behind it; never a wrong culprit."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from numprobe.diagnose.rl_consistency.result import Finding

from .conftest import Dump
from .models import STYLES, Decoder, Run
from .recorded import compared, only, told

DENSE = Decoder()
PAIRS = list(permutations(STYLES, 2))
ROTARY, HALVES, HEADS = (
    replace(DENSE, rotary="neighbours"),
    replace(DENSE, gate_first=False),
    replace(DENSE, heads_swapped=True),
)


def names(f: Finding) -> str:
    """Everything that the finding points at: anchor, between, suspect."""
    ends = [key for part in (f.anchor, f.suspect) if part for key in (part.train, part.rollout) if key]
    return " ".join([*ends, *f.segment])


@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_rotary_embedding_of_neighbours(dump: Dump, pair: tuple[str, str]) -> None:
    f = only(compared(dump(Run(pair[0], ROTARY)), dump(Run(pair[1]))))
    assert (f.clazz, f.kind) == ("implementation_difference", "unrecorded"), told(f)
    assert f.role == ("out" if "hf" in pair else "core")  # Hugging Face has no module between
    assert "rotary" in f.blind
    if "engine" in pair:
        assert "rotary_emb" in names(f)


@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_gate_and_up_exchanged(dump: Dump, pair: tuple[str, str]) -> None:
    f = only(compared(dump(Run(pair[0], HALVES)), dump(Run(pair[1]))))
    assert (f.role, f.slot) == ("down", "input_args.0"), told(f)
    assert "gate_up" in f.blind
    assert f.clazz == ("missing_operator" if "megatron" in pair else "implementation_difference")


@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_heads_in_another_order(dump: Dump, pair: tuple[str, str]) -> None:
    """The projection behind them is the first to differ. It is not to blame, and not blamed alone."""
    f = only(compared(dump(Run(pair[0], HEADS)), dump(Run(pair[1]))))
    assert (f.clazz, f.kind, f.role) == ("implementation_difference", "order", "out"), told(f)
    assert {"heads", "order"} <= set(f.blind)
    assert f.confidence < 0.75
    assert any(term.key == "term.blind" for term in f.terms)


@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_heads_in_bf16(dump: Dump, pair: tuple[str, str]) -> None:
    """Further behind, since the projection itself is in doubt only: what is in doubt lies between anchor and suspect."""
    result = compared(dump(Run(pair[0], HEADS, torch.bfloat16)), dump(Run(pair[1])))
    f = only(result)
    assert f.clazz == "implementation_difference"
    assert {"heads", "order"} & set(f.blind)
    assert any(word in names(f) for word in ("o_proj", "linear_proj"))


@pytest.mark.parametrize("rollout", ["hf", "engine"])
def test_rows_of_qkv_not_regrouped(dump: Dump, rollout: str) -> None:
    """The weight and the output of ``linear_qkv`` have the same figures in any order."""
    f = only(compared(dump(Run("megatron", replace(DENSE, grouped=False))), dump(Run(rollout))))
    assert (f.clazz, f.kind) == ("implementation_difference", "unrecorded"), told(f)
    assert f.role == ("out" if rollout == "hf" else "core")
    assert "qkv_rows" in f.blind
    assert "linear_qkv" in names(f)


def test_an_agreement_says_what_it_cannot_see(dump: Dump) -> None:
    result = compared(dump(Run("hf")), dump(Run("megatron")))
    assert result.detection_limit is not None
    assert 0 < result.detection_limit < 0.01
