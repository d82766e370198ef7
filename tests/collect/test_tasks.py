"""The rarer tasks and settings: crash dumps, non-finite marks, the hot switch, loaded inputs, operators, checksums, compat."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from numprobe.collect.pytorch import reloading  # noqa: E402
from numprobe.pytorch import PrecisionDebugger  # noqa: E402

from .dumps import only  # noqa: E402
from .recording import assert_is, recorded  # noqa: E402

X = torch.tensor([[1.0, -2.0, 3.0]])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


# --- exceptions --------------------------------------------------------------------------------------------------

CRASH = """
import sys, torch
from numprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1", task="exception_dump", risk_level="ALL")
for step in range(3):
    debugger.start()
    x = torch.exp(torch.full((2,), float(step)))
    if step == 2 and sys.argv[2] == "crash":
        torch.matmul(x, torch.ones(3))
    debugger.stop()
    debugger.step()
"""


@pytest.mark.parametrize("ending", ["crash", "well"])
def test_exception_dump(tmp_path: Path, ending: str):
    """Records are written only if the program ends in an exception: those of the step it happened in."""
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path), ending], capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == (ending == "well"), done.stderr
    written = sorted(p.parent.parent.name for p in tmp_path.rglob("dump.json"))
    if ending == "well":
        assert written == []
        return
    assert "size mismatch" in done.stderr or "inconsistent tensor size" in done.stderr
    assert written == ["step2"]
    data = json.loads(next(tmp_path.rglob("dump.json")).read_text())["data"]
    assert data["Torch.exp.0.forward"]["output"][0]["Max"] == pytest.approx(7.389, abs=1e-3)
    assert list(data)[-1] == "Torch.matmul.0.forward"
    assert "output" not in data["Torch.matmul.0.forward"]


# --- non-finite --------------------------------------------------------------------------------------------------


def test_nan_check_on_any_device(tmp_path: Path):
    def program() -> None:
        torch.exp(X)
        torch.log(X)
        torch.exp(X * 100)

    data = recorded(tmp_path, program, task="nan_check").data
    marks = {name: entry["is_nan"] for name, entry in data.items() if name.startswith("Torch")}
    assert marks == {"Torch.exp.0.forward": 0, "Torch.log.0.forward": 1, "Torch.exp.1.forward": 1}
    logged = data["Torch.log.0.forward"]["output"][0]
    assert (logged["nan"], logged["pos_inf"], logged["neg_inf"]) == (1, 0, 0)


# --- the hot switch ----------------------------------------------------------------------------------------------


def test_the_switch_of_a_running_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reloading, "EVERY_ENABLED", 0.0)
    monkeypatch.setattr(reloading, "EVERY_DISABLED", 0.0)
    config = tmp_path / "config.json"
    plain = torch.exp

    def write(**changes: object) -> None:
        before = config.stat().st_mtime_ns if config.exists() else 0
        values = {"task": "statistics", "dump_path": str(tmp_path / "dump"), "level": "L1", "risk_level": "ALL"}
        while True:  # a clock may be coarse
            config.write_text(json.dumps(values | {"dump_enable": True} | changes))
            if config.stat().st_mtime_ns != before:
                return
            time.sleep(0.01)

    def one_step() -> None:
        debugger.start()
        torch.exp(X)
        debugger.stop()
        debugger.step()

    write(dump_enable=False)
    with PrecisionDebugger(config_path=config) as debugger:
        one_step()
        assert torch.exp is plain, "nothing stays wrapped while recording is off"
        write(dump_enable=True)
        one_step()
        write(summary_mode="md5", statistics={"summary_mode": "md5"})
        one_step()
        config.write_text("{")
        one_step()
    steps = {p.parent.parent.name: json.loads(p.read_text())["data"] for p in (tmp_path / "dump").rglob("dump.json")}
    assert {s for s, data in steps.items() if data} == {"step1", "step2"}
    assert "md5" not in steps["step1"]["Torch.exp.0.forward"]["output"][0]
    assert "md5" in steps["step2"]["Torch.exp.0.forward"]["output"][0]
    assert torch.exp is plain


# --- loaded inputs -----------------------------------------------------------------------------------------------


def test_inputs_from_an_older_run(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The second layer gets what it got then, whatever the first gives now."""
    model = Net()
    recorded(tmp_path / "old", lambda: model(X), model=model, level="L0", task="tensor")
    before = model.second(model.first(X))
    with torch.no_grad():
        model.first.weight.add_(1.0)
    name = "Module.second.Linear.forward.0"
    load = {
        "path": str(tmp_path / "old" / "dump"),
        "modules": [name, "Module.third.Linear.forward.0"],
        "dump_after_load": True,
    }
    outputs = []
    data = recorded(tmp_path / "new", lambda: outputs.append(model(X)), model=model, level="L0", load=load).data
    assert torch.equal(outputs[0], before)
    assert_is(data[name]["output"][0], before)
    assert "Module.third.Linear.forward.0 was not called" in caplog.text
    assert not torch.equal(model(X), before), "after close() nothing is replaced any more"


def test_a_missing_file_leaves_the_input(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model = Net()
    recorded(tmp_path / "old", lambda: model(X), model=model, level="L0", task="tensor")
    next((tmp_path / "old").rglob("Module.second.Linear.forward.0.input.0.pt")).unlink()
    load = {"path": str(tmp_path / "old" / "dump"), "modules": ["Module.second.Linear.forward.0"]}
    outputs = []
    with PrecisionDebugger(dump_path=tmp_path / "new", level="L0", load=load) as debugger:
        debugger.start(model=model)
        outputs.append(model(X))
        debugger.stop()
        debugger.step()
    assert torch.equal(outputs[0], model(X))
    assert "the input stays as it is" in caplog.text
    assert not (tmp_path / "new").exists(), "without dump_after_load nothing is recorded"


# --- operators of other libraries --------------------------------------------------------------------------------


def test_operators_of_a_namespace(tmp_path: Path):
    library = torch.library.Library("numprobe_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    data = recorded(tmp_path, lambda: torch.ops.numprobe_test.twice(X), custom_op_namespaces=["numprobe_test"]).data
    assert list(data) == ["numprobe_test.twice.0.forward"]
    assert_is(data["numprobe_test.twice.0.forward"]["output"][0], X * 2)
    assert torch.equal(torch.ops.numprobe_test.twice(X), X * 2)


# --- checksums, files, compat ------------------------------------------------------------------------------------


def test_checksums(tmp_path: Path):
    def of(mode: str) -> dict[str, object]:
        data = recorded(tmp_path / mode, lambda: torch.neg(X), summary_mode=mode).data
        found: dict[str, object] = data["Torch.neg.0.forward"]["input_args"][0]
        return found

    assert of("md5")["md5"] == f"{zlib.crc32(X.numpy().tobytes()):08x}"
    assert of("md5")["Max"] == 3.0
    assert "Max" not in of("xor")
    assert str(of("xor")["md5"]).startswith("0x")
    assert of("hash")["md5"] != of("md5")["md5"]


def test_a_process_that_learns_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Started before torch.distributed: the folder gets the rank's name when that is known, tensor files too."""
    with PrecisionDebugger(dump_path=tmp_path, level="L1", task="tensor", risk_level="ALL") as debugger:
        debugger.start()
        torch.exp(X)
        debugger.stop()
        monkeypatch.setattr("numprobe.collect.pytorch.session.current_rank", lambda: 5)
        debugger.start()
        torch.log(X.abs())
        debugger.stop()
        debugger.step()
    assert [p.name for p in (tmp_path / "step0").iterdir()] == ["rank5"]
    dump = only(tmp_path)
    assert "Torch.log.0.forward" in dump.names
    files = {p.name for p in (tmp_path / "step0" / "rank5" / "dump_tensor_data").iterdir()}
    assert {"Torch.exp.0.forward.output.0.pt", "Torch.log.0.forward.output.0.pt"} <= files


def test_compat_gives_the_reference_s_figures(tmp_path: Path):
    """Mean and Norm of integers are null, and nothing is in a record that the reference does not write."""
    data = recorded(tmp_path, lambda: torch.add(torch.arange(6).reshape(2, 3), 1), compat=True).data
    record = data["Torch.add.0.forward"]["input_args"][0]
    assert (record["Max"], record["Min"], record["Mean"], record["Norm"]) == (5, 0, None, None)
    assert list(record) == ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad"]
    header = json.loads(next(tmp_path.rglob("dump.json")).read_text())
    assert list(header) == ["task", "level", "framework", "dump_data_dir", "data"]


def test_a_rank_list_without_a_rank(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    with PrecisionDebugger(dump_path=tmp_path / "dump", level="L1", rank=[0]) as debugger:
        debugger.start()
        debugger.stop()
        debugger.step()
    assert "this process has no rank" in caplog.text
    assert not (tmp_path / "dump").exists()
