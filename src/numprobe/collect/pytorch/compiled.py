"""Regions compiled by torch.compile: nothing inside is recorded, and nothing of the collector is compiled into them.

While Dynamo traces, ``is_dynamo_compiling()`` is the constant True, so that of a recording function only the function it
stands for is left in the graph, without a break and without a guard on whether something is recorded. When a region runs, and
while its pieces are tried with fake tensors, :func:`hidden` is true. Modules that are compiled are recorded from outside.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from numprobe.collect.pytorch.plain import VARIABLE

_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_callback: Callable[[], Any] = getattr(_eval_frame, "get_eval_frame_callback", lambda: None)
_tracing: Callable[[], Any] = getattr(torch._C, "_get_tracing_state", lambda: None)  # of torch.jit.trace
_skip_code: Callable[[CodeType], Any] = getattr(_eval_frame, "skip_code", lambda code: None)
_local: Any = getattr(torch._guards, "_TLS", None) or threading.local()  # where TracingContext.try_get() looks, slowly


def _never() -> bool:
    return False


_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", _never)  # also while guards are made
is_dynamo_compiling: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", _never)


def hidden() -> bool:
    """Is this thread inside a compiled region, or compiling or tracing one?"""
    return (
        _tracing() is not None
        or _callback() is not None
        or _local.__dict__.get("tracing_context") is not None
        or _compiling()
    )


def is_wrapper(module: nn.Module) -> bool:
    """Is this what ``torch.compile(module)`` gives? (Its class is not asked for: that would import the compiler.)"""
    return type(module).__name__ == "OptimizedModule" and isinstance(getattr(module, "_orig_mod", None), nn.Module)


def original_of(module: nn.Module) -> nn.Module:
    """The module that a wrapper wraps, any other itself."""
    while is_wrapper(module):
        module = module._orig_mod  # type: ignore[assignment]
    return module


def compiled_call(module: nn.Module) -> Callable[..., Any] | None:
    """What ``module.compile()`` has put in the place of the module's call, hooks included."""
    found: Callable[..., Any] | None = getattr(module, "_compiled_call_impl", None)
    return found


def prepare() -> None:
    """Let Dynamo, if it is loaded, build its tables of torch's functions: they must not hold what stands for them.

    To be called while torch is as it was; where another collector still records, nothing is done. Tables that Dynamo has built
    meanwhile (it does when it is imported, which an optimizer may do) are built again.
    """
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None or not hasattr(rules, "get_torch_obj_rule_map") or torch.softmax != VARIABLE.softmax:
        return
    variables = sys.modules.get("torch._dynamo.variables.torch")
    tables = [
        rules.get_torch_obj_rule_map,
        getattr(rules, "get_tensor_method", None),
        getattr(variables, "get_overridable_functions", None),
        getattr(getattr(variables, "TorchInGraphFunctionVariable", None), "_get_handlers", None),
    ]
    wrong = torch.softmax not in rules.get_torch_obj_rule_map()
    for table in tables:
        if table is not None:
            if wrong and hasattr(table, "cache_clear"):
                table.cache_clear()
            table()


def keep_out() -> None:
    """Say that no function of the collector is to be compiled when it is called between the pieces of a region."""
    for path, module in list(sys.modules.items()):
        if path.startswith("numprobe.collect."):
            for code in _codes(module):
                _skip_code(code)


def _codes(holder: Any) -> Iterator[CodeType]:
    for value in list(vars(holder).values()):
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        if (
            isinstance(value, FunctionType)
            and value.__module__ is not None
            and value.__module__.startswith("numprobe.")
        ):
            yield from _nested(value.__code__)
        elif isinstance(value, type) and value.__module__ == getattr(holder, "__name__", ""):
            yield from _codes(value)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
