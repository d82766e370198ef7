"""The entries of one rank: named, counted, put in order, and written in batches.

An entry is a dict that becomes one member of dump.json. Its tensors are records without figures at first: these are computed
on the device when the tensor is seen and fetched for all entries of a batch at once.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from numprobe.collect.pytorch.stacks import Stacks
from numprobe.collect.pytorch.values import OnTensor, TensorRecord, describe, tensor_type
from numprobe.formats.msprobe.write import DUMP_FOOT, AppendedObject, dump_head, figure, member

BATCH = 1000  # entries that are written at once
_DTYPES = {d: str(d) for d in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)}
HELD = 20 * BATCH  # entries that may wait for an unfinished one before them


class Figures(Protocol):
    """What :class:`~numprobe.collect.pytorch.statistics.Statistics` does for the recorder."""

    def add(self, tensor: torch.Tensor) -> int: ...
    def resolve(self) -> list[dict[str, object]]: ...


class TensorSink(Protocol):
    """What :class:`~numprobe.collect.pytorch.tensor_files.TensorWriter` does for the recorder."""

    def put(self, tensor: torch.Tensor, name: str) -> None: ...
    def flush(self) -> list[str]: ...


@dataclass(eq=False)
class Entry:
    """One member of ``data``. ``open``: something of it is still to come."""

    name: str
    body: dict[str, Any] = field(default_factory=dict)
    open: bool = False

    @property
    def value(self) -> Any:
        """What the file holds: the body, or of a single value that itself."""
        return self.body.get("", self.body)


@dataclass
class Tally:
    """What the run has recorded and what it has not, for the summary."""

    entries: int = 0
    tensors: int = 0
    filtered: int = 0
    bytes: int = 0
    seconds: float = 0.0  # spent writing
    problems: Counter[str] = field(default_factory=Counter)


class StepFiles:
    """The files of one rank and step, opened when there is something to write."""

    def __init__(self, folder: Path, task: str, level: str, extra: dict[str, object], *, tensors: bool) -> None:
        tensor_folder = folder / "dump_tensor_data"
        folder.mkdir(parents=True, exist_ok=True)
        name = "debug.json" if level == "debug" else "dump.json"
        head = dump_head(task, level, str(tensor_folder.resolve()) if tensors else None, extra)
        self.folder, self.tensor_folder = folder, tensor_folder
        self.dump = AppendedObject(folder / name, head, DUMP_FOOT)
        self.construct = AppendedObject(folder / "construct.json")
        self.stack = AppendedObject(folder / "stack.json")


class Recorder:
    """Collects entries of the current step and writes them.

    ``saves(entry, tensor)`` decides whether a tensor's values are kept in a file, which ``sink_of(folder)`` writes.
    """

    def __init__(
        self,
        figures: Figures | None,
        *,
        slices: Callable[[torch.Tensor], torch.Tensor] | None = None,
        saves: Callable[[str], bool] | None = None,
        stacks: bool = True,
        tree: bool = True,
    ) -> None:
        self._figures = figures
        self._slice = slices
        self._saves = saves
        self.sink: TensorSink | None = None
        self.stacks = Stacks() if stacks else None
        self.tally = Tally()
        self.lock = threading.RLock()
        self._calls: dict[str, int] = {}
        self._rows: dict[int, Entry] = {}  # by id, in file order
        self._late: list[Entry] = []
        self._begun: dict[
            int, Callable[[], None]
        ] = {}  # backward passes that may never reach all inputs: how to end them
        self._waiting: list[TensorRecord] = []
        self._tree = tree
        self._parents: dict[str, str | None] = {}
        self._stack_of: dict[int, list[str]] = {}
        self._groups = 0
        self.files: StepFiles | None = None

    # --- names and order -----------------------------------------------------------------------------------------

    def call(self, name: str) -> int:
        """Number of this call of ``name`` in the step, from 0."""
        number = self._calls.get(name, -1) + 1
        self._calls[name] = number
        return number

    def calls(self, name: str) -> int:
        return self._calls.get(name, -1) + 1

    def place(self, entry: Entry) -> None:
        """Put an entry at the end; what was put off goes before it."""
        if self._late:
            self._settle()
        self._rows[id(entry)] = entry
        if len(self._rows) >= BATCH and self.files is not None:
            self.write()

    def place_gradient(self, entry: Entry, module: str) -> None:
        """Put the gradients of a module's parameters at the end: before its own backward entry, if that was put off."""
        if not any(late.name.startswith(module) for late in self._late):
            self._settle()
        self._rows[id(entry)] = entry

    def put_off(self, entry: Entry) -> None:
        """Put a module's backward entry behind the gradients of its parameters, which follow."""
        path = entry.name.rsplit(".", 3)[0]
        if self._late and not self._late[-1].name.startswith(f"{path}."):  # of another call, which is over
            self._settle()
        self._late.append(entry)

    def begun(self, key: int, finish: Callable[[], None]) -> None:
        """A backward pass has entered a call; ``finish`` ends its entry if the step ends before all its inputs are reached."""
        self._begun[key] = finish

    def ended(self, key: int) -> None:
        self._begun.pop(key, None)

    def _settle(self) -> None:
        for entry in self._late:
            self._rows[id(entry)] = entry
        self._late.clear()

    def parent(self, name: str, parent: str | None) -> None:
        if self._tree:  # at level L1 there is none
            self._parents[name] = parent

    def called_from(self, name: str, skip: int) -> None:
        if self.stacks is not None:
            self._stack_of.setdefault(self.stacks.here(skip + 1), []).append(name)

    # --- values --------------------------------------------------------------------------------------------------

    def values(self, entry: Entry, segment: str, values: Any) -> list[Any]:
        """Records of a list of arguments; ``segment`` stands in the names of tensor files (input, kwargs, output)."""
        on_tensor = self.on_tensor(entry)
        return [describe(value, f"{segment}.{i}", on_tensor) for i, value in enumerate(values)]

    def named(self, entry: Entry, segment: str, values: dict[str, Any]) -> dict[str, Any]:
        """Records of keyword arguments or parameters."""
        on_tensor = self.on_tensor(entry)
        return {key: describe(value, f"{segment}.{key}", on_tensor, key) for key, value in values.items()}

    def one(self, entry: Entry, path: str, tensor: torch.Tensor) -> TensorRecord:
        """The record of the tensor at ``path`` of an entry (``output.0``)."""
        return self.on_tensor(entry)(tensor, path)

    def on_tensor(self, entry: Entry) -> OnTensor:
        if self._saves is None or not self._saves(entry.name):
            return self._unsaved
        return lambda tensor, path: self.tensor(
            tensor, f"{entry.name}.{path.strip('.')}.pt" if path else f"{entry.name}.pt"
        )

    def _unsaved(self, tensor: torch.Tensor, _: str) -> TensorRecord:
        return self.tensor(tensor)

    def tensor(self, tensor: torch.Tensor, file_name: str = "") -> TensorRecord:
        """The record of a tensor as it is now; its figures follow when the batch is written."""
        if self._slice is not None:
            tensor = self._slice(tensor)
        kind = type(tensor)
        plain = kind is torch.Tensor or kind is torch.nn.Parameter
        local = tensor if plain or not hasattr(tensor, "to_local") else tensor.to_local()
        record: TensorRecord = {
            "type": "torch.Tensor" if plain else tensor_type(tensor),
            "dtype": _DTYPES.get(tensor.dtype) or str(tensor.dtype),
            "shape": None if local.is_nested else list(local.shape),
            "Max": None,
            "Min": None,
            "Mean": None,
            "Norm": None,
            "requires_grad": tensor.requires_grad,
        }
        if local is not tensor:
            _add_placement(record, tensor)
        with self.lock:
            if self._figures is not None:
                self._figures.add(tensor)
                self._waiting.append(record)
            self.tally.tensors += 1
        if file_name and self.sink is not None:
            record["data_name"] = file_name
            self.sink.put(local, file_name)
        return record

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, *, everything: bool = False) -> None:
        """Write what is complete; with ``everything`` also what is not."""
        with self.lock:
            if self.files is None:
                return
            began = time.perf_counter()
            if everything:
                for finish in list(self._begun.values()):
                    finish()
                self._settle()
            self._fill()
            entries: list[Entry] = []
            held = len(self._rows)
            for key in list(self._rows):
                entry = self._rows[key]
                if entry.open and not everything and held <= HELD:
                    break
                entries.append(self._rows.pop(key))
            try:
                self.tally.bytes += self.files.dump.append([member(e.name, e.value) for e in entries])
                if self.stacks is not None:
                    self._write_structure()
            except OSError as error:
                self.tally.problems[f"{error.strerror or error}: {self.files.folder}"] += len(entries) or 1
            else:
                self.tally.entries += len(entries)
            if everything and self.sink is not None:
                self.tally.problems.update(self.sink.flush())
            self.tally.seconds += time.perf_counter() - began

    def _fill(self) -> None:
        """Fetch the figures of all tensors seen so far and enter them."""
        if self._figures is None:
            return
        for record, figures in zip(self._waiting, self._figures.resolve(), strict=True):
            for key, value in figures.items():
                record[key] = figure(value)  # type: ignore[arg-type]
        self._waiting.clear()

    def _write_structure(self) -> None:
        assert self.files is not None
        assert self.stacks is not None
        self.tally.bytes += self.files.construct.append([member(n, p) for n, p in self._parents.items()])
        merged: dict[tuple[str, ...], list[str]] = {}  # several calls on one line make several stacks of one text
        for number, names in self._stack_of.items():
            merged.setdefault(self.stacks.frames(number), []).extend(names)
        groups = []
        for frames, names in merged.items():
            groups.append(member(str(self._groups), [names, frames]))
            self._groups += 1
        self.tally.bytes += self.files.stack.append(groups)
        self._parents.clear()
        self._stack_of.clear()

    def begin_step(self, files: StepFiles) -> None:
        self.files = files
        self._groups = 0

    def end_step(self) -> None:
        """Write all, forget the counters."""
        self.write(everything=True)
        with self.lock:
            self._calls.clear()
            self._rows.clear()
            self._late.clear()
            self._begun.clear()
            self._parents.clear()
            self._stack_of.clear()
            self.files = None
            self.tally = Tally()


def _add_placement(record: TensorRecord, tensor: Any) -> None:
    try:
        record["device_mesh"] = tensor.device_mesh.mesh.tolist()
        record["placements"] = [_placement(p) for p in tensor.placements]
    except AttributeError:  # another class with a local part
        return


def _placement(placement: Any) -> dict[str, Any]:
    name = type(placement).__name__.lstrip("_")
    if name.endswith("Shard"):
        return {"Shard": {"dim": placement.dim}}
    if name.endswith("Partial"):
        return {"Partial": {"reduce_op": str(getattr(placement, "reduce_op", "sum"))}}
    return {"Replicate": {}}


def clear_old_run(folder: Path, *, overwrite: bool) -> Path | None:
    """Make room for a new run in a rank's folder: an earlier run's is renamed, or deleted if the user says so.

    Gives the new name of the old folder, if there is one.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if overwrite:
        shutil.rmtree(folder)
        return None
    for number in range(1, 1_000_000):
        aside = folder.with_name(f"{folder.name}.old{number}")
        if not aside.exists():
            folder.rename(aside)
            return aside
    raise FileExistsError(os.fspath(folder))
