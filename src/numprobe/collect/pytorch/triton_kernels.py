"""Launches of Triton kernels: ``Triton.{kernel}.{n}.forward``, whose output is what its arguments hold afterwards (HOK-7)."""

from __future__ import annotations

import functools
import sys
from typing import Any

from numprobe.collect.pytorch.apis import resolve
from numprobe.collect.pytorch.functions import FunctionHooks

# Autotuner and Heuristics stand around a JITFunction and call its run() in theirs: the outermost counts.
_LAUNCHERS = (
    "triton.runtime.jit.JITFunction",
    "triton.runtime.autotuner.Autotuner",
    "triton.runtime.autotuner.Heuristics",
    "triton.runtime.interpreter.InterpretedFunction",  # with TRITON_INTERPRET=1
)
_OF_THE_LAUNCH = ("grid", "warmup")  # keywords that are no arguments of the kernel


def install_launches(functions: FunctionHooks) -> None:
    """Record launches, if the program has imported triton."""
    if "triton" not in sys.modules:
        return
    for path in _LAUNCHERS:
        launcher = resolve(path)
        if isinstance(launcher, type) and "run" in vars(launcher) and not functions.has(launcher, "run"):
            functions.replace(launcher, "run", _recording(launcher.run, functions))  # type: ignore[attr-defined]


def _recording(original: Any, functions: FunctionHooks) -> Any:
    @functools.wraps(original)
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if not functions.listens() or kwargs.get("warmup"):  # which compiles and launches nothing
            return original(kernel, *args, **kwargs)
        launch = {key: kwargs.pop(key) for key in _OF_THE_LAUNCH if key in kwargs}
        call = functools.partial(original, kernel, **launch)
        return functions.recorded(call, "Triton", kernel_name(kernel), _after, args, kwargs)

    return run


def kernel_name(kernel: Any) -> str:
    """The name of the function that was decorated, however many decorators there are."""
    while not isinstance(name := getattr(kernel, "__name__", None), str) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return name if isinstance(name, str) else type(kernel).__name__


def _after(args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> list[Any]:
    return [*args, *kwargs.values()]
