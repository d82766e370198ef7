"""Data parallel over four ranks; a hook starts the all_reduce of each gradient as soon as it exists, the waits come at the end.

Between the two blocks, where(x > 0, log(x), 0). Rank 0's batch switches one feature off, exactly 0: the value is finite (log
gives -inf, where drops it), its gradient is 0/0. On the other ranks the backward of the first block goes on, clean, while
the dirty reductions are under way.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Run, options
from torch import nn

HIDDEN = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class LogFeatures(nn.Module):
    """log of the features that are on, 0 for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x, on):
        x = F.softplus(x) * self.scale * on
        return torch.where(x > 0, torch.log(x), torch.zeros_like(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.features = LogFeatures()
        self.second = Block()
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x, on):
        return self.head(self.second(self.features(self.first(x), on)))


run = Run(options())
model = Net()
pending = []


def start_reduce(parameter: torch.Tensor) -> None:
    pending.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(start_reduce)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in run.steps(model):
    generator = torch.Generator().manual_seed(100 * step + run.rank)
    x = torch.randn(6, HIDDEN, generator=generator)
    on = torch.ones(6, HIDDEN)
    if run.rank == 0:
        on[4, 7] = 0.0
    loss = F.mse_loss(model(x, on), torch.ones(6, 1))
    loss.backward()
    accuracy = torch.sigmoid(loss.detach()) + 1.0  # other work while the reductions are under way
    for parameter, work in pending:
        work.wait()
        parameter.grad.div_(run.world)
    pending.clear()
    optimizer.step()
    optimizer.zero_grad()
    print(run.rank, step, loss.item(), accuracy.item())
run.close()
