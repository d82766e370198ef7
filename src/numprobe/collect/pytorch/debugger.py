"""``PrecisionDebugger``: the interface that msProbe's users know, over sessions that can be many and can be closed."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from numprobe.collect.pytorch.reloading import Reloading
from numprobe.collect.pytorch.session import Models, Session
from numprobe.collect.pytorch.settings import Settings, load_settings
from numprobe.record.errors import NumprobeError


class _OnInstanceOrDefault:
    """A method that may be called on the class too: there it is the default instance's, as old scripts call it."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        functools.update_wrapper(self, method)  # type: ignore[arg-type]

    def __get__(self, instance: PrecisionDebugger | None, owner: type[PrecisionDebugger]) -> Callable[..., Any]:
        return functools.partial(self._method, instance if instance is not None else _default(self._method.__name__))


class PrecisionDebugger:
    """Records what a training or inference step computes.

        debugger = PrecisionDebugger(config_path="config.json")
        for batch in loader:
            debugger.start(model=model)
            ...                            # forward, backward, optimizer
            debugger.stop()
            debugger.step()

    Every instance is a collection of its own; the first one is also what the methods mean when they are called on the class.
    ``close()`` takes all hooks away; with ``with``, at the end of the block. With the environment variable NUMPROBE_RECORD=0
    nothing is recorded, and nothing hooked.

    Args:
        config_path: config.json or .yaml; without it, the defaults.
        task, dump_path, level, step: win over the file. Any other setting can be given by its name as well.

    Raises:
        NumprobeError: a setting is wrong (E-CFG-...).
    """

    default: ClassVar[PrecisionDebugger | None] = None

    def __init__(
        self,
        config_path: str | Path | None = None,
        task: str | None = None,
        dump_path: str | Path | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
        **settings: Any,
    ) -> None:
        named = {"task": task, "dump_path": dump_path, "level": level, "step": step}
        given = {key: value for key, value in named.items() if value is not None} | settings
        self.settings: Settings = load_settings(config_path, **given)
        self._off = os.environ.get("NUMPROBE_RECORD") == "0"  # from outside, for one run
        self.session = Session(self.settings, off=self._off)
        self._reloading = Reloading(self.settings, lambda: load_settings(config_path, **given))
        if PrecisionDebugger.default is None:
            PrecisionDebugger.default = self
        atexit.register(self.close)

    def __enter__(self) -> PrecisionDebugger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @_OnInstanceOrDefault
    def start(
        self,
        model: Models | None = None,
        token_range: tuple[int, int] | list[int] | None = None,
        rank_id: int | None = None,
        scheduled_tokens: dict[str, int] | None = None,
    ) -> None:
        """Record from here on; see :meth:`Session.start`."""
        self._reload()
        if not self._reloading.enabled:
            return
        self.session.start(model, token_range=token_range, rank=rank_id, scheduled_tokens=scheduled_tokens)

    @_OnInstanceOrDefault
    def stop(self) -> None:
        """Record no more; the files hold everything so far."""
        self.session.stop()
        self._reload()

    @_OnInstanceOrDefault
    def step(self) -> None:
        """The step is over: call counters begin at 0 again."""
        self.session.step()
        self._reload()

    @_OnInstanceOrDefault
    def set_init_step(self, step: int) -> None:
        """Count steps from here."""
        if type(step) is not int or step < 0:
            raise NumprobeError(
                "E-COL-004", "set_init_step({step}): no step number", step=step, do="give a whole number from 0"
            )
        self.session.step_number = step

    @_OnInstanceOrDefault
    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record one value under a name (level debug)."""
        self.session.save(variable, name, backward=save_backward)

    @_OnInstanceOrDefault
    def register_custom_api(self, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Record the calls of ``module.api`` as ``{prefix}.{api}.{n}.forward``."""
        if not hasattr(module, api):
            name = getattr(module, "__name__", type(module).__name__)
            raise NumprobeError("E-COL-005", "{module} has no {api}", module=name, api=api, do="check the name")
        self.session.wrap(module, api, api_prefix or str(getattr(module, "__name__", "Custom")))

    @_OnInstanceOrDefault
    def restore_custom_api(self, module: Any, api: str) -> None:
        """Undo :meth:`register_custom_api`."""
        self.session.unwrap(module, api)

    @_OnInstanceOrDefault
    def close(self) -> None:
        """Write what is left, and take every hook, wrapper and patch away."""
        self.session.close()
        atexit.unregister(self.close)
        if PrecisionDebugger.default is self:
            PrecisionDebugger.default = None

    def _reload(self) -> None:
        """Go on with new settings, if the configuration has changed; while recording is off, nothing stays wrapped."""
        settings = self._reloading.changed()
        if settings is not None:
            step = self.session.step_number
            self.session.stop()
            self.session.close()
            self.settings = settings
            self.session = Session(settings, off=self._off)
            self.session.step_number = step
        if not self._reloading.enabled:
            self.session.rest()


def module_dump(module: nn.Module, name: str) -> None:
    """Record this one module as ``Module.{name}.{Class}``, and nothing inside it, until :func:`module_dump_end`."""
    _default("module_dump").session.begin_module(module, name)


def module_dump_end() -> None:
    """End what :func:`module_dump` began."""
    _default("module_dump_end").session.end_module()


def _default(caller: str) -> PrecisionDebugger:
    if PrecisionDebugger.default is None:
        raise NumprobeError(
            "E-COL-003",
            "PrecisionDebugger.{method}() was called before a PrecisionDebugger was made",
            method=caller,
            do="make one first: debugger = PrecisionDebugger(config_path=...)",
        )
    return PrecisionDebugger.default
