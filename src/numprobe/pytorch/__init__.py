"""Recording of PyTorch programs: a drop-in for ``msprobe.pytorch``."""

from numprobe.collect.pytorch.debugger import PrecisionDebugger, module_dump, module_dump_end
from numprobe.collect.pytorch.seed import random_save, seed_all

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "random_save", "seed_all"]
