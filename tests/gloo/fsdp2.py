"""FSDP2 (fully_shard) on four ranks. Rank 1's loader delivers a sequence length of -1; block 1 takes its logarithm."""

import torch
import torch.nn.functional as F
from common import Run, options
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

HIDDEN, VOCABULARY = 16, 32


class Block(nn.Module):
    def __init__(self, by_length: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)
        self.by_length = by_length

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        h = self.down(F.gelu(self.up(self.norm(x))))
        if self.by_length:
            h = h * torch.log(lengths)[:, None, None]
        return x + h


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList([Block(False), Block(True), Block(False)])
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, lengths)
        return self.head(x)


run = Run(options())
model = Net()
mesh = init_device_mesh("cpu", (run.world,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in run.steps(model):
    ids = run.tokens(step, 2, 9, VOCABULARY)
    lengths = torch.tensor([8.0, -1.0 if run.rank == 1 else 6.0])
    logits = model(ids[:, :-1], lengths)
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(run.rank, step, loss.item())
run.close()
