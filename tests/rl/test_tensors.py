"""Dumps with tensors: every element is where the layouts of the frameworks put it, and other orders are named."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from numprobe.align.calls import read_calls
from numprobe.align.roles.pairing import both_sides
from numprobe.align.roles.side import RoleSide
from numprobe.diagnose import rl_consistency
from numprobe.diagnose.rl_consistency.page.screen import render_terminal
from numprobe.diagnose.rl_consistency.result import RlResult
from numprobe.formats.dump import open_dump
from numprobe.pytorch import PrecisionDebugger
from numprobe.report.terminal import Style

from .conftest import Dump
from .models import STYLES, Decoder, MegatronMLP, Run, make_tokens, make_weights
from .ranks import split_over_experts, split_over_ranks, split_over_sequences
from .recorded import compared, only, record_with, told

DENSE, MIXTURE = Decoder(), Decoder(experts=4)
PAIRS = list(permutations(STYLES, 2))
ALL = [0, 1, 2]


def with_tensors(dump: Dump, train: Run, rollout: Run, level: str = "mix") -> RlResult:
    return compared(dump(train, level, task="tensor"), dump(rollout, level, task="tensor"))


@pytest.mark.parametrize("config", [DENSE, MIXTURE, replace(DENSE, fused_norm=True)], ids=["dense", "mixture", "fused"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_clean(dump: Dump, config: Decoder, precision: torch.dtype, pair: tuple[str, str]) -> None:
    result = with_tensors(dump, Run(pair[0], config, precision), Run(pair[1], config))
    assert (result.verdict, result.findings, result.counts["error"]) == ("no_difference", [], 0)
    compared_slots = result.counts["pass"] + result.counts["warning"]
    experts = sum("experts" in place.place for place in result.mapping)  # their tokens have no common order
    assert result.tensors == compared_slots if not experts else result.tensors > 60
    assert result.counts["incomparable"] == 0


def side_of(dump: Dump, style: str, other: str) -> RoleSide:
    """The first of two runs in canonical form."""
    opened = [open_dump(dump(Run(name), task="tensor"), use_cache=False) for name in (style, other)]
    ranks = [[read_calls(one.rank(one.steps[0].ranks[0]))] for one in opened]
    return both_sides(ranks[0], ranks[1])[0]


def tensor_of(side: RoleSide, place: str, path: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    values = side.calls.values
    for record, op in enumerate(side.calls.ops):
        for row in values.rows(record):
            if op.path == place and values.slots[values.slot[row]][1] == path:
                return np.asarray(side.calls.tensors.open(values.files[row]).array())
    raise AssertionError(f"{place} {path}")


@pytest.mark.parametrize("style", STYLES)
def test_canonical_weights_are_the_weights_of_the_model(dump: Dump, style: str) -> None:
    """Against the weights that the model was made of, without numprobe's own arithmetic."""
    w = make_weights(DENSE)
    side = side_of(dump, style, "megatron" if style != "megatron" else "hf")
    for name, parts in (("qkv", "qkv"), ("gate_up", ("gate", "up")), ("out", "o"), ("down", ("down",))):
        wanted = torch.cat([w[f"1.{part}"] for part in parts]).numpy()
        np.testing.assert_array_equal(tensor_of(side, f"layers.1.{name}", "parameters.weight"), wanted)


@pytest.mark.parametrize("style", STYLES)
def test_canonical_activations_are_in_one_order(dump: Dump, style: str) -> None:
    """q, k, v of every token of the first layer, from the weights alone."""
    w, ids = make_weights(DENSE), torch.cat(make_tokens())
    x = w["embed"][ids]
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + DENSE.epsilon) * w["0.attn_norm"]
    wanted = x @ torch.cat([w[f"0.{part}"] for part in "qkv"]).T
    side = side_of(dump, style, "hf" if style != "hf" else "engine")
    np.testing.assert_allclose(tensor_of(side, "layers.0.qkv", "output.0"), wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_other_batches_of_the_same_prompts(dump: Dump, pair: tuple[str, str]) -> None:
    """In another order, one prompt a call, after a warm-up: the ids tell which token is which."""
    train = dump(Run(pair[0]), task="tensor")
    prompts = make_tokens()
    for batches in ([prompts[::-1]], [make_tokens((40,), seed=1), prompts], [[one] for one in prompts]):
        if len(batches) == 2 and len(batches[0]) == len(batches[1]) and pair[1] == "megatron":
            continue
        result = compared(train, dump(Run(pair[1]), "mix", batches, "tensor"))
        assert (result.verdict, result.counts["error"]) == ("no_difference", 0)
        assert result.tensors > 50


def test_prompts_of_unequal_length_in_another_order(dump: Dump) -> None:
    """Packed: positions tell where a prompt begins."""
    prompts = make_tokens((5, 12, 7))
    one, other = (dump(Run("engine"), "mix", [batch], "tensor") for batch in (prompts, prompts[::-1]))
    result = compared(one, other)
    assert (result.verdict, result.counts["error"]) == ("no_difference", 0)
    assert result.tensors > 70


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("zigzag", [True, False], ids=["zigzag", "in order"])
@pytest.mark.parametrize("style", ["hf", "megatron"])
def test_sequences_of_context_parallel_ranks(dump: Dump, tmp_path: Path, style: str, zigzag: bool, task: str) -> None:
    """Of two ranks: the ids tell which tokens each has."""
    whole, right = dump(Run(style), task="tensor"), dump(Run("engine"), task="tensor")
    parts = split_over_sequences(whole, tmp_path, 2, 12, zigzag=zigzag)
    if task == "statistics":
        parts, right = without_tensors(parts), dump(Run("engine"))
    result, expected = compared(parts, right), compared(whole, right)
    assert (result.verdict, result.counts["error"], result.counts["warning"]) == ("no_difference", 0, 0)
    assert result.tensors == (expected.tensors if task == "tensor" else 0)
    assert result.merged["sharded"] > 30
    fault = dump(Run("engine", changed={"1.up": 1.05}), task=task)
    f = only(compared(parts, fault))
    assert (f.clazz, f.layers) == ("parameter_difference", [1])


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_tensor_and_context_parallel_at_once(dump: Dump, tmp_path: Path, task: str) -> None:
    """Of four ranks, two share each sequence and two each weight. Of tensors, what is cut both ways has figures alone."""
    sequences = split_over_sequences(dump(Run("megatron"), task="tensor"), tmp_path / "cp", 2, 12)
    for chunk in range(2):
        shards = split_over_ranks(sequences / "step0" / f"rank{chunk}", tmp_path / f"tp{chunk}", 2)
        for shard in range(2):
            place = tmp_path / "both" / "step0" / f"rank{2 * chunk + shard}"
            shutil.copytree(shards / "step0" / f"rank{shard}", place)
    both, right = tmp_path / "both", dump(Run("engine"), task=task)
    if task == "statistics":
        without_tensors(both)
    result = compared(both, right)
    assert (result.verdict, result.counts["error"], result.counts["warning"]) == ("no_difference", 0, 0)
    assert result.merged["partial"] <= 6
    assert (result.tensors > 30) == (task == "tensor")
    f = only(compared(both, dump(Run("engine", changed={"1.down": 1.05}), task=task)))
    assert (f.clazz, f.role, f.layers) == ("parameter_difference", "down", [1])


@pytest.mark.parametrize("grouped", [False, True], ids=["one by one", "grouped"])
@pytest.mark.parametrize("other", ["hf", "engine"])
def test_experts_of_expert_parallel_ranks(dump: Dump, tmp_path: Path, other: str, grouped: bool) -> None:
    """Two of four on each rank, counted from 0: their weights are compared as one tensor of all."""
    whole = dump(Run("megatron", MIXTURE), task="tensor")
    parts = split_over_experts(whole, tmp_path, 2, 4, grouped=grouped)
    result = compared(parts, dump(Run(other, MIXTURE), task="tensor"))
    assert (result.verdict, result.counts["error"]) == ("no_difference", 0)
    assert result.merged["sharded"] == 6
    f = only(compared(parts, dump(Run(other, MIXTURE, changed={"1.3.down": 1.03}), task="tensor")))
    assert (f.clazz, f.role, f.layers) == ("parameter_difference", "moe", [1])


def without_tensors(folder: Path) -> Path:
    for place in folder.rglob("dump_tensor_data"):
        shutil.rmtree(place)
    for file in folder.rglob("dump.json"):
        file.write_text(re.sub(r', *"data_name": *"[^"]*"', "", file.read_text()))
    return folder


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("other", ["hf", "engine"])
def test_shards_are_put_together(dump: Dump, tmp_path: Path, other: str, sequence_parallel: bool) -> None:
    """Of two ranks: query groups, halves of gate and up, columns of the row parallel weights, parts of the sequence."""
    right = dump(Run(other), task="tensor")
    whole = compared(dump(Run("megatron"), task="tensor"), right)
    parts = split_over_ranks(dump(Run("megatron"), task="tensor"), tmp_path, 2, sequence_parallel=sequence_parallel)
    result = compared(parts, right)
    assert (result.verdict, result.counts["error"], result.tensors) == ("no_difference", 0, whole.tensors)
    assert result.merged["sharded"] >= 18 + 12 * sequence_parallel
    assert result.merged["partial"] == (12 if other == "hf" else 0)  # Hugging Face has no module around attention


def test_shards_in_another_order(dump: Dump, tmp_path: Path) -> None:
    """Gate and up of one rank after those of the other, as a plain concatenation of the shards has them."""
    w = make_weights(DENSE)
    changed = {}
    for i in ALL:
        mixed = torch.cat([w[f"{i}.{part}"].chunk(2)[rank] for rank in (0, 1) for part in ("gate", "up")])
        changed[f"{i}.gate"], changed[f"{i}.up"] = mixed.chunk(2)
    f = only(with_tensors(dump, Run("megatron", changed=changed), Run("engine")))
    assert (f.clazz, f.kind, f.role, f.layers) == ("layout_error", "shards", "gate_up", ALL), told(f)


def test_one_wrong_shard(dump: Dump, tmp_path: Path) -> None:
    ranks = split_over_ranks(dump(Run("megatron", changed={}), task="tensor"), tmp_path, 2)
    [file] = (ranks / "step0" / "rank1" / "dump_tensor_data").glob("*layers.1.mlp.linear_fc2*parameters.weight*")
    torch.save(torch.load(file, weights_only=True).roll(1, 0), file)  # no figure shows it
    f = only(compared(ranks, dump(Run("engine"), task="tensor")))
    assert (f.clazz, f.role, f.layers) == ("parameter_difference", "down", [1])


ORDERS = [
    ("gate_up", replace(DENSE, gate_first=False), {"gate_up"}),
    ("heads", replace(DENSE, heads_swapped=True), {"core", "out"}),
    ("qkv_rows", replace(DENSE, grouped=False), {"qkv"}),
]


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("transform", "config", "roles"), ORDERS, ids=[o[0] for o in ORDERS])
@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_another_order(
    dump: Dump, pair: tuple[str, str], transform: str, config: Decoder, roles: set[str], precision: torch.dtype
) -> None:
    """Never a pass, and never another class: the exact place, whatever side it is on."""
    if transform == "qkv_rows" and pair[0] != "megatron":
        pytest.skip("only Megatron groups")
    for train, rollout in ((Run(pair[0], config, precision), Run(pair[1])), (Run(pair[1]), Run(pair[0], config))):
        f = only(with_tensors(dump, train, rollout))
        assert (f.clazz, f.kind, f.transform, f.layers) == ("layout_error", transform, transform, ALL), told(f)
        assert f.role in roles
        assert (f.role == "core") == (transform == "heads" and "hf" not in pair)
        assert f.blind == []
        assert f.confidence >= 0.7


def test_the_layouts_of_the_rules_are_told(dump: Dump) -> None:
    f = only(with_tensors(dump, Run("megatron", replace(DENSE, grouped=False)), Run("engine")))
    assert f.layouts == ["grouped", "stacked"]
    assert only(with_tensors(dump, Run("hf", replace(DENSE, gate_first=False)), Run("engine"))).layouts[0] == "split"


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_rotary_style(dump: Dump, pair: tuple[str, str], precision: torch.dtype) -> None:
    """It is no order of elements. Where q and k are recorded behind it, it is known which elements were turned together."""
    f = only(with_tensors(dump, Run(pair[0], replace(DENSE, rotary="neighbours"), precision), Run(pair[1])))
    assert (f.clazz, f.transform) == ("implementation_difference", None), told(f)
    assert (f.role, f.kind) == (("out", "unrecorded") if "hf" in pair else ("core", "rotary"))


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_the_activation_is_measured(dump: Dump, pair: tuple[str, str], activation: str) -> None:
    f = only(with_tensors(dump, Run(pair[0], replace(DENSE, activation=activation)), Run(pair[1]), "L0"))
    assert f.clazz == ("missing_operator" if "megatron" in pair else "configuration_difference")
    assert f.kind == "different"
    assert f.probe is not None
    assert f.probe.exact
    assert (f.probe.train, f.probe.rollout) == (["gelu_tanh" if activation == "gelu" else activation], ["silu"])
    assert f.probe.train_errors[f.probe.train[0]] < 1e-6 < f.probe.train_errors["silu"]
    assert f.confidence >= 0.85


class WrongHalf(MegatronMLP):
    def forward(self, hidden_states: Tensor) -> Tensor:
        up, gate = self.linear_fc1(hidden_states)[0].chunk(2, -1)
        return self.linear_fc2(torch.nn.functional.silu(gate) * up)


def test_up_taken_for_the_gate(dump: Dump, tmp_path: Path) -> None:
    """The weights are right and the code takes the wrong half: no weight differs, and the product tells."""
    right = dump(Run("engine"), task="tensor")
    model = Run("megatron").build()
    for layer in model.decoder.layers:
        layer.mlp.__class__ = WrongHalf
    with torch.no_grad(), PrecisionDebugger(task="tensor", dump_path=str(tmp_path), level="mix") as debugger:
        debugger.start(model=model)
        model(make_tokens())
        debugger.stop()
        debugger.step()
    f = only(compared(tmp_path, right))
    assert (f.clazz, f.kind, f.role, f.layers) == ("layout_error", "gate_up", "down", ALL), told(f)
    assert f.probe is not None
    assert (f.probe.train, f.probe.rollout) == (["silu exchanged"], ["silu"])


def test_other_faults_are_as_without_tensors(dump: Dump) -> None:
    stale = only(with_tensors(dump, Run("megatron", changed={"1.q": 1.03}), Run("hf")))
    assert (stale.clazz, stale.role, stale.layers) == ("parameter_difference", "qkv", [1])
    one = make_weights(DENSE)["1.down"].clone()
    one[3, 5] += 0.5  # a single element, that no figure shows
    single = only(with_tensors(dump, Run("hf", changed={"1.down": one}), Run("engine")))
    assert (single.clazz, single.role, single.layers) == ("parameter_difference", "down", [1])
    tokens = compared(dump(Run("hf"), "mix", [make_tokens(seed=9)], "tensor"), dump(Run("engine"), task="tensor"))
    assert (tokens.verdict, tokens.reason) == ("premise_broken", "tokens")


def test_a_file_that_is_missing(dump: Dump, tmp_path: Path) -> None:
    """The figures decide there."""
    copied = tmp_path / "copy"
    shutil.copytree(dump(Run("hf"), task="tensor"), copied)
    for path in copied.rglob("*o_proj*"):
        path.unlink()
    result = compared(copied, dump(Run("engine"), task="tensor"))
    assert result.verdict == "no_difference"
    assert 0 < result.counts["incomparable"] < 12


@pytest.mark.parametrize("config", [replace(DENSE, rotary="neighbours"), replace(DENSE, grouped=False)])
def test_what_figures_leave_open_is_recorded_next(dump: Dump, tmp_path: Path, config: Decoder) -> None:
    """From statistics to the configurations, from those to dumps of a few tensors, and from these to the answer."""
    runs = {"train": Run("megatron", config), "rollout": Run("engine")}
    first = rl_consistency.run(dump(runs["train"]), dump(runs["rollout"]), out=tmp_path / "first")
    assert first.findings[0].blind
    assert first.next == {"train": "config_train.json", "rollout": "config_rollout.json"}
    assert json.loads((tmp_path / "first" / "result.json").read_text())["next"] == first.next
    dumps = {}
    for side, name in first.next.items():
        content = json.loads((tmp_path / "first" / name).read_text())
        content["dump_path"] = str(tmp_path / side)
        (tmp_path / f"{side}.json").write_text(json.dumps(content))
        with PrecisionDebugger(config_path=str(tmp_path / f"{side}.json")) as debugger:
            record_with(debugger, runs[side])
        dumps[side] = tmp_path / side
    f = compared(dumps["train"], dumps["rollout"]).findings[0]
    assert (f.kind, f.role) == (("rotary", "core") if config.grouped else ("qkv_rows", "qkv")), told(f)
    assert f.layers == ([0] if config.grouped else f.layers)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_is_said(dump: Dump, lang: str) -> None:
    def shown(f: RlResult) -> str:
        return render_terminal(f, lang, Style(width=300), "report.html")

    wrong = shown(with_tensors(dump, Run("megatron", replace(DENSE, grouped=False)), Run("engine")))
    assert "grouped" in wrong
    assert "stacked" in wrong
    gelu = shown(with_tensors(dump, Run("megatron", replace(DENSE, activation="gelu")), Run("engine"), "L0"))
    assert "gelu_tanh" in gelu
    assert "silu" in gelu


def test_a_pass_says_how_much_was_compared_by_element(dump: Dump) -> None:
    result = with_tensors(dump, Run("hf"), Run("engine"))
    assert str(result.tensors) in render_terminal(result, "en", Style(width=200), "report.html")
