"""Trains a small network for `numprobe collect check`: ``checked.py [WAY] [STEPS]``.

WAY is what is odd about it: unseeded, changed (numbers depend on the recorder), late (from the third step on), drawn (a random
number is drawn under the recorder), broken (fails under it), failing, own (it records by itself), manual (no optimizer), nothing.
"""

import os
import sys

import torch
from torch import nn

way = sys.argv[1] if len(sys.argv) > 1 else ""
count = int(sys.argv[2]) if len(sys.argv) > 2 else 4
if way == "failing":
    raise SystemExit("no data")
if way == "nothing":
    print(torch.ones(2).sum())
    raise SystemExit(0)
if way != "unseeded":
    torch.manual_seed(1)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
if "RANK" in os.environ:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
debugger = None
if way == "own":
    from numprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=sys.argv[3], level="mix")
recorded = hasattr(torch.exp, "__wrapped__")
if way == "broken" and recorded:
    raise ValueError("another type of function")
for i in range(count):
    if debugger is not None:
        debugger.start(model=model)
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    if recorded and (way == "changed" or (way == "late" and i == 2)):
        with torch.no_grad():
            model[3].bias.grad.mul_(0.5).add_(0.5)
    if way == "manual":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    else:
        optimizer.step()
    if way == "drawn" and recorded and i == 1:
        torch.rand(1)
    model.zero_grad()
    if debugger is not None:
        debugger.stop()
        debugger.step()
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
