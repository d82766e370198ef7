"""The recorder on a GPU; skipped where there is none.

What synchronises is caught by torch itself: ``set_sync_debug_mode("error")`` raises in whatever waits. An error inside the
collector costs figures, so every such test looks at the figures too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

from numprobe.collect.pytorch.digests import crc32, hash64, xor64  # noqa: E402
from numprobe.collect.pytorch.statistics import Statistics  # noqa: E402
from numprobe.pytorch import PrecisionDebugger, seed_all  # noqa: E402

from .dumps import Dump, is_tensor, leaves, only  # noqa: E402
from .on_device import (  # noqa: E402
    Net,
    assert_figures_equal_those_of_the_host,
    assert_left_alone,
    assert_same_dump,
    assorted,
    training_step,
)


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    changes = seed_all(1234, mode=True)
    torch.set_float32_matmul_precision("highest")
    yield
    changes.restore()


@contextmanager
def nothing_waits() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def tensors_of(dump: Dump) -> list[dict[str, Any]]:
    return [value for record in dump.data.values() for _, value in leaves(record) if is_tensor(value)]


@pytest.mark.parametrize("settings", [{}, {"compat": True}, {"summary_mode": "md5"}, {"level": "L1"}, {"level": "L0"}])
def test_a_training_step_is_that_of_the_host(tmp_path: Path, settings: dict[str, Any]):
    found, model = training_step(tmp_path / "cuda", "cuda", **settings)
    wanted, _ = training_step(tmp_path / "host", "cpu", **settings)
    assert_same_dump(found, wanted, 1e-4)
    assert_left_alone(model, "cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(tmp_path: Path, dtype: torch.dtype):
    found, model = training_step(tmp_path / "cuda", "cuda", dtype)
    wanted, _ = training_step(tmp_path / "host", "cpu", dtype)
    assert_same_dump(found, wanted, 3e-2)  # kernels round elsewhere
    assert_left_alone(model, "cuda", dtype)


@pytest.mark.parametrize("mode", ["statistics", "md5", "xor", "hash"])
def test_figures(mode: str):
    assert_figures_equal_those_of_the_host("cuda", assorted(), mode)


def test_figures_of_the_reference():
    tensors = [t for t in assorted() if t.dtype not in (torch.bfloat16, torch.float16)]  # reduced in another order
    assert_figures_equal_those_of_the_host("cuda", tensors, "statistics", compat=True)


def test_large_tensors():
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        x = (torch.randn(1 << 24, device="cuda") + 0.25).to(dtype)
        statistics = Statistics()
        statistics.add(x)
        [record] = statistics.resolve()
        exact = x.double()
        assert record["Mean"] == pytest.approx(exact.mean().item(), rel=1e-6)
        assert record["Norm"] == pytest.approx(exact.norm().item(), rel=1e-6)
        assert (record["Max"], record["Min"]) == (exact.max().item(), exact.min().item())


def test_digests():
    for tensor in (torch.randn(1033), torch.randn(5, 7).t(), torch.arange(5, dtype=torch.uint8)):
        for digest in (crc32, xor64, hash64):
            assert digest(tensor.cuda()) == digest(tensor)
    large = torch.randint(-(2**31), 2**31, (3 << 20,), dtype=torch.int64)  # several parts
    assert hash64(large.cuda()) == hash64(large)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"summary_mode": "hash"},
        {"summary_mode": "xor"},
        {"compat": True},
        {"task": "nan_check"},
        {"task": "tensor", "async_dump": True, "list": ["Linear", "linear"]},
    ],
)
def test_nothing_waits_before_the_flush(tmp_path: Path, settings: dict[str, Any]):
    model, ids = Net().cuda(), (torch.arange(12).view(2, 6) % 16).cuda()
    with PrecisionDebugger(dump_path=tmp_path / "dump", level="mix", risk_level="ALL", **settings) as debugger:
        debugger.start(model=model)
        with nothing_waits():
            model(ids).float().square().mean().backward()
        debugger.stop()
        debugger.step()
    found = tensors_of(only(tmp_path / "dump"))
    assert len(found) > 20
    key = "md5" if settings.get("summary_mode") == "xor" else "Max"
    assert all(t[key] is not None for t in found)


def test_no_figure_waits():
    statistics = [Statistics(mode) for mode in ("statistics", "xor", "hash")]
    tensors = [t.cuda() for t in assorted()]
    with nothing_waits():
        for each in statistics:
            for tensor in tensors:
                each.add(tensor)
    for each in statistics:
        each.resolve()
        assert not each.unsupported


def test_figures_are_those_of_the_stream_that_made_them():
    """A stream that is still busy when the figures are fetched from another one."""
    busy = torch.cuda.Stream()
    statistics = Statistics()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(200_000_000)  # about a tenth of a second
        statistics.add(torch.full((1000,), 3.0, device="cuda"))
    statistics.add(torch.full((1000,), 4.0, device="cuda"))
    first, second = statistics.resolve()
    assert (first["Max"], first["Mean"], second["Max"], second["Mean"]) == (3.0, 3.0, 4.0, 4.0)


def test_more_than_a_column_holds_on_two_streams():
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    statistics = Statistics()
    values = [torch.full((100,), float(i), device="cuda") for i in range(1500)]
    torch.cuda.synchronize()
    for i, value in enumerate(values):
        with torch.cuda.stream(streams[i % 2]):
            statistics.add(value)
    assert [record["Max"] for record in statistics.resolve()] == [float(i) for i in range(1500)]


def test_later_changes_do_not_show():
    statistics = Statistics("hash")
    x = torch.ones(1 << 20, device="cuda")
    before = hash64(x)
    statistics.add(x)
    x.zero_()
    [record] = statistics.resolve()
    assert (record["Max"], record["md5"]) == (1.0, before)


def test_nothing_stays_on_the_device(tmp_path: Path):
    training_step(tmp_path / "a", "cuda")  # cuBLAS takes its workspace
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    training_step(tmp_path / "b", "cuda")
    assert torch.cuda.memory_allocated() <= held


def test_a_captured_graph_is_left_alone(tmp_path: Path):
    x = torch.randn(64, 64, device="cuda")
    torch.mm(x, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with PrecisionDebugger(dump_path=tmp_path / "dump", level="L1", risk_level="ALL", task="tensor") as debugger:
        debugger.start()
        with torch.cuda.graph(graph):
            y = torch.mm(x, x)
        x.fill_(2.0)
        graph.replay()
        z = torch.mm(x, x)
        debugger.stop()
        debugger.step()
    assert torch.equal(y, z)
    data = only(tmp_path / "dump").data
    captured, live = data["Torch.mm.0.forward"]["output"][0], data["Torch.mm.1.forward"]["output"][0]
    assert captured["Max"] is None
    assert "data_name" not in captured
    assert live["Max"] == z.max().item()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_two_devices():
    statistics = Statistics()
    for i in range(2):
        statistics.add(torch.full((10,), float(i + 1), device=f"cuda:{i}"))
    assert [record["Max"] for record in statistics.resolve()] == [1.0, 2.0]
