"""One collection in one process: hooks that are installed and removed, steps that begin and end, folders that are filled."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from numprobe.collect.pytorch.backward import Wanted
from numprobe.collect.pytorch.communication import current_rank
from numprobe.collect.pytorch.crash import CrashWriter
from numprobe.collect.pytorch.differences import Differences
from numprobe.collect.pytorch.filters import NameFilter
from numprobe.collect.pytorch.folders import Folders
from numprobe.collect.pytorch.loading import InputLoader
from numprobe.collect.pytorch.megatron import MICRO_STEP_KEY, MicroSteps
from numprobe.collect.pytorch.modules import ModuleHooks
from numprobe.collect.pytorch.parquet import require_pyarrow
from numprobe.collect.pytorch.phases import Phases
from numprobe.collect.pytorch.points import Points
from numprobe.collect.pytorch.recorder import BATCH, Recorder
from numprobe.collect.pytorch.scope import Scope
from numprobe.collect.pytorch.settings import Settings
from numprobe.collect.pytorch.slicing import Slicing
from numprobe.collect.pytorch.statistics import Statistics
from numprobe.collect.pytorch.tokens import TokenRange
from numprobe.collect.pytorch.wrappers import Wrappers
from numprobe.record.errors import NumprobeError

log = logging.getLogger("numprobe")
Models: TypeAlias = "nn.Module | Sequence[nn.Module]"


class Session:
    """Collects what ``settings`` ask for, from ``start`` to ``stop``, step by step, until ``close``; ``off``: nothing at all."""

    def __init__(self, settings: Settings, *, off: bool = False) -> None:
        if settings.format == "parquet":
            require_pyarrow()
        self.settings = settings
        self.step_number = 0
        self.scope = Scope()
        for warning in settings.warnings:
            log.warning("numprobe: %s", warning)
        self._filter = NameFilter(settings)
        self._slicing = Slicing(settings)
        structure = settings.task == "structure"  # names and parents, no bodies
        self._figures = (
            None
            if structure
            else Statistics(settings.summary_mode, compat=settings.compat, precision=settings.precision)
        )
        self._differences = self._comparison(settings.bench_path)
        self.recorder = Recorder(
            self._figures,
            slices=self._slicing.of if self._slicing else None,
            saves=self._filter.tensors if settings.saves_tensors else None,
            stacks=settings.extra_info and settings.level != "debug",
            any_order=settings.summary_mode == "statistics",
            tree=settings.level in ("L0", "mix"),
            batch=math.inf if settings.async_dump else 1 if self._differences is not None else BATCH,
            marks_nonfinite=settings.task == "nan_check",
            keeps_until_crash=settings.task == "exception_dump",
            repeatable=settings.task == "acc_check",
            judge=None if self._differences is None else self._differences.judge,
        )
        self._wants_apis = settings.level in ("L1", "mix")
        self._wants_modules = settings.level in ("L0", "mix")
        self._wanted = self._what_is_wanted()
        self._wrappers = Wrappers(settings, self.recorder, self.scope, keeps=self._filter.api, wanted=self._wanted)
        self._modules = self._module_hooks(self.scope)
        self._phases = Phases(self.scope, lambda name: self.recorder.parent(name, None))
        self._micro_steps = MicroSteps()
        self._points = Points(self.recorder)
        self._rank: int | None = None
        self._folders = Folders(settings, self.recorder, self._differences)
        self._ended, self._found_all = off, False
        self._started, self._to_come = False, set(settings.steps)  # chosen steps that have not begun
        self._told_rank = False
        self._tokens: TokenRange | None = None
        self._single: ModuleHooks | None = None
        self._loader = InputLoader(settings.load, lambda: (self.step_number, self._rank)) if settings.load else None
        self._crash = CrashWriter(self.recorder) if settings.task == "exception_dump" else None
        if self._wants_apis and not off:
            self._wrappers.install()

    # --- what a program calls ------------------------------------------------------------------------------------

    def start(
        self,
        model: Models | None = None,
        *,
        token_range: Sequence[int] | None = None,
        rank: int | None = None,
        scheduled_tokens: dict[str, int] | None = None,
    ) -> None:
        """Record from here on. ``model`` is needed for levels L0 and mix, and for ``token_range``.

        ``token_range`` (first and last, from 0): calls of the model itself to record, as each makes one token.
        ``rank`` names the folder where ranks of the program repeat. ``scheduled_tokens`` (rows by request) goes with the
        setting ``request_id``: only the rows of that request are recorded; a step without it is left out.

        Raises:
            NumprobeError: E-COL-001 no model, or something else.
        """
        settings = self.settings
        if self._ended or self._found_all or settings.level == "debug":
            return
        self._started = True
        if self._wants_modules:
            _check_model(model, settings.level)
        if settings.last_step is not None and self.step_number > settings.last_step:
            self._end()
            return
        self._rank = rank if rank is not None else current_rank()
        if self._loader is not None and model is not None:
            self._loader.hook(model)
            if settings.load is not None and not settings.load.dump_after_load:
                return
        if not settings.wants_rank(self._rank):
            if self._rank is None and not self._told_rank:
                self._told_rank = True
                log.warning(
                    "numprobe: nothing is recorded: rank %s was chosen, and this process has no rank",
                    sorted(settings.ranks),
                )
            return
        if not settings.wants_step(self.step_number):
            return
        self._to_come.discard(self.step_number)
        if scheduled_tokens is not None and not self._slicing.choose(scheduled_tokens):
            return
        if not self._folders.open(self.step_number, self._rank):
            return
        if self._wants_modules and model is not None:
            self._modules.hook(model)
            self._number_micro_steps()
        if self._wants_apis:
            self._wrappers.install()
        if settings.level == "mix":
            self._phases.install()
        if token_range is not None:
            self._tokens = TokenRange(self.scope, model, token_range)
        else:
            self.scope.on = True

    def stop(self) -> None:
        """Record no more; everything so far is in the files when this returns."""
        self.scope.on = False
        if self._tokens is not None:
            self._tokens.remove()
            self._tokens = None
        self._wrappers.settle()
        self.recorder.write(everything=True)
        if self._differences is not None and self._differences.found == self.settings.diff_nums:
            log.info("numprobe: %d differences are found, nothing more will be recorded", self._differences.found)
            self._found_all = True

    def step(self) -> None:
        """The step is over: its files are complete, the next one counts calls from 0."""
        self.stop()
        self._end_step()
        self._modules.forget_calls()
        self._filter.end_step()
        if self._loader is not None:
            self._loader.end_step()
        self.step_number += 1
        past = self.settings.last_step is not None and self.step_number > self.settings.last_step
        if past or self._found_all:
            self._end()

    def close(self) -> None:
        """Take every hook, wrapper and patch away, for good. A step that is not over is written as it is."""
        if self.recorder.files is not None:
            self.stop()
            self._end_step()
        self.rest()
        if not self._ended:
            for hint in (*self._filter.unmatched(), *self._wrappers.missing()):
                log.warning("numprobe: %s", hint)
            if self._started and self._to_come and self.settings.wants_rank(self._rank):
                log.warning("numprobe: step: chosen steps that never came: %s", _some(sorted(self._to_come)))
        if self._loader is not None:
            self._loader.restore()
        if self._crash is not None:
            self._crash.restore()
        self._ended = True

    def rest(self) -> None:
        """Take every hook, wrapper and patch away until the next start."""
        self.scope.on = False
        self._modules.restore()
        self._phases.restore()
        self._micro_steps.restore()
        self._wrappers.restore()

    def begin_module(self, module: nn.Module, name: str) -> None:
        """Record one module as ``Module.{name}.{Class}`` and nothing else, until :meth:`end_module`."""
        if self.scope.on and self._single is None:
            self.scope.on = False
            self._single = self._module_hooks(Scope(on=True))
            self._single.hook_one(f"Module.{name}.{type(module).__name__}", module)

    def end_module(self) -> None:
        if self._single is not None:
            self._single.restore()
            self._single = None
            self.scope.on = True

    def save(self, variable: Any, name: str, *, backward: bool = True) -> None:
        """Record one value under a name (level debug)."""
        if self._ended or self.settings.level != "debug" or not self.settings.wants_step(self.step_number):
            return
        self._rank = current_rank()
        if not self.settings.wants_rank(self._rank):
            return
        if not self._folders.open(self.step_number, self._rank):
            return
        with self.scope.quiet():
            self._points.save(variable, name, backward=backward)

    # --- parts ---------------------------------------------------------------------------------------------------

    def _what_is_wanted(self) -> Wanted:
        modes, task = self.settings.data_mode, self.settings.task
        bodies = task != "structure"  # which has names and parents alone
        forward, backward = bodies and "forward" in modes, bodies and "backward" in modes
        return Wanted(
            input=forward and "input" in modes,
            output=forward and "output" in modes,
            backward="backward" in modes,
            output_gradients=backward and "input" in modes,
            input_gradients=backward and "output" in modes and task != "acc_check",
            keeps_backward=self._keeps_backward if bodies else lambda name: False,
            node_gradients=self.settings.compat,
        )

    def _comparison(self, path: Path | None) -> Differences | None:
        if path is None:
            return None
        settings = self.settings
        return Differences(
            path,
            settings.summary_mode,
            settings.diff_nums,
            node_gradients=settings.compat,
            modules_count=settings.level == "L0",
            enough=self.scope.off,
        )

    def _module_hooks(self, scope: Scope) -> ModuleHooks:
        return ModuleHooks(
            self.recorder,
            scope,
            keeps=self._filter.module,
            enters=self._filter.enter_module,
            leaves=self._filter.leave_module,
            wanted=self._wanted,
        )

    def wrap(self, module: Any, api: str, prefix: str) -> None:
        if not self._ended:
            self._wrappers.functions.wrap(module, api, prefix)

    def unwrap(self, module: Any, api: str) -> bool:
        return self._wrappers.functions.unwrap(module, api)

    def _end(self) -> None:
        log.info("numprobe: all chosen steps are over, nothing more will be recorded")
        self.close()

    def _number_micro_steps(self) -> None:
        self._micro_steps.install()
        if self._micro_steps.active:
            self.recorder.micro_step = self._micro_steps.of

    def _end_step(self) -> None:
        """The step is written; finish its files and say what is in them."""
        if self.recorder.files is not None:
            if self._micro_steps.last is not None:
                self.recorder.note(MICRO_STEP_KEY, self._micro_steps.last)
            self.recorder.finish()
            self._report()
        self._micro_steps.restart()
        self.recorder.end_step()

    def _keeps_backward(self, name: str) -> bool:
        """A backward record whose forward record is kept: inside a listed module it stays, elsewhere its own name decides."""
        inside = self.settings.level == "mix" and self.settings.list
        return bool(inside) or self._filter.api(name)

    def _report(self) -> None:
        tally = self.recorder.tally
        log.info(
            "numprobe: step %d: %d entries, %d tensors, %d filtered, %.1f MB in %.2f s",
            self.step_number,
            tally.entries,
            tally.tensors,
            tally.filtered,
            tally.bytes / 1e6,
            tally.seconds,
        )
        if self._modules.compiled:
            log.info("numprobe: compiled, and so recorded from outside only: %s", ", ".join(self._modules.compiled))
        for problem, count in tally.problems.items():
            log.error("numprobe: NOT RECORDED: %d entries: %s", count, problem)
        for what, count in (self._figures.take_unsupported() if self._figures is not None else {}).items():
            log.warning("numprobe: no figures of %d tensors: %s", count, what)


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")


def _check_model(model: object, level: str) -> None:
    """Fail on what is neither a module nor modules.

    Raises:
        NumprobeError: E-COL-001.
    """
    if model is None:
        raise NumprobeError(
            "E-COL-001",
            "level {level} records modules, and start() was given no model",
            level=level,
            do="call start(model=...) with the torch.nn.Module (or a list of them)",
        )
    parts = list(model) if isinstance(model, Sequence) and not isinstance(model, str) else [model]
    for wrong in (part for part in parts if not isinstance(part, nn.Module)):
        raise NumprobeError(
            "E-COL-001",
            "start(model=...): {kind} is no torch.nn.Module",
            kind=type(wrong).__name__,
            do="call start(model=...) with the torch.nn.Module (or a list of them)",
        )
