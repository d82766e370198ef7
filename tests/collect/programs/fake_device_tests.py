"""Tests on a device of our own (fake_device.py), which test_device.py runs in a process of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.collect import fake_device as fake
from tests.collect.dumps import is_tensor, leaves, only
from tests.collect.on_device import (
    assert_figures_equal_those_of_the_host,
    assert_left_alone,
    assert_same_dump,
    assorted,
    training_step,
)

from numprobe.collect.pytorch import devices
from numprobe.collect.pytorch.digests import crc32, hash64, xor64
from numprobe.collect.pytorch.statistics import Statistics
from numprobe.collect.pytorch.tensor_files import TensorWriter
from numprobe.pytorch import PrecisionDebugger, seed_all

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _as_new():
    fake.forbidden.clear()
    fake.copies.clear()
    fake.launches.clear()


def test_the_device_is_one():
    x = torch.arange(6.0, device="fake").view(2, 3).requires_grad_()
    (x @ x.t()).relu().sum().backward()
    assert x.device.type == "fake"
    assert not x.is_cpu
    assert x.grad.cpu().tolist() == [[6.0, 10.0, 14.0], [6.0, 10.0, 14.0]]
    with pytest.raises(NotImplementedError, match="float64"):
        x.double()


@pytest.mark.parametrize("settings", [{}, {"compat": True}, {"summary_mode": "hash"}, {"level": "L1"}])
def test_a_training_step_is_that_of_the_host(tmp_path: Path, settings: dict[str, object]):
    found, model = training_step(tmp_path / "fake", "fake", **settings)
    wanted, _ = training_step(tmp_path / "host", "cpu", **settings)
    assert_same_dump(found, wanted, 1e-6)
    assert_left_alone(model, "fake")


def test_nothing_is_waited_for_before_the_flush(tmp_path: Path):
    """A few transfers a flush, one for each dtype, however many tensors there are."""
    found, _ = training_step(tmp_path, "fake")
    tensors = [t for r in found.data.values() for _, t in leaves(r) if is_tensor(t)]
    assert len(tensors) > 80
    assert 1 <= len(fake.copies) <= 5


@pytest.mark.parametrize("mode", ["statistics", "md5", "xor", "hash"])
def test_figures(mode: str):
    assert_figures_equal_those_of_the_host("fake", assorted(), mode)


def test_figures_of_the_reference():
    assert_figures_equal_those_of_the_host("fake", assorted(), "statistics", compat=True)


def test_no_digest_but_md5_waits():
    for mode, waits in (("xor", 0), ("hash", 0), ("md5", 2)):
        fake.copies.clear()
        statistics = Statistics(mode)
        for tensor in (torch.randn(5, 7), torch.tensor(3)):
            statistics.add(tensor.to("fake"))
        assert len(fake.copies) == waits, mode


def test_digests():
    for tensor in (torch.randn(33), torch.randn(5, 7).t(), torch.arange(5, dtype=torch.uint8)):
        for digest in (crc32, xor64, hash64):
            assert digest(tensor.to("fake")) == digest(tensor)


def test_without_aminmax():
    fake.forbidden.add("aminmax")
    assert_figures_equal_those_of_the_host("fake", assorted()[:8], "statistics")


def test_integers_are_summed_without_float64():
    """float64 raises on this device, as it may on an NPU."""
    assert devices.wide_float(torch.device("fake:0")) is torch.float32
    statistics = Statistics()
    statistics.add(torch.arange(1000, device="fake"))
    [record] = statistics.resolve()
    assert (record["Max"], record["Min"], record["Mean"], record["stat_dtype"]) == (999, 0, 499.5, "float32")


def test_a_missing_operator_costs_figures_and_nothing_else():
    fake.forbidden.add("linalg_vector_norm")
    statistics = Statistics()
    statistics.add(torch.randn(4, device="fake"))
    statistics.add(torch.randn(4))
    device, host = statistics.resolve()
    assert device == dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    assert host["Norm"] is not None
    assert statistics.take_unsupported() == {"Tensor/float32": 1}
    assert not statistics.unsupported


def test_figures_are_fetched_on_the_stream_that_made_them():
    x = torch.randn(8, device="fake")
    statistics = Statistics()
    for stream in (0, 7, 0, 7):
        with torch.fake.stream(stream):
            statistics.add(x)
    fake.launches.clear()
    fake.copies.clear()
    statistics.resolve()
    assert {launch.rpartition(" ")[2] for launch in fake.launches} == {"0", "7"}
    assert {copy.rpartition(" ")[2] for copy in fake.copies} == {"0", "7"}
    assert fake.stream_now == [0]


def test_many_figures_are_packed_on_their_own_stream():
    x = torch.randn(8, device="fake")
    statistics = Statistics()
    for i in range(1100):
        with torch.fake.stream(i % 2):
            statistics.add(x)
    records = statistics.resolve()
    assert all(record == records[0] for record in records)


def test_while_a_graph_is_captured_nothing_is_looked_at(tmp_path: Path):
    statistics, writer = Statistics(), TensorWriter(tmp_path)
    x = torch.randn(3, device="fake")
    fake.launches.clear()
    fake.capturing[0] = True
    try:
        statistics.add(x)
        assert writer.put(x, "x.pt") is None
    finally:
        fake.capturing[0] = False
    assert fake.launches == fake.copies == []
    assert statistics.resolve() == [dict.fromkeys(("Max", "Min", "Mean", "Norm"))]
    assert statistics.unsupported == {"captured for a graph": 1}


def test_a_module_that_cannot_tell_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    """A vendor's that takes other arguments costs no figures."""
    asked = []

    def other(*_: object) -> None:
        asked.append(1)
        raise TypeError("takes no device")

    monkeypatch.setattr(devices, "_unanswered", set())
    monkeypatch.setattr(torch.fake, "current_stream", other)
    statistics = Statistics()
    for _ in range(3):
        statistics.add(torch.ones(3, device="fake"))
    assert [record["Max"] for record in statistics.resolve()] == [1.0] * 3
    assert asked == [1]


def test_tensors_stay_on_the_device_until_the_flush(tmp_path: Path):
    x = torch.ones(3, device="fake")
    writer = TensorWriter(tmp_path, until_flush=True)
    with torch.fake.stream(5):
        assert writer.put(x, "x.pt") == "x.pt"
    x.zero_()
    assert fake.copies == []
    assert writer.flush() == []
    assert fake.copies == ["(3,) on 5"]
    saved = torch.load(tmp_path / "x.pt", weights_only=True)
    assert saved.is_cpu
    assert saved.tolist() == [1.0, 1.0, 1.0]
    assert writer.flush() == []


@pytest.mark.parametrize("async_dump", [False, True])
def test_saved_tensors_are_those_of_the_device(tmp_path: Path, async_dump: bool):
    found, _ = training_step(tmp_path, "fake", task="tensor", async_dump=async_dump, list=["Linear", "linear"])
    count = 0
    for record in found.data.values():
        for _, value in leaves(record):
            if is_tensor(value):
                saved = torch.load(found.folder / "dump_tensor_data" / value["data_name"], weights_only=True)
                assert saved.is_cpu
                assert list(saved.shape) == value["shape"]
                assert saved.max().item() == value["Max"]
                count += 1
    assert count > 20


def test_the_same_address_on_two_devices_is_two_tensors(tmp_path: Path):
    """The host tensor over the device's memory has other figures as soon as the device has its own."""
    found, _ = training_step(tmp_path, "fake", level="L1")
    record = next(r for n, r in found.data.items() if n.startswith("Functional.linear"))
    assert record["input_args"][0]["stat_dtype"] == "float32"


class Mixed(torch.nn.Module):
    """Takes tensors of both, as models that keep tables on the host do; nothing but module calls is recorded."""

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, table + 1


def test_host_and_device_in_one_call(tmp_path: Path):
    """Figures that are there at once and figures that are fetched at the flush meet in one record."""
    x, table = torch.tensor([1.0, 2.0]).to("fake"), torch.tensor([3.0, 4.0])
    model = torch.nn.ModuleDict({"mixed": Mixed()})
    with PrecisionDebugger(dump_path=tmp_path, level="L0") as debugger:
        debugger.start(model=model)
        for _ in range(2):
            model["mixed"](x, table)
        debugger.stop()
    for record in only(tmp_path).data.values():
        given = [(t["Max"], t["Min"], t["stat_dtype"]) for t in record["input_args"]]
        assert given == [(2.0, 1.0, "float32"), (4.0, 3.0, "float64")]
        assert [t["Max"] for t in record["output"]] == [4.0, 5.0]


def test_bfloat16_and_autocast(tmp_path: Path):
    found, _ = training_step(tmp_path / "a", "fake", torch.bfloat16)
    wanted, _ = training_step(tmp_path / "b", "cpu", torch.bfloat16)
    assert_same_dump(found, wanted, 2e-2)  # kernels round elsewhere
    with torch.autocast("fake", torch.bfloat16):
        statistics = Statistics()
        statistics.add(torch.randn(4, device="fake"))
        assert statistics.resolve()[0]["stat_dtype"] == "float32"


def test_nan_check_needs_no_hardware(tmp_path: Path):
    from tests.collect.recording import recorded

    def program() -> None:
        torch.log(torch.tensor([-1.0, 2.0], device="fake"))
        torch.exp(torch.tensor([-1.0, 2.0], device="fake"))

    data = recorded(tmp_path, program, task="nan_check").data
    assert [data[f"Torch.{n}.0.forward"]["is_nan"] for n in ("log", "exp")] == [1, 0]


def test_seeding_reaches_the_device():
    seed_all(7)
    first = torch.rand(3, device="fake").cpu()
    seed_all(7)
    assert torch.equal(first, torch.rand(3, device="fake").cpu())
