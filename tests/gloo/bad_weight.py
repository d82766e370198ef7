"""Tensor parallel 2 (groups 0,1 and 2,3) times data parallel 2 (groups 0,2 and 1,3).

Before the first step one element of rank 1's shard of blocks.1.up is NaN, as after a damaged checkpoint.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Run, options
from torch import nn

HIDDEN, VOCABULARY = 16, 32


class ToTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=tensor_parallel)
        return grad


class FromTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x, group=tensor_parallel)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        h = self.up(ToTensorParallel.apply(self.norm(x)))
        return x + FromTensorParallel.apply(self.down(F.relu(h)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


run = Run(options())
pairs = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
tensor_parallel = pairs[(0, 1) if run.rank < 2 else (2, 3)]
data_parallel = pairs[(0, 2) if run.rank % 2 == 0 else (1, 3)]
model = Net()
if run.rank == 1:
    with torch.no_grad():
        model.blocks[1].up.weight[5, 3] = float("nan")
for step in run.steps(model):
    ids = run.tokens(step, 2, 9, VOCABULARY, rank=run.rank // 2)
    loss = F.cross_entropy(model(ids[:, :-1]).reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM, group=data_parallel)
    print(run.rank, step, loss.item())
run.close()
