"""Task acc_check: a record holds all that a call can be repeated by. Each test repeats the calls from their records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from numprobe.collect.pytorch.settings import load_settings  # noqa: E402

from .dumps import Dump, Json, is_tensor, leaves  # noqa: E402
from .recording import is_of, recorded  # noqa: E402

OWNERS: dict[str, Any] = {"Functional": F, "Torch": torch, "Tensor": torch.Tensor}


def program() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    y = F.silu(F.linear(x, w, bias=None))
    top = torch.topk(y, 2, dim=1)
    torch.stack([top.values, torch.ones(4, 2)]).sum().backward()
    torch.softmax(torch.randn(3, 4).t(), -1, torch.float64)
    torch.add(torch.ones(3), 2, alpha=3)
    torch.arange(5).type(torch.float16)
    torch.ones(3).to(torch.float64)
    F.cross_entropy(torch.randn(3, 5), torch.tensor([1, 2, 3]), reduction="sum")
    torch.linalg.norm(torch.randn(3, 3), dim=(0, 1))


def value_of(record: Any, folder: Path) -> Any:
    """What the pre-check makes of an argument (PRE-6, PRE-7), with real data."""
    if isinstance(record, list):
        return [value_of(part, folder) for part in record]
    if record is None:
        return None
    if is_tensor(record):
        tensor = torch.load(folder / "dump_tensor_data" / record["data_name"], weights_only=True)
        if "stride" in record and 0 not in record["stride"]:  # what is expanded need not be
            strided = torch.empty_strided(record["shape"], record["stride"], dtype=tensor.dtype)
            tensor = strided.copy_(tensor)
        return tensor.to(record["device"]).requires_grad_(record["requires_grad"])
    if record["type"] == "torch.dtype":
        return getattr(torch, record["value"].removeprefix("torch."))
    return record["value"]


def repeated(name: str, record: Json, folder: Path) -> Any:
    prefix, api = name.split(".")[:2]
    call = getattr(OWNERS[prefix], api, None) or getattr(torch.linalg, api)
    kwargs = {key: value_of(value, folder) for key, value in record["input_kwargs"].items()}
    return call(*value_of(record["input_args"], folder), **kwargs)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    return recorded(tmp_path_factory.mktemp("real"), program, task="acc_check", real_data=True)


def test_every_call_can_be_repeated(real: Dump):
    calls = [name for name in real.data if name.endswith(".forward")]
    assert len(calls) == 11
    for name in calls:
        output = repeated(name, real.data[name], real.folder)
        listed = list(output) if isinstance(output, tuple) else [output]
        for record, tensor in zip(real.data[name]["output"], listed, strict=True):
            assert is_of(record, tensor), name
            assert record["requires_grad"] == tensor.requires_grad, name


def test_every_backward_pass_can_be_repeated(real: Dump):
    """The incoming gradient of each call, and nothing else: what comes out is for the pre-check to compute."""
    backward = [name for name in real.data if name.endswith(".backward")]
    called = ("Tensor.sum", "Torch.stack", "Torch.topk", "Functional.silu", "Functional.linear")
    assert backward == [f"{name}.0.backward" for name in called]
    for name in backward:
        assert set(real.data[name]) == {"input"}
        forward = name.replace("backward", "forward")
        output = repeated(forward, real.data[forward], real.folder)
        output = output[0] if isinstance(output, tuple) else output
        output.backward(value_of(real.data[name]["input"][0], real.folder))


def test_only_what_goes_in_is_saved(real: Dump):
    for name, record in real.data.items():
        for path, value in leaves(record):
            if is_tensor(value):
                assert ("data_name" in value) == (not path.startswith(".output")), (name, path)


def test_figures_alone(tmp_path: Path):
    dump = recorded(tmp_path, program, task="acc_check")
    assert dump.header["task"] == "acc_check"
    assert dump.header["dump_data_dir"] is None
    assert not (dump.folder / "dump_tensor_data").exists()
    softmax = dump.data["Torch.softmax.0.forward"]
    assert softmax["input_args"][1:] == [
        {"type": "int", "value": -1},
        {"type": "torch.dtype", "value": "torch.float64"},
    ]
    assert softmax["input_args"][0]["stride"] == [1, 4]
    assert softmax["input_args"][0]["device"] == "cpu"
    assert "stride" not in dump.data["Torch.add.0.forward"]["input_args"][0]
    assert dump.data["Torch.add.0.forward"]["input_kwargs"] == {"alpha": {"type": "int", "value": 3}}


def test_what_a_pre_check_never_runs_is_not_recorded(real: Dump):
    assert not [name for name in real.data if name.startswith("Tensor.to.")]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"white_list": ["silu", "linalg.norm"]}, {"Functional.silu", "Torch.norm"}),
        ({"white_list": ["silu", "linear"], "black_list": ["silu"]}, {"Functional.linear"}),
        ({"white_list": ["silu", "linear"], "list": ["linear"]}, {"Functional.linear"}),
    ],
)
def test_white_and_black_list(tmp_path: Path, settings: dict[str, list[str]], kept: set[str]):
    data = recorded(tmp_path, program, task="acc_check", **settings).data
    assert {name.rsplit(".", 2)[0] for name in data} == kept
    assert {name.rsplit(".", 1)[1] for name in data} == {"forward", "backward"} - (
        {"backward"} if kept == {"Torch.norm"} else set()
    )


def test_counters_are_those_of_a_full_dump(tmp_path: Path):
    def twice() -> None:
        F.silu(torch.ones(2))
        F.relu(torch.ones(2))
        F.silu(torch.ones(2))

    assert recorded(tmp_path, twice, task="acc_check", black_list=["relu"]).names == [
        "Functional.silu.0.forward",
        "Functional.silu.1.forward",
    ]


def test_with_modules(tmp_path: Path):
    """Level mix has them as well; a pre-check passes over them."""
    model = nn.Sequential(nn.Linear(3, 3))
    dump = recorded(
        tmp_path, lambda: model(torch.ones(2, 3)).sum().backward(), model=model, level="mix", task="acc_check"
    )
    assert "Module.0.Linear.forward.0" in dump.data
    assert not [name for name in dump.data if "parameters_grad" in name]


def test_real_data_is_of_this_task_alone():
    settings = load_settings(task="statistics", real_data=True)
    assert not settings.real_data
    assert settings.warnings == ("'real_data' has no effect with task statistics at level L1",)
