"""Everything that is replaced in torch and other packages while a session records API calls."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from numprobe.collect.pytorch import apis, compiled
from numprobe.collect.pytorch.backward import Wanted
from numprobe.collect.pytorch.communication import Waits
from numprobe.collect.pytorch.functions import FunctionHooks
from numprobe.collect.pytorch.megatron import point_at
from numprobe.collect.pytorch.recorder import Recorder
from numprobe.collect.pytorch.scope import Scope
from numprobe.collect.pytorch.settings import Settings
from numprobe.collect.pytorch.triton_kernels import install_launches


class Wrappers:
    """Finds the functions to wrap, again whenever the program has loaded more, and puts them back.

    ``keeps(name)`` says whether a call is recorded.
    """

    def __init__(
        self, settings: Settings, recorder: Recorder, scope: Scope, *, keeps: Callable[[str], bool], wanted: Wanted
    ) -> None:
        self._settings = settings
        self.functions = FunctionHooks(recorder, scope, keeps=keeps, wanted=wanted, masks=settings.ignore_arguments)
        self._waits = Waits(scope.quiet)
        self._loaded = (0, 0)  # modules and operator libraries when functions were last looked for
        self._absent: set[tuple[str, str]] = set()

    def install(self) -> None:
        """Wrap what is there and not wrapped yet; quick if the program has loaded nothing since the last time."""
        loaded = len(sys.modules), len(torch.ops.loaded_libraries)
        if loaded == self._loaded:  # looking for functions takes as long as a small step
            return
        self._loaded = loaded
        compiled.keep_out()
        listed = apis.wrapped_apis()
        communication = [a for a in listed if a.prefix == "Distributed"]
        self.functions.install([a for a in listed if a.prefix != "Distributed"])
        if communication:
            self.functions.install(communication, self._waits.after_call)
            point_at(self.functions)
            self._waits.install()
        self._install_operators()
        self._install_own()
        install_launches(self.functions)

    def settle(self) -> None:
        """At the end of a step: outputs of communication that nobody waited for."""
        self._waits.settle()

    def restore(self) -> None:
        self._loaded = (0, 0)
        self._waits.restore()
        self.functions.restore()

    def missing(self) -> list[str]:
        """Functions of ``wrap_apis`` that never were there, in words."""
        return [f"wrap_apis: {module} has no {name}, or was not imported" for module, name in sorted(self._absent)]

    def _install_operators(self) -> None:
        """Wrap the operators of the chosen namespaces of ``torch.ops`` that are loaded by now."""
        for space in self._settings.custom_op_namespaces:
            names = {
                s.name.partition("::")[2] for s in torch._C._jit_get_all_schemas() if s.name.startswith(f"{space}::")
            }
            self.functions.install([apis.Api(space, f"torch.ops.{space}", name) for name in sorted(names)])

    def _install_own(self) -> None:
        """Wrap the user's functions, of modules that are imported by now; the prefix is the module's path."""
        for module, names in self._settings.wrap_apis.items():
            for name in names:
                path, _, attribute = f"{module}.{name}".rpartition(".")
                if hasattr(apis.resolve(path), attribute):
                    self._absent.discard((module, name))
                    self.functions.install([apis.Api(module, path, attribute)])
                else:
                    self._absent.add((module, name))
