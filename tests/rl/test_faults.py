"""One fault at a time, on either side: the right class, role and layer, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations

import pytest
import torch
from torch import Tensor

from numprobe.diagnose.rl_consistency.page.screen import render_terminal
from numprobe.report.terminal import Style

from .conftest import Dump
from .models import STYLES, Decoder, Run, make_weights
from .recorded import compared, only

DENSE, MIXTURE = Decoder(), Decoder(experts=4)
PAIRS = list(permutations(STYLES, 2))
ALL = [0, 1, 2]
PRECISIONS = pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def with_nan(weight: Tensor) -> Tensor:
    changed = weight.clone()
    changed[0, 0] = torch.nan
    return changed


@dataclass(frozen=True)
class Fault:
    """``finding`` is what has to be found: class, kinds, roles (that of the first place where each pair has figures), layers."""

    name: str
    finding: tuple[str, set[str], set[str], list[int]]
    config: Decoder = DENSE
    changed: Mapping[str, Tensor | float] = field(default_factory=dict)


WEIGHTS = make_weights(DENSE)
FAULTS = [
    Fault("epsilon", ("implementation_difference", {"inside"}, {"attn_norm"}, [0]), replace(DENSE, epsilon=1e-2)),
    Fault(
        "embedding scale",
        ("configuration_difference", {"scale"}, {"embed"}, []),
        replace(DENSE, embedding_factor=8.0),
    ),
    Fault(
        "softmax scale",
        ("implementation_difference", {"inside", "unrecorded"}, {"core", "out"}, ALL),
        replace(DENSE, softmax_factor=1.3),
    ),
    Fault("stale weight", ("parameter_difference", {"value"}, {"down"}, [1]), changed={"1.down": 1.03}),
    Fault("stale part", ("parameter_difference", {"value"}, {"qkv"}, [1]), changed={"1.q": 1.03}),
    Fault("another layer's", ("parameter_difference", {"value"}, {"out"}, [1]), changed={"1.o": WEIGHTS["2.o"]}),
    Fault("stale gain", ("parameter_difference", {"value"}, {"mlp_norm"}, [2]), changed={"2.mlp_norm": 1.03}),
    Fault(
        "another checkpoint", ("parameter_difference", {"everywhere"}, {"embed"}, ALL), changed=make_weights(DENSE, 8)
    ),
    Fault("one NaN", ("nonfinite_one_side", {"parameter"}, {"out"}, [1]), changed={"1.o": with_nan(WEIGHTS["1.o"])}),
    Fault(
        "all NaN",
        ("nonfinite_one_side", {"parameter"}, {"embed"}, []),
        changed={"embed": WEIGHTS["embed"] * torch.nan},
    ),
]
MIXTURES = [
    Fault(
        "not renormalised",
        ("implementation_difference", {"inside"}, {"moe"}, ALL),
        replace(MIXTURE, renormalise=False),
    ),
    Fault("stale expert", ("parameter_difference", {"value"}, {"moe", "down"}, [1]), MIXTURE, {"1.0.down": 1.03}),
    Fault("epsilon", ("implementation_difference", {"inside"}, {"attn_norm"}, [0]), replace(MIXTURE, epsilon=1e-2)),
]


@PRECISIONS
@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
@pytest.mark.parametrize("fault", [*FAULTS, *MIXTURES], ids=lambda f: f"{f.name}{' moe' * bool(f.config.experts)}")
def test_a_fault_on_the_training_side(dump: Dump, fault: Fault, pair: tuple[str, str], precision: torch.dtype) -> None:
    wrong = dump(Run(pair[0], fault.config, precision, fault.changed))
    right = dump(Run(pair[1], MIXTURE if fault.config.experts else DENSE))
    finding = only(compared(wrong, right))
    clazz, kinds, roles, layers = fault.finding
    assert finding.clazz == clazz
    assert finding.kind in kinds
    assert finding.role in roles
    assert finding.layers == layers or (precision is torch.bfloat16 and finding.layers[0] == layers[0])
    assert finding.transform is None
    assert all(term.value for term in finding.terms)
    assert finding.confidence == pytest.approx(min(sum(term.value for term in finding.terms), 0.97), abs=0.005)


@pytest.mark.parametrize("fault", [*FAULTS, *MIXTURES], ids=lambda f: f"{f.name}{' moe' * bool(f.config.experts)}")
def test_a_fault_on_the_rollout_side(dump: Dump, fault: Fault) -> None:
    right = dump(Run("megatron", MIXTURE if fault.config.experts else DENSE))
    finding = only(compared(right, dump(Run("engine", fault.config, torch.float32, fault.changed))))
    clazz, kinds, roles, layers = fault.finding
    assert (finding.clazz, finding.layers) == (clazz, layers)
    assert finding.kind in kinds
    assert finding.role in roles
    assert finding.confidence >= 0.6


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("side", ["train", "rollout"])
@pytest.mark.parametrize("name", ["1.o", "embed"])
def test_the_side_that_is_not_finite_is_named_and_its_figures_are_shown(
    dump: Dump, side: str, lang: str, name: str
) -> None:
    """NaN is a value: the cells do not look like those of a side that recorded nothing."""
    changed = {name: with_nan(WEIGHTS[name])}
    runs = {"train": Run("megatron"), "rollout": Run("engine")}
    result = compared(*(dump(replace(run, changed=changed) if one == side else run) for one, run in runs.items()))
    finding = only(result)
    (slot,) = [figures for figures in finding.figures if figures.slot == finding.slot]
    wrong, right = (slot.train, slot.rollout) if side == "train" else (slot.rollout, slot.train)
    assert all(value is not None and math.isnan(value) for value in wrong[:2])
    assert all(value is not None and math.isfinite(value) for value in right)
    text = render_terminal(result, lang, Style(width=1000), "report.html")
    named = {
        "en": {"train": "in training", "rollout": "in rollout"},
        "zh": {"train": "在训练侧", "rollout": "在推理侧"},
    }
    assert named[lang][side] in text.splitlines()[0]
    assert "NaN" in text
    assert f"numprobe nan {result.train if side == 'train' else result.rollout}" in text


def test_factors_are_told(dump: Dump) -> None:
    stale = only(compared(dump(Run("hf", changed={"1.down": 1.03})), dump(Run("engine"))))
    assert stale.ratio == pytest.approx(1.03, abs=1e-4)
    assert stale.parameter == "weight"
    scaled = only(compared(dump(Run("megatron")), dump(Run("engine", replace(DENSE, embedding_factor=8.0)))))
    assert scaled.ratio == pytest.approx(1 / 8)


@PRECISIONS
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_another_activation(dump: Dump, pair: tuple[str, str], activation: str, precision: torch.dtype) -> None:
    """Both sides record one: they are told apart by name. One side at most: the numbers decide that it is between."""
    wrong = Run(pair[0], replace(DENSE, activation=activation), precision)
    finding = only(compared(dump(wrong, "L0"), dump(Run(pair[1]), "L0")))
    both = "megatron" not in pair
    assert (finding.clazz, finding.kind) == (
        ("configuration_difference", "different") if both else ("missing_operator", "unrecorded")
    )
    assert (finding.role, finding.slot, finding.layers) == ("down", "input_args.0", ALL)
    assert finding.anchor is not None
    assert "gate" in f"{finding.anchor.train} {finding.anchor.rollout}"
    assert any("act_fn" in name for name in finding.segment) == ("engine" in pair)
    if precision is torch.float32:
        assert finding.confidence >= 0.75


def test_an_activation_of_experts(dump: Dump) -> None:
    wrong = Run("hf", replace(MIXTURE, activation="gelu"))
    apart = only(compared(dump(wrong), dump(Run("megatron", MIXTURE))))
    assert (apart.clazz, apart.role, apart.layers[0]) == ("missing_operator", "down", 0)
    assert "experts.0.down_proj" in str(apart.suspect.train)
    together = only(compared(dump(wrong), dump(Run("engine", MIXTURE))))
    assert (together.clazz, together.role, together.layers) == ("implementation_difference", "moe", ALL)


@pytest.mark.parametrize("other", ["hf", "engine"])
def test_faults_of_a_fused_norm(dump: Dump, other: str) -> None:
    fused = replace(DENSE, fused_norm=True)
    stale = only(compared(dump(Run("megatron", fused, changed={"1.mlp_norm": 1.03})), dump(Run(other))))
    assert (stale.clazz, stale.role, stale.parameter, stale.layers) == ("parameter_difference", "gate_up", "norm", [1])
    epsilon = only(compared(dump(Run("megatron", replace(fused, epsilon=1e-2))), dump(Run(other))))
    assert (epsilon.clazz, epsilon.kind, epsilon.role) == ("implementation_difference", "inside", "qkv")


@pytest.mark.parametrize(("changed", "role"), [({"1.down": 1.03}, "down"), ({"1.q": 1.03}, "qkv")])
def test_a_stale_weight_that_is_not_recorded(dump: Dump, changed: dict[str, float], role: str) -> None:
    """Its output gives it away, less surely."""
    packed = Run("engine", replace(DENSE, packed_weights=True), changed=changed)
    finding = only(compared(dump(Run("hf")), dump(packed)))
    assert (finding.clazz, finding.kind, finding.role, finding.layers) == (
        "parameter_difference",
        "unrecorded",
        role,
        [1],
    )


def test_a_fault_of_one_layer(dump: Dump) -> None:
    wrong = Run("megatron", replace(DENSE, softmax_factor=1.3, only_layer=1))
    finding = only(compared(dump(wrong), dump(Run("engine"))))
    assert (finding.clazz, finding.role, finding.layers) == ("implementation_difference", "core", [1])
