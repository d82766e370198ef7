"""Loads the compiler while functions are wrapped, compiles then, and again after that: ``compiled.py DUMP [import]``.

Prints the graph breaks. ``import``: the compiler is loaded before torch.compile is called, as an optimizer does.
"""

import sys

import torch
import torch.nn.functional as F

from numprobe.pytorch import PrecisionDebugger


def compute(x):
    return torch.softmax(F.linear(x, x).add(1).permute(1, 0), dim=-1).sum()


def graph_breaks():
    call = torch.compile(compute, backend="aot_eager", fullgraph=True)
    assert torch.equal(call(x), compute(x))
    return sum(torch._dynamo.utils.counters["graph_break"].values())


x = torch.arange(4.0).view(2, 2)
with PrecisionDebugger(dump_path=sys.argv[1], level="L1", risk_level="ALL") as debugger:
    debugger.start()
    assert "torch._dynamo.trace_rules" not in sys.modules
    if "import" in sys.argv:
        import torch._dynamo
    print("inside:", graph_breaks())
    debugger.stop()
    debugger.step()
torch._dynamo.reset()
print("after:", graph_breaks())
