"""Trains twice, the second time while files may not grow beyond a limit: ``full_disk.py DUMP BYTES``. Prints the losses."""

import logging
import resource
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from numprobe.pytorch import PrecisionDebugger


def train(dump: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with PrecisionDebugger(dump_path=dump, level="mix") as debugger:
        for _ in range(2):
            for _ in range(3):
                debugger.start(model=model)
                loss = model(torch.ones(4, 8)).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                debugger.stop()
                losses.append(loss.item())
            debugger.step()
    print(losses)


logging.basicConfig(stream=sys.stderr)
torch.set_num_threads(1)
train(Path(sys.argv[1]) / "free")
print("now full", file=sys.stderr)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
train(Path(sys.argv[1]) / "full")
