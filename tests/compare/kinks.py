"""A small network of operators that choose or bend (relu, max-pooling, clamp, abs, maximum, sign), and faults in single ones.

``dump(folder, dtype, seed, fault)`` runs one training step under numprobe's recorder, as in :mod:`tests.compare.models`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from numprobe.pytorch import PrecisionDebugger

UNSEEN = torch._C.TensorBase
FAULTS = {  # fault -> what the finding has to name (a part of its op or of the modules around)
    "gelu_for_relu": "relu",
    "leaky_slope": "leaky_relu",
    "unseen_bound": "abs",  # clamp is not recorded: the gap before the next call
    "bound": "hardtanh",
    "gradient_scale": "middle",
    "softmax_scale": "mul",
    "operator_scale": "scaled",
    "eps": "norm",
    "detached": "middle",
}


class _Scaled(torch.autograd.Function):
    """The identity, with a gradient that is ``scale`` times too large: nothing that a recorder sees."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: float) -> Tensor:  # type: ignore[no-untyped-def,override]
        ctx.scale = scale
        return UNSEEN.clone(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def,override]
        return UNSEEN.mul(gradient, ctx.scale), None


class Middle(nn.Module):
    """Linear, and what may go wrong in its backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        y = UNSEEN.detach(x) if self.fault == "detached" else x
        y = self.linear(y)
        return _Scaled.apply(y, 1.03) if self.fault == "gradient_scale" else y  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """A kernel that nothing is seen of."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 0.7

    def forward(self, x: Tensor) -> Tensor:
        return UNSEEN.mul(x, self.factor)


class Kinks(nn.Module):
    def __init__(self, modules: bool, width: int = 48) -> None:
        super().__init__()
        self.fault = ""
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.up, self.middle, self.down = nn.Linear(12 * 16, width), Middle(width), nn.Linear(width, width)
        self.scaled = Scaled()
        self.relu6 = nn.ReLU6()
        self.relu = nn.ReLU() if modules else None
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def bend(self, x: Tensor) -> Tensor:
        return self.relu(x) if self.relu is not None else F.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.bend(self.conv1(x)))
        x = F.max_pool2d(F.leaky_relu(self.conv2(x), 0.15 if self.fault == "leaky_slope" else 0.1), 2)
        x = self.up(x.flatten(1))
        x = F.gelu(x) if self.fault == "gelu_for_relu" else F.relu(x)
        x = self.scaled(self.relu6(self.middle(x) * 4))
        x = torch.clamp(self.down(x) * 2, -0.5, 0.3 if self.fault == "unseen_bound" else 0.5)
        x = self.norm(x + F.hardtanh(x.abs() * 2, 0, 0.9 if self.fault == "bound" else 1))
        x = torch.maximum(x, x.flip(-1) * 0.5)
        weights = F.softmax(x * (1.05 if self.fault == "softmax_scale" else 1.0), -1)
        return self.head(self.bend(x + weights * torch.sign(x)))


def dump(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    fault: str = "",
    modules: bool = False,
    **config: object,
) -> Path:
    """One recorded step; returns the folder of the step."""
    torch.manual_seed(seed)
    model = Kinks(modules)
    x, labels = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
    model.fault = model.middle.fault = fault
    model.scaled.factor *= 1.05 if fault == "operator_scale" else 1
    model.norm.eps = 2e-2 if fault == "eps" else 1e-5
    model = model.to(dtype)
    settings = {"task": "tensor", "level": "mix", "dump_path": str(folder), "overwrite": True, **config}
    with PrecisionDebugger(**settings) as debugger:
        debugger.start(model=model, rank_id=0)
        F.cross_entropy(model(x.to(dtype)).float(), labels).backward()
        debugger.stop()
        debugger.step()
    return folder / "step0"
