"""API calls: what is counted, what is swallowed, and what an exception leaves behind."""

from __future__ import annotations

import inspect
import os
import pickle
import threading
import types
import zlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from numprobe.pytorch import PrecisionDebugger  # noqa: E402

from .dumps import only  # noqa: E402
from .recording import assert_is, recorded  # noqa: E402

X = torch.arange(6.0).reshape(2, 3)


def test_an_exception_inside_an_api(tmp_path: Path):
    """The record of the call that failed keeps its inputs; what follows is recorded as ever."""

    def program() -> None:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            F.linear(X, torch.ones(2, 2))
        F.relu(X)
        with pytest.raises(TypeError):
            torch.add(X, "no tensor")  # type: ignore[call-overload]
        torch.exp(X)

    dump = recorded(tmp_path, program)
    assert dump.names == [
        "Functional.linear.0.forward",
        "Functional.relu.0.forward",
        "Torch.add.0.forward",
        "Torch.exp.0.forward",
    ]
    failed = dump.data["Functional.linear.0.forward"]
    assert [v["shape"] for v in failed["input_args"]] == [[2, 3], [2, 2]]
    assert "output" not in failed
    assert_is(dump.data["Torch.exp.0.forward"]["output"][0], X.exp())


def test_only_the_outermost_call_is_recorded(tmp_path: Path):
    module = types.ModuleType("mine")

    def layer(x: Tensor) -> Tensor:
        return F.relu(x) + torch.exp(x)

    module.layer = layer  # type: ignore[attr-defined]
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        debugger.register_custom_api(module, "layer")
        debugger.start()
        module.layer(X)
        F.relu(X)
        debugger.restore_custom_api(module, "layer")
        assert module.layer is layer
        module.layer(X)
    assert only(tmp_path).names == [
        "mine.layer.0.forward",
        "Functional.relu.0.forward",
        "Functional.relu.1.forward",
        "Torch.exp.0.forward",
        "Tensor.__add__.0.forward",
    ]


def test_inputs_are_those_before_the_call(tmp_path: Path):
    """An operator in place changes what it was given; the record has both."""
    x = torch.ones(3)
    data = recorded(tmp_path, lambda: x.add_(1.0).mul_(3.0)).data
    assert [data["Tensor.add_.0.forward"][k][0]["Max"] for k in ("input_args", "output")] == [1, 2]
    assert [data["Tensor.mul_.0.forward"][k][0]["Max"] for k in ("input_args", "output")] == [2, 6]


def test_changes_that_no_recorded_call_made(tmp_path: Path):
    """zero_ and copy_ are no recorded APIs, and through .data or numpy not even torch's version counter sees them."""
    weight = nn.Parameter(torch.full((2, 3), 2.0))

    def program() -> None:
        y = F.relu(X)
        y.zero_()
        torch.exp(y)
        z = F.relu(X)
        z.data.zero_()
        torch.exp(z)
        u = F.relu(X)
        u.numpy()[:] = 7.0
        torch.exp(u)
        F.linear(X, weight)
        weight.data.copy_(torch.full((2, 3), 5.0))
        F.linear(X, weight)

    data = recorded(tmp_path, program).data
    assert [data[f"Torch.exp.{i}.forward"]["input_args"][0]["Max"] for i in range(3)] == [0, 0, 7]
    assert [data[f"Functional.linear.{i}.forward"]["input_args"][1]["Max"] for i in range(2)] == [2, 5]


def test_memory_that_is_used_again(tmp_path: Path):
    """A tensor that is gone leaves its address to the next one, which has figures of its own."""

    def program() -> None:
        for i in range(50):
            torch.add(torch.full((1000,), float(i)), 1.0)

    data = recorded(tmp_path, program).data
    assert [data[f"Torch.add.{i}.forward"]["input_args"][0]["Max"] for i in range(50)] == list(range(50))
    assert [data[f"Torch.add.{i}.forward"]["output"][0]["Min"] for i in range(50)] == list(range(1, 51))


def test_views_of_one_memory(tmp_path: Path):
    """Parts, halves of the type, other strides: each view has the figures of its own elements."""
    base = torch.arange(24.0).reshape(4, 6)
    views = [base, base.t(), base[:2], base[2:], base[:, ::2], base.view(torch.int32), base.expand(2, 4, 6), base[0]]

    def program() -> None:
        for view in views:
            view.numel()
            torch.stack([view])

    data = recorded(tmp_path, program).data
    for i, view in enumerate(views):
        record = data[f"Torch.stack.{i}.forward"]["input_args"][0][0]
        assert (record["shape"], record["dtype"]) == (list(view.shape), str(view.dtype))
        assert (record["Max"], record["Min"]) == (view.max().item(), view.min().item())
        assert record["Norm"] == pytest.approx(view.double().norm().item(), rel=1e-6)


def test_threads_count_together(tmp_path: Path):
    def work() -> None:
        for _ in range(50):
            torch.exp(X)

    def program() -> None:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    data = recorded(tmp_path, program).data
    assert sorted(data) == sorted(f"Torch.exp.{i}.forward" for i in range(200))
    assert all("output" in record for record in data.values())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_processes_record_nothing(tmp_path: Path):
    def program() -> None:
        torch.exp(X)
        child = os.fork()
        if child == 0:
            try:
                torch.tanh(X)
                PrecisionDebugger.stop()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        torch.sin(X)

    dump = recorded(tmp_path, program)
    assert dump.names == ["Torch.exp.0.forward", "Torch.sin.0.forward"]
    assert len(list((tmp_path / "dump" / "step0").iterdir())) == 1


def test_data_loader_workers(tmp_path: Path):
    class Rows(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Tensor:
            return torch.exp(torch.full((3,), float(i)))

    def program() -> None:
        for batch in torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1):
            torch.tanh(batch)

    dump = recorded(tmp_path, program)
    assert [n for n in dump.data if "exp" in n] == []
    assert [n for n in dump.data if "tanh" in n] == ["Torch.tanh.0.forward", "Torch.tanh.1.forward"]


def test_functions_keep_their_faces(tmp_path: Path):
    """Names, signatures, and pickling of a model that holds a function, as nn.TransformerEncoderLayer does."""
    names, signature = (F.relu.__name__, F.relu.__module__), inspect.signature(F.relu)
    with PrecisionDebugger(dump_path=tmp_path, level="L1"):
        assert (F.relu.__name__, F.relu.__module__) == names
        assert inspect.signature(F.relu) == signature
        for function in (F.relu, F.gelu, F.linear, torch.sigmoid, torch.Tensor.add, torch.linalg.norm):
            assert pickle.loads(pickle.dumps(function)) is function
        layer = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True, dropout=0.0)
        pickled = pickle.dumps(layer)
    x = torch.ones(1, 2, 4)
    assert torch.equal(pickle.loads(pickled)(x), layer(x))  # the wrapped function that it holds works on, unrecorded


def test_functions_that_two_modules_export_stay_one(tmp_path: Path):
    """``P2POp(dist.isend, ...)`` compares with the isend of the module in which it is defined."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("torch without distributed")
    before = dist.isend, dist.irecv
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        debugger.start()
        assert dist.isend is not before[0]
        for name in ("isend", "irecv", "all_reduce", "batch_isend_irecv"):
            assert getattr(dist, name) is getattr(dist.distributed_c10d, name)
        debugger.stop()
        debugger.step()
    assert (dist.isend, dist.irecv) == before
    assert (dist.distributed_c10d.isend, dist.distributed_c10d.irecv) == before


def test_subclasses_with_their_own_functions(tmp_path: Path):
    class Marked(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    marked = torch.ones(3).as_subclass(Marked)
    results: list[Any] = []
    data = recorded(tmp_path, lambda: results.append(torch.add(marked, 1.0))).data
    assert type(results[0]) is Marked
    assert data["Torch.add.0.forward"]["output"][0]["Max"] == 2


def test_tensors_of_every_kind_do_no_harm(tmp_path: Path):
    tensors = [
        torch.empty(0, 3),
        torch.tensor(2.5),
        torch.ones(2, device="meta"),
        torch.eye(3).to_sparse(),
        torch.eye(4).to_sparse_csr(),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.ones(3, dtype=torch.float16),
        torch.tensor([True, False]),
        torch.ones(2, dtype=getattr(torch, "uint16", torch.uint8)),
    ]
    module = types.ModuleType("any")
    module.same = lambda x: x  # type: ignore[attr-defined]
    with PrecisionDebugger(dump_path=tmp_path, level="L1") as debugger:
        debugger.register_custom_api(module, "same")
        debugger.start()
        for tensor in tensors:
            assert module.same(tensor) is tensor
    data = only(tmp_path).data
    assert [r["output"][0]["dtype"] for r in data.values()] == [str(t.dtype) for t in tensors]


def test_vmap_and_grad_transforms(tmp_path: Path):
    """Inside torch.func transforms tensors have no values of their own; the results are the same."""

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(x * w).sum()

    weight = torch.ones(3)
    expected = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, X)
    results: list[Tensor] = []
    recorded(tmp_path, lambda: results.append(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, X)))
    assert torch.equal(results[0], expected)


def test_scripting_while_recording(tmp_path: Path):
    def scripted(x: Tensor) -> Tensor:
        return torch.relu(x) + 1.0

    results: list[Tensor] = []
    recorded(tmp_path, lambda: results.append(torch.jit.script(scripted)(X)))
    assert torch.equal(results[0], X + 1)


def test_conjugates_share_memory_but_not_bytes(tmp_path: Path):
    c = torch.tensor([1 + 2j, 3 - 4j])
    data = recorded(tmp_path, lambda: torch.mul(c, c.conj()), summary_mode="md5").data
    first, second = data["Torch.mul.0.forward"]["input_args"]
    assert first["md5"] == f"{zlib.crc32(c.numpy().tobytes()):08x}"
    assert second["md5"] == f"{zlib.crc32(c.conj().resolve_conj().numpy().tobytes()):08x}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("mode", ["statistics", "md5"])
def test_storages_can_still_be_resized(tmp_path: Path, dtype: torch.dtype, mode: str):
    """As FSDP frees its unsharded parameters. ``tensor.numpy()`` forbids it for good, so figures must not come that way."""
    x = torch.ones(4, 3).to(dtype)
    recorded(tmp_path, lambda: torch.stack([x]), summary_mode=mode)
    x.untyped_storage().resize_(0)
