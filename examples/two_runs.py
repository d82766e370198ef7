"""Record one training step of a small model twice: in fp32, and in bf16 with a mistake. Then compare them:

python examples/two_runs.py
numprobe compare runs/bf16 runs/fp32
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from numprobe.pytorch import PrecisionDebugger, seed_all


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, scaled: bool) -> None:
        super().__init__()
        self.heads, self.scaled = heads, scaled
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-2, -1))
        if self.scaled:
            scores = scores * (width // self.heads) ** -0.5
        return self.out(torch.matmul(F.softmax(scores, -1), v).transpose(1, 2).reshape(b, t, width))


class Block(nn.Module):
    def __init__(self, width: int, scaled: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, 4, scaled)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def record(folder: str, dtype: torch.dtype, forgotten: int | None = None) -> None:
    """One step; in layer ``forgotten`` the attention lacks its scale."""
    seed_all(1234)
    model = nn.Sequential(*(Block(64, scaled=n != forgotten) for n in range(3)), nn.Linear(64, 100))
    x, labels = torch.randn(2, 16, 64), torch.randint(100, (2, 16))
    model = model.to(dtype)
    with PrecisionDebugger(dump_path=folder, task="statistics", level="mix", overwrite=True) as debugger:
        debugger.start(model=model, rank_id=0)
        logits = model(x.to(dtype))
        F.cross_entropy(logits.float().view(-1, 100), labels.view(-1)).backward()
        debugger.stop()
        debugger.step()


if __name__ == "__main__":
    record("runs/fp32", torch.float32)
    record("runs/bf16", torch.bfloat16, forgotten=1)
