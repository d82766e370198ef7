"""Which part of a tensor is recorded: the rules of ``slice`` (CFG-3), or the rows of one request (INF-2)."""

from __future__ import annotations

import logging

import torch

from numprobe.collect.pytorch.settings import Settings, SliceRule, slices_of

log = logging.getLogger("numprobe")


class Slicing:
    def __init__(self, settings: Settings) -> None:
        self._given, self._request = settings.slice, settings.request_id
        self._rules = settings.slice

    def __bool__(self) -> bool:
        return bool(self._given) or self._request is not None

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        index = slices_of(self._rules, tuple(tensor.shape))
        return tensor if index is None else tensor.detach()[index].requires_grad_(tensor.requires_grad)

    def choose(self, scheduled: dict[str, int]) -> bool:
        """Keep the rows of the chosen request only; ``scheduled`` is the rows by request. False where it is not in this batch."""
        if self._request is None:
            return True
        if not all(type(n) is int and n > 0 for n in scheduled.values()):
            log.warning("numprobe: scheduled_tokens has to hold positive whole numbers, the whole batch is recorded")
            return True
        if self._request not in scheduled:
            log.warning("numprobe: request %s is not in this batch, the step is left out", self._request)
            return False
        begin = 0
        for request, count in scheduled.items():
            if request == self._request:
                self._rules = (*self._given[:-1], SliceRule(0, sum(scheduled.values()), begin, begin + count))
            begin += count
        return True
