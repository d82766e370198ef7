"""Tensor and sequence parallel over four ranks, float16, as Megatron does it: the sequence is sharded outside the linear layers.

One row of rank 2's shard of block 1's first weight is huge (finite): the float16 product overflows to inf, GELU of -inf is NaN.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Run, options
from torch import nn

HIDDEN, VOCABULARY, LENGTH = 32, 32, 8


class ColumnParallel(torch.autograd.Function):
    """y [s, b, m/W] = all-gather(x [s/W, b, h]) @ w.T; backward overlaps its collectives with the products."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        full = torch.empty(x.shape[0] * dist.get_world_size(), *x.shape[1:], dtype=x.dtype)
        dist.all_gather_into_tensor(full, x.contiguous())
        return torch.matmul(full, weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        full = torch.empty(x.shape[0] * dist.get_world_size(), *x.shape[1:], dtype=x.dtype)
        gather = dist.all_gather_into_tensor(full, x.contiguous(), async_op=True)
        grad_full = torch.matmul(grad, weight)
        gather.wait()
        grad_x = torch.empty_like(x)
        scatter = dist.reduce_scatter_tensor(grad_x, grad_full.contiguous(), async_op=True)
        grad_weight = torch.matmul(grad.flatten(0, 1).t(), full.flatten(0, 1))
        scatter.wait()
        return grad_x, grad_weight


class ReduceScatter(torch.autograd.Function):
    """[s, b, h], partial sums -> [s/W, b, h]; backward gathers."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty(x.shape[0] // dist.get_world_size(), *x.shape[1:], dtype=x.dtype)
        dist.reduce_scatter_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        full = torch.empty(grad.shape[0] * dist.get_world_size(), *grad.shape[1:], dtype=grad.dtype)
        dist.all_gather_into_tensor(full, grad.contiguous())
        return full


class ColumnParallelLinear(nn.Module):
    def __init__(self, world: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4 * HIDDEN // world, HIDDEN) * 0.1)

    def forward(self, x):
        return ColumnParallel.apply(x, self.weight)


class RowParallelLinear(nn.Module):
    def __init__(self, world: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN, 4 * HIDDEN // world) * 0.1)

    def forward(self, x):
        return ReduceScatter.apply(torch.matmul(x, self.weight.t()))


class Block(nn.Module):
    def __init__(self, world: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = ColumnParallelLinear(world)
        self.down = RowParallelLinear(world)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, world: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList([Block(world) for _ in range(3)])
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


run = Run(options())
model = Net(run.world).half()
if run.rank == 2:
    with torch.no_grad():
        model.blocks[1].up.weight[3] = 20000.0 * torch.randn(HIDDEN).clamp(-2, 2)
shard = LENGTH // run.world
for step in run.steps(model):
    ids = run.tokens(step, LENGTH + 1, 2, VOCABULARY, rank=0)  # [s + 1, b], the same on every rank
    mine = slice(run.rank * shard, (run.rank + 1) * shard)
    logits = model(ids[:-1][mine]).float()
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), ids[1:][mine].reshape(-1))
    loss.backward()
    for name, parameter in model.named_parameters():
        if "up" not in name and "down" not in name:  # replicated over the group
            dist.all_reduce(parameter.grad)
    total = loss.detach().clone()
    dist.all_reduce(total)
    print(run.rank, step, total.item())
run.close()
