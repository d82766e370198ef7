"""In a process that is watched: digests of losses, of parameters after each optimizer step, and of the random state.

The environment variable ``NUMPROBE_CHECK`` holds, as JSON, ``out`` (folder of the journals), ``steps`` (end after so many
optimizer steps, or null) and ``record`` (null, or the arguments of a PrecisionDebugger). A journal is one JSON object a line,
one file a process.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from numprobe.collect.pytorch.communication import current_rank
from numprobe.collect.pytorch.digests import hash64
from numprobe.collect.pytorch.plain import out_of_sight, plain_of

_default_generator = torch.default_generator


def install() -> None:
    """Begin to watch this process; called once torch is imported."""
    asked = json.loads(os.environ["NUMPROBE_CHECK"])
    journal = Journal(Path(asked["out"]))
    recording = None if asked["record"] is None else Recording(asked["record"], Path(asked["out"]))
    _watch_backward(journal)
    _watch_steps(journal, asked["steps"], recording)
    atexit.register(journal.end)


class Journal:
    """What a process computes, in order; made when there is something to write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Any = None
        self._pid = os.getpid()
        self._names: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []  # whose addresses are names
        self.steps = 0

    def loss(self, tensors: Any) -> None:
        listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        self._write({"kind": "loss", "digest": [digest_of(t) for t in listed if isinstance(t, torch.Tensor)]})

    def step(self, parameters: list[torch.Tensor]) -> None:
        self.steps += 1
        digests = {self._name(parameter, i): digest_of(parameter) for i, parameter in enumerate(parameters)}
        self._write({"kind": "step", "parameters": digests, "random": random_state()})

    def end(self) -> None:
        """What the modules hold that are left, for programs that step in a way of their own."""
        if os.getpid() == self._pid:
            found = {name: digest_of(tensor) for name, tensor in named_parameters().items()}
            if found or self._file is not None:
                self._write({"kind": "end", "parameters": found})

    def _name(self, parameter: torch.Tensor, number: int) -> str:
        if id(parameter) not in self._names:
            self._kept.append(parameter)
            self._names.setdefault(id(parameter), f"parameter {number}")
            for name, tensor in named_parameters().items():
                self._kept.append(tensor)
                self._names[id(tensor)] = name
        return self._names[id(parameter)]

    def _write(self, event: dict[str, Any]) -> None:
        if os.getpid() != self._pid:  # a forked child is not watched
            return
        if self._file is None:
            known = current_rank()
            rank = os.environ.get("RANK") if known is None else str(known)
            name = "process" if rank is None else f"rank{rank}"
            self._file = (self._folder / f"{name}.{self._pid}.jsonl").open("w", encoding="utf-8", buffering=1)
            self._file.write(json.dumps({"began": time.time()}) + "\n")
        self._file.write(json.dumps(event) + "\n")


class Recording:
    """The recorder, at work on a script that does not use it: a step from one call of a model to the optimizer's end.

    A script that makes a PrecisionDebugger itself is left to that one.
    """

    def __init__(self, settings: dict[str, Any], out: Path) -> None:
        from numprobe.collect.pytorch import debugger as module

        self._settings = {"dump_path": str(out / "dump"), **settings}
        self._debugger: module.PrecisionDebugger | None = module.PrecisionDebugger(**self._settings)
        module.PrecisionDebugger.default = None
        self._seen: set[int] = set()
        begin = module.PrecisionDebugger.__init__

        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            self._leave()
            begin(made, *args, **kwargs)

        module.PrecisionDebugger.__init__ = init  # type: ignore[method-assign, assignment]
        if self._debugger.settings.level in ("L0", "mix"):
            self._hook = nn.modules.module.register_module_forward_pre_hook(self._before_module)
        else:
            self._debugger.start()

    def _before_module(self, module: nn.Module, _: Any) -> None:
        if self._debugger is not None and id(module) not in self._seen:
            self._seen.update(id(one) for one in module.modules())
            self._debugger.start(model=module)

    def after_step(self) -> None:
        if self._debugger is not None:
            self._debugger.stop()
            self._debugger.step()
            self._seen.clear()
            if self._debugger.settings.level not in ("L0", "mix"):
                self._debugger.start()

    def _leave(self) -> None:
        if self._debugger is not None:
            if self._debugger.settings.level in ("L0", "mix"):
                self._hook.remove()
            self._debugger.close()
            self._debugger = None


def _watch_backward(journal: Journal) -> None:
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        journal.loss(tensors)
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = backward


def _watch_steps(journal: Journal, limit: int | None, recording: Recording | None) -> None:
    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        journal.step(parameters)
        if recording is not None:
            recording.after_step()
        if limit is not None and journal.steps >= limit:
            raise SystemExit(0)

    register_optimizer_step_post_hook(after)


def named_parameters() -> dict[str, torch.Tensor]:
    """Parameters of all models in this process by their names; of several models each has a number."""
    with_parents: set[int] = set()
    modules = [one for one in gc.get_objects() if isinstance(one, nn.Module)]
    for module in modules:
        with_parents.update(id(child) for child in module.children())
    roots = [m for m in modules if id(m) not in with_parents and next(m.parameters(), None) is not None]
    found: dict[str, torch.Tensor] = {}
    for i, root in enumerate(roots):
        for name, parameter in root.named_parameters():
            found[name if len(roots) == 1 else f"{type(root).__name__}{i}.{name}"] = parameter
    return found


def digest_of(tensor: torch.Tensor) -> str:
    """Of the bits of a tensor, with its shape; of one without values, the reason."""
    try:
        with out_of_sight():
            plain = plain_of(tensor)
            return f"{tuple(tensor.shape)} {'-' if plain is None else hash64(plain)}"
    except Exception as error:
        return f"{tuple(tensor.shape)} {type(error).__name__}"


def random_state() -> str:
    states: list[Callable[[], torch.Tensor]] = [_default_generator.get_state]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state)
    return " ".join(digest_of(state()) for state in states)
