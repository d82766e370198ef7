"""Triton kernels: with launchers of the same interface, and with Triton's own interpreter where it is installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from numprobe.pytorch import PrecisionDebugger  # noqa: E402

from .dumps import only, run  # noqa: E402
from .recording import assert_is, recorded  # noqa: E402


class JITFunction:
    def __init__(self, fn: Any) -> None:
        self.fn, self.__name__ = fn, fn.__name__

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> object:
        if not warmup:
            torch.mul(torch.ones(1), 1)  # what a launch does is the launch's
            self.fn(*args, **kwargs)
        return object()


class Autotuner:
    def __init__(self, fn: Any) -> None:
        self.fn = fn

    __getitem__ = JITFunction.__getitem__

    def run(self, *args: Any, **kwargs: Any) -> object:
        return self.fn.run(*args, BLOCK=64, **kwargs)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("triton")
    for path, names in (("jit", [JITFunction]), ("autotuner", [Autotuner]), ("", [])):
        part = ModuleType(f"triton.runtime.{path}".rstrip("."))
        for one in names:
            setattr(part, one.__name__, one)
        monkeypatch.setitem(sys.modules, part.__name__, part)
    monkeypatch.setitem(sys.modules, "triton", module)
    return module


@JITFunction
def doubled(x: torch.Tensor, out: torch.Tensor, n: int, BLOCK: int = 128) -> None:
    out.copy_(x * 2)


tuned = Autotuner(doubled)
X = torch.tensor([1.0, -3.0])


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(("kernel", "options"), [(doubled, {"BLOCK": 32}), (tuned, {})])
def test_a_launch_is_one_record(tmp_path: Path, kernel: Any, options: dict[str, int]):
    before = JITFunction.run, Autotuner.run

    def program() -> None:
        out = torch.zeros(2)
        kernel[(1,)](X, out, 2, **options)
        kernel.run(X, out, 2, grid=(1,), warmup=True)
        kernel[lambda meta: (1,)](out, out, 2)

    dump = recorded(tmp_path, program)
    assert dump.names == ["Triton.doubled.0.forward", "Triton.doubled.1.forward"]
    record = dump.data["Triton.doubled.0.forward"]
    assert record["input_args"][2] == {"type": "int", "value": 2}
    assert_is(record["input_args"][0], X)
    assert_is(record["input_args"][1], torch.zeros(2))
    assert record["input_kwargs"] == {key: {"type": "int", "value": value} for key, value in options.items()}
    assert_is(record["output"][1], X * 2)
    assert_is(dump.data["Triton.doubled.1.forward"]["output"][1], X * 4)
    assert any("test_triton.py" in frame for frame in dump.stacks["Triton.doubled.0.forward"])
    assert (JITFunction.run, Autotuner.run) == before


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("compat", [False, True])
def test_a_launch_has_no_backward_record(tmp_path: Path, compat: bool):
    """The graph does not know of it: the node of its arguments is that of the call before."""
    w = torch.ones(2, requires_grad=True)

    def program() -> None:
        y = torch.mul(w, 2)
        with torch.no_grad():
            doubled[(1,)](y, torch.zeros(2), 2)
        doubled[(1,)](y, torch.zeros(2), 2)
        y.sum().backward()

    assert not [
        name for name in recorded(tmp_path, program, compat=compat).names if "Triton" in name and "back" in name
    ]


@pytest.mark.usefixtures("triton")
def test_nothing_is_recorded_while_it_is_off(tmp_path: Path):
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        debugger.start()
        debugger.stop()
        out = torch.zeros(2)
        doubled[(1,)](X, out, 2)
        assert torch.equal(out, X * 2)
        debugger.step()
    assert only(tmp_path).names == []


@pytest.mark.skipif(
    find_spec("triton") is None or find_spec("triton.runtime.interpreter") is None,
    reason="no Triton with an interpreter",
)
def test_triton_itself(tmp_path: Path):
    run("triton_kernel.py", tmp_path / "dump", TRITON_INTERPRET="1")
    data = only(tmp_path / "dump").data
    assert list(data) == [f"Triton.add_one.{i}.forward" for i in range(3)]
    for record in data.values():
        assert (record["input_args"][1]["Max"], record["output"][1]["Max"]) == (0.0, 8.0)
