"""Four gloo processes, of which rank 2 makes a NaN: the stored msProbe sample made again, and the root cause found in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from numprobe.diagnose.nan_overflow.skill import NanOptions, analyse  # noqa: E402

from .conftest import Once  # noqa: E402
from .dumps import PROGRAMS, SAMPLES, Dump, differences, is_tensor, leaves  # noqa: E402
from .recording import assert_is, recorded  # noqa: E402

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("no gloo", allow_module_level=True)

SAMPLE = SAMPLES / "h_distributed_4rank_nan"
WORLD = 4


@pytest.fixture
def dump(once: Once) -> Path:
    def make(out: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, str(PROGRAMS / "ranks.py"), str(SAMPLE / "config.json"), str(out)]
        common = {
            "WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        processes = [
            subprocess.Popen(
                command, env={**os.environ, **common, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True
            )
            for rank in range(WORLD)
        ]
        for process in processes:
            assert process.wait(timeout=120) == 0, process.communicate()[1][-3000:]

    return once("ranks", make)


def of(dump: Path, rank: int) -> Dump:
    return Dump(dump / "step0" / f"rank{rank}")


@pytest.mark.parametrize("rank", range(WORLD))
def test_names_and_figures(dump: Path, rank: int):
    found, wanted = of(dump, rank), Dump(SAMPLE / "dump" / "step0" / f"rank{rank}")
    ours, theirs = found.data, wanted.data
    assert list(ours) == list(theirs)
    lines: list[str] = []
    for name, record in ours.items():
        reference = theirs[name]
        if ".backward" in name:
            record.pop("grad_of")
        if name.endswith(".backward"):
            record.pop("output")
            reference.pop("output")
        lines += differences(name, record, reference)
    assert lines == []


@pytest.mark.parametrize("rank", range(WORLD))
def test_files(dump: Path, rank: int):
    found, wanted = of(dump, rank), Dump(SAMPLE / "dump" / "step0" / f"rank{rank}")
    assert sorted(p.name for p in found.folder.iterdir()) == ["construct.json", "dump.json", "stack.json"]
    assert set(found.stacks) == set(wanted.stacks)
    forward = {n: p for n, p in wanted.parents.items() if ".backward" not in n}
    assert {n: p for n, p in found.parents.items() if ".backward" not in n} == forward
    assert [p.name for p in (dump / "step0").iterdir() if "proc" in p.name] == []


def test_an_asynchronous_call_is_recorded_after_the_wait(dump: Path):
    """all_reduce(MAX, async_op=True) of each rank's number: the output is everybody's largest."""
    for rank in range(WORLD):
        data = of(dump, rank).data
        [name] = [n for n, r in data.items() if "all_reduce" in n and "async_op" in r["input_kwargs"]]
        record = data[name]
        assert [record["input_args"][0][k] for k in ("Max", "Min")] == [rank, rank]
        assert [record["output"][0][k] for k in ("Max", "Min")] == [3, 3]
        assert record["output"][1] == {"type": "torch.distributed.ReduceOp", "value": "RedOpType.MAX"}
        assert record["output"][2] == {"type": "bool", "value": True}


def test_buffers_that_a_call_fills(dump: Path):
    """What recv and all_gather are given is nothing yet: null; the output is what came."""
    received = of(dump, 1).data["Distributed.recv.0.forward"]
    assert received["input_args"][0] is None
    assert (received["output"][0]["Max"], received["output"][0]["shape"]) == (3, [4])
    for rank in range(WORLD):
        gathered = of(dump, rank).data["Distributed.all_gather.0.forward"]
        assert gathered["input_args"][0] is None
        assert [part["shape"] for part in gathered["output"][0]] == [[1]] * WORLD


def test_the_root_cause_is_found(dump: Path):
    result = analyse(dump, NanOptions(use_cache=False, jobs=1)).result
    assert result.verdict == "overflow_found"
    assert result.rank == 2
    assert result.first is not None
    assert result.first.op_name == "Torch.log.0.forward"


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_data_parallel(tmp_path: Path):
    model = nn.parallel.DistributedDataParallel(Two())
    found = recorded(tmp_path, lambda: model(torch.ones(2, 4)).sum().backward(), model=model, level="mix")
    assert found.folder.name == "rank0"
    names = [n for n in found.data if n.startswith("Module.") and ".forward." in n]
    assert names == [
        "Module.module.first.Linear.forward.0",
        "Module.module.second.Linear.forward.0",
        "Module.module.Two.forward.0",
    ]
    gradient = found.data["Module.module.second.Linear.parameters_grad.0"]["weight"][0]
    assert_is(gradient, model.module.second.weight.grad)


@pytest.mark.usefixtures("alone")
def test_fully_sharded(tmp_path: Path):
    """FSDP2: unsharded parameters inside a call, sharded ones in clipping and the optimizer."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("no FSDP2 in this torch")
    model = Two()
    weight = model.first.weight.detach().clone()
    fsdp.fully_shard(model.first)
    fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def program() -> None:
        model(torch.ones(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    data = recorded(tmp_path, program, model=model, level="mix").data
    record = data["Module.first.FSDPLinear.forward.0"]["parameters"]["weight"]
    assert record["type"] == "torch.Tensor"
    assert_is(record, weight)
    assert "Module.second.Linear.backward.0" in data
    sharded = [v for _, v in leaves(data) if is_tensor(v) and v["type"] == "torch.distributed.tensor.DTensor"]
    assert sharded
    assert {str(v["device_mesh"]) for v in sharded} == {"[0]"}
    assert all(list(p) in (["Shard"], ["Replicate"], ["Partial"]) for v in sharded for p in v["placements"])
