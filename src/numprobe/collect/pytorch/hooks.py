"""Hooks on the modules of a model, which the model may be copied or saved with."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any


class Hook(functools.partial[Any]):
    """A function as a hook of a module. A copy of the module has one in its place that does nothing: it is recorded when it is
    given to ``start`` itself. So has a file that the whole module is saved to, which no function inside of another could be
    written to; what does nothing there is of the standard library, so that the file can be read without numprobe.
    """

    def __reduce__(self) -> tuple[Any, ...]:  # of the copies and files
        return getattr, (nullcontext(), "__exit__")
