"""Megatron: micro-batches, gradients that are accumulated in main_grad, references to functions of torch.distributed.

With a schedule module of the same interface, and with Megatron-Core itself where it is installed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from numprobe.pytorch import PrecisionDebugger  # noqa: E402

from .dumps import Dump, only, run  # noqa: E402
from .recording import assert_is  # noqa: E402

KEY = "megatron_micro_step_number"
SCHEDULES = """
import torch

def forward_step(forward_step_func, data_iterator, model, num_microbatches, input_tensor, forward_data_store, config):
    return forward_step_func(data_iterator, model), torch.tensor(0)

def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
    torch.autograd.backward(output_tensor[0] if isinstance(output_tensor, list) else output_tensor)

def one_at_a_time(step, data, model, count):
    for _ in range(count):
        output, _ = forward_step(step, data, model, count, None, [], None)
        backward_step(None, output, None, None, None)

def all_forward_first(step, data, model, count):
    outputs = [forward_step(step, data, model, count, None, [], None)[0] for _ in range(count)]
    for output in reversed(outputs):
        backward_step(None, [output], None, None, None)

def chunks(step, data, models, count):
    for _ in range(count):
        for model in models:
            output, _ = forward_step(step, data, model, count, input_tensor=None, forward_data_store=[], config=None)
            backward_step(None, output, None, None, None)
"""


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for path in ("megatron", "megatron.core", "megatron.core.pipeline_parallel"):
        monkeypatch.setitem(sys.modules, path, ModuleType(path))
    module = ModuleType("megatron.core.pipeline_parallel.schedules")
    exec(SCHEDULES, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module
    assert module.forward_step.__code__.co_filename == "<string>", "what was replaced is put back"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Net(nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.block, self.recompute = Block(), recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False) if self.recompute else self.block(x)


def step(data: Iterator[torch.Tensor], model: nn.Module) -> torch.Tensor:
    return model(next(data)).sum()


def dumped(out: Path, schedule: Any, model: Any, count: int, steps: int = 1) -> list[Dump]:
    models = model if isinstance(model, list) else [model]
    optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)
    with PrecisionDebugger(dump_path=out, level="mix", risk_level="ALL") as debugger:
        for _ in range(steps):
            debugger.start(model=model)
            schedule(step, iter([torch.ones(1, 2)] * 100), model, count)
            optimizer.step()
            debugger.stop()
            debugger.step()
    return [only(out, i) for i in range(steps)]


def numbers(dump: Dump) -> dict[str, int]:
    return {name: parent[1] for name, parent in dump.parents.items() if isinstance(parent, list)}


def test_every_record_has_its_micro_batch(tmp_path: Path, schedules: Any):
    dumps = dumped(tmp_path, schedules.one_at_a_time, Net(), 3, steps=2)
    for dump in dumps:
        parents = dump.parents
        assert list(parents)[-1] == KEY
        assert parents.pop(KEY) == 2
        for i in range(3):
            assert parents[f"Functional.linear.{i}.forward"] == [f"Module.block.inner.Linear.forward.{i}", i]
            assert parents[f"Module.block.Block.forward.{i}"] == [None, i]
            assert parents[f"Module.block.inner.Linear.backward.{i}"] == [f"Module.block.Block.backward.{i}", i]
            assert parents[f"Tensor.sum.{i}.backward"] == [None, i]
        assert parents["optimizer"] == [None, 2]
        assert all(isinstance(parent, list) for parent in parents.values())


def test_a_backward_step_belongs_to_its_forward_step(tmp_path: Path, schedules: Any):
    """All forward steps first, and the last one's backward step first."""
    [dump] = dumped(tmp_path, schedules.all_forward_first, Net(), 3)
    found = numbers(dump)
    for i in range(3):
        assert found[f"Functional.linear.{i}.forward"] == i
        assert found[f"Functional.linear.{i}.backward"] == i
    order = [name for name in dump.data if name.startswith("Functional.linear") and "backward" in name]
    assert order == [f"Functional.linear.{i}.backward" for i in (2, 1, 0)]


def test_chunks_are_numbered_each_by_itself(tmp_path: Path, schedules: Any):
    [dump] = dumped(tmp_path, schedules.chunks, [Net(), Net()], 2)
    found = numbers(dump)
    for chunk in range(2):
        for i in range(2):
            assert found[f"Module.{chunk}.block.Block.forward.{i}"] == i
            assert found[f"Module.{chunk}.block.Block.backward.{i}"] == i
    assert dump.parents[KEY] == 1


def test_a_recomputed_call_is_of_the_micro_batch_that_goes_back(tmp_path: Path, schedules: Any):
    [dump] = dumped(tmp_path, schedules.all_forward_first, Net(recompute=True), 2)
    found = numbers(dump)
    assert [found[f"Functional.linear.{i}.forward"] for i in range(4)] == [0, 1, 1, 0]


def test_without_a_schedule_there_are_no_numbers(tmp_path: Path, schedules: Any):
    [dump] = dumped(tmp_path, lambda step, data, model, count: step(data, model).backward(), Net(), 1)
    assert KEY not in dump.parents
    assert not numbers(dump)


class AddingUp:
    """What Megatron's DistributedDataParallel does with gradients: a hook of the node adds each to main_grad and forgets it."""

    def __init__(self, model: nn.Module) -> None:
        self.nodes = []
        for parameter in model.parameters():
            parameter.main_grad = torch.zeros(parameter.shape, dtype=torch.float64)
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, p=parameter: self.add(p))
            self.nodes.append(node)

    @staticmethod
    def add(parameter: nn.Parameter) -> None:
        with torch.no_grad():
            parameter.main_grad.add_(parameter.grad)
        parameter.grad = None


def test_main_grad_is_recorded_after_it_was_added_to(tmp_path: Path):
    model = Net()
    AddingUp(model)
    sums = []
    with PrecisionDebugger(dump_path=tmp_path, level="L0") as debugger:
        debugger.start(model=model)
        for i in range(3):
            model(torch.full((1, 2), i + 1.0)).square().sum().backward()
            sums.append(model.block.inner.weight.main_grad.clone())
        debugger.stop()
        debugger.step()
    data = only(tmp_path).data
    for i in range(3):
        [record] = data[f"Module.block.inner.Linear.parameters_grad.{i}"]["weight"]
        assert record["dtype"] == "torch.float64"
        assert_is(record, sums[i])


def test_references_lead_to_what_records(tmp_path: Path, schedules: Any, monkeypatch: pytest.MonkeyPatch):
    layers = ModuleType("megatron.core.tensor_parallel.layers")
    layers.dist_all_gather_func = dist.all_gather_into_tensor  # type: ignore[attr-defined]
    layers.dist_reduce_scatter_func = own = lambda *_: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, layers.__name__, layers)
    original = dist.all_gather_into_tensor
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        debugger.start()
        assert layers.dist_all_gather_func is not original
        assert layers.dist_all_gather_func.__module__.startswith("torch.distributed")
        assert layers.dist_reduce_scatter_func is own
        debugger.stop()
    assert layers.dist_all_gather_func is original


def test_its_own_clipping_is_a_phase(tmp_path: Path, schedules: Any, monkeypatch: pytest.MonkeyPatch):
    optimizer = ModuleType("megatron.core.optimizer.optimizer")

    class MegatronOptimizer:
        def clip_grad_norm(self, clip: float) -> torch.Tensor:
            return torch.mul(torch.ones(2), clip)

    optimizer.MegatronOptimizer = MegatronOptimizer  # type: ignore[attr-defined]
    for path, module in (
        ("megatron.core.optimizer", ModuleType("o")),
        ("megatron.core.optimizer.optimizer", optimizer),
    ):
        monkeypatch.setitem(sys.modules, path, module)
    sys.modules["megatron.core"].optimizer = sys.modules["megatron.core.optimizer"]  # type: ignore[attr-defined]
    before = MegatronOptimizer.clip_grad_norm
    with PrecisionDebugger(dump_path=tmp_path, level="mix", risk_level="ALL") as debugger:
        debugger.start(model=Net())
        MegatronOptimizer().clip_grad_norm(0.5)
        debugger.stop()
        debugger.step()
    assert only(tmp_path).parents["Torch.mul.0.forward"] == "clip_grad"
    assert MegatronOptimizer.clip_grad_norm is before


@pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-Core is not installed")
@pytest.mark.parametrize("options", [[], ["--ddp"]])
def test_megatron_itself(tmp_path: Path, options: list[str]):
    """Three micro-batches of a small GPT on a CPU; the program prints the gradients of one weight after each."""
    done = run("megatron_gpt.py", tmp_path / "dump", *options)
    sums = json.loads(done.stdout.strip().splitlines()[-1])
    dump = only(tmp_path / "dump")
    assert dump.parents[KEY] == 2
    found = numbers(dump)
    assert Counter(found.values()).keys() == {0, 1, 2}
    per_batch = Counter(number for name, number in found.items() if name.startswith("Module") and "forward" in name)
    assert len(set(per_batch.values())) == 1
    [base] = {n.rsplit(".", 1)[0] for n in dump.data if "linear_qkv" in n and "parameters_grad" in n}
    assert [dump.data[f"{base}.{i}"]["weight"][0]["Norm"] for i in range(3)] == pytest.approx(sums, rel=1e-5)
