"""Dumps to talk about, in one folder that is the current one while a test runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from numprobe.agent.runs import FinishedRun, load_run
from numprobe.compare import command as comparing
from numprobe.diagnose.nan_overflow import command as nan
from numprobe.diagnose.rl_consistency import command as rl
from numprobe.synth.nan import simulate as simulate_nan
from numprobe.synth.rl import simulate as simulate_rl

INTEROP = Path(__file__).parents[1] / "data" / "interop"


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``dump/first_step_nan``, ``rl/train``, ``rl/rollout``, ``runs/a`` and ``runs/b`` (alike), and oddly named copies."""
    root = tmp_path_factory.mktemp("talk")
    simulate_nan("grouped_matmul_nan", root / "dump" / "first_step_nan", seed=0)
    simulate_nan("uninitialised_used", root / "dump" / "look_alikes", seed=0)
    simulate_rl("activation_tp2", root / "rl", seed=8, layers=4)
    for name in ("a", "b", "golden_gpu", "npu_run"):
        shutil.copytree(INTEROP / "pytorch" / "d_statistics_L0", root / "runs" / name)
    for name in ("a", "b"):
        shutil.copytree(INTEROP / "pytorch" / "c_statistics_L1_md5", root / "md5" / name)
    shutil.copytree(root / "rl" / "train", root / "nan_free" / "train_side")
    shutil.copytree(root / "runs" / "a", root / "with space" / "my dump")
    shutil.copytree(root / "dump" / "first_step_nan", root / "数据" / "首步")
    (root / "compare_result_1.csv").write_text("NPU Name,Bench Name\n", encoding="utf-8")
    (root / "notes.txt").write_text("nothing\n", encoding="utf-8")
    return root


@pytest.fixture
def here(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of :func:`dumps` as the current one."""
    monkeypatch.chdir(dumps)
    return dumps


@pytest.fixture(scope="session")
def nan_run(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    out = tmp_path_factory.mktemp("runs") / "nan"
    nan.run_to_folder(dumps / "dump" / "first_step_nan", None, out)
    return load_run(out)


@pytest.fixture(scope="session")
def rl_run(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    out = tmp_path_factory.mktemp("runs") / "rl"
    rl.run_to_folder(dumps / "rl" / "train", dumps / "rl" / "rollout", None, out)
    return load_run(out)


@pytest.fixture(scope="session")
def compare_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A comparison that fails."""
    out = tmp_path_factory.mktemp("runs") / "compare"
    engines = INTEROP / "engines"
    comparing.run_to_folder(engines / "megatron", engines / "megatron_gelu", None, out)
    return load_run(out)


@pytest.fixture(scope="session")
def agreeing_run(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A comparison that passes."""
    out = tmp_path_factory.mktemp("runs") / "agreeing"
    comparing.run_to_folder(dumps / "runs" / "a", dumps / "runs" / "b", None, out)
    return load_run(out)
