"""PrecisionDebugger as programs use it: on the class, several at once, used wrongly, and gone without a trace."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from numprobe.collect.pytorch import plain  # noqa: E402
from numprobe.pytorch import PrecisionDebugger, module_dump, module_dump_end  # noqa: E402
from numprobe.record.errors import NumprobeError  # noqa: E402

from .dumps import config, only  # noqa: E402

X = torch.ones(2, 3)


def fails(code: str, call: Callable[[], object]) -> NumprobeError:
    with pytest.raises(NumprobeError) as caught:
        call()
    assert caught.value.code == code
    assert caught.value.do
    return caught.value


# --- used as it should be ----------------------------------------------------------------------------------------


def test_on_the_class(tmp_path: Path):
    """Old scripts make one and forget it; the class speaks to it."""
    settings = config(tmp_path / "config.json", level="mix", dump_path=str(tmp_path / "dump"))
    model = nn.Sequential(nn.Linear(3, 1))
    PrecisionDebugger(config_path=settings)
    for _ in range(2):
        PrecisionDebugger.start(model=model)
        model(X).sum().backward()
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
    PrecisionDebugger.close()
    assert only(tmp_path / "dump", 0).names == only(tmp_path / "dump", 1).names
    assert "Module.0.Linear.backward.0" in only(tmp_path / "dump").data
    assert PrecisionDebugger.default is None


def test_on_the_class_and_on_the_instance_is_the_same(tmp_path: Path):
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        PrecisionDebugger.start()
        torch.exp(X)
        debugger.stop()
        torch.exp(X)
        PrecisionDebugger.step()
        assert debugger.session.step_number == 1
    assert only(tmp_path).names == ["Torch.exp.0.forward"]


def test_arguments_win_over_the_file(tmp_path: Path):
    settings = config(tmp_path / "config.json", level="L0", task="tensor", dump_path="elsewhere", step=[7])
    with PrecisionDebugger(settings, task="statistics", dump_path=tmp_path, level="L1", step=[0]) as debugger:
        debugger.start()
        torch.exp(X)
    header = only(tmp_path).header
    assert (header["task"], header["level"]) == ("statistics", "L1")


def test_chosen_steps(tmp_path: Path):
    """After the last chosen step nothing is left of the collector, and calling it does no harm."""
    original = torch.exp
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", step=[1, "3-4"])
    for _ in range(7):
        debugger.start()
        torch.exp(X)
        debugger.stop()
        debugger.step()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step1", "step3", "step4"]
    assert torch.exp is original
    debugger.close()


@pytest.mark.parametrize(
    ("chosen", "first", "told"),
    [([1, "100-109"], 0, "100, 101, 102, 103, 104, ..."), ([7], 100, "7"), ([0], 0, None)],
)
def test_steps_that_never_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, chosen: list[Any], first: int, told: str | None
):
    """Recording nothing is not done in silence."""
    with PrecisionDebugger(dump_path=tmp_path, level="L1", step=chosen) as debugger:
        debugger.set_init_step(first)
        for _ in range(3):
            debugger.start()
            torch.exp(X)
            debugger.step()
    said = [r.getMessage() for r in caplog.records if "never came" in r.getMessage()]
    assert said == ([] if told is None else [f"numprobe: step: chosen steps that never came: {told}"])


def test_init_step(tmp_path: Path):
    with PrecisionDebugger(dump_path=tmp_path, level="L1", step=[101]) as debugger:
        debugger.set_init_step(100)
        for _ in range(3):
            debugger.start()
            torch.exp(X)
            debugger.step()
    assert [p.name for p in tmp_path.iterdir()] == ["step101"]


def test_a_rank_that_is_not_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with PrecisionDebugger(dump_path=tmp_path / "dump", level="L1", rank=[0, 2]) as debugger:
        for _ in range(2):
            debugger.start()
            torch.exp(X)
            debugger.step()
    assert not (tmp_path / "dump").exists()
    assert caplog.text.count("this process has no rank") == 1


def test_rank_id(tmp_path: Path):
    with PrecisionDebugger(dump_path=tmp_path, level="L1", rank=[2]) as debugger:
        debugger.start(rank_id=2)
        torch.exp(X)
    assert only(tmp_path).folder.name == "rank2"


def test_token_range_of_the_first_model(tmp_path: Path):
    models = [nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3))]
    with PrecisionDebugger(dump_path=tmp_path, level="L0") as debugger:
        debugger.start(model=models, token_range=(1, 2))
        for _ in range(4):
            models[0](X)
        debugger.stop()
        debugger.step()
    assert only(tmp_path).names == ["Module.0.0.Linear.forward.0", "Module.0.0.Linear.forward.1"]


def test_data_modes(tmp_path: Path):
    model = nn.Sequential(nn.Linear(3, 1))
    wanted = {
        "forward": {"Module.0.Linear.forward.0": {"input_args", "input_kwargs", "output", "parameters"}},
        "backward": {
            "Module.0.Linear.backward.0": {"input", "output", "grad_of"},
            "Module.0.Linear.parameters_grad.0": {"weight", "bias"},
        },
        "output": {
            "Module.0.Linear.forward.0": {"output", "parameters"},
            "Module.0.Linear.backward.0": {"output", "grad_of"},
            "Module.0.Linear.parameters_grad.0": {"weight", "bias"},
        },
        "input": {"Module.0.Linear.forward.0": {"input_args", "input_kwargs"}, "Module.0.Linear.backward.0": {"input"}},
    }
    for mode, expected in wanted.items():
        with PrecisionDebugger(dump_path=tmp_path / mode, level="L0", data_mode=[mode]) as debugger:
            debugger.start(model=model)
            model(X.clone().requires_grad_()).sum().backward()
        data = only(tmp_path / mode).data
        assert {name: set(record) for name, record in data.items()} == expected, mode


# --- several at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_closed", [0, 1])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_two_at_once(tmp_path: Path, level: str, first_closed: int):
    """Each records for itself, whichever ends first; then torch is as before."""
    model = nn.Sequential(nn.Linear(3, 1))
    before = everything()
    both = [PrecisionDebugger(dump_path=tmp_path / str(i), level=name) for i, name in enumerate(("mix", level))]
    assert PrecisionDebugger.default is both[0]
    for debugger in both:
        debugger.start(model=model)
    torch.exp(model(X)).sum().backward()
    for debugger in both:
        debugger.stop()
        debugger.step()
    last = both[1 - first_closed]
    both[first_closed].close()
    last.start(model=model)
    torch.exp(X)
    last.close()
    one, two = (only(tmp_path / str(i)) for i in range(2))
    assert "Module.0.Linear.backward.0" in one.data
    assert two.names == [n for n in one.data if level == "mix" or not n.startswith("Module.")]
    assert only(tmp_path / str(1 - first_closed), 1).names == ["Torch.exp.0.forward"]
    assert changed(before, everything()) == []
    assert not model[0]._forward_hooks


def test_a_patch_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that the program replaces while it is recorded stays the program's."""
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    recorded = F.relu
    with monkeypatch.context() as patch:
        patch.setattr(F, "relu", lambda x: recorded(x) + 1)
        debugger.start()
        y = F.relu(X)
        debugger.close()
        assert y[0, 0].item() == 2
        assert F.relu(X).max() == 2
    assert only(tmp_path).names == ["Functional.relu.0.forward", "Tensor.__add__.0.forward"]


def test_one_after_the_other(tmp_path: Path):
    for i in range(2):
        PrecisionDebugger(dump_path=tmp_path / str(i), level="L1")
        PrecisionDebugger.start()
        torch.exp(X)
        PrecisionDebugger.close()
    assert only(tmp_path / "0").names == only(tmp_path / "1").names == ["Torch.exp.0.forward"]


# --- used wrongly -------------------------------------------------------------------------------------------------


def test_no_model(tmp_path: Path):
    for level in ("L0", "mix"):
        with PrecisionDebugger(dump_path=tmp_path, level=level) as debugger:
            error = fails("E-COL-001", debugger.start)
            assert level in error.what
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        fails("E-COL-001", lambda: debugger.start(token_range=[0, 1]))


@pytest.mark.parametrize("model", [5, "model", [5], [None], [nn.Linear(1, 1), "x"], {}, nn.Linear])
def test_what_is_no_model(tmp_path: Path, model: object):
    with PrecisionDebugger(dump_path=tmp_path, level="mix") as debugger:
        fails("E-COL-001", lambda: debugger.start(model=model))
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:  # which needs none
        debugger.start(model=model)


def test_before_there_is_one():
    assert PrecisionDebugger.default is None
    for method in ("start", "stop", "step", "close"):
        error = fails("E-COL-003", lambda method=method: getattr(PrecisionDebugger, method)())  # type: ignore[misc]
        assert f"PrecisionDebugger.{method}()" in error.what
    assert "PrecisionDebugger.save()" in fails("E-COL-003", lambda: PrecisionDebugger.save(X, "x")).what
    fails("E-COL-003", lambda: module_dump(nn.Linear(1, 1), "x"))
    fails("E-COL-003", module_dump_end)


@pytest.mark.parametrize("step", [-1, 1.0, "3", True])
def test_wrong_first_step(tmp_path: Path, step: Any):
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        fails("E-COL-004", lambda: debugger.set_init_step(step))


def test_an_api_that_does_not_exist(tmp_path: Path):
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        error = fails("E-COL-005", lambda: debugger.register_custom_api(F, "relux"))
        assert "torch.nn.functional has no relux" in error.what
        debugger.restore_custom_api(F, "relux")  # was never recorded: nothing to undo


@pytest.mark.parametrize("given", [[1], [2, 1], [0, 1, 2], [-1, 3], ["0", "1"], [0.0, 1.0]])
def test_wrong_token_range(tmp_path: Path, given: Any):
    model = nn.Sequential(nn.Linear(3, 3))
    with PrecisionDebugger(dump_path=tmp_path, level="L0") as debugger:
        fails("E-COL-006", lambda: debugger.start(model=model, token_range=given))


def test_debug_level_and_its_opposite(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """save() is for level debug, start() for the others; neither hurts."""
    with PrecisionDebugger(dump_path=tmp_path / "L1", level="L1") as debugger:
        debugger.save(X, "x")
    assert not (tmp_path / "L1").exists()
    with PrecisionDebugger(dump_path=tmp_path / "debug", level="debug") as debugger:
        debugger.start()
        torch.exp(X)
        debugger.save(object(), "unknown")
        debugger.save({1: X}, "keys")
        debugger.save([X, {"a": 1.5}], "x")
    assert only(tmp_path / "debug").names == ["x.0.debug"]
    assert "save(unknown): a object cannot be recorded" in caplog.text


def test_calls_in_any_order(tmp_path: Path):
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        debugger.stop()
        debugger.step()
        debugger.start()
        debugger.start()
        torch.exp(X)
        debugger.stop()
        debugger.stop()
        debugger.close()
        debugger.close()
        debugger.start()
        torch.exp(X)
    assert only(tmp_path, 1).names == ["Torch.exp.0.forward"]


def test_leaving_the_block_by_an_exception(tmp_path: Path):
    original = torch.exp

    def program() -> None:
        with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
            debugger.start()
            torch.exp(X)
            raise KeyError

    with pytest.raises(KeyError):
        program()
    assert torch.exp is original
    assert only(tmp_path).names == ["Torch.exp.0.forward"]


# --- no trace -----------------------------------------------------------------------------------------------------


def everything() -> dict[str, Any]:
    """What the collector may replace: attributes of torch, its hooks on optimizers, modules, autograd and exceptions."""
    optimizers = sys.modules["torch.optim.optimizer"]  # torch.optim hides it
    owners = [
        torch,
        torch.Tensor,
        plain.BASE,
        torch._VF,
        torch.linalg,
        torch.nn,
        F,
        torch.nn.utils,
        torch.nn.utils.clip_grad,
        torch.nn.Module,
        torch.optim.Optimizer,
        optimizers,
        torch.utils,
        torch.utils.checkpoint,
        torch.autograd,
        torch.jit,
        torch.ops,
        dist,
        dist.distributed_c10d,
        dist.Work,
    ]
    found: dict[str, Any] = {}
    for owner in owners:
        for name, value in vars(owner).items():
            if not name.startswith("__") or callable(value):
                found[f"{owner!r}.{name}"] = value
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        found[name] = dict(getattr(optimizers, name))
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
        found[name] = dict(getattr(torch.nn.modules.module, name))
    found["excepthook"] = sys.excepthook
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    same = {name for name in before if name in after and (after[name] is before[name] or after[name] == before[name])}
    return sorted((before.keys() | after.keys()) - same)


HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


@pytest.mark.parametrize(
    "settings",
    [
        {"level": "L0"},
        {"level": "L1"},
        {"level": "mix"},
        {"level": "debug"},
        {"level": "mix", "task": "exception_dump"},
    ],
)
def test_close_leaves_no_trace(tmp_path: Path, settings: dict[str, Any]):
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        model(X).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    train()
    before = everything()
    debugger = PrecisionDebugger(dump_path=tmp_path, **settings)
    debugger.start(model=model)
    train()
    if settings["level"] != "debug":
        assert everything() != before or settings["level"] == "L0"
    debugger.stop()
    debugger.step()
    debugger.close()
    assert changed(before, everything()) == []
    for module in model.modules():
        assert [len(getattr(module, name)) for name in HOOKS] == [0] * len(HOOKS)
    assert [p._post_accumulate_grad_hooks for p in model.parameters() if p._post_accumulate_grad_hooks] == []


def test_a_graph_that_outlives_the_collector(tmp_path: Path):
    """Hooks sit on its nodes still; they do nothing."""
    x = X.clone().requires_grad_()
    model = nn.Sequential(nn.Linear(3, 1))
    with PrecisionDebugger(dump_path=tmp_path, level="mix") as debugger:
        debugger.start(model=model)
        loss = model(torch.exp(x)).sum()
        debugger.stop()
        debugger.step()
    text = (only(tmp_path).folder / "dump.json").read_text()
    loss.backward()
    assert x.grad is not None
    assert (only(tmp_path).folder / "dump.json").read_text() == text


def test_warnings_of_the_settings_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    settings = config(tmp_path / "config.json", level="L1", dump_path=str(tmp_path), lists=["relu"])
    PrecisionDebugger(settings).close()
    assert "lists" in caplog.text
    assert "did you mean" in caplog.text
