"""The other commands, and what the light ones must not load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from numprobe.cli import demo as demo_module
from numprobe.synth.nan import SCENARIOS

from .shell import CLEAN, INTEROP, NO_FIGURES, H, environment, numprobe, process, tree


def test_help_and_version(tmp_path: Path):
    ran = process(tmp_path, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "inspect" in ran.out
    for name in ("nan", "inspect", "demo", "synth"):
        one = numprobe(tmp_path, name, "-h")
        assert (one.code, one.err) == (0, "")
        assert one.out.startswith(f"Usage: numprobe {name}")
    version = numprobe(tmp_path, "--version")
    assert (version.code, version.out.split()[0]) == (0, "numprobe")


# --- inspect ---------------------------------------------------------------------------------------------------------


def test_inspect_as_json(tmp_path: Path):
    ran = numprobe(tmp_path, "inspect", H, "--json")
    assert (ran.code, ran.err) == (0, "")
    keys = ["framework", "task", "level", "steps", "ops", "values", "nonfinite_ops", "skills"]
    assert list(ran.json)[: len(keys)] == keys
    assert {k: ran.json[k] for k in ("framework", "task", "level", "ops", "skills")} == {
        "framework": "pytorch",
        "task": "statistics",
        "level": "mix",
        "ops": 666,
        "skills": ["nan_overflow"],
    }
    assert ran.json["steps"] == [{"step": 0, "ranks": [0, 1, 2, 3], "partial": [], "missing": []}]
    counted = sum(
        any(word in json.dumps(r) for word in ("NaN", "Infinity"))
        for f in H.rglob("dump.json")
        for r in json.loads(f.read_text())["data"].values()
    )
    assert ran.json["nonfinite_ops"] == counted


def test_inspect_chooses_ranks_and_steps(tmp_path: Path):
    assert numprobe(tmp_path, "inspect", H, "--json", "--rank", "1-2").json["steps"][0]["ranks"] == [1, 2]
    assert [s["step"] for s in numprobe(tmp_path, "inspect", CLEAN, "--json", "--step", "1").json["steps"]] == [1]
    assert [s["step"] for s in numprobe(tmp_path, "inspect", CLEAN, "--json").json["steps"]] == [0, 1]


def test_inspect_for_people(tmp_path: Path):
    en, zh = (numprobe(tmp_path, "inspect", H, "--lang", lang).out for lang in ("en", "zh"))
    assert "666 records" in en
    assert "nan_overflow" in en
    assert any("\u4e00" <= c <= "\u9fff" for c in zh)
    assert not any("\u4e00" <= c <= "\u9fff" for c in en)


def test_inspect_says_where_no_skill_applies(tmp_path: Path):
    assert numprobe(tmp_path, "inspect", NO_FIGURES, "--json").json["skills"] == []


@pytest.mark.parametrize("sample", sorted(p.name for p in (INTEROP / "mindspore").iterdir() if p.is_dir()))
def test_inspect_reads_mindspore(sample: str, tmp_path: Path):
    ran = numprobe(tmp_path, "inspect", INTEROP / "mindspore" / sample, "--json")
    if sample == "graph_kernel_dump":  # another format: refused in one line
        assert (ran.code, ran.out) == (2, "")
        assert "E-FMT-014" in ran.err
    else:
        assert (ran.code, ran.json["framework"]) == (0, "mindspore")
        assert ran.json["ops"] > 0


# --- synth and demo --------------------------------------------------------------------------------------------------


def test_synth_writes_a_dump_and_its_truth(tmp_path: Path):
    ran = numprobe(tmp_path, "synth", "nan", "-o", "dump", "--scenario", "empty_batch", "--seed", "7")
    assert (ran.code, ran.err) == (0, "")
    truth = json.loads((tmp_path / "dump" / "truth.json").read_text())
    assert (truth["scenario"], truth["seed"], truth["class"]) == ("empty_batch", 7, "empty_batch")
    assert "empty_batch, seed 7: overflow_found" in ran.out
    found = numprobe(tmp_path, "nan", "dump", "-o", "out", "--json").json
    assert (found["source_ranks"], found["class"]) == (truth["source_ranks"], "empty_batch")


def test_synth_is_the_same_for_the_same_seed(tmp_path: Path):
    for name in ("a", "b"):
        numprobe(tmp_path, "synth", "nan", "-o", name, "--size", "4x0.2", "--seed", "3")
    a, b = ({n: d for n, (d, _) in tree(tmp_path / name).items()} for name in ("a", "b"))
    assert a == b
    truth = json.loads((tmp_path / "a" / "truth.json").read_text())
    assert sum(n.endswith("dump.json") for n in a) == 4 - len(truth["missing"])


def test_synth_lists_its_scenarios(tmp_path: Path):
    listed = numprobe(tmp_path, "synth", "nan", "--list").out.split()
    assert sorted(listed) == sorted(SCENARIOS)


def test_synth_writes_into_no_used_folder(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    ran = numprobe(tmp_path, "synth", "nan", "-o", "mine")
    assert (ran.code, "E-OUT-001" in ran.err) == (2, True)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with 16 ranks instead of 512; the large one has tests of its own."""
    from numprobe.synth import nan

    monkeypatch.setattr(nan, "CI", nan.UNIT)


@pytest.mark.usefixtures("small_demo")
def test_demo(tmp_path: Path):
    ran = numprobe(tmp_path, "demo", "nan", "--lang", "en", "--jobs", "1")
    assert ran.code == 1
    assert ran.out.startswith("✗ overflow found.")
    assert "simulating a job of 16 ranks" in ran.err
    truth = json.loads((tmp_path / "demo" / "first_step_nan" / "truth.json").read_text())
    result = json.loads((tmp_path / "demo" / "report" / "result.json").read_text())
    assert result["source_ranks"] == truth["source_ranks"]
    assert (tmp_path / "demo" / "report" / "report.html").exists()
    again = numprobe(tmp_path, "demo", "--lang", "zh", "--jobs", "1", "--quiet")  # its own folder is made anew
    assert again.code == 1
    assert any("\u4e00" <= c <= "\u9fff" for c in again.out)


def test_demo_of_training_and_rollout(tmp_path: Path):
    ran = numprobe(tmp_path, "demo", "rl", "--lang", "en")
    assert ran.code == 1
    assert "layers.0.mlp.linear_fc2" in ran.out
    truth = json.loads((tmp_path / "demo_rl" / "truth.json").read_text())
    finding = json.loads((tmp_path / "demo_rl" / "report" / "result.json").read_text())["findings"][0]
    assert finding["suspect"]["train"] in truth["places"]["layers.0.down"]["train"]
    assert finding["clazz"] in truth["figures"]["classes"]
    again = numprobe(tmp_path, "demo", "rl", "--lang", "zh", "--quiet")
    assert again.code == 1
    assert any("\u4e00" <= c <= "\u9fff" for c in again.out)


def test_synth_writes_a_trainer_and_an_engine(tmp_path: Path):
    ran = numprobe(tmp_path, "synth", "rl", "-o", "pair", "--scenario", "weight", "--seed", "3", "--tensors")
    assert (ran.code, ran.err) == (0, "")
    assert "weight, seed 3: difference_found, parameter_difference" in ran.out
    assert len(list((tmp_path / "pair").glob("*/step0/rank0/dump_tensor_data/*.npy"))) > 100
    assert numprobe(tmp_path, "synth", "rl", "-o", "pair").code == 2
    assert numprobe(tmp_path, "synth", "rl", "-o", "other", "--scenario", "nothing").code == 2
    assert "heads_exchanged" in numprobe(tmp_path, "synth", "rl", "--list").out.split()


@pytest.mark.usefixtures("small_demo")
def test_demo_deletes_nothing_of_yours(tmp_path: Path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    ran = numprobe(tmp_path, "demo", "nan")
    assert (ran.code, "E-OUT-001" in ran.err) == (2, True)
    assert (tmp_path / "demo" / "notes.txt").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    ran = numprobe(tmp_path, "demo", "nan", "-o", "file")
    assert (ran.code, "E-OUT-001" in ran.err) == (2, True)
    assert (tmp_path / "file").read_text() == "mine"
    assert demo_module.MARK == ".numprobe-demo"


# --- what is loaded --------------------------------------------------------------------------------------------------

HEAVY = ("polars", "pyarrow", "duckdb", "pandas", "torch", "rich", "jinja2")
LOADED = """
import sys
from numprobe.cli.common import guarded
from numprobe.cli.app import app
sys.argv = ["numprobe", *sys.argv[1:]]
code = guarded(app)
print(code, *sorted({m.split(".")[0] for m in sys.modules}), file=sys.stderr)
"""


def loaded(cwd: Path, *arguments: object) -> tuple[int, set[str]]:
    """Exit code and top-level modules after a command in a fresh process."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, *map(str, arguments)],
        cwd=cwd,
        env=environment(cwd),
        capture_output=True,
        text=True,
    )
    code, *modules = ran.stderr.splitlines()[-1].split()
    return int(code), set(modules)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("inspect", H), ("inspect", H, "--json")])
def test_light_commands_load_nothing_heavy(arguments: tuple[object, ...], tmp_path: Path):
    code, modules = loaded(tmp_path, *arguments)
    assert code == 0
    assert modules.isdisjoint(HEAVY)


def test_help_loads_no_numpy(tmp_path: Path):
    assert "numpy" not in loaded(tmp_path, "--help")[1]


def test_the_skill_loads_no_tables_library(tmp_path: Path):
    code, modules = loaded(tmp_path, "nan", H, "-o", "out")
    assert code == 1
    assert modules.isdisjoint(("polars", "pyarrow", "duckdb", "pandas", "torch"))
