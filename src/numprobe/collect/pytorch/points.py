"""Level debug: single values that a program names itself, and their gradients."""

from __future__ import annotations

import logging
from typing import Any

import torch

from numprobe.collect.pytorch.recorder import Entry, Recorder
from numprobe.collect.pytorch.values import describe

log = logging.getLogger("numprobe")


class Points:
    """``{name}.{n}.debug`` for each value, ``{name}_grad.{n}.debug`` for what flows back to it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def save(self, variable: Any, name: str, *, backward: bool) -> None:
        if not _takes(variable):
            log.warning("numprobe: save(%s): a %s cannot be recorded", name, type(variable).__name__)
            return
        recorder = self._recorder
        number = recorder.call(name)
        entry = Entry(f"{name}.{number}.debug")
        on_tensor = recorder.on_tensor(entry)
        entry.body = {"": describe(variable, "", on_tensor)}
        recorder.place(entry)
        if backward:
            gradient = Entry(f"{name}_grad.{number}.debug", open=True)
            awaited: set[str] = set()
            gradient.body = {"": self._skeleton(variable, "", gradient, awaited)}
            if awaited:
                recorder.place(gradient)

    def _skeleton(self, value: Any, path: str, entry: Entry, awaited: set[str]) -> Any:
        """The shape of ``value`` with null for every leaf; gradients take their places as they come."""
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                awaited.add(path)
                self._watch(value, path, entry, awaited)
            return None
        if isinstance(value, (list, tuple)):
            return [self._skeleton(part, f"{path}.{i}", entry, awaited) for i, part in enumerate(value)]
        if isinstance(value, dict):
            return {str(k): self._skeleton(part, f"{path}.{k}", entry, awaited) for k, part in value.items()}
        return None

    def _watch(self, tensor: torch.Tensor, path: str, entry: Entry, awaited: set[str]) -> None:
        recorder = self._recorder

        def arrived(gradient: torch.Tensor) -> None:
            if recorder.files is None or entry.written:
                return
            record = recorder.on_tensor(entry)(gradient, path)
            steps = [int(p) if p.isdecimal() else p for p in path.split(".")[1:]]
            if steps:
                place: Any = entry.body[""]
                for step in steps[:-1]:
                    place = place[step]
                place[steps[-1]] = record
            else:
                entry.body[""] = record
            awaited.discard(path)
            if not awaited:
                recorder.close(entry)

        tensor.register_hook(arrived)  # type: ignore[no-untyped-call]


def _takes(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_takes(part) for part in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _takes(part) for k, part in value.items())
    return isinstance(value, (torch.Tensor, int, float, str))
