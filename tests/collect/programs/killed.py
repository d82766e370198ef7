"""Records, flushes three times, and is killed: ``killed.py DUMP``."""

import os
import signal
import sys

import torch

from numprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1")
for i in range(4):
    debugger.start()
    torch.exp(torch.full((3,), float(i)))
    torch.tanh(torch.ones(2))
    if i < 3:
        debugger.stop()
os.kill(os.getpid(), signal.SIGKILL)
