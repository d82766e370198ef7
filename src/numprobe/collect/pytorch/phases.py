"""Optimizer steps and gradient clipping: what is called inside belongs to them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from numprobe.collect.pytorch import megatron
from numprobe.collect.pytorch.patches import put_back
from numprobe.collect.pytorch.scope import Scope

OPTIMIZER, CLIP = "optimizer", "clip_grad"
_CLIPPING = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_")


class Phases:
    """Marks the phase of a thread; ``begun(name)`` enters it as a root of the module tree."""

    def __init__(self, scope: Scope, begun: Callable[[str], None]) -> None:
        self._scope, self._begun = scope, begun
        self._handles: list[Any] = []
        self._clipping: list[tuple[Any, str, Any, Any]] = []  # owner, name, what marks the phase, what was there before

    def install(self) -> None:
        if self._handles:
            return

        def before(*_: Any) -> None:
            self._enter(OPTIMIZER)

        def after(*_: Any) -> None:
            self._scope.thread.phase = ""

        self._handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        places = [(torch.nn.utils, name) for name in _CLIPPING if hasattr(torch.nn.utils, name)]
        for owner, name in [*places, *megatron.clipping()]:
            original = getattr(owner, name)
            clip = self._in_phase(original)
            self._clipping.append((owner, name, clip, original))
            setattr(owner, name, clip)

    def _enter(self, phase: str) -> None:
        if self._scope.on and not self._scope.thread.busy:
            self._scope.thread.phase = phase
            self._begun(phase)

    def _in_phase(self, original: Any) -> Any:
        @functools.wraps(original)
        def clip(*args: Any, **kwargs: Any) -> Any:
            before = self._scope.thread.phase
            self._enter(CLIP)
            try:
                return original(*args, **kwargs)
            finally:
                self._scope.thread.phase = before

        return clip

    def restore(self) -> None:
        for handle in self._handles:
            handle.remove()
        for place in self._clipping:
            put_back(*place)
        self._handles, self._clipping = [], []
