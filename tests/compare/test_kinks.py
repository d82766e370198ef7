"""Operators that choose or bend, in bf16 against fp32: clean runs agree, and a fault in one of them is one finding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from numprobe.compare.result import CompareResult
from numprobe.compare.run import CompareOptions, compare

from .kinks import FAULTS, dump

SEEDS = (9, 16)
PAIRS = [(9, False), (9, True), (16, False), (16, True)]


def compared(target: Path, golden: Path, by: str) -> CompareResult:
    return compare(target, golden, CompareOptions(by=by, use_cache=False, jobs=1)).result


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], Path]:
    root = tmp_path_factory.mktemp("golden")
    return {(s, m): dump(root / f"{s}-{m}", torch.float32, s, modules=m) for s, m in PAIRS}


@pytest.mark.parametrize(("seed", "modules"), PAIRS)
def test_elements_near_a_kink_are_no_fault(
    tmp_path: Path, golden: dict[tuple[int, bool], Path], seed: int, modules: bool
) -> None:
    target = dump(tmp_path / "bf16", torch.bfloat16, seed, modules=modules)
    for by in ("statistics", "tensor"):
        result = compared(target, golden[seed, modules], by)
        assert result.verdict == "pass"
        assert not result.findings
        assert result.counts["error"] == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_among_them_is_one_finding(
    tmp_path: Path, golden: dict[tuple[int, bool], Path], fault: str, seed: int
) -> None:
    modules = seed % 2 == 0
    target = dump(tmp_path / "bf16", torch.bfloat16, seed, fault, modules)
    for by in ("statistics", "tensor"):
        result = compared(target, golden[seed, modules], by)
        [finding] = result.findings
        assert result.verdict == "fail"
        named = [finding.op or "", *finding.inside, *finding.only_golden]
        assert FAULTS[fault] in " ".join(named)
        if fault == "detached":
            assert (finding.cause, finding.reason, finding.phase) == ("layout", "kind", "backward")
            assert len(finding.only_golden) > 10  # all that the gradient does not reach
