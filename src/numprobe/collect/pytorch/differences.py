"""Setting ``bench_path``: which call gave another result than in an older run, although it was given the same (CFG-9).

Checksums of each record are compared with those of the record of the same name in a reference dump. Where everything that went
into a call is equal and an output of equal shape is not, the call itself is not deterministic (or was changed): its tensors
are saved. Calls further on have other inputs, and say nothing.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from numprobe.collect.pytorch.recorder import Entry
from numprobe.collect.pytorch.tensor_files import copy_of, file_name
from numprobe.record.errors import NumprobeError

log = logging.getLogger("numprobe")

_GIVEN = ("input_args", "input_kwargs", "parameters", "input")  # of forward records, the last of backward ones
_SHAPE_OF_DIGEST = {"md5": r"[0-9a-f]{8}", "xor": r"0x[0-9a-f]+", "hash": r"[0-9a-f]{16}"}


class Sink(Protocol):
    """Where saved tensors go: a :class:`~numprobe.collect.pytorch.tensor_files.TensorWriter`."""

    folder: Path

    def put(self, tensor: torch.Tensor, name: str) -> str | None: ...
    def flush(self) -> list[str]: ...


class HeldTensors:
    """A sink that holds copies, where the tensors lie, until it is said which ones are wanted."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: dict[str, torch.Tensor] = {}

    @property
    def folder(self) -> Path:
        return self._sink.folder

    @folder.setter
    def folder(self, folder: Path) -> None:
        self._sink.folder = folder

    def put(self, tensor: torch.Tensor, name: str) -> str | None:
        try:
            copy = copy_of(tensor, on_host=False)
        except Exception:  # what cannot be copied cannot be saved; its record says so
            return None
        if copy is None:
            return None
        safe = file_name(name)
        self._held[safe] = copy
        return safe

    def keep(self, name: str) -> str | None:
        return self._sink.put(self._held.pop(name), name)

    def drop(self, name: str) -> None:
        self._held.pop(name, None)

    def flush(self) -> list[str]:
        self._held.clear()
        return self._sink.flush()


class Differences:
    """Judges finished records; ``enough()`` is called when ``limit`` differences are found (-1: never).

    ``mode`` is the summary mode of both dumps; ``node_gradients`` tells which definition of a call's gradients this run has.
    """

    def __init__(
        self,
        path: Path,
        mode: str,
        limit: int,
        *,
        node_gradients: bool,
        modules_count: bool,
        enough: Callable[[], None],
    ) -> None:
        if not any(path.glob("step*")):
            raise NumprobeError(
                "E-CFG-011",
                "{key} {value} holds no dump: there is no folder step<N>",
                where=str(path),
                do="give the dump_path of the older run",
                key="bench_path",
                value=str(path),
            )
        self._path, self._mode, self._limit, self._enough = path, mode, limit, enough
        self._node_gradients, self._modules_count = node_gradients, modules_count
        self._reference: dict[str, Any] = {}
        self._gradients_compare = False
        self._agreed: set[str] = set()  # forward records that agree in everything
        self._sink: HeldTensors | None = None
        self.found = 0

    def begin_step(self, step: int, rank: int | None, sink: Sink) -> HeldTensors:
        """Read the reference of this step; where that fails, the log says so and nothing of the step differs."""
        self._agreed.clear()
        self._reference = {}
        try:
            header = _read(rank_folder(self._path / f"step{step}", rank) / "dump.json", self._mode)
        except NumprobeError as error:
            log.error("numprobe: NOTHING IS COMPARED in step %d: %s: %s; %s", step, error, error.where, error.do)
        else:
            self._reference = header["data"]
            self._gradients_compare = self._node_gradients == (header.get("grad_kind") != "true")
        self._sink = HeldTensors(sink)
        return self._sink

    def judge(self, entry: Entry) -> None:
        """Compare a record whose figures are known; of its tensors, save those of a difference and drop the others."""
        assert self._sink is not None
        differing = self._differing(entry) if self._limit < 0 or self.found < self._limit else []
        for record in _tensors(entry.body):
            if "data_name" not in record:
                continue
            name = record.pop("data_name")
            if not differing:
                self._sink.drop(name)
            elif (written := self._sink.keep(name)) is not None:
                record["data_name"] = written
        if differing:
            log.warning("numprobe: %s: equal inputs, but %s differs", entry.name, ", ".join(differing))
            if self._modules_count or (".forward." not in entry.name and ".backward." not in entry.name):
                self.found += 1  # what differs inside a module has been counted
                if self.found == self._limit:
                    self._enough()

    def _differing(self, entry: Entry) -> list[str]:
        """The outputs that differ though all inputs are equal; none where the inputs differ or cannot be compared."""
        theirs, name = self._reference.get(entry.name), entry.name
        if not isinstance(theirs, dict) or "output" not in entry.body:
            return []
        # what a backward pass is given is also what its forward call was given and has made
        if "backward" in name and (
            not self._gradients_compare or name.replace("backward", "forward") not in self._agreed
        ):
            return []
        sections = [key for key in _GIVEN if key in entry.body or key in theirs]
        if not sections or any(_differ(entry.body.get(key), theirs.get(key)) for key in sections):
            return []
        ours = dict(_leaves(entry.body["output"], "output"))
        others = dict(_leaves(theirs.get("output"), "output"))
        differing = [path for path, leaf in ours.items() if _has_other_digest(leaf, others.get(path))]
        if not differing:
            self._agreed.add(name)
        return differing


def rank_folder(step: Path, rank: int | None) -> Path:
    """The folder of this rank in a step; without a rank, or for rank 0, also the only one there.

    Raises:
        NumprobeError: E-COL-008 there is none, or it is not clear which.
    """
    found = {p.name: p for p in step.glob("*") if re.fullmatch(r"(rank|proc)\d+", p.name) and p.is_dir()}
    own = [p for name, p in found.items() if rank is not None and name.startswith("rank") and int(name[4:]) == rank]
    if own:
        return own[0]
    processes = [p for name, p in found.items() if name.startswith("proc")] or list(found.values())
    if len(processes) == 1 and rank in (None, 0):
        return processes[0]
    raise NumprobeError(
        "E-COL-008",
        "the reference has no folder of this rank"
        if rank is not None or not found
        else "the reference has several processes",
        where=str(step),
        found="{present}",
        do="give as bench_path a dump of the same steps and ranks",
        present=", ".join(sorted(found)[:5]),
    )


def _read(file: Path, mode: str) -> dict[str, Any]:
    try:
        header = json.loads(file.read_bytes())
        digests = [record.get("md5") for body in header["data"].values() for record in _tensors(body)]
    except OSError as error:
        raise NumprobeError(
            "E-COL-008",
            "the reference cannot be read: {reason}",
            where=str(file),
            do="check bench_path",
            reason=error.strerror or str(error),
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NumprobeError(
            "E-COL-008", "the reference is no whole dump.json", where=str(file), do="record the reference again"
        ) from None
    known = [digest for digest in digests if isinstance(digest, str)]
    if (known and not any(re.fullmatch(_SHAPE_OF_DIGEST[mode], digest) for digest in known)) or not known:
        raise NumprobeError(
            "E-COL-008",
            "the reference has no checksums of summary_mode {mode}",
            where=str(file),
            do="record both runs with the same summary_mode: md5, xor or hash",
            mode=mode,
        )
    return dict(header)


def _tensors(content: Any) -> Iterator[dict[str, Any]]:
    """Every tensor record in a part of an entry."""
    if isinstance(content, dict):
        if "dtype" in content and "shape" in content:
            yield content
        else:
            for part in content.values():
                yield from _tensors(part)
    elif isinstance(content, list):
        for part in content:
            yield from _tensors(part)


def _leaves(content: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every leaf with its dotted path: tensor records, scalars, nulls."""
    if isinstance(content, dict) and "type" not in content and "class_type" not in content:
        for key, part in content.items():
            yield from _leaves(part, f"{path}.{key}")
    elif isinstance(content, list):
        for i, part in enumerate(content):
            yield from _leaves(part, f"{path}.{i}")
    else:
        yield path, content


def _differ(ours: Any, theirs: Any) -> bool:
    """Is anything in these inputs another, or of unknown value?"""
    mine, others = dict(_leaves(ours, "")), dict(_leaves(theirs, ""))
    return mine.keys() != others.keys() or any(_is_other(leaf, others[path]) for path, leaf in mine.items())


def _is_other(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return bool(ours != theirs)
    if "shape" in ours and "dtype" in ours:
        keys = ("dtype", "shape", "md5")
        return any(ours.get(key) != theirs.get(key) for key in keys) or (
            ours.get("md5") is None and 0 not in ours["shape"]
        )
    return str(ours.get("value")) != str(theirs.get("value"))


def _has_other_digest(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, dict) or not isinstance(theirs, dict) or "md5" not in ours or "md5" not in theirs:
        return False
    same = ours.get("dtype") == theirs.get("dtype") and ours.get("shape") == theirs.get("shape")
    return same and None not in (ours["md5"], theirs["md5"]) and ours["md5"] != theirs["md5"]
