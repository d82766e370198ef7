"""Megatron-Core: which micro-batch a call belongs to, and references to functions that it takes when it is imported.

Only what a program has imported already is touched. Megatron's schedules call ``forward_step`` and ``backward_step`` once a
micro-batch and model chunk, by the names in their module, so these are replaced. The number of a backward step is that of the
forward step whose output it is given, whatever the schedule's order.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from numprobe.collect.pytorch.apis import resolve
from numprobe.collect.pytorch.functions import FunctionHooks
from numprobe.collect.pytorch.patches import put_back

SCHEDULES = ("megatron.core.pipeline_parallel.schedules", "megatron.core.pipeline_parallel.hybrid_cp_schedule")
MICRO_STEP_KEY = "megatron_micro_step_number"  # of construct.json: the highest number
_REFERENCES = ("dist_all_gather_func", "dist_reduce_scatter_func")  # module globals for functions of torch.distributed


class MicroSteps:
    """Numbers micro-batches from 0 in every step, each chunk of a model by itself."""

    def __init__(self) -> None:
        self._patched: list[tuple[Any, str, Any, Any]] = []
        self.restart()

    def restart(self) -> None:
        """A new step begins."""
        self._of_chunks: dict[int, int] = {}  # the last forward step of each
        self._of_outputs: dict[int, tuple[Any, int]] = {}  # by the address of an output, which is kept
        self._forward = self._backward = -1
        self._going_back = False
        self.last: int | None = None  # the highest so far

    def install(self) -> None:
        for path in SCHEDULES:
            module = sys.modules.get(path)
            for name, record in (("forward_step", self._forward_step), ("backward_step", self._backward_step)):
                original = getattr(module, name, None)
                if original is not None and not any(at is module and n == name for at, n, _, _ in self._patched):
                    step = record(original)
                    setattr(module, name, step)
                    self._patched.append((module, name, step, original))

    @property
    def active(self) -> bool:
        """Is there a schedule whose steps are numbered?"""
        return bool(self._patched)

    def restore(self) -> None:
        while self._patched:
            put_back(*self._patched.pop())

    def of(self, name: str) -> int | None:
        """The micro-batch of a record that begins now, None before the first. A recomputed call has its backward step's."""
        if self.last is None:
            return None
        back = self._going_back or ".backward" in name
        return self._backward if back and self._backward >= 0 else self._forward

    def _forward_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward_step(*args: Any, **kwargs: Any) -> Any:
            chunk = id(kwargs.get("model", args[2] if len(args) > 2 else None))
            number = self._of_chunks[chunk] = self._of_chunks.get(chunk, -1) + 1
            self._forward = number
            self.last = max(number, self.last or 0)
            made = original(*args, **kwargs)
            for tensor in _tensors(made[0] if isinstance(made, tuple) else made):
                self._of_outputs[id(tensor)] = tensor, number
            return made

        return forward_step

    def _backward_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward_step(*args: Any, **kwargs: Any) -> Any:
            output = kwargs.get("output_tensor", args[1] if len(args) > 1 else None)
            known = [self._of_outputs.pop(id(tensor), None) for tensor in _tensors(output)]
            self._backward = next((one[1] for one in known if one is not None), self._backward + 1)
            self._going_back = True
            try:
                return original(*args, **kwargs)
            finally:
                self._going_back = False

        return backward_step


def point_at(functions: FunctionHooks) -> None:
    """Let Megatron's own references to functions of torch.distributed lead to the recording ones."""
    recording = functions.by_original()
    for path, module in list(sys.modules.items()):
        if path.startswith("megatron.core."):
            for name in _REFERENCES:
                call = recording.get(id(vars(module).get(name)))
                if call is not None:
                    functions.replace(module, name, call)


def clipping() -> list[tuple[Any, str]]:
    """Functions that clip gradients, as (owner, name)."""
    optimizer = "megatron.core.optimizer.optimizer"
    named = [(f"{optimizer}.MegatronOptimizer", "clip_grad_norm"), (optimizer, "clip_grad_by_total_norm_fp32")]
    if optimizer not in sys.modules:
        return []
    return [(owner, name) for path, name in named if hasattr(owner := resolve(path), name)]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(one, torch.Tensor)]
