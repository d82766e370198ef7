"""Real models under the recorder: bf16 against fp32, clean and with one fault. benchmarks/score_compare.py has many more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from numprobe.compare.result import CompareResult, Finding
from numprobe.compare.run import CompareOptions, compare

from .models import SHAPES, dump


def compared(target: Path, golden: Path, by: str) -> CompareResult:
    return compare(target, golden, CompareOptions(by=by, use_cache=False, jobs=1)).result


def errors(result: CompareResult) -> list[Finding]:
    return [f for f in result.findings if f.severity == "error"]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("golden")
    return {shape: dump(root / shape, shape, task="tensor") for shape in SHAPES}


@pytest.mark.parametrize("by", ["statistics", "tensor"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_agrees_with_fp32(tmp_path: Path, golden: dict[str, Path], shape: str, by: str) -> None:
    target = dump(tmp_path / "bf16", shape, torch.bfloat16, task="tensor")
    result = compared(target, golden[shape], by)
    assert result.verdict == "pass"
    assert result.counts["error"] == 0
    assert not errors(result)
    assert result.coverage == 1.0
    assert result.mode == by
    assert (result.detection_limit is None) == (by == "tensor")


@pytest.mark.parametrize("by", ["statistics", "tensor"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_scaled_weight_is_the_parameter(tmp_path: Path, golden: dict[str, Path], shape: str, by: str) -> None:
    target = dump(tmp_path / "bf16", shape, torch.bfloat16, fault="weight_scale", task="tensor")
    [finding] = errors(compared(target, golden[shape], by))
    expert = "experts.0." if shape == "moe" else ""
    assert (finding.cause, finding.parameter) == ("parameter", f"layers.1.mlp.{expert}up_proj.weight")
    assert finding.op is not None
    assert finding.op.startswith("Functional.linear.")  # the innermost record, not the module around it
    assert finding.layer == 1


@pytest.mark.parametrize("by", ["statistics", "tensor"])
def test_a_missing_scale_is_a_missing_operator(tmp_path: Path, golden: dict[str, Path], by: str) -> None:
    target = dump(tmp_path / "bf16", "gqa", torch.bfloat16, fault="softmax_scale", task="tensor")
    result = compared(target, golden["gqa"], by)
    [finding] = errors(result)
    assert (finding.cause, finding.reason) == ("introduced", "operator_missing")
    assert finding.op == "Tensor.__add__.10.forward"
    assert finding.only_golden == ["Tensor.__mul__.23.forward"]  # all later calls of __mul__ have other numbers
    assert finding.inside[0] == "Module.layers.1.self_attn.Attention.forward.0"
    assert result.counts["unmatched_golden"] == 5  # the call, and its backward
    assert result.counts["unmatched_target"] == 0


@pytest.mark.parametrize("by", ["statistics", "tensor"])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_nan(tmp_path: Path, golden: dict[str, Path], shape: str, by: str) -> None:
    target = dump(tmp_path / "bf16", shape, torch.bfloat16, fault="nan", task="tensor")
    [finding] = errors(compared(target, golden[shape], by))
    assert finding.cause == "nonfinite"
    assert finding.op is not None
    assert finding.op.endswith("product.Product.forward.0")


@pytest.mark.parametrize("shape", SHAPES)
def test_swapped_heads_lie_between_two_calls(tmp_path: Path, golden: dict[str, Path], shape: str) -> None:
    target = dump(tmp_path / "bf16", shape, torch.bfloat16, fault="swapped_heads", task="tensor")
    [finding] = errors(compared(target, golden[shape], "tensor"))
    assert (finding.cause, finding.reason) == ("introduced", "gap")
    assert finding.after == "Torch.matmul.3.forward"
    assert finding.inside[0] == "Module.layers.1.self_attn.o_proj.Linear.forward.0"


@pytest.mark.parametrize("shape", SHAPES)
def test_one_wrong_element(tmp_path: Path, golden: dict[str, Path], shape: str) -> None:
    target = dump(tmp_path / "bf16", shape, torch.bfloat16, fault="one_element", task="tensor")
    [finding] = errors(compared(target, golden[shape], "tensor"))
    assert finding.cause == "introduced"
    assert finding.op is not None
    assert finding.op.endswith("product.Product.forward.0")


@pytest.mark.parametrize("mode", ["md5", "xor"])
def test_checksums_find_what_figures_cannot(tmp_path: Path, mode: str) -> None:
    """Behind the fault, XORs of tensors whose elements come twice are equal, whatever the elements are."""
    golden = dump(tmp_path / "golden", "gqa", summary_mode=mode)
    for fault in ("one_element", "swapped_heads", "nan"):
        target = dump(tmp_path / fault, "gqa", fault=fault, summary_mode=mode)
        result = compared(target, golden, "auto")
        [finding] = errors(result)
        assert result.mode == "digest"
        assert finding.cause == ("nonfinite" if (fault, mode) == ("nan", "md5") else "introduced")
    again = compared(dump(tmp_path / "again", "gqa", summary_mode=mode), golden, "auto")
    assert again.verdict == "pass"
    assert {k for k, n in again.counts.items() if n} <= {"pass", "incomparable"}
    assert again.counts["incomparable"] == (0 if mode == "md5" else 2)  # two scalars without a digest


def test_modules_alone(tmp_path: Path) -> None:
    golden = dump(tmp_path / "golden", level="L0")
    result = compared(dump(tmp_path / "target", dtype=torch.bfloat16, fault="weight_scale", level="L0"), golden, "auto")
    [finding] = errors(result)
    assert finding.op == "Module.layers.1.mlp.up_proj.Linear.forward.0"
    assert finding.cause == "parameter"


def test_another_level_compares_what_both_have(tmp_path: Path, golden: dict[str, Path]) -> None:
    result = compared(dump(tmp_path / "target", dtype=torch.bfloat16, level="L0"), golden["dense"], "statistics")
    assert result.verdict == "pass"
    assert result.notes == ["levels:L0:mix"]
    assert result.coverage == 1.0  # of the kinds of records that both levels have
    assert not result.findings


def test_a_baseline_allows_what_it_shows(tmp_path: Path, golden: dict[str, Path]) -> None:
    """What is wrong by the arithmetic is fine where a trusted run is as far from the golden one."""
    target = dump(tmp_path / "target", dtype=torch.bfloat16, fault="weight_scale", task="tensor")
    alone = compared(target, golden["dense"], "tensor")
    beside = compare(target, golden["dense"], CompareOptions(baseline=target, use_cache=False, jobs=1)).result
    assert alone.verdict == "fail"
    assert beside.verdict == "pass"
    worse = dump(tmp_path / "worse", dtype=torch.bfloat16, fault="softmax_scale", task="tensor")
    assert (
        compare(worse, golden["dense"], CompareOptions(baseline=target, use_cache=False, jobs=1)).result.verdict
        == "fail"
    )


def test_a_second_run_shows_the_noise(tmp_path: Path, golden: dict[str, Path]) -> None:
    """Two runs that are not deterministic: what a repeated run shows is no difference."""
    noisy = [dump(tmp_path / f"noisy{n}", noise=1e-4, noise_seed=n, task="tensor") for n in range(2)]
    assert compared(noisy[0], golden["dense"], "tensor").verdict == "fail"
    beside = compare(noisy[0], golden["dense"], CompareOptions(noise=noisy[1], use_cache=False, jobs=1)).result
    assert beside.verdict == "pass"


def test_checkpointing_on_one_side(tmp_path: Path) -> None:
    """Activation checkpointing calls everything twice: the second calls are compared with the first ones of the golden run."""
    golden = dump(tmp_path / "golden")
    result = compared(dump(tmp_path / "target", recompute=True), golden, "auto")
    assert result.verdict == "pass"
    assert result.counts["unmatched_target"] == result.counts["unmatched_golden"] == 0
