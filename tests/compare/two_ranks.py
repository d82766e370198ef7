"""A small program on two gloo ranks under numprobe's recorder: nested outputs, keywords, recomputed calls, P2P, collectives.

python -m tests.compare.two_ranks FOLDER float32|bfloat16
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from numprobe.pytorch import PrecisionDebugger


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 12)
        self.down = nn.Linear(12, 8)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, object]:
        hidden = F.gelu(self.up(x), approximate="tanh")
        return {"out": self.down(hidden) * scale, "extra": (hidden, None, 3)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.branch = Branch()
        self.again = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found = self.branch(self.norm(x), scale=0.5)["out"]
        assert isinstance(found, Tensor)
        x = torch.where(mask, x, x + found)
        for _ in range(2):
            x = checkpoint(self.again, x, use_reentrant=False)
        values, _ = torch.topk(x, k=4, dim=-1)
        return torch.cat(list(torch.split(values, 2, dim=-1)), dim=-1)


def work(rank: int, folder: str, dtype: str, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(Model(), nn.Linear(4, 2)).to(getattr(torch, dtype))
    torch.manual_seed(rank + 1)
    x = torch.randn(3, 8).to(getattr(torch, dtype)).requires_grad_()
    pair = dist.new_group([0, 1])
    with PrecisionDebugger(dump_path=folder, level="mix", task="statistics") as debugger:
        debugger.start(model=model)
        y = model[1](model[0](x, x > 0))
        total = y.detach().float()
        dist.all_reduce(total, group=pair)
        gathered = [torch.zeros_like(total) for _ in range(2)]
        dist.all_gather(gathered, total)
        received = torch.zeros_like(total)
        sends = [dist.P2POp(dist.isend, total, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
        for request in dist.batch_isend_irecv(sends):
            request.wait()
        dist.broadcast(received, src=0)
        y.float().square().sum().backward()
        debugger.stop()
        debugger.step()
    dist.destroy_process_group()


def main() -> None:
    folder, dtype = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        meeting = os.fspath(Path(place) / "meeting")
        torch.multiprocessing.spawn(work, (folder, dtype, meeting), nprocs=2)


if __name__ == "__main__":
    main()
