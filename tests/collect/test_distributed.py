"""Four gloo processes, of which rank 2 makes a NaN: the stored msProbe sample made again, and the root cause found in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from numprobe.diagnose.nan_overflow.skill import NanOptions, analyse  # noqa: E402

from .conftest import Once  # noqa: E402
from .dumps import PROGRAMS, SAMPLES, Dump, differences  # noqa: E402

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
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
