"""Recording of module calls: inputs, outputs, parameters, and the gradients at their boundary."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from numprobe.collect.pytorch.backward import BackwardRecord, Given, Wanted
from numprobe.collect.pytorch.compiled import compiled_call, hidden, is_dynamo_compiling, is_wrapper, original_of
from numprobe.collect.pytorch.functions import as_list
from numprobe.collect.pytorch.hooks import Hook
from numprobe.collect.pytorch.plain import expand_as
from numprobe.collect.pytorch.recorder import Entry, Recorder
from numprobe.collect.pytorch.scope import Scope
from numprobe.collect.pytorch.values import spelled

WRAPPED = "_orig_mod"  # where the wrapper of torch.compile has the module
WRAPPERS = frozenset(("FullyShardedDataParallel",))  # stand around the model and compute nothing of their own

Keeps = Callable[[str], bool]


class Named(NamedTuple):
    """A module and its ``Module.<path>.<Class>``. ``inside``: of a compiled module, so that no call of it is seen."""

    name: str
    module: nn.Module
    inside: bool


def named_modules(model: nn.Module | Sequence[nn.Module]) -> list[Named]:
    """Every module to record: all but the outermost, unless it is compiled; of several models each has its number.

    Names are the same whether or not something is compiled: of a wrapper of torch.compile, that of the module in it.
    """
    models = [("", model)] if isinstance(model, nn.Module) else [(f"{i}.", m) for i, m in enumerate(model)]
    found: list[Named] = []
    for prefix, one in models:
        compiled: list[str] = []  # paths of compiled modules, with a dot
        wrapped: set[int] = set()  # modules in wrappers, which stand for them
        for path, module in one.named_modules():
            inside = any(f"{path}.".startswith(outer) for outer in compiled)
            if is_wrapper(module):
                wrapped.add(id(original_of(module)))
            if is_wrapper(module) or compiled_call(module) is not None:
                compiled.append(f"{path}." if path else "")
                path = path or WRAPPED
            kind = type(original_of(module)).__name__
            if not path or id(module) in wrapped or kind in WRAPPERS or isinstance(module, torch.jit.ScriptModule):
                continue
            parts = [part for part in path.split(".") if part != WRAPPED] or [WRAPPED]
            found.append(Named(spelled(f"Module.{prefix}{'.'.join(parts)}.{kind}"), module, inside))
    return found


class _Call:
    """One call of a module that has begun."""

    __slots__ = ("entry", "error", "given", "name", "number", "parent")

    def __init__(self, name: str, number: int, parent: str | None) -> None:
        self.name, self.number, self.parent = name, number, parent
        self.entry: Entry | None = None
        self.given: Given | None = None
        self.error = sys.exc_info()[1]


class ModuleHooks:
    """Hooks on the modules of a model, and their removal.

    ``enters(name)`` and ``leaves(name)`` tell the filter where the program is; ``keeps(name)`` says whether a call is recorded.
    """

    def __init__(
        self,
        recorder: Recorder,
        scope: Scope,
        *,
        keeps: Keeps,
        enters: Callable[[str], None],
        leaves: Callable[[str], None],
        wanted: Wanted,
    ) -> None:
        self._recorder, self._scope = recorder, scope
        self._keeps, self._enters, self._leaves = keeps, enters, leaves
        self._wanted = wanted
        self._handles: list[Any] = []
        self._hooked: dict[int, nn.Module] = {}
        self.compiled: list[str] = []  # names of modules that are recorded from outside only
        self._calls: dict[int, list[_Call]] = {}  # by module, the innermost call last: a module may call itself

    def hook(self, model: nn.Module | Sequence[nn.Module]) -> None:
        """Record the modules below ``model`` (or several models); modules that are hooked already stay so."""
        for name, module, inside in named_modules(model):
            if id(module) not in self._hooked:
                self.hook_one(name, module, inside=inside)

    def hook_one(self, name: str, module: nn.Module, *, inside: bool = False) -> None:
        """Record one module; ``inside`` a compiled one, the gradients of its parameters alone."""
        if not inside:
            compiled = is_wrapper(module) or compiled_call(module) is not None
            before, after = self._before(name, compiled), self._after(compiled)
            if compiled:
                self.compiled.append(name)
            if compiled_call(module) is not None:
                self._handles.append(_AroundCompiled(module, before, after))
            else:
                self._handles += [
                    module.register_forward_pre_hook(Hook(before), with_kwargs=True),
                    module.register_forward_hook(Hook(after), prepend=True, with_kwargs=True, always_call=True),
                ]
        if self._wanted.input_gradients:
            self._handles += self._hook_parameters(name, original_of(module).named_parameters(recurse=False))
        self._hooked[id(module)] = module

    def restore(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()
        self.compiled.clear()
        self._calls.clear()

    def forget_calls(self) -> None:
        """Calls that were left by an exception nobody saw."""
        self._calls.clear()
        self._scope.thread.busy = False

    # --- forward -------------------------------------------------------------------------------------------------

    def _before(self, base: str, compiled: bool) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        scope = self._scope

        def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if is_dynamo_compiling() or not scope.on:
                return
            thread = scope.thread
            if thread.busy or hidden():
                return
            thread.busy = True
            try:
                self._begin(base, module, args, kwargs)
            finally:
                thread.busy = False
            thread.busy = compiled  # what runs inside of a compiled module is not recorded

        return begin

    def _begin(self, base: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder, scope = self._recorder, self._scope
        counter = f"{base}.forward"
        number = recorder.call(counter)
        name = f"{counter}.{number}"
        call = _Call(base, number, scope.parent())
        self._calls.setdefault(id(module), []).append(call)
        self._enters(name)
        if recorder.stacks is not None:
            recorder.parent(name, call.parent)
        scope.thread.modules.append(name)
        if not self._keeps(name):
            recorder.tally.filtered += 1
            return
        if recorder.stacks is not None:
            recorder.called_from(name, 2)
        recorder.begins()
        call.entry = Entry(name)
        if self._wanted.input:
            call.entry.body["input_args"] = recorder.values(call.entry, "input", args)
            call.entry.body["input_kwargs"] = recorder.named(call.entry, "kwargs", kwargs)
        if self._wanted.backward and torch.is_grad_enabled():
            call.given = Given(args, kwargs)

    def _after(self, compiled: bool) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]:
        scope = self._scope

        def end(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if is_dynamo_compiling():
                return
            thread = scope.thread
            calls = self._calls.get(id(module))
            if not calls or (thread.busy and not compiled) or hidden():
                return
            thread.busy = True
            try:
                self._end(module, calls.pop(), output)
            finally:
                thread.busy = False

        return end

    def _end(self, module: nn.Module, call: _Call, output: Any) -> None:
        recorder, modules = self._recorder, self._scope.thread.modules
        name = f"{call.name}.forward.{call.number}"
        while modules and modules.pop() != name:  # those inside were left by an exception
            pass
        entry = call.entry
        if entry is not None and recorder.files is not None:
            raised = sys.exc_info()[1]
            failed = raised is not None and raised is not call.error
            recorder.ends(has_run=False)
            if self._wanted.output:
                entry.body["output"] = recorder.values(entry, "output", [None] if failed else as_list(output))
                own = dict(original_of(module).named_parameters(recurse=False))
                entry.body["parameters"] = recorder.parameters(entry, own)
            if self._wanted.forward:
                recorder.complete(entry)
                recorder.place(entry)
            if call.given is not None and not failed:
                backward = f"{call.name}.backward.{call.number}"
                record = BackwardRecord(recorder, self._scope, self._wanted, backward, call.parent)
                record.watch(call.given, output, whole=True)
        self._leaves(name)

    # --- parameters ----------------------------------------------------------------------------------------------

    def _hook_parameters(self, base: str, parameters: Iterable[tuple[str, nn.Parameter]]) -> list[Any]:
        """Record a gradient when it was added up: an entry holds those of one module, and begins with its first again."""
        current: list[Entry | None] = [None]
        followed = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
        handles = []
        for name, parameter in followed:
            hook = self._on_accumulated(base, name, current, len(followed))
            if hasattr(parameter, "main_grad"):  # Megatron adds to it in a hook of the node, which began earlier
                handles.append(_after_node(parameter, hook))
            else:
                handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        return handles

    def _on_accumulated(
        self, base: str, name: str, current: list[Entry | None], count: int
    ) -> Callable[[torch.Tensor], None]:
        """``current`` is the module's entry, which is whole with ``count`` gradients."""
        recorder, scope = self._recorder, self._scope
        counter = f"{base}.parameters_grad"

        def accumulated(parameter: torch.Tensor) -> None:
            if not scope.on or recorder.files is None:
                return
            entry = current[0]
            with scope.quiet():
                if (
                    entry is None
                    or entry.written
                    or entry.text is not None
                    or name in entry.body
                    or not entry.name.endswith(f".{recorder.calls(counter) - 1}")
                ):
                    entry = current[0] = Entry(f"{counter}.{recorder.call(counter)}", open=True)
                    if self._keeps(entry.name):
                        recorder.place_gradient(entry, f"{base}.backward.")
                        recorder.begun(id(entry), functools.partial(recorder.close, entry))
                if not self._keeps(entry.name):
                    return
                gradient = getattr(parameter, "main_grad", None)
                gradient = parameter.grad if gradient is None else gradient
                if gradient is not None:
                    entry.body[name] = [recorder.one(entry, name, gradient)]
                if len(entry.body) == count:
                    recorder.complete(entry)
                    recorder.close(entry)

        return accumulated


class _AroundCompiled:
    """Hooks around a module that was compiled in place: its own are part of what is compiled."""

    def __init__(self, module: nn.Module, before: Callable[..., None], after: Callable[..., None]) -> None:
        self._module, self._call = module, compiled_call(module)
        call = self._call
        assert call is not None

        def around(*args: Any, **kwargs: Any) -> Any:
            before(module, args, kwargs)
            output = None
            try:
                output = call(*args, **kwargs)
            finally:
                after(module, args, kwargs, output)
            return output

        self._around = module._compiled_call_impl = around

    def remove(self) -> None:
        if self._module._compiled_call_impl is self._around:
            self._module._compiled_call_impl = self._call


def _after_node(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Call ``hook(parameter)`` when all earlier hooks of the node that accumulates its gradient have run."""
    with torch.enable_grad():
        node: Any = expand_as(parameter, parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]

    def ran(*_: Any, keep: Any = node) -> None:  # nothing else holds the node between two passes
        hook(parameter)

    return node.register_hook(ran)
