"""``numprobe collect check``: three runs of a script, and what follows from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from numprobe.collect import selfcheck
from numprobe.report.messages import Catalogue

from .dumps import PROGRAMS

SCRIPT = PROGRAMS / "checked.py"


def checked(*arguments: str | Path, code: int, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "numprobe.cli.main", "collect", "check", *map(str, arguments)]
    command[1:3] = ["-c", "from numprobe.cli.main import run; run()"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def verdict(way: str, *more: str | Path, code: int, cwd: Path, options: tuple[str, ...] = ()) -> dict[str, Any]:
    done = checked("--json", "--quiet", *options, SCRIPT, way, *more, code=code, cwd=cwd)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_recorder_leaves_a_training_alone(tmp_path: Path, level: str):
    done = checked("--level", level, "-o", "kept", SCRIPT, "", "3", code=0, cwd=tmp_path)
    assert done.stdout.splitlines()[0] == (
        "unchanged: with and without the recorder, 3 optimizer steps and 3 losses are bit-identical"
    )
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["1/3", "2/3", "3/3"]
    dumps = sorted(p.name for p in (tmp_path / "kept" / "recorded" / "dump").glob("step*"))
    assert dumps[:3] == ["step0", "step1", "step2"]
    header = json.loads(next((tmp_path / "kept" / "recorded" / "dump" / "step1").rglob("dump.json")).read_text())
    assert (header["level"], len(header["data"]) > 5) == (level, True)
    for run in ("plain", "again"):
        assert not (tmp_path / "kept" / run / "dump").exists()


def test_a_recorder_that_changes_a_number_is_told(tmp_path: Path):
    found = verdict("changed", code=1, cwd=tmp_path)
    assert (found["verdict"], found["reason"], found["steps"], found["losses"]) == ("changed", "differs", 4, 4)
    assert found["first"] == {"process": "process", "step": 0, "kind": "step", "parameters": ["3.bias"]}


def test_the_first_step_that_differs_is_named(tmp_path: Path):
    done = checked(SCRIPT, "late", code=1, cwd=tmp_path)
    assert "first difference  process, optimizer step 3: 3.bias" in done.stdout


def test_a_random_number_that_is_drawn(tmp_path: Path):
    """The dropout of the next step would differ; the random state does already."""
    found = verdict("drawn", code=1, cwd=tmp_path)
    assert found["first"]["step"] == 2
    assert found["first"]["kind"] == "loss"


def test_a_script_that_fails_with_the_recorder_only(tmp_path: Path):
    done = checked(SCRIPT, "broken", code=1, cwd=tmp_path)
    assert "the script fails with the recorder, and only with it" in done.stdout
    assert "ValueError: another type of function" in done.stdout


def test_a_script_that_is_not_deterministic(tmp_path: Path):
    done = checked("--lang", "zh", SCRIPT, "unseeded", code=3, cwd=tmp_path)
    assert "脚本本身不是确定性的" in done.stdout
    assert "process，0 个优化器 step 之后：loss" in done.stdout


def test_a_script_that_does_not_train(tmp_path: Path):
    assert verdict("nothing", code=3, cwd=tmp_path)["reason"] == "nothing"


def test_a_script_that_steps_by_itself(tmp_path: Path):
    """Losses are seen, and parameters at the end."""
    found = verdict("manual", code=0, cwd=tmp_path)
    assert (found["steps"], found["losses"]) == (0, 4)


def test_a_script_that_fails_anyway(tmp_path: Path):
    done = checked(SCRIPT, "failing", code=2, cwd=tmp_path)
    assert "E-COL-009" in done.stderr
    assert "no data" in done.stderr


def test_a_script_that_is_not_there(tmp_path: Path):
    assert "E-COL-010" in checked("no_such.py", code=2, cwd=tmp_path).stderr
    assert "E-COL-010" in checked("no-such-program", code=2, cwd=tmp_path).stderr
    assert "E-CFG-006" in checked("--level", "L7", SCRIPT, code=2, cwd=tmp_path).stderr


def test_a_script_that_records_by_itself(tmp_path: Path):
    """Its own settings count; without the recorder it records nothing."""
    found = verdict("own", "2", tmp_path / "dump", code=0, cwd=tmp_path)
    assert found["steps"] == 2
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == ["step0", "step1"]
    [rank] = (tmp_path / "dump" / "step1").iterdir()
    names = json.loads((rank / "dump.json").read_text())["data"]
    assert "Module.0.Linear.forward.0" in names


def test_runs_can_be_cut_short(tmp_path: Path):
    assert verdict("", "100000", code=0, cwd=tmp_path, options=("--steps", "2"))["steps"] == 2


def test_several_processes(tmp_path: Path):
    torchrun = Path(sys.executable).with_name("torchrun")
    launch = [torchrun, "--nproc-per-node", "2", "--master-port", "29651"]
    done = checked(*launch, SCRIPT, "", "2", code=0, cwd=tmp_path)
    assert "2 optimizer steps" in done.stdout
    assert "in 2 processes" in done.stdout


def test_a_configuration(tmp_path: Path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": "elsewhere"}))
    checked("--config", config, "-o", tmp_path / "kept", SCRIPT, "", "1", code=0, cwd=tmp_path)
    assert list((tmp_path / "kept" / "recorded" / "dump").rglob("*.pt"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_sitecustomize_of_the_users_still_runs(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\n")
    checked(SCRIPT, "", "1", code=0, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert len((tmp_path / "ran").read_text()) >= 3


def test_switched_off_from_outside(tmp_path: Path):
    code = (
        "import sys, torch; from numprobe.pytorch import PrecisionDebugger; plain = torch.exp\n"
        "d = PrecisionDebugger(dump_path=sys.argv[1], level='L1'); d.register_custom_api(torch, 'exp')\n"
        "d.start(); torch.exp(torch.ones(1)); d.stop(); d.step(); print(torch.exp is plain)\n"
        "d = PrecisionDebugger(dump_path=sys.argv[1], level='debug'); d.save(torch.ones(1), 'x'); d.step()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "dump")],
        env={**os.environ, "NUMPROBE_RECORD": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"
    assert not (tmp_path / "dump").exists()


def test_both_languages_say_the_same():
    folder = Path(selfcheck.__file__).parent / "messages"
    english, chinese = (Catalogue((folder,)).templates(lang) for lang in ("en", "zh"))
    assert english.keys() == chinese.keys()
