"""What has to hold on every device that is not the host: on a GPU (test_cuda.py), on a device of our own (test_device.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from numprobe.collect.pytorch.statistics import Statistics
from numprobe.pytorch import PrecisionDebugger

from .dumps import Dump, is_tensor, leaves, only


class Net(nn.Module):
    """Matrix products, a norm, an embedding, an operator in place, a boolean mask, a shared weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(16, 32)
        self.norm = nn.LayerNorm(32)
        self.inner = nn.Linear(32, 64)
        self.outer = nn.Linear(64, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        h = torch.relu(self.inner(self.norm(x)))
        h = h.masked_fill(h > 2.0, 2.0)
        x = x + self.outer(h)
        return torch.matmul(x, self.embed.weight.t())


def training_step(out: Path, device: str, dtype: torch.dtype = torch.float32, **settings: Any) -> tuple[Dump, Net]:
    """One step at level mix, recorded."""
    settings = {"level": "mix", "risk_level": "ALL", **settings}
    model, ids = _model_and_ids(device, dtype)
    with PrecisionDebugger(dump_path=out, **settings) as debugger:
        debugger.start(model=model)
        model(ids).float().square().mean().backward()
        debugger.stop()
        debugger.step()
    return only(out), model


def assert_left_alone(model: Net, device: str, dtype: torch.dtype = torch.float32) -> None:
    """The gradients are those of a step that nobody recorded, bit for bit."""
    plain, ids = _model_and_ids(device, dtype)
    plain(ids).float().square().mean().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad.cpu(), theirs.grad.cpu())


def _model_and_ids(device: str, dtype: torch.dtype) -> tuple[Net, torch.Tensor]:
    return Net().to(device, dtype), (torch.arange(12).view(2, 6) % 16).to(device)


def assert_same_dump(found: Dump, wanted: Dump, places: float) -> None:
    """The same records with the same figures, to ``places`` of the largest magnitude in the tensor."""
    assert found.names == wanted.names
    assert found.parents == wanted.parents
    compared = 0
    for name, record in wanted.data.items():
        ours = dict(leaves(found.data[name]))
        for path, theirs in leaves(record):
            if not is_tensor(theirs):
                continue
            mine = ours[path]
            assert (mine["dtype"], mine["shape"]) == (theirs["dtype"], theirs["shape"]), (name, path)
            if theirs["Max"] is None:
                assert mine["Max"] is None
                continue
            top = max(abs(theirs["Max"]), abs(theirs["Min"]))
            count = np.prod(theirs["shape"]) if theirs["shape"] else 1
            for key in ("Max", "Min", "Mean"):
                if theirs[key] is not None:
                    assert mine[key] == pytest.approx(theirs[key], abs=places * top), (name, path, key)
            if theirs["Norm"] is not None:
                assert mine["Norm"] == pytest.approx(theirs["Norm"], abs=places * top * count**0.5), (name, path)
            compared += 1
    assert compared > 50


def assorted() -> list[torch.Tensor]:
    """Tensors of every kind of dtype and layout, on the host."""
    torch.manual_seed(0)
    odd = [
        torch.randn(3),
        torch.randn(1 << 17),
        torch.randn(300, 301).t(),
        torch.randn(1 << 16).bfloat16(),
        torch.randn(40, 50).half(),
        torch.randn(64, 64)[::2, ::3],
        torch.arange(12).view(3, 4),
        torch.tensor([True, False]),
        torch.tensor(-3),
        torch.tensor(-1.5),
        torch.empty(0, 4),
        torch.randn(80).to(torch.float8_e4m3fn),
        torch.randn(80).to(torch.float8_e5m2),
        torch.tensor([3, 250], dtype=torch.uint8),
        torch.tensor([float("inf"), 1.0]),
        torch.tensor([float("nan"), 1.0]),
        torch.full((2, 2), float("-inf")),
    ]
    if hasattr(torch, "float4_e2m1fn_x2"):
        odd.append(torch.arange(256, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    return odd


def assert_figures_equal_those_of_the_host(device: str, tensors: list[torch.Tensor], mode: str, **options: Any) -> None:
    on_host, on_device = Statistics(mode, counts=False, **options), Statistics(mode, counts=False, **options)
    for tensor in tensors:
        on_host.add(tensor)
        on_device.add(tensor.to(device) if tensor.is_contiguous() else _same_strides(tensor, device))
    wanted, found = on_host.resolve(), on_device.resolve()
    assert not on_device.unsupported
    for tensor, ours, theirs in zip(tensors, found, wanted, strict=True):
        for record in (ours, theirs):
            record.pop("stat_dtype", None)
        expected = {
            k: pytest.approx(v, rel=1e-5, abs=1e-6, nan_ok=True) if isinstance(v, float) else v
            for k, v in theirs.items()
        }
        assert ours == expected, (tensor.dtype, tensor.shape)


def _same_strides(tensor: torch.Tensor, device: str) -> torch.Tensor:
    storage = torch.empty(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype)
    storage.copy_(tensor.as_strided(storage.shape, (1,), 0))
    return storage.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
