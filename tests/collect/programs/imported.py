"""The top-level packages that ``import numprobe.pytorch`` adds to those of ``import torch``, one a line."""

import sys

import torch  # noqa: F401

before = set(sys.modules)
import numprobe.pytorch  # noqa: E402, F401

print("\n".join(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
