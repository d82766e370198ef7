"""Files: whole after every flush, whatever becomes of the process, the disk or the folder."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from numprobe.collect.pytorch import session  # noqa: E402
from numprobe.formats.dump import open_dump  # noqa: E402
from numprobe.formats.msprobe import write  # noqa: E402
from numprobe.pytorch import PrecisionDebugger  # noqa: E402

from .dumps import only, run  # noqa: E402

X = torch.ones(2, 3)


def test_killed_process(tmp_path: Path):
    """SIGKILL: what the last stop() wrote is there, in files that are valid JSON."""
    run("killed.py", tmp_path, code=-9)
    dump = only(tmp_path)
    expected = [name for i in range(3) for name in (f"Torch.exp.{i}.forward", f"Torch.tanh.{i}.forward")]
    assert dump.names == expected
    assert [dump.data[n]["output"][0]["Max"] for n in expected[::2]] == pytest.approx(
        [2.718281828**i for i in range(3)]
    )
    assert set(dump.stacks) == set(expected)
    assert dump.parents == {}


def test_starts_and_stops_in_one_step(tmp_path: Path):
    """Records add up, counters go on; step() begins anew."""
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        for _ in range(2):
            for i in range(3):
                debugger.start()
                torch.exp(X)
                debugger.stop()
                torch.tanh(X)
                assert only(tmp_path, debugger.session.step_number).names == [
                    f"Torch.exp.{k}.forward" for k in range(i + 1)
                ]
            debugger.step()
    assert only(tmp_path, 0).names == only(tmp_path, 1).names


def test_many_entries(tmp_path: Path):
    """More than are written at once; an entry whose backward pass never comes to its end holds nothing up for good."""
    x = X.clone().requires_grad_()
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        debugger.start()
        first, _ = torch.split(torch.mul(x, 1.0), 1)
        first.sum().backward()
        for _ in range(2500):
            torch.exp(X)
        written = only(tmp_path).names
        assert len(written) >= 1000
        debugger.stop()
    names = only(tmp_path).names
    assert names[: len(written)] == written
    assert [n for n in names if "exp" in n] == [f"Torch.exp.{i}.forward" for i in range(2500)]


@pytest.mark.parametrize("name", ["with spaces", "数据 転儲", "quote'\"and$", "é"])
def test_paths_of_every_script(tmp_path: Path, name: str):
    with PrecisionDebugger(dump_path=tmp_path / name, level="L1", task="tensor") as debugger:
        debugger.start()
        torch.exp(X)
    dump = only(tmp_path / name)
    assert dump.header["dump_data_dir"] == str(dump.folder / "dump_tensor_data")
    assert (dump.folder / "dump_tensor_data" / "Torch.exp.0.forward.output.0.pt").exists()


def record_rank(path: Path, api: Any, **settings: Any) -> None:
    with PrecisionDebugger(dump_path=path, level="L1", **settings) as debugger:
        debugger.start(rank_id=3)
        api(X)


def test_an_old_run_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    for api in (torch.exp, torch.tanh, torch.sin):
        record_rank(tmp_path, getattr_api(api))
    step = tmp_path / "step0"
    assert sorted(p.name for p in step.iterdir()) == ["rank3", "rank3.old1", "rank3.old2"]
    found = {p.name: next(iter(json.loads((p / "dump.json").read_text())["data"])) for p in step.iterdir()}
    assert found == {
        "rank3": "Torch.sin.0.forward",
        "rank3.old1": "Torch.exp.0.forward",
        "rank3.old2": "Torch.tanh.0.forward",
    }
    assert "held an earlier run, which is now rank3.old1" in caplog.text
    assert [str(r.rank) for r in open_dump(tmp_path).steps[0].ranks] == ["3"]


def getattr_api(api: Any) -> Any:
    """The function as it is at the time of the call: the one that records."""
    return lambda x: getattr(torch, api.__name__)(x)


def test_an_old_run_is_overwritten_if_asked(tmp_path: Path):
    for api in (torch.exp, torch.tanh):
        record_rank(tmp_path, getattr_api(api), overwrite=True)
    assert [p.name for p in (tmp_path / "step0").iterdir()] == ["rank3"]
    assert only(tmp_path).names == ["Torch.tanh.0.forward"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Training goes on, and is told once."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with PrecisionDebugger(dump_path=blocked / "dump", level="L1") as debugger:
        for _ in range(2):
            debugger.start()
            assert torch.exp(X).shape == (2, 3)
            debugger.stop()
            debugger.step()
    (told,) = [r.getMessage() for r in caplog.records if "NOTHING IS RECORDED" in r.getMessage()]
    assert "E-COL-002" in told
    assert str(blocked) in told


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Training goes on; what is missing is said at the end of the step; when there is room again, recording goes on."""
    original = write.AppendedObject.append

    def full(self: Any, members: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    model = nn.Sequential(nn.Linear(3, 1))
    with PrecisionDebugger(dump_path=tmp_path, level="mix") as debugger:
        debugger.start(model=model)
        monkeypatch.setattr(write.AppendedObject, "append", full)
        model(X).sum().backward()
        debugger.stop()
        missing = [line for line in debugger.session.recorder.tally.problems if "No space left on device" in line]
        assert missing
        monkeypatch.setattr(write.AppendedObject, "append", original)
        debugger.start(model=model)
        model(X)
        debugger.stop()
        debugger.step()
    assert "NOT RECORDED: " in caplog.text
    assert "No space left on device" in caplog.text
    assert "Functional.linear.1.forward" in only(tmp_path).data
    assert model[0].weight.grad is not None


def test_files_that_may_not_grow(tmp_path: Path):
    """A write that breaks off in the middle: the losses are those of a free disk, the files are what fitted."""
    done = run("full_disk.py", tmp_path, "16000")
    free, full = done.stdout.splitlines()
    assert free == full
    quiet, loud = done.stderr.split("now full")
    assert "NOT RECORDED" not in quiet
    assert loud.count("File too large") == 2  # once a step
    for step in (0, 1):
        names = only(tmp_path / "full", step).names
        assert names
        assert names == only(tmp_path / "free", step).names[: len(names)]


def test_no_stacks(tmp_path: Path):
    with PrecisionDebugger(dump_path=tmp_path, level="mix", extra_info=False) as debugger:
        debugger.start(model=nn.Sequential(nn.Linear(3, 1)))
        torch.exp(X)
    assert [p.name for p in only(tmp_path).folder.iterdir()] == ["dump.json"]


def test_the_summary(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="numprobe")
    with PrecisionDebugger(dump_path=tmp_path, level="L1", list=["no_such_api"]) as debugger:
        debugger.start()
        torch.exp(X)
        debugger.stop()
        debugger.step()
        assert "step 0: 0 entries, 0 tensors, 1 filtered" in caplog.text
        debugger.start()
        torch.exp(X)
    assert "list: no record has the name no_such_api" in caplog.text


def test_what_the_import_costs():
    """Nothing but the standard library, numpy, msgspec and torch comes with it."""
    import sys

    added = run("imported.py").stdout.split()
    allowed = {"numprobe", "numpy", "msgspec", "torch", *sys.stdlib_module_names}
    assert [name for name in added if name not in allowed and not name.startswith("_")] == []


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(5, 3), nn.Linear(3, 3)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.layer(self.table(ids))
        # of a transposed parameter no gradient is recorded, and split() has several outputs
        return torch.split(x @ self.layer.weight.t(), 1)


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "debug"])
def test_how_many_entries_are_written_at_once_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
):
    """A batch may end at any entry: those that wait for gradients still get them."""

    def record(batch: int) -> dict[str, Any]:
        monkeypatch.setattr(session, "BATCH", batch)
        torch.manual_seed(0)
        model = nn.ModuleDict({"block": Block()})
        settings = {"dump_path": tmp_path / str(batch), "level": level, "risk_level": "ALL"}
        with PrecisionDebugger(**settings) as debugger:
            debugger.start(model=model)
            for _ in range(2):
                first, second = model["block"](torch.tensor([1, 2]))
                debugger.save({"a": first, "b": [second]}, "x")
                (first.sum() + torch.exp(second).sum()).backward()
            debugger.stop()
        return only(tmp_path / str(batch)).data

    whole = record(1000)
    assert len(whole) > 3
    for batch in (1, 2, 3):
        assert record(batch) == whole
