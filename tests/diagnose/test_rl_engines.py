"""The real engines on one checkpoint: every pair gets the answer that is known to be right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from numprobe.diagnose import rl_consistency
from numprobe.diagnose.rl_consistency.result import RlResult
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse

ENGINES = Path(__file__).parents[1] / "data" / "interop" / "engines"
EXPECTED = {pair: answer for pair, answer in json.loads((ENGINES / "EXPECTED.json").read_text()).items() if "|" in pair}


def answer(train: str, rollout: str) -> RlResult:
    return analyse(ENGINES / train, ENGINES / rollout, RlOptions(use_cache=False))


@pytest.mark.parametrize("pair", EXPECTED)
def test_every_pair_of_engines(pair: str) -> None:
    train, rollout = pair.split("|")
    expected = EXPECTED[pair]
    result = answer(train, rollout)
    assert result.verdict == expected["verdict"]
    assert result.coverage > 0.7
    if result.verdict == "no_difference":
        assert not result.findings
        assert result.counts["error"] == 0
        return
    [finding] = result.findings
    assert finding.clazz in expected["class"]
    assert finding.kind in expected.get("kind", [finding.kind])
    assert finding.layers == expected["layers"]
    assert any(
        word in (key or "") for word in expected["suspect"] for key in (finding.suspect.train, finding.suspect.rollout)
    )
    assert finding.anchor is not None
    for word in expected.get("anchor", []):
        assert word in f"{finding.anchor.train} {finding.anchor.rollout}"
    assert finding.confidence >= 0.75


def test_one_run_agrees_with_itself() -> None:
    result = answer("vllm", "vllm")
    assert (result.verdict, result.coverage) == ("no_difference", 1.0)


def test_shards_are_joined_and_replicas_checked() -> None:
    merged = answer("megatron_tp2", "vllm").merged
    assert merged["sharded"] > 0 < merged["replicated"]
    assert not answer("megatron", "vllm").merged


def test_the_operator_on_one_side_is_shown() -> None:
    [finding] = answer("megatron_gelu", "vllm").findings
    assert finding.segment == ["Functional.silu.0.forward", "Module.model.layers.0.mlp.act_fn.SiluAndMul.forward.0"]
    [row] = [f for f in finding.figures if f.slot == "input_args.0"]
    assert row.train[3] == pytest.approx(84.29, abs=0.01)
    assert row.rollout[3] == pytest.approx(77.62, abs=0.01)


@pytest.mark.parametrize("rollout", ["vllm", "hf"])
def test_figures_are_consistent_with_the_right_activations(rollout: str) -> None:
    """More than one fits, and none of them is proven: the kind stays open."""
    [finding] = answer("megatron_gelu", rollout).findings
    assert finding.probe is not None
    assert not finding.probe.exact
    assert "gelu" in finding.probe.train
    assert finding.probe.rollout == ["silu"]
    assert finding.kind == "unrecorded"


def test_questions_about_a_result() -> None:
    found = answer("megatron_gelu", "vllm")
    [row] = [pair for pair in rl_consistency.table(found, "linear_fc2") if "layers.0" in pair.place]
    assert row.train == ["Module.decoder.layers.0.mlp.linear_fc2.RowParallelLinear.forward.0"]
    assert row.rollout == ["Module.model.layers.0.mlp.down_proj.RowParallelLinear.forward.0"]
    assert {pair.place for pair in rl_consistency.layer(found, 0)} >= {
        "layers.0.qkv",
        "layers.0.gate_up",
        "layers.0.down",
    }
    assert "suspect" in rl_consistency.why_not(found, "layers.0.down")
    assert "behind" in rl_consistency.why_not(found, "linear_qkv")
    assert "agree" in rl_consistency.why_not(found, "layers.0.qkv")
    assert "no record" in rl_consistency.why_not(found, "nothing_of_the_kind")


def numprobe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "numprobe"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_commands(tmp_path: Path) -> None:
    arguments = [str(ENGINES / "megatron_gelu"), str(ENGINES / "vllm")]
    ran = numprobe("rl", *arguments, "--json", "-o", str(tmp_path / "out"))
    said = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert said["verdict"] == "difference_found"
    assert said["findings"][0]["class"] == "missing_operator"
    assert set(said["findings"][0]) >= {"kind", "confidence", "anchor", "suspect", "segment", "layers", "transform"}
    files = {
        "config_train.json",
        "config_rollout.json",
        "run.json",
        "result.json",
        "mapping.csv",
        "slots.csv",
        "report.md",
        "report.html",
    }
    assert {p.name for p in (tmp_path / "out").iterdir()} == files
    chinese = numprobe("rl", *arguments, "--lang", "zh", "-o", str(tmp_path / "zh"))
    assert "激活函数" in chinese.stdout
    mapping = numprobe("map", *arguments, "-o", str(tmp_path / "map.csv"))
    assert "layers.2.down" in mapping.stdout
    assert (tmp_path / "map.csv").read_text().startswith("place,train,rollout\n")
