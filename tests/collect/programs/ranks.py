"""Four tensor-parallel ranks; rank 2 takes the logarithm of a negative number: ``ranks.py CONFIG DUMP`` under a launcher."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from numprobe.pytorch import PrecisionDebugger, seed_all

torch.set_num_threads(1)
seed_all(seed=1234)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
debugger = PrecisionDebugger(config_path=sys.argv[1], dump_path=sys.argv[2])


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


class ShardedMLP(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up_proj = nn.Linear(width, inner // world, bias=False)
        self.down_proj = nn.Linear(inner // world, width, bias=False)

    def forward(self, x, poison=False):
        h = F.silu(self.up_proj(x))
        if poison:
            h = torch.log(h - 100.0)
        return AllReduce.apply(self.down_proj(h))


class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = ShardedMLP(width, inner)

    def forward(self, x, poison=False):
        return x + self.mlp(self.norm(x), poison)


class Net(nn.Module):
    def __init__(self, width=16, inner=64, vocabulary=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, poison=(i == 1 and rank == 2))
        return self.head(x)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(7))
debugger.start(model=model)
loss = F.cross_entropy(model(ids[:, :-1]).reshape(-1, 32), ids[:, 1:].reshape(-1))
loss.backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
    parameter.grad /= world
parts = [torch.zeros(1) for _ in range(world)]
dist.all_gather(parts, loss.detach().reshape(1))
dist.all_reduce(torch.ones(4) * rank, op=dist.ReduceOp.MAX, async_op=True).wait()
if rank == 0:
    dist.send(torch.arange(4.0), 1)
if rank == 1:
    dist.recv(torch.zeros(4), 0)
dist.broadcast(torch.ones(2, 2) * rank, 0)
optimizer.step()
optimizer.zero_grad()
debugger.stop()
debugger.step()
dist.destroy_process_group()
