"""Ring attention over four ranks, nothing wrong, everything that looks wrong.

-inf masks (full + triu, masked_fill), a running maximum that starts at -inf, blocks that are masked altogether, a mask of
finfo.min, torch.empty buffers full of NaN (deterministic mode fills them) that are received into, copied over or given as
out=, and an all_reduce(MAX) to which a rank without data brings -inf.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Run, options
from torch import nn

HIDDEN, VOCABULARY, SHARD = 16, 32, 4


class RingAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.v = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        causal = torch.full((SHARD, SHARD), -math.inf).triu(1)
        top = torch.full((SHARD, 1), -math.inf)
        total = torch.zeros(SHARD, 1)
        out = torch.zeros(SHARD, HIDDEN)
        for hop in range(run.world):
            owner = (run.rank - hop) % run.world
            scores = torch.matmul(q, k.transpose(0, 1)) / math.sqrt(HIDDEN)
            if hop == 0:
                scores = scores + causal
            elif owner > run.rank:  # the future: every key is hidden
                scores = scores.masked_fill(torch.ones(SHARD, SHARD, dtype=torch.bool), -math.inf)
            new_top = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
            weight = torch.exp(scores - new_top)
            keep = torch.exp(top - new_top)
            total = total * keep + weight.sum(-1, keepdim=True)
            out = out * keep + torch.matmul(weight, v)
            top = new_top
            if hop < run.world - 1:
                k, v = shift(k.detach()), shift(v.detach())
        return out / total


def shift(x: torch.Tensor) -> torch.Tensor:
    """Send to the next rank, receive from the previous one."""
    received = torch.empty(x.shape)
    sending = dist.isend(x.contiguous(), (run.rank + 1) % run.world)
    receiving = dist.irecv(received, (run.rank - 1) % run.world)
    receiving.wait()
    sending.wait()
    return received


class LocalAttention(nn.Module):
    """Softmax over the shard with a mask of finfo.min."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).split(HIDDEN, -1)
        mask = torch.triu(torch.full((SHARD, SHARD), torch.finfo(torch.float32).min), 1)
        return torch.matmul(F.softmax(torch.matmul(q, k.transpose(0, 1)) + mask, dim=-1), v)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.ring = RingAttention()
        self.local = LocalAttention()
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.ring(x)
        x = x + self.local(x)
        buffer = torch.empty(x.shape)
        buffer.copy_(x.detach())
        scaled = torch.empty(x.shape)
        torch.mul(buffer, 2.0, out=scaled)
        full = torch.empty(run.world * SHARD, HIDDEN)
        dist.all_gather_into_tensor(full, scaled)
        parts = [torch.empty(SHARD, HIDDEN) for _ in range(run.world)]
        dist.all_gather(parts, scaled)
        return self.head(x + 0.01 * full.mean(0) + 0.01 * torch.stack(parts).mean((0, 1)))


run = Run(options(), deterministic=True)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in run.steps(model):
    ids = run.tokens(step, 1, SHARD + 1, VOCABULARY).flatten()
    logits = model(ids[:-1])
    largest = torch.full((1,), -math.inf)  # rank 1 has nothing to report
    if run.rank != 1:
        largest = torch.maximum(largest, logits.detach().amax().reshape(1))
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    loss = F.cross_entropy(logits, ids[1:])
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
        assert torch.isfinite(parameter.grad).all()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    assert torch.isfinite(loss)
    assert torch.isfinite(largest).all()
    print(run.rank, step, loss.item())
run.close()
