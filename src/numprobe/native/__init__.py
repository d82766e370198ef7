"""Kernels in C for what Python and numpy do too slowly, with nothing lost where they are missing.

They are compiled when numprobe is installed on a machine with a C compiler and Python's headers, and come with the wheels.
``kernels`` is None where they were not compiled, are of another version, or are turned off by ``NUMPROBE_NATIVE=0``: every
caller then takes its way in Python, to the same results.
"""

from __future__ import annotations

import os
from types import ModuleType

VERSION = 1  # of the functions and what they mean; module.c has the same


def _loaded() -> ModuleType | None:
    if os.environ.get("NUMPROBE_NATIVE") == "0":
        return None
    try:
        from numprobe.native import _kernels
    except ImportError:
        return None
    return _kernels if _kernels.VERSION == VERSION else None


kernels = _loaded()
