"""Four pipeline stages, four micro-batches, 1F1B; each exchange is one batch_isend_irecv, as Megatron does it.

--fault forward:  stage 1, micro-batch 2: acos of a "cosine" that is scaled beyond 1.
--fault backward: stage 2, micro-batch 1: a padded row makes the mean square exactly 0; sqrt is 0 there, its gradient 0/0.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Run, options
from torch import nn

HIDDEN, VOCABULARY, BATCH, LENGTH, MICRO_BATCHES = 16, 32, 2, 6, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x, keep, scale: float):
        h = self.down(F.gelu(self.up(self.norm(x)))) * keep
        root = torch.sqrt((h * h).mean(-1, keepdim=True))
        h = h / (root + 1e-6)
        angle = torch.acos(F.cosine_similarity(x, h, dim=-1) * scale)
        return x + h * angle[..., None]


class Stage(nn.Module):
    def __init__(self, index: int, count: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN) if index == 0 else None
        self.block = Block()
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False) if index == count - 1 else None

    def forward(self, x, keep, scale: float):
        if self.embed is not None:
            x = self.embed(x)
        x = self.block(x, keep, scale)
        return x if self.head is None else self.head(x)


def exchange(*, send_next=None, send_previous=None, recv_next=False, recv_previous=False):
    """Everything that leaves and enters this stage at once; returns (from the previous stage, from the next stage)."""
    from_previous = torch.empty(BATCH, LENGTH, HIDDEN, requires_grad=True) if recv_previous else None
    from_next = torch.empty(BATCH, LENGTH, HIDDEN) if recv_next else None
    ops = []
    if send_previous is not None:
        ops.append(dist.P2POp(dist.isend, send_previous, run.rank - 1))
    if from_previous is not None:
        ops.append(dist.P2POp(dist.irecv, from_previous, run.rank - 1))
    if send_next is not None:
        ops.append(dist.P2POp(dist.isend, send_next, run.rank + 1))
    if from_next is not None:
        ops.append(dist.P2POp(dist.irecv, from_next, run.rank + 1))
    if ops:
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    return from_previous, from_next


def forward(micro_batch: int, x):
    ids = run.tokens(0, BATCH, LENGTH + 1, VOCABULARY, rank=micro_batch)
    keep = torch.ones(BATCH, LENGTH, 1)
    if run.args.fault == "backward" and run.rank == 2 and micro_batch == 1:
        keep[1, -2:] = 0.0
    scale = 3.0 if run.args.fault == "forward" and run.rank == 1 and micro_batch == 2 else 0.9
    out = model(ids[:, :-1] if first else x, keep, scale)
    if last:
        out = F.cross_entropy(out.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)) / MICRO_BATCHES
    return out


def backward(x, out, grad):
    out.backward(grad)
    return None if first else x.grad


def one_step() -> None:
    warmup = min(run.world - run.rank - 1, MICRO_BATCHES)
    inputs, outputs = [], []
    for micro_batch in range(warmup):
        x, _ = exchange(recv_previous=not first)
        out = forward(micro_batch, x)
        exchange(send_next=out.detach())
        inputs.append(x)
        outputs.append(out)
    steady = MICRO_BATCHES - warmup
    x, _ = exchange(recv_previous=not first)
    for i in range(steady):
        out = forward(warmup + i, x)
        grad = None if last else exchange(send_next=out.detach(), recv_next=True)[1]
        inputs.append(x)
        outputs.append(out)
        grad_x = backward(inputs.pop(0), outputs.pop(0), grad)
        if i == steady - 1:
            exchange(send_previous=grad_x)
        else:
            x, _ = exchange(send_previous=grad_x, recv_previous=not first)
    for _ in range(warmup):
        _, grad = exchange(recv_next=not last)
        grad_x = backward(inputs.pop(0), outputs.pop(0), grad)
        exchange(send_previous=grad_x)


run = Run(options(("--fault", {"choices": ["forward", "backward"]})))
first, last = run.rank == 0, run.rank == run.world - 1
model = Stage(run.rank, run.world)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in run.steps(model):
    one_step()
    optimizer.step()
    optimizer.zero_grad()
run.close()
