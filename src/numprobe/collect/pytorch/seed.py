"""Repeatable random numbers, and a record of who draws them (RND-1, RND-2). Whatever is changed can be put back."""

from __future__ import annotations

import csv
import itertools
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from numprobe.collect.pytorch import checks
from numprobe.collect.pytorch.apis import random_apis, resolve
from numprobe.collect.pytorch.checks import Given
from numprobe.collect.pytorch.communication import current_rank
from numprobe.collect.pytorch.stacks import Stacks
from numprobe.record.errors import NumprobeError

log = logging.getLogger("numprobe")

MAX_SEED = 2**32 - 1
_NPU_ENVIRONMENT = {
    "HCCL_DETERMINISTIC": "True",
    "LCCL_DETERMINISTIC": "1",
    "CLOSE_MATMUL_K_SHIFT": "1",
    "ATB_LLM_LCOC_ENABLE": "0",
}
_DROPOUTS = ("dropout", "dropout2d", "dropout3d")

Call = Callable[..., Any]


class Changes:
    """Changes to the process that :meth:`restore` undoes, last first; also as a context manager."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    @property
    def in_force(self) -> bool:
        return bool(self._undo)

    def on_restore(self, undo: Callable[[], object]) -> None:
        self._undo.append(undo)

    def set_environment(self, name: str, value: str) -> None:
        before = os.environ.get(name)
        os.environ[name] = value
        self.on_restore(lambda: os.environ.pop(name, None) if before is None else os.environ.update({name: before}))

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Call], Call]) -> None:
        """Replace ``owner.name`` by ``wrapper(original)``.

        Somebody else may have wrapped the replacement when it is to go: then it stays and only hands on.
        """
        original: Call = getattr(owner, name)
        own = name in vars(owner)
        changed = wrapper(original)

        @wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return (changed if self.in_force else original)(*args, **kwargs)

        setattr(owner, name, replacement)

        def undo() -> None:
            if vars(owner).get(name) is replacement:
                if own:
                    setattr(owner, name, original)
                else:
                    delattr(owner, name)

        self.on_restore(undo)

    def restore(self) -> None:
        """Undo everything. Twice is once."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Changes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


_seeded = Changes()


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> Changes:
    """Seed python, numpy and torch on every device, and take away what else differs between runs.

    Args:
        seed: 0 to 2**32 - 1.
        mode: deterministic algorithms only. False leaves them as the program has set them.
        rm_dropout: the functional dropout, dropout2d and dropout3d drop nothing.
        is_enhanced: every call of a known random function starts from the seed, so that equal calls give equal values however
            many come before.

    Returns:
        What was changed, to be restored; the random states stay. The next ``seed_all`` restores it by itself.

    Raises:
        NumprobeError: E-CFG-005 for arguments of the wrong kind.
    """
    global _seeded
    if checks.integer(Given("seed", seed), 0) > MAX_SEED:
        raise Given("seed", seed).wrong(f"0, 1, ..., {MAX_SEED}")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout), ("is_enhanced", is_enhanced)):
        checks.flag(Given(name, value))
    _seeded.restore()
    _seeded = changes = Changes()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    changes.set_environment("PYTHONHASHSEED", str(seed))
    _make_devices_deterministic(changes)
    if mode:
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        changes.on_restore(lambda: torch.use_deterministic_algorithms(before[0], warn_only=before[1]))
        torch.use_deterministic_algorithms(True)
    if rm_dropout:
        for name in _DROPOUTS:
            changes.wrap(torch.nn.functional, name, _without_dropping)
    if is_enhanced:
        for library, owner, name in random_apis():
            changes.wrap(resolve(owner), name, partial(_from_the_seed, _seeding(library, seed)))
    return changes


def random_save(output_path: str | Path = "./output") -> Changes:
    """Write down every call of a known random function, with its stack, until the returned changes are restored.

    The file in ``output_path`` is ``random_proc{pid}_{time}.csv``, from the first call with a known rank on
    ``random_rank{rank}_{time}.csv``; columns ``api_name`` (``torch_random.randn.0``) and ``stack``. Calls in forked processes
    are not written.

    Raises:
        NumprobeError: E-OUT-002 the file cannot be made.
    """
    calls = _RandomCalls(checks.path(Given("output_path", output_path)))
    changes = Changes()
    changes.on_restore(calls.close)
    for library, owner, name in random_apis():
        changes.wrap(resolve(owner), name, partial(calls.recorded, f"{library}.{name}"))
    return changes


def _make_devices_deterministic(changes: Changes) -> None:
    if torch.cuda.is_available():
        cudnn = torch.backends.cudnn
        before = cudnn.deterministic, cudnn.benchmark

        def undo() -> None:
            cudnn.deterministic, cudnn.benchmark = before

        changes.on_restore(undo)
        cudnn.deterministic, cudnn.benchmark = True, False
        changes.set_environment("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if "torch_npu" in sys.modules or find_spec("torch_npu") is not None:
        for name, value in _NPU_ENVIRONMENT.items():
            changes.set_environment(name, value)


def _without_dropping(original: Call) -> Call:
    def changed(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return original(input, 0.0, training, inplace)

    return changed


def _seeding(library: str, seed: int) -> Callable[[], object]:
    if library == "python_random":
        return partial(random.seed, seed)
    if library == "numpy_random":
        return partial(np.random.seed, seed)
    return partial(torch.manual_seed, seed)


def _from_the_seed(reseed: Callable[[], object], original: Call) -> Call:
    def changed(*args: Any, **kwargs: Any) -> Any:
        reseed()
        try:
            return original(*args, **kwargs)
        finally:
            reseed()

    return changed


class _RandomCalls:
    """The file of :func:`random_save`."""

    def __init__(self, folder: Path) -> None:
        self._pid = os.getpid()
        self._time = time.strftime("%Y%m%d%H%M%S")
        self._path = folder / f"random_proc{self._pid}_{self._time}.csv"
        self._has_rank = False
        self._lock = threading.Lock()
        self._lost = False
        self._stacks = Stacks()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", encoding="utf-8", newline="", buffering=1)
        except OSError as error:
            raise NumprobeError(
                "E-OUT-002",
                "{file} cannot be written: {reason}",
                where=str(folder),
                do="choose another output_path",
                file=self._path.name,
                reason=error.strerror or str(error),
            ) from error
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(("api_name", "stack"))

    def recorded(self, name: str, original: Call) -> Call:
        counter = itertools.count()

        def changed(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() == self._pid:
                self._write(f"{name}.{next(counter)}")
            return original(*args, **kwargs)

        return changed

    def close(self) -> None:
        with self._lock, suppress(OSError):
            self._file.close()

    def _write(self, api_name: str) -> None:
        with self._lock:
            if self._lost or self._file.closed:
                return
            stack = self._stacks.frames(self._stacks.here(1))
            try:
                self._take_rank()
                self._rows.writerow((api_name, "\n".join(stack)))
            except OSError as error:  # a full disk, say: the program goes on
                self._lost = True
                log.error("numprobe: %s ends before %s: %s", self._path, api_name, error.strerror or error)

    def _take_rank(self) -> None:
        """The file is renamed when the rank becomes known."""
        if not self._has_rank and (rank := current_rank()) is not None:
            self._has_rank = True
            self._path = self._path.rename(self._path.with_name(f"random_rank{rank}_{self._time}.csv"))
