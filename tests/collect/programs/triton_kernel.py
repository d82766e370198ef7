"""A Triton kernel launched by itself, tuned, and with heuristics, under Triton's interpreter: ``triton_kernel.py DUMP``."""

import sys

import torch
import triton
import triton.language as tl

from numprobe.pytorch import PrecisionDebugger


@triton.jit
def add_one(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


by_rule = triton.heuristics({"BLOCK": lambda arguments: 16})(add_one)
x = torch.arange(8.0)
with PrecisionDebugger(dump_path=sys.argv[1], level="L1") as debugger:
    debugger.start()
    add_one[(1,)](x, torch.zeros(8), 8, BLOCK=8)
    add_one[lambda meta: (triton.cdiv(8, meta["BLOCK"]),)](x, torch.zeros(8), 8, BLOCK=4)
    by_rule[(1,)](x, torch.zeros(8), 8)
    debugger.stop()
    debugger.step()
