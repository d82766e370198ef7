"""Section ``load``: chosen modules get the inputs that an earlier run saved, so that errors before them do not add up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from numprobe.collect.pytorch.hooks import Hook
from numprobe.collect.pytorch.modules import named_modules
from numprobe.collect.pytorch.settings import LoadSettings

log = logging.getLogger("numprobe")


class InputLoader:
    """Replaces tensor inputs of module calls with those of a tensor dump (LOD-1 to LOD-3).

    ``where()`` gives the current step and rank. What is missing or cannot be read leaves the input as it is, with a warning;
    a tensor of another shape or dtype is used all the same, also with one.
    """

    def __init__(self, settings: LoadSettings, where: Callable[[], tuple[int, int | None]]) -> None:
        self._settings, self._where = settings, where
        self._wanted: dict[str, set[int]] = {}
        for name in settings.modules:
            base, _, number = name.rpartition(".forward.")
            self._wanted.setdefault(base, set()).add(int(number))
        self._calls: dict[str, int] = {}
        self._hit: set[str] = set()
        self._handles: dict[int, Any] = {}

    def hook(self, model: nn.Module | Sequence[nn.Module]) -> None:
        for name, module, _ in named_modules(model):
            if name in self._wanted and id(module) not in self._handles:
                hook = Hook(self._replacing(name))
                self._handles[id(module)] = module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)

    def restore(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def end_step(self) -> None:
        """Tell which modules were never called, begin to count again."""
        step, rank = self._where()
        if self._active(step, rank):
            for name in sorted(set(self._settings.modules) - self._hit):
                log.warning("numprobe: load: %s was not called in step %d", name, step)
        self._hit.clear()
        self._calls.clear()

    def _active(self, step: int, rank: int | None) -> bool:
        steps, ranks = self._settings.steps, self._settings.ranks
        return (not steps or step in steps) and (not ranks or rank in ranks)

    def _replacing(self, base: str) -> Callable[..., Any]:
        def replace(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            number = self._calls[base] = self._calls.get(base, -1) + 1
            step, rank = self._where()
            if number not in self._wanted[base] or not self._active(step, rank):
                return None
            name = f"{base}.forward.{number}"
            self._hit.add(name)
            folder = _tensor_folder(self._settings.path, step, rank)
            if folder is None:
                log.warning("numprobe: load: %s has no dump of step %d and this rank", self._settings.path, step)
                return None
            new_args = tuple(_loaded(folder / f"{name}.input.{i}.pt", value) for i, value in enumerate(args))
            return new_args, {k: _loaded(folder / f"{name}.kwargs.{k}.pt", value) for k, value in kwargs.items()}

        return replace


def _tensor_folder(root: Path, step: int, rank: int | None) -> Path | None:
    base = root / f"step{step}"
    folders = [base / f"rank{rank}"] if rank is not None else sorted(base.glob("proc*")) + sorted(base.glob("rank0"))
    return next((f / "dump_tensor_data" for f in folders if (f / "dump_tensor_data").is_dir()), None)


def _loaded(file: Path, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not file.is_file():
        log.warning("numprobe: load: no file %s, the input stays as it is", file)
        return value
    try:
        tensor = torch.load(file, map_location=value.device, weights_only=True)
    except Exception as error:  # whatever torch raises for a damaged file
        log.warning("numprobe: load: %s cannot be read (%s), the input stays as it is", file, error)
        return value
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        log.warning(
            "numprobe: load: %s is %s %s, the input is %s %s",
            file,
            tensor.dtype,
            tuple(tensor.shape),
            value.dtype,
            tuple(value.shape),
        )
    return tensor.requires_grad_(value.requires_grad)
