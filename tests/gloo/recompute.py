"""Data parallel over four ranks, every block recomputed (torch.utils.checkpoint, not reentrant).

Attention has a softmax written by hand without subtracting the maximum. On rank 3 block 1 multiplies its scores by 4000:
exp overflows to inf, inf / inf is NaN. The recomputation makes the same inf again.

By default torch stops a recomputation with an exception as soon as it has what it needs, in the middle of an operator. The
recorder then believes for the rest of the step that it is inside that operator, and records no further call of a function:
no collective, no optimizer. --no-early-stop lets recomputations run to their end.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Run, options
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

HIDDEN, VOCABULARY = 16, 32


class Block(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.v = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.scale = scale

    def forward(self, x):
        h = self.norm(x)
        weight = torch.exp(torch.matmul(self.q(h), self.k(h).transpose(-1, -2)) * self.scale)
        weight = weight / weight.sum(-1, keepdim=True)
        return x + torch.matmul(weight, self.v(h))


class Net(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList([Block(0.25), Block(1000.0 if rank == 3 else 0.25), Block(0.25)])
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


run = Run(options(("--no-early-stop", {"action": "store_true"})))
model = Net(run.rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in run.steps(model):
    ids = run.tokens(step, 2, 9, VOCABULARY)
    with set_checkpoint_early_stop(not run.args.no_early_stop):
        logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(run.world)
    optimizer.step()
    optimizer.zero_grad()
    print(run.rank, step, loss.item())
run.close()
