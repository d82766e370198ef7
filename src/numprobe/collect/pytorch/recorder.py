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
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from numprobe.collect.pytorch.parquet import ParquetValues
from numprobe.collect.pytorch.plain import PLAIN_TYPES
from numprobe.collect.pytorch.stacks import Stacks
from numprobe.collect.pytorch.values import ANY_KEY, OnTensor, TensorRecord, describe, tensor_type
from numprobe.formats.msprobe.write import DUMP_FOOT, AppendedObject, dump_head, figure, member

BATCH = 1000  # entries that are written at once
_DTYPES = {d: str(d) for d in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)}
HELD = 20 * BATCH  # entries that may wait for an unfinished one before them


_NUMBERS = ("Max", "Min", "Mean", "Norm")
_MORE = ("stat_dtype", "nan", "pos_inf", "neg_inf", "md5")

# a tensor (which keeps its memory from being used again), its version, its record, the number of figures to come
_Seen = tuple[torch.Tensor, int, TensorRecord, "int | None"]


class Figures(Protocol):
    """What :class:`~numprobe.collect.pytorch.statistics.Statistics` does for the recorder."""

    def enter(self, record: TensorRecord, tensor: torch.Tensor) -> bool: ...
    def add(self, tensor: torch.Tensor) -> int: ...
    def resolve(self) -> list[dict[str, object]]: ...


class TensorSink(Protocol):
    """What :class:`~numprobe.collect.pytorch.tensor_files.TensorWriter` does for the recorder."""

    folder: Path

    def put(self, tensor: torch.Tensor, name: str) -> str | None: ...
    def flush(self) -> list[str]: ...


class Entry:
    """One member of ``data``. ``open``: something of it is still to come; ``written``: too late for that.

    ``text`` is the member as the file has it, in place of the body, once all of it is known.
    """

    __slots__ = ("body", "name", "open", "text", "written")

    def __init__(self, name: str, *, open: bool = False) -> None:
        self.name, self.open, self.written = name, open, False
        self.text: bytes | None = None
        self.body: dict[str, Any] = {}

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

    def __init__(
        self, folder: Path, task: str, level: str, extra: dict[str, object], *, tensors: bool, step: int, table: bool
    ) -> None:
        tensor_folder = folder / "dump_tensor_data"
        folder.mkdir(parents=True, exist_ok=True)
        name = "debug.json" if level == "debug" else "dump.json"
        head = dump_head(task, level, str(tensor_folder.resolve()) if tensors else None, extra)
        self.folder, self.tensor_folder = folder, tensor_folder
        self.dump = AppendedObject(folder / name, head, DUMP_FOOT)
        self.construct = AppendedObject(folder / "construct.json")
        self.stack = AppendedObject(folder / "stack.json")
        header = {"task": task, "level": level, "framework": "pytorch", **extra}
        self.table = ParquetValues(folder, step, header) if table else None

    def move(self, folder: Path) -> None:
        """Give the folder another name, with all that is in it."""
        self.folder.rename(folder)
        self.folder, self.tensor_folder = folder, folder / self.tensor_folder.name
        for file in (self.dump, self.construct, self.stack):
            file.path = folder / file.path.name
        if self.table is not None:
            self.table.folder = folder


class Recorder:
    """Collects entries of the current step and writes them.

    ``slices(tensor)`` gives the part to record. ``saves(name)`` says whether the tensors of an entry are kept in files, which
    ``sink`` writes. ``any_order``: the figures are the same for every order of the elements. ``repeatable``: a record holds
    all that a call can be repeated by: dtypes and devices among positional arguments, device and strides of tensors, and of
    saved tensors only what goes into a call. ``batch``: entries that are written at once. ``judge(entry)`` has the last word
    on each.
    """

    def __init__(
        self,
        figures: Figures | None,
        *,
        slices: Callable[[torch.Tensor], torch.Tensor] | None = None,
        saves: Callable[[str], bool] | None = None,
        stacks: bool = True,
        any_order: bool = False,
        tree: bool = True,
        batch: float = BATCH,
        marks_nonfinite: bool = False,
        keeps_until_crash: bool = False,
        repeatable: bool = False,
        judge: Callable[[Entry], None] | None = None,
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
        self._begun: dict[int, Callable[[], None]] = {}  # how to end backward passes that may never reach all inputs
        self._will_end = False  # is told when the backward pass is over
        self._waiting: list[tuple[TensorRecord, int]] = []
        self._any_order = any_order
        self._now: dict[Hashable, _Seen] = {}
        self._before: dict[Hashable, _Seen] = {}
        self._ended = self._trusting = False
        self._node = 0  # where a backward pass was last
        self._tree = tree
        self._batch, self._judge = batch, judge
        self._marks_nonfinite, self._keeps_until_crash = marks_nonfinite, keeps_until_crash
        self.crashed = False
        # nothing looks at the bodies once more before they are written
        self._words_early = judge is None and not marks_nonfinite and not keeps_until_crash
        self._repeatable = repeatable
        self._key = ANY_KEY if repeatable else ""
        self._parents: dict[str, object] = {}  # the parent's name, or a list of that and the number of the micro-batch
        self.micro_step: Callable[[str], int | None] | None = (
            None  # numbers the micro-batch of a record, if there are any
        )
        self._stack_of: dict[int, list[str]] = {}
        self._groups = 0
        self._unexplained = 0  # entries written without their stacks
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
        if len(self._rows) >= self._batch and self.files is not None:
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
        """A backward pass has reached an entry, which waits for more; ``finish`` ends it when the pass is over without that."""
        self._begun[key] = finish
        if not self._will_end:  # called within the pass, which is when the engine takes callbacks
            self._will_end = True
            torch.autograd.Variable._execution_engine.queue_callback(self._pass_ended)

    def ended(self, key: int) -> None:
        self._begun.pop(key, None)

    def close(self, entry: Entry) -> None:
        """No more will come for an entry."""
        entry.open = False
        self.ended(id(entry))

    def complete(self, entry: Entry) -> None:
        """Everything of an entry is there. Its text takes the place of all the objects that it is made of.

        The garbage collector would look through these again and again until the batch is written, and for each that lives so
        long it comes the sooner.
        """
        entry.open = False
        if self._words_early and not self._waiting and entry.text is None and not entry.written:
            entry.text = member(entry.name, entry.value)
            entry.body = {}

    def _pass_ended(self) -> None:
        self._will_end = False
        self._finish_passes()

    def _finish_passes(self) -> None:
        for finish in list(self._begun.values()):
            finish()

    def _settle(self) -> None:
        for entry in self._late:
            self._rows[id(entry)] = entry
        self._late.clear()

    def parent(self, name: str, parent: str | None) -> None:
        if self._tree:  # at level L1 there is none
            step = None if self.micro_step is None else self.micro_step(name)
            self._parents[name] = parent if step is None else [parent, step]

    def called_from(self, name: str, skip: int) -> None:
        if self.stacks is not None:
            self._stack_of.setdefault(self.stacks.here(skip + 1), []).append(name)

    # --- values --------------------------------------------------------------------------------------------------

    def values(self, entry: Entry, segment: str, values: Any) -> list[Any]:
        """Records of a list of arguments; ``segment`` stands in the names of tensor files (input, kwargs, output)."""
        if self._saves is None or not self._saves(entry.name):  # so that paths do not matter
            tensor = self.tensor
            return [
                tensor(value) if type(value) in PLAIN_TYPES else describe(value, "", self._unsaved, self._key)
                for value in values
            ]
        on_tensor = self.on_tensor(entry)
        return [describe(value, f"{segment}.{i}", on_tensor, self._key) for i, value in enumerate(values)]

    def named(self, entry: Entry, segment: str, values: dict[str, Any]) -> dict[str, Any]:
        """Records of keyword arguments or parameters."""
        if not values:
            return {}
        on_tensor = self.on_tensor(entry)
        return {key: describe(value, f"{segment}.{key}", on_tensor, key) for key, value in values.items()}

    def one(self, entry: Entry, path: str, tensor: torch.Tensor) -> TensorRecord:
        """The record of the tensor at ``path`` of an entry (``output.0``)."""
        return self.on_tensor(entry)(tensor, path)

    def on_tensor(self, entry: Entry) -> OnTensor:
        if self._saves is None or not self._saves(entry.name):
            return self._unsaved
        if self._repeatable:
            return lambda tensor, path: self.tensor(
                tensor, "" if path.startswith("output") else f"{entry.name}.{path}.pt"
            )
        return lambda tensor, path: self.tensor(
            tensor, f"{entry.name}.{path.strip('.')}.pt" if path else f"{entry.name}.pt"
        )

    def _unsaved(self, tensor: torch.Tensor, _: str) -> TensorRecord:
        return self.tensor(tensor)

    def tensor(self, tensor: torch.Tensor, file_name: str = "") -> TensorRecord:
        """The record of a tensor as it is now; figures that a device computes follow when the batch is written."""
        sliced = tensor if self._slice is None else self._slice(tensor)
        plain = type(tensor) in PLAIN_TYPES
        local = sliced if plain or not hasattr(sliced, "to_local") else sliced.to_local()
        dtype = tensor.dtype
        record: TensorRecord = {
            "type": "torch.Tensor" if plain else tensor_type(tensor),
            "dtype": _DTYPES.get(dtype) or str(dtype),
            "shape": None if local.is_nested else list(local.shape),
            "Max": None,
            "Min": None,
            "Mean": None,
            "Norm": None,
            "requires_grad": tensor.requires_grad,
        }
        if local is not sliced:
            _add_placement(record, tensor)
        if self._repeatable:
            record["device"] = str(tensor.device)
            if tensor.layout is torch.strided and not local.is_nested and not local.is_contiguous():
                record["stride"] = list(local.stride())
        if file_name and self.sink is not None:
            written = self.sink.put(local, file_name)
            if written is not None:
                record["data_name"] = written
        with self.lock:
            self.tally.tensors += 1
            if self._figures is not None:
                self._enter_figures(record, tensor, sliced, plain)
        return record

    def _enter_figures(self, record: TensorRecord, tensor: torch.Tensor, sliced: torch.Tensor, plain: bool) -> None:
        """Enter the tensor's figures into its record, now or when the batch is written: its own, or those of a moment ago.

        What goes into a module mostly goes into the first call inside as well, what the last call gives the module gives too,
        and a gradient leaves one node to enter the next: it is looked at once. Not across calls: what changes a tensor behind
        the back of its version counter (``.data``, a kernel that writes where it should not, a buffer that communication
        uses again) has to show at the next call.
        """
        try:
            version = tensor._version
        except RuntimeError:  # of inference mode: nothing tells whether it has changed
            self._look(record, sliced)
            return
        key = self._same_elements(tensor, plain)
        known = self._now.get(key)
        if known is None and self._trusting:
            known = self._before.get(key)
        if known is None or known[1] != version:
            self._now[key] = tensor, version, record, self._look(record, sliced)
            return
        _, _, source, number = known
        if number is not None:
            self._waiting.append((record, number))
            return
        record["Max"], record["Min"], record["Mean"], record["Norm"] = (
            source["Max"],
            source["Min"],
            source["Mean"],
            source["Norm"],
        )
        for name in _MORE:
            if name in source:
                record[name] = source[name]

    def _look(self, record: TensorRecord, tensor: torch.Tensor) -> int | None:
        """Enter the figures at once, or have them computed; their number then."""
        figures = self._figures
        assert figures is not None
        if figures.enter(record, tensor):
            norm = record["Norm"]
            if norm is None or norm - norm != 0:  # some are not finite, or not numbers
                for name in _NUMBERS:
                    record[name] = figure(record[name])
            return None
        number = figures.add(tensor)
        self._waiting.append((record, number))
        return number

    def _same_elements(self, tensor: torch.Tensor, plain: bool) -> Hashable:
        """Equal for tensors that are the same elements: reshaped views too, and permuted ones if the order does not matter."""
        if not plain or self._slice is not None or tensor.is_neg() or tensor.is_conj():  # another reading of the memory
            return id(tensor)
        try:
            same = tensor.is_contiguous() or (self._any_order and _fills_its_memory(tensor))
            if same and (address := tensor.data_ptr()):
                return address, tensor.get_device(), tensor.numel(), tensor.dtype
        except RuntimeError:  # sparse layouts, and tensors of torch.func without memory of their own
            pass
        return id(tensor)

    def begins(self) -> None:
        """A call begins. After another one has ended, the program may have done anything."""
        if self._ended:
            self._turn()
        self._ended = self._trusting = False

    def ends(self, *, has_run: bool) -> None:
        """A call ends; ``has_run``: it computes by itself, or nothing inside it was recorded."""
        if has_run or not self._ended:
            self._turn()
        self._ended, self._trusting = True, False

    def passes(self, node: int) -> None:
        """A backward pass leaves the node of this address, at which several calls may have their outputs."""
        if node != self._node:
            self._turn()
            self._node = node
        self._ended = self._trusting = True

    def parameters(self, entry: Entry, parameters: dict[str, Any]) -> dict[str, Any]:
        """Records of a module's parameters: those that the call inside has just read are known."""
        self._trusting = True
        records = self.named(entry, "parameters", parameters)
        self._trusting = False
        return records

    def _turn(self) -> None:
        if self._now or self._before:
            self._before, self._now = self._now, {}

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, *, everything: bool = False) -> None:
        """Write what is complete; with ``everything`` also what is not."""
        with self.lock:
            if self.files is None:
                return
            if self._keeps_until_crash and not self.crashed:
                self._drop(everything=everything)
                return
            began = time.perf_counter()
            if everything:
                self._finish_passes()
                self._settle()
            self._fill()
            entries: list[Entry] = []
            held = len(self._rows)
            for key in list(self._rows):
                entry = self._rows[key]
                if entry.open and not everything and held <= HELD:
                    break
                if self._marks_nonfinite:
                    entry.body["is_nan"] = int(_holds_nonfinite(entry.body.get("output")))
                if self._judge is not None:
                    self._judge(entry)
                entry.written = True
                entries.append(self._rows.pop(key))
            try:
                self.tally.bytes += self.files.dump.append([e.text or member(e.name, e.value) for e in entries])
                if self.files.table is not None and entries:
                    self.files.table.add((e.name, e.value) for e in entries)
                self._unexplained += len(entries)
                if self.stacks is not None and (everything or self._unexplained >= BATCH or self._batch >= BATCH):
                    self._write_structure()  # stacks of many entries at once, since equal ones are written once
            except OSError as error:
                self.tally.problems[f"{error.strerror or error}: {self.files.folder}"] += len(entries) or 1
            else:
                self.tally.entries += len(entries)
            if everything and self.sink is not None:
                self.tally.problems.update(self.sink.flush())
            self.tally.seconds += time.perf_counter() - began

    def _drop(self, *, everything: bool) -> None:
        """Nothing has gone wrong so far: forget all, or what is more than a crash would be explained by."""
        if everything:
            self._rows.clear()
            self._late.clear()
        elif len(self._rows) > HELD:
            for key in list(self._rows)[: len(self._rows) - HELD]:
                del self._rows[key]
        else:
            return
        self._fill()
        self._parents.clear()
        self._stack_of.clear()

    def _fill(self) -> None:
        """Fetch the figures of all tensors seen so far and enter them."""
        if self._figures is None:
            return
        resolved = [{k: figure(v) for k, v in figures.items()} for figures in self._figures.resolve()]  # type: ignore[arg-type]
        for record, number in self._waiting:
            if "Max" not in resolved[number]:  # a digest alone
                for key in ("Max", "Min", "Mean", "Norm"):
                    del record[key]
            record.update(resolved[number])
        self._waiting.clear()
        self._now.clear()
        self._before.clear()

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
        self._unexplained = 0
        self._parents.clear()
        self._stack_of.clear()

    def finish(self) -> None:
        """The step is written and over: files that are only whole at the end."""
        with self.lock:
            if self.files is not None and self.files.table is not None:
                try:
                    self.files.table.close()
                except OSError as error:
                    self.tally.problems[f"{error.strerror or error}: {self.files.folder}"] += 1

    def note(self, key: str, value: object) -> None:
        """Add a member to construct.json that is no record; at the end of a step, since it comes last."""
        with self.lock:
            if self.files is not None and self.stacks is not None:
                try:
                    self.tally.bytes += self.files.construct.append([member(key, value)])
                except OSError as error:
                    self.tally.problems[f"{error.strerror or error}: {self.files.folder}"] += 1

    def begin_step(self, files: StepFiles) -> None:
        self.files = files
        if files.table is not None:
            self._words_early = False
        self._groups = 0

    def end_step(self) -> None:
        """Forget the step, which has been written."""
        with self.lock:
            self._calls.clear()
            self._rows.clear()
            self._late.clear()
            self._begun.clear()
            self._will_end = False  # after an exception in the pass nothing was told
            self._parents.clear()
            self._stack_of.clear()
            self.files = None
            self.tally = Tally()


def _holds_nonfinite(content: object) -> bool:
    """Has a tensor in this part of an entry an extreme that is no finite number?"""
    if isinstance(content, dict):
        if "Max" in content:
            return any(isinstance(content[key], msgspec.Raw) for key in ("Max", "Min"))
        return any(_holds_nonfinite(part) for part in content.values())
    return isinstance(content, list) and any(_holds_nonfinite(part) for part in content)


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    """Is the tensor a permutation of a contiguous block, each element once?"""
    if tensor.layout is not torch.strided:
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


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
