"""torch.compile: regions stay whole, results the same, and a compiled module is recorded from outside."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch, "compiler") or not hasattr(torch.compiler, "is_dynamo_compiling"):
    pytest.skip("this torch has no torch.compiler.is_dynamo_compiling", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from numprobe.pytorch import PrecisionDebugger  # noqa: E402

from .dumps import Dump, only, run  # noqa: E402
from .recording import assert_is  # noqa: E402


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        h = F.relu(self.linear(self.norm(x))).mul(2).add(scale)
        return x + torch.exp(-h.abs())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block, self.last = nn.Linear(4, 4), Block(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.first(x), scale=0.5))


X = torch.arange(8.0).view(2, 4)


def wrapper(model: Net, backend: str) -> nn.Module:
    model.block = torch.compile(model.block, backend=backend, fullgraph=True)  # type: ignore[assignment]
    return model


def in_place(model: Net, backend: str) -> nn.Module:
    model.block.compile(backend=backend, fullgraph=True)
    return model


def whole(model: Net, backend: str) -> nn.Module:
    return torch.compile(model, backend=backend, fullgraph=True)  # type: ignore[return-value]


def function(model: Net, backend: str) -> nn.Module:
    call = model.block.forward
    model.block.forward = torch.compile(call, backend=backend, fullgraph=True)  # type: ignore[method-assign]
    return model


def steps(model: nn.Module, debugger: PrecisionDebugger | None = None, count: int = 2) -> list[torch.Tensor]:
    for _ in range(count):
        if debugger is not None:
            debugger.start(model=model)
        y = model(X)
        y.square().sum().backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def recorded_steps(out: Path, compile: Callable[[Net, str], nn.Module], backend: str, level: str = "mix") -> Dump:
    """The second step's dump; the results are those of the same model that nobody recorded."""
    plain = steps(compile(Net(), backend))
    torch._dynamo.reset()
    with PrecisionDebugger(dump_path=out, level=level, risk_level="ALL") as debugger:
        found = steps(compile(Net(), backend), debugger)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert not torch._dynamo.utils.counters["graph_break"]
    return only(out, 1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("compile", [wrapper, in_place])
def test_a_compiled_module_is_recorded_from_outside(tmp_path: Path, compile: Any, backend: str):
    dump = recorded_steps(tmp_path, compile, backend)
    forward = [name for name in dump.names if "forward" in name and "stride" not in name]
    assert forward == [
        "Functional.linear.0.forward",
        "Module.first.Linear.forward.0",
        "Module.block.Block.forward.0",
        "Functional.linear.1.forward",
        "Module.last.Linear.forward.0",
        "Tensor.square.0.forward",
        "Tensor.sum.0.forward",
    ]
    model = Net()
    given = model.first(X)
    record = dump.data["Module.block.Block.forward.0"]
    assert_is(record["input_args"][0], given)
    assert record["input_kwargs"] == {"scale": {"type": "float", "value": 0.5}}
    assert_is(record["output"][0], model.block(given, scale=0.5))
    assert record["parameters"] == {}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("compile", [wrapper, in_place, whole])
def test_gradients_of_parameters_inside_keep_their_names(tmp_path: Path, compile: Any, backend: str):
    dump = recorded_steps(tmp_path, compile, backend, level="L0")
    model = Net()
    model(X).square().sum().backward()
    for name, module in (
        ("first", model.first),
        ("block.linear", model.block.linear),
        ("block.norm", model.block.norm),
    ):
        [record] = dump.data[f"Module.{name}.{type(module).__name__}.parameters_grad.0"]["weight"]
        assert_is(record, module.weight.grad * 2)  # of two steps, added up


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_at_the_boundary(tmp_path: Path, backend: str):
    dump = recorded_steps(tmp_path, wrapper, backend)
    model = Net()
    given = model.first(X).detach().requires_grad_()
    output = model.block(given, scale=0.5)
    output.retain_grad()
    model.last(output).square().sum().backward()
    record = dump.data["Module.block.Block.backward.0"]
    assert_is(record["input"][0], output.grad)
    assert_is(record["output"][0], given.grad)
    assert record["grad_of"] == ["0"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_model_that_is_compiled_as_a_whole(tmp_path: Path, backend: str):
    dump = recorded_steps(tmp_path, whole, backend)
    assert [name for name in dump.names if name.startswith("Module") and "forward" in name] == [
        "Module._orig_mod.Net.forward.0"
    ]
    assert_is(dump.data["Module._orig_mod.Net.forward.0"]["output"][0], Net()(X))
    assert not [name for name in dump.names if name.startswith("Functional")]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_leaves_no_break(tmp_path: Path, backend: str, level: str):
    """What a backend runs by the names of torch may be seen; fake tensors of the compiler never."""
    dump = recorded_steps(tmp_path, function, backend, level)
    assert not [n for n, r in dump.data.items() if "FakeTensor" in repr(r)]
    if level != "L1":
        assert "Module.block.Block.forward.0" in dump.data
        assert not [name for name in dump.names if "block.linear" in name and "forward" in name]


def test_hooked_modules_inside_a_compiled_function(tmp_path: Path):
    model = Net()
    plain = model(X)
    with PrecisionDebugger(dump_path=tmp_path, level="mix", risk_level="ALL") as debugger:
        debugger.start(model=model)
        call = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)
        assert torch.equal(call(X), plain)
        assert torch.equal(model(X), plain)
        debugger.stop()
        debugger.step()
    assert "Module.block.Block.forward.0" in only(tmp_path).data
    assert "Module.block.Block.forward.1" not in only(tmp_path).data
    assert not torch._dynamo.utils.counters["graph_break"]


def test_pieces_between_two_graphs_are_not_compiled_with_ours(tmp_path: Path):
    """A break of the user's own: the pieces run, none of the collector's functions is compiled."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x)
        torch._dynamo.graph_break()
        return torch.cos(torch.stack([y, F.relu(y)]))

    call = torch.compile(broken, backend="eager")
    plain = call(X)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with PrecisionDebugger(dump_path=tmp_path, level="L1", risk_level="ALL") as debugger:
        debugger.start()
        assert torch.equal(call(X), plain)
        debugger.stop()
        debugger.step()
    assert sum(torch._dynamo.utils.counters["graph_break"].values()) == 1
    assert torch._dynamo.utils.counters["frames"]["total"] == 2


def test_starting_and_stopping_compiles_nothing_again(tmp_path: Path):
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        compiled.append(graph)
        return graph

    with PrecisionDebugger(dump_path=tmp_path, level="mix") as debugger:
        model = wrapper(Net(), backend)  # type: ignore[arg-type]
        for _ in range(2):
            model(X)
            steps(model, debugger, 1)
    assert len(compiled) == 1


def test_what_is_compiled_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    recorded_steps(tmp_path, wrapper, "eager")
    assert "compiled, and so recorded from outside only: Module.block.Block" in caplog.text


def test_nothing_warns(tmp_path: Path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recorded_steps(tmp_path, wrapper, "aot_eager")
    assert not [w for w in caught if "numprobe" in str(w.message) or "numprobe" in w.filename]


def test_close_takes_everything_away(tmp_path: Path):
    before = torch.compile
    model = in_place(Net(), "eager")
    call = model.block._compiled_call_impl
    with PrecisionDebugger(dump_path=tmp_path, level="mix") as debugger:
        steps(model, debugger, 1)
        assert model.block._compiled_call_impl is not call
    assert model.block._compiled_call_impl is call
    assert torch.compile is before


def test_an_exception_inside(tmp_path: Path):
    model = wrapper(Net(), "eager")
    with PrecisionDebugger(dump_path=tmp_path, level="mix", risk_level="ALL") as debugger:
        debugger.start(model=model)
        with pytest.raises(Exception, match=r"scale|size|shape|dim"):
            model.block(torch.ones(2, 3))
        torch.exp(X)
        debugger.stop()
        debugger.step()
    data = only(tmp_path).data
    assert data["Module.block.Block.forward.0"]["output"] == [None]
    assert "Torch.exp.0.forward" in data, "recording goes on"


@pytest.mark.parametrize("options", [[], ["import"]])
def test_the_compiler_learns_torch_as_it_is(tmp_path: Path, options: list[str]):
    """In a process whose first compilation happens while functions are wrapped; then after they are put back."""
    done = run("compiled.py", tmp_path / "dump", *options)
    assert done.stdout.split() == ["inside:", "0", "after:", "0"]
