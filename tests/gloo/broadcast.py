"""Data parallel over four ranks with a frozen batch norm; its running statistics are broadcast from rank 2 in the forward.

On rank 2 one element of running_mean is NaN before the dump starts; the layer before it is clean everywhere.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Run, options
from torch import nn

HIDDEN = 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(HIDDEN, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.second = nn.Linear(HIDDEN, 4)

    def forward(self, x):
        h = F.relu(self.first(x))
        dist.broadcast(self.norm.running_mean, src=2)
        dist.broadcast(self.norm.running_var, 2)
        return self.second(self.norm(h))


run = Run(options())
model = Net()
model.norm.eval()
model.norm.running_mean.uniform_(-0.1, 0.1)
if run.rank == 2:
    model.norm.running_mean[7] = float("nan")
for step in run.steps(model):
    generator = torch.Generator().manual_seed(100 * step + run.rank)
    loss = F.cross_entropy(model(torch.randn(6, HIDDEN, generator=generator)), torch.arange(6) % 4)
    loss.backward()
    for parameter in model.parameters():
        dist.reduce(parameter.grad, dst=0)
        dist.broadcast(parameter.grad, src=0)
    print(run.rank, step, loss.item())
run.close()
