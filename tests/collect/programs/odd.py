"""Values and tensors of every kind, a module called twice, an operator in place: ``odd.py CONFIG DUMP``."""

import collections
import sys

import torch
from torch import nn

from numprobe.pytorch import PrecisionDebugger, seed_all

NT = collections.namedtuple("NT", ["first", "second"])


class Odd(nn.Module):
    def forward(self, x, opt=None, *, cfg=None, flag=True):
        return {
            "a": x * 2,
            "b": [x + 1, (x - 1, None)],
            "nt": NT(x, 3),
            "s": "text",
            "n": None,
            "f": 1.5,
            "set": {1, 2},
        }


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = Odd()
        self.lin = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.0)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        config = {"k": torch.float16, "dev": torch.device("cpu"), "dtype": torch.bfloat16, "device": "cpu"}
        o = self.odd(x, slice(1, None, 2), cfg=config, flag=False)
        y = self.bn(self.lin(o["a"]))
        y = self.drop(y)
        y = self.lin(y)
        return y.relu_()


torch.set_num_threads(1)
seed_all()
debugger = PrecisionDebugger(config_path=sys.argv[1], dump_path=sys.argv[2])
net = Net()
debugger.start(model=net)
net(torch.randn(3, 4, requires_grad=True)).sum().backward()
empty = torch.zeros(0, 4)
torch.add(empty, empty)
truth = torch.tensor([True, False])
torch.logical_and(truth, truth)
c = torch.tensor([1 + 2j, 3 - 4j])
torch.mul(c, c)
torch.add(torch.tensor([float("inf"), -float("inf"), 1.0]), 1)
torch.mul(torch.ones(3, dtype=torch.float64), 2)
s = torch.tensor(2.5)
torch.mul(s, s)
i = torch.arange(6).reshape(2, 3)
torch.max(i, dim=1)
torch.full((2, 2), 3.0, dtype=torch.float16, device="cpu")
meta = torch.empty(2, 2, device="meta")
torch.add(meta, meta)
t = torch.ones(2, 3, 4, 5)
t.to(memory_format=torch.channels_last)
torch.where(truth, torch.ones(2), torch.zeros(2))
t.view(-1).split([60, 60])
torch.stack([t, t])
t.sum(dim=(0, 1))
torch.einsum("ij,jk->ik", torch.ones(2, 2), torch.ones(2, 2))
u = torch.ones(3)
u.add_(1)
u[0] = 7.0
torch.Tensor.add(u, other=u)
torch.tensor([1, 2], dtype=torch.uint8).to(torch.int8)
torch.randn(2, 2) @ torch.randn(2, 2)
debugger.stop()
debugger.step()
