"""Recording of API calls: functions of torch and others are replaced on their owners by ones that record and call them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from numprobe.collect.pytorch import compiled
from numprobe.collect.pytorch.apis import Api, Mask, ignored_arguments, resolve
from numprobe.collect.pytorch.backward import BackwardRecord, Given, Wanted
from numprobe.collect.pytorch.compiled import hidden, is_dynamo_compiling
from numprobe.collect.pytorch.patches import INHERITED, put_back
from numprobe.collect.pytorch.recorder import Entry, Recorder
from numprobe.collect.pytorch.scope import Scope

AfterCall = Callable[[tuple[Any, ...], dict[str, Any], Any], Any]


class FunctionHooks:
    """Wraps functions, and puts them back.

    ``keeps(name)`` says whether an API call is recorded; its counter advances either way.
    """

    def __init__(
        self,
        recorder: Recorder,
        scope: Scope,
        *,
        keeps: Callable[[str], bool],
        wanted: Wanted,
        masks: Mapping[str, Mask],
    ) -> None:
        self._recorder, self._scope = recorder, scope
        self._keeps = keeps
        self._forward, self._wanted = wanted.forward, wanted
        self._masks = {**ignored_arguments(), **masks}
        self._originals: list[tuple[Any, str, Any, Any]] = []  # owner, attribute, what recorded, what was there before
        self._wrapped: set[tuple[int, str]] = set()
        self._exported: dict[tuple[int, str, str], Any] = {}  # original, prefix, name -> what records it in a module

    # --- installing ----------------------------------------------------------------------------------------------

    def install(self, apis: Sequence[Api], after: AfterCall | None = None) -> None:
        """Replace these functions, but for those that are replaced already."""
        with self._lifted():
            compiled.prepare()
        for api in apis:
            owner = resolve(api.owner)
            if not self.has(owner, api.attribute):
                self.wrap(owner, api.attribute, api.prefix, after)
        if not self.has(torch.jit, "script"):
            self._wrap_scripting()
            self._wrap_compiling()

    def wrap(self, owner: Any, attribute: str, prefix: str, after: AfterCall | None = None) -> None:
        """Replace ``owner.attribute``.

        Raises:
            AttributeError: there is none.
        """
        original = getattr(owner, attribute)
        own = vars(owner).get(attribute, INHERITED) if hasattr(owner, "__dict__") else original
        exported = (id(original), prefix, attribute)
        if isinstance(owner, ModuleType) and exported in self._exported:
            # a function that several modules export stays one: P2POp takes isend and irecv by identity
            self._put(owner, attribute, self._exported[exported], own)
            return
        call = self._recording(original, prefix, attribute.rpartition(".")[2], after)
        # under the name where it stands, so that a model that holds it can be pickled
        if isinstance(owner, type):
            call.__module__, call.__qualname__ = owner.__module__, f"{owner.__qualname__}.{attribute}"
        elif isinstance(owner, ModuleType):
            call.__module__, call.__qualname__ = owner.__name__, attribute
            self._exported[exported] = call
        self._put(owner, attribute, call, own)

    def replace(self, owner: Any, attribute: str, call: Any) -> None:
        """Put a function that records by :meth:`recorded` into a place of its own."""
        self._put(owner, attribute, call, vars(owner).get(attribute, INHERITED))

    def has(self, owner: Any, attribute: str) -> bool:
        return (id(owner), attribute) in self._wrapped

    def by_original(self) -> dict[int, Any]:
        """What records, by the address of what it stands for."""
        return {id(own): call for _, _, call, own in self._originals if own is not INHERITED}

    def _put(self, owner: Any, attribute: str, call: Any, own: Any) -> None:
        setattr(owner, attribute, call)
        self._originals.append((owner, attribute, call, own))
        self._wrapped.add((id(owner), attribute))

    def _wrap_scripting(self) -> None:
        """TorchScript compiles source code, and wants the functions that have some."""
        original = torch.jit.script

        @functools.wraps(original)
        def script(*args: Any, **kwargs: Any) -> Any:
            with self._lifted():
                return original(*args, **kwargs)

        self._put(torch.jit, "script", script, original)

    def _wrap_compiling(self) -> None:
        """What the compiler knows of torch's functions it has to learn while they are what they were."""
        original = torch.compile

        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            with self._lifted():
                import_module("torch._dynamo")
                compiled.prepare()
            return original(*args, **kwargs)

        self._put(torch, "compile", compile, original)

    @contextmanager
    def _lifted(self) -> Iterator[None]:
        """Inside, every function is what it was before."""
        lifted = [
            (owner, attribute, call, own)
            for owner, attribute, call, own in self._originals
            if getattr(owner, attribute, None) is call
        ]
        for owner, attribute, call, own in reversed(lifted):
            put_back(owner, attribute, call, own)
        try:
            yield
        finally:
            for owner, attribute, call, _ in lifted:
                setattr(owner, attribute, call)

    def unwrap(self, owner: Any, attribute: str) -> bool:
        """Put one function back; False where it was not replaced."""
        for i, (at, name, call, own) in enumerate(self._originals):
            if at is owner and name == attribute:
                put_back(at, name, call, own)
                self._wrapped.discard((id(owner), attribute))
                del self._originals[i]
                return True
        return False

    def restore(self) -> None:
        """Put everything back, latest first."""
        while self._originals:
            put_back(*self._originals.pop())
        self._wrapped.clear()
        self._exported.clear()
        compiled.prepare()

    # --- a call --------------------------------------------------------------------------------------------------

    def _recording(self, original: Any, prefix: str, api: str, after: AfterCall | None) -> Any:
        scope = self._scope
        recorded = self.recorded
        after_call = after or _plain_output

        @functools.wraps(original, assigned=("__name__", "__doc__", "__qualname__", "__module__"), updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            # the first is a constant for a compiler that traces this
            if is_dynamo_compiling() or not scope.on or scope.thread.busy or hidden():
                return original(*args, **kwargs)
            return recorded(original, prefix, api, after_call, args, kwargs)

        return call

    def listens(self) -> bool:
        """Is this thread's next call to be recorded?"""
        return not is_dynamo_compiling() and self._scope.on and not self._scope.thread.busy and not hidden()

    def recorded(
        self, original: Any, prefix: str, api: str, after: AfterCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call ``original`` and record it; ``after`` gives what the record has as output. Asked for when it listens."""
        thread = self._scope.thread
        thread.busy = True  # what the collector and the API itself call is not recorded
        try:
            call = self._begin(prefix, api, args, kwargs)
            try:
                output = original(*args, **kwargs)
            except BaseException:
                if call is not None:
                    call.entry.open = False
                raise
            if call is not None:
                self._recorder.ends(has_run=True)
                self._end(call, after(args, kwargs, output), output)
            return output
        finally:
            thread.busy = False

    def _begin(self, prefix: str, api: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        recorder = self._recorder
        name = f"{prefix}.{api}"
        hidden = self._masks.get(name)
        name = f"{name}.{recorder.call(name)}.forward"
        parent = self._scope.parent()
        if recorder.stacks is not None:
            recorder.parent(name, parent)
        if not self._keeps(name):
            recorder.tally.filtered += 1
            return None
        if recorder.stacks is not None:
            recorder.called_from(name, 3)
        recorder.begins()
        call = _Call(Entry(name, open=True), hidden, parent)
        if self._forward:
            if self._wanted.input:
                given, named = (args, kwargs) if hidden is None else _without(args, kwargs, hidden.inputs)
                call.entry.body["input_args"] = recorder.values(call.entry, "input", given)
                call.entry.body["input_kwargs"] = recorder.named(call.entry, "kwargs", named)
            recorder.place(call.entry)
        if self._wanted.backward and torch.is_grad_enabled():
            call.given = Given(args, kwargs)
        return call

    def _end(self, call: _Call, shown: Any, output: Any) -> None:
        """``shown`` is what the record has as output: of a communication its arguments, now or :class:`Later`."""
        if isinstance(shown, Later):
            call.entry.body["output"] = []
            shown.bind(lambda values: self._show(call, values))
        else:
            self._show(call, shown)
        if call.given is not None and call.given.tensors:
            name = f"{call.entry.name.removesuffix('forward')}backward"
            record = BackwardRecord(self._recorder, self._scope, self._wanted, name, call.parent)
            if self._wanted.node_gradients:
                record.watch_node(output)
            else:
                record.watch(call.given, output, whole=False)

    def _show(self, call: _Call, output: Any) -> None:
        if self._wanted.output:
            listed = as_list(output)
            if call.hidden is not None:
                listed = [None if i in call.hidden.outputs else v for i, v in enumerate(listed)]
            call.entry.body["output"] = self._recorder.values(call.entry, "output", listed)
        self._recorder.complete(call.entry)


class _Call:
    """One call that has begun."""

    __slots__ = ("entry", "given", "hidden", "parent")

    def __init__(self, entry: Entry, hidden: Mask | None, parent: str | None) -> None:
        self.entry, self.hidden, self.parent = entry, hidden, parent
        self.given: Given | None = None


class Later:
    """An output that is not there yet: a communication that somebody will wait for."""

    def __init__(self) -> None:
        self._record: Callable[[Any], None] | None = None

    def bind(self, record: Callable[[Any], None]) -> None:
        self._record = record

    def arrived(self, values: Any) -> None:
        if self._record is not None:
            record, self._record = self._record, None
            record(values)


def _plain_output(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    return output


def as_list(output: Any) -> list[Any]:
    """The outputs as a record lists them: a tuple or list is opened one level, anything else is one element."""
    return list(output) if isinstance(output, (tuple, list)) and not isinstance(output, torch.Size) else [output]


def _without(
    args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Container[int | str]
) -> tuple[list[Any], dict[str, Any]]:
    return (
        [None if i in hidden else value for i, value in enumerate(args)],
        {key: None if key in hidden else value for key, value in kwargs.items()},
    )
