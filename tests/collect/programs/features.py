"""One feature of the interface after the other: ``features.py MODE CONFIG DUMP -- MODE CONFIG DUMP ...``."""

import sys
import types
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from numprobe.pytorch import PrecisionDebugger, module_dump, module_dump_end, seed_all


class Blk(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(4, 4)
        self.l2 = nn.Linear(4, 4)

    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))


class Net(nn.Module):
    """``recompute``: True for the reentrant kind, False for the other, None for none."""

    def __init__(self, recompute=None):
        super().__init__()
        self.a = Blk()
        self.b = Blk()
        self.recompute = recompute

    def forward(self, x):
        if self.recompute is None:
            return self.b(self.a(x))
        return self.b(checkpoint(self.a, x, use_reentrant=self.recompute))


def step_of(debugger, model, *inputs):
    debugger.start(model=model)
    for x in inputs:
        model(x).sum().backward()
    debugger.stop()
    debugger.step()


def ckpt(debugger):
    net = Net(recompute=False)
    step_of(debugger, net, torch.randn(2, 4, requires_grad=True))


def ckpt_re(debugger):
    net = Net(recompute=True)
    step_of(debugger, net, torch.randn(2, 4, requires_grad=True))


def multi(debugger):
    nets = [Blk(), Blk()]
    debugger.start(model=nets)
    x = torch.randn(2, 4)
    for net in nets:
        x = net(x)
    x.sum().backward()
    debugger.stop()
    debugger.step()


def mdump(debugger):
    net = Net()
    debugger.start()
    y = torch.randn(2, 4) * 2
    module_dump(net, "MyNet")
    z = net(y)
    module_dump_end()
    z.sum().backward()
    debugger.stop()
    debugger.step()


def debug(debugger):
    linear = nn.Linear(4, 4)
    for _ in range(2):
        x = torch.randn(2, 4, requires_grad=True)
        y = linear(x)
        debugger.save(y, "y", save_backward=True)
        debugger.save({"k": [y * 2, 3, "txt"], "z": {"p": 1.5}}, "nest", save_backward=True)
        debugger.save(y, "y", save_backward=False)
        y.sum().backward()
        debugger.step()


def token(debugger):
    net = Net()
    debugger.start(model=net, token_range=[1, 2])
    for _ in range(4):
        net(torch.randn(2, 4))
    debugger.stop()
    debugger.step()


def reqid(debugger):
    net = Net()
    for _ in range(2):
        debugger.start(model=net, scheduled_tokens={"req-a": 2, "req-b": 3})
        with torch.no_grad():
            net(torch.randn(5, 4))
        debugger.stop()
        debugger.step()


def ops(debugger):
    module = types.ModuleType("mymod")
    module.compute = lambda a, b: a @ b + 1
    debugger.register_custom_api(module, "compute")
    debugger.start()
    module.compute(torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)).sum().backward()
    debugger.stop()
    debugger.step()


def nostop(debugger):
    net = Net()
    debugger.start(model=net)
    net(torch.randn(2, 4))
    raise SystemExit(3)


def accum(debugger):
    net = Net()
    step_of(debugger, net, torch.randn(2, 4), torch.randn(2, 4))


MODES: dict[str, Callable[[PrecisionDebugger], None]] = {
    f.__name__: f for f in (ckpt, ckpt_re, multi, mdump, debug, token, reqid, ops, nostop, accum)
}
torch.set_num_threads(1)
arguments = sys.argv[1:]
for mode, config, dump in zip(arguments[::4], arguments[1::4], arguments[2::4], strict=True):
    seed_all()
    debugger = PrecisionDebugger(config_path=config, dump_path=dump)
    MODES[mode](debugger)
    debugger.close()
