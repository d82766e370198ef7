"""torch.distributed: what a call leaves in its arguments, and when; which rank this is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from numprobe.collect.pytorch.functions import Later
from numprobe.collect.pytorch.patches import put_back


def current_rank() -> int | None:
    """The global rank, None before torch.distributed is initialised."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return int(dist.get_rank())


class Waits:
    """Outputs of asynchronous calls: recorded when the program has waited for them.

    ``after_call`` is what :meth:`FunctionHooks.wrap` takes: the output of a communication is all its arguments after it.
    """

    def __init__(self, busy: Callable[[], Any]) -> None:
        self._busy = busy
        self._pending: dict[int, tuple[Any, Later, list[Any]]] = {}  # by the address of the last handle, kept with it
        self._original: Any = None
        self._wait: Any = None

    def after_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        values = [*args, *kwargs.values()]
        works = output if isinstance(output, list) else [output]
        works = [w for w in works if hasattr(w, "wait")]
        if not works:
            return values
        later = Later()
        last = works[-1]
        self._pending[id(last)] = (last, later, values)
        return later

    def install(self) -> None:
        if self._original is not None:
            return
        from torch.distributed import Work

        original = self._original = Work.wait
        pending, busy = self._pending, self._busy

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(work, *args, **kwargs)
            found = pending.pop(id(work), None)
            if found is not None:
                with busy():
                    found[1].arrived(found[2])
            return done

        self._wait = Work.wait = wait  # type: ignore[method-assign, assignment]

    def restore(self) -> None:
        if self._original is not None:
            from torch.distributed import Work

            put_back(Work, "wait", self._wait, self._original)
            self._original = None
        self._pending.clear()

    def settle(self) -> None:
        """At the end of a step: what nobody has waited for is recorded if it is complete, else left open."""
        for work, later, values in list(self._pending.values()):
            with self._busy():
                if _completed(work):
                    later.arrived(values)
        self._pending.clear()


def _completed(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except RuntimeError:  # a backend that cannot tell
        return False
