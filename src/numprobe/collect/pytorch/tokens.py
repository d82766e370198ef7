"""Argument ``token_range`` of start(): only some calls of the model itself are recorded, each of which makes one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from numprobe.collect.pytorch.hooks import Hook
from numprobe.collect.pytorch.scope import Scope
from numprobe.record.errors import NumprobeError


class TokenRange:
    """Switches recording on for the calls from first to last, counted from 0; of several models, those of the first.

    Raises:
        NumprobeError: E-COL-001 no model; E-COL-006 no range.
    """

    def __init__(self, scope: Scope, model: nn.Module | Sequence[nn.Module] | None, token_range: Sequence[int]) -> None:
        if model is None:
            raise NumprobeError(
                "E-COL-001",
                "token_range counts calls of the model, and start() was given none",
                do="call start(model=..., token_range=...)",
            )
        if (
            len(token_range) != 2
            or not all(type(n) is int for n in token_range)
            or not 0 <= token_range[0] <= token_range[1]
        ):
            raise NumprobeError(
                "E-COL-006",
                "token_range {given}: not two whole numbers from 0, the first no larger",
                given=str(list(token_range)),
                do="write for example token_range=[0, 3] for the first four tokens",
            )
        first, last = token_range
        calls = -1

        def begin(*_: Any) -> None:
            nonlocal calls
            calls += 1
            scope.on = first <= calls <= last

        def end(*_: Any) -> None:
            scope.on = False

        root = model if isinstance(model, nn.Module) else model[0]
        self._handles = [
            root.register_forward_pre_hook(Hook(begin), prepend=True),
            root.register_forward_hook(Hook(end), always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
