"""Tensors in files: one ``.pt`` a tensor as the reference writes them, or safetensors files of many.

What is written are the values of the moment when the tensor is handed over: at once, or from a copy of them. The program's
storage is neither kept nor resized. Errors are reported by :meth:`TensorWriter.flush`, never raised into the training.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from numprobe.collect.pytorch import devices
from numprobe.collect.pytorch.plain import (
    BASE,
    PLAIN_TYPES,
    contiguous,
    data_of,
    element_size,
    holds_no_memory,
    is_contiguous,
    numel,
    out_of_sight,
    plain_of,
    to,
)
from numprobe.collect.pytorch.tensor_formats import Part, pt_parts, safetensors_parts

QUEUED_BYTES = 64 << 20  # copies that may wait; beyond, put() waits for the disk
BATCH_BYTES = 64 << 20  # of one safetensors file
IDLE_SECONDS = 2.0  # after which the thread ends; the next tensor starts another
NAME_BYTES = 240  # most file systems take 255; the rest is for temporary names
PROBLEMS = 100  # told in words
FORMATS = ("pt", "safetensors")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)  # the last on Windows only

_UNSAFE = re.compile(r'[%/\\:*?"<>|\x00-\x1f\x7f]|^\.|[. ]$')


def tensor_name(entry: str, segment: str, path: Sequence[str | int] = ()) -> str:
    """NAM-4: ``Torch.stack.0.forward``, ``input``, (0, 1) -> ``Torch.stack.0.forward.input.0.1.pt``.

    ``input_args`` and ``input_kwargs`` are ``input`` and ``kwargs`` here; parameters' gradients have no segment.
    """
    segment = {"input_args": "input", "input_kwargs": "kwargs"}.get(segment, segment)
    return ".".join(str(part) for part in (entry, segment, *path) if part != "") + ".pt"


def file_name(name: str) -> str:
    """A name that is one file in its folder on every system; the name itself wherever possible.

    Separators, control characters, ``%`` and a leading dot become ``%`` and two hex digits (``urllib.parse.unquote`` takes them
    back). Of names too long for a file system the end makes room for a digest of the whole.
    """
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > 16 or _UNSAFE.search(suffix):
        stem, dot, suffix = name, "", ""
    safe = _UNSAFE.sub(lambda found: f"%{ord(found.group()):02X}", stem) or "%00"
    encoded = safe.encode("utf-8", "surrogatepass")
    room = NAME_BYTES - len(dot + suffix)
    if len(encoded) > room:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        safe = f"{encoded[: room - 17].decode('utf-8', 'ignore')}~{digest}"
    return safe.encode("utf-8", "replace").decode() + dot + suffix


def copy_of(tensor: Tensor, *, on_host: bool = True, alias: bool = False) -> Tensor | None:
    """A detached contiguous copy, in host memory or where the tensor lies; with ``alias`` what lies so already itself.

    None where there are no values: fake, meta, vmapped, freed, empty, and what is only captured for a graph.
    """
    if type(tensor) in PLAIN_TYPES and tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta:
        if numel(tensor) == 0 or holds_no_memory(tensor):
            return None
        if alias and tensor.is_cpu and is_contiguous(tensor) and _is_as_stored(tensor):
            return tensor
        with out_of_sight():
            return _copied(data_of(tensor), on_host, alias)
    with out_of_sight():
        plain = plain_of(tensor)
        return None if plain is None else _copied(plain, on_host, alias)


def _is_as_stored(tensor: Tensor) -> bool:
    return not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


def _copied(tensor: Tensor, on_host: bool, alias: bool) -> Tensor | None:
    if not tensor.is_cpu and devices.is_capturing(tensor.device):
        return None
    tensor = BASE.resolve_neg(BASE.resolve_conj(tensor))
    if alias and tensor.is_cpu:
        return contiguous(tensor)
    place = "cpu" if on_host else tensor.device
    # a copy also where to("cpu") and contiguous() would be no-ops; its storage has its elements only
    return contiguous(to(tensor, place, copy=True, memory_format=torch.contiguous_format))


def save_tensor(tensor: Tensor, path: Path) -> int:
    """Write one ``.pt`` file (FMT-8) that ``torch.load(weights_only=True)`` reads; its size, 0 if there was nothing to write.

    The file is whole or not there. Raises OSError if it cannot be written, Unsupported for tensors without a plain form.
    """
    plain = copy_of(tensor, alias=True)
    return 0 if plain is None else _write(str(path.parent), path.name, pt_parts(plain))


def _write(folder: str, name: str, parts: Sequence[Part]) -> int:
    """Write a file that is whole or not there; its size. Paths are texts, since pathlib takes as long as a small file."""
    temporary = f"{folder}/.{os.getpid()}.{threading.get_ident()}.tmp"
    descriptor = os.open(temporary, _NEW_FILE, 0o666)
    try:
        try:
            for part in parts:
                _write_all(descriptor, part)
        finally:
            os.close(descriptor)
        os.replace(temporary, f"{folder}/{name}")  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return sum(map(len, parts))


def _write_all(descriptor: int, part: Part) -> None:
    """A single call writes 2 GB at most."""
    written = os.write(descriptor, part)
    while written < len(part):
        written += os.write(descriptor, memoryview(part)[written:])


class TensorWriter:
    """Writes tensors of one folder. ``tensor_format``: ``pt``, or ``safetensors`` with ``index.jsonl`` beside.

    ``background``: write in a thread. By default only safetensors, whose writing is a few long system calls; two threads that
    pass the interpreter's lock to and fro for every small file take twice the time of one.
    ``until_flush``: copies stay on their device, and nothing is waited for or written, until :meth:`flush`.
    Each line of the index is ``{"file": NAME, "tensors": [NAMES]}``. ``files`` and ``bytes`` count what has been written.
    A reader needs neither torch nor this class. Not to be used by a forked child.
    """

    def __init__(
        self,
        folder: Path,
        tensor_format: str = "pt",
        *,
        background: bool | None = None,
        queued_bytes: int = QUEUED_BYTES,
        until_flush: bool = False,
    ) -> None:
        if tensor_format not in FORMATS:
            raise ValueError(f"tensor format {tensor_format!r}: expected one of {', '.join(FORMATS)}")
        self.folder = Path(folder)
        self.files = 0
        self.bytes = 0
        self.dropped = 0  # tensors that could not be written
        self._format = tensor_format
        self._background = tensor_format == "safetensors" if background is None else background
        self._limit = queued_bytes
        # nothing can change a tensor that is written before put() returns
        self._at_once = tensor_format == "pt" and not self._background and not until_flush
        self._kept: deque[tuple[str, Tensor, Any]] | None = (
            deque() if until_flush else None
        )  # the last is the copy's stream
        self._queue: deque[tuple[str, Tensor]] = deque()
        self._queued = 0  # bytes, those being written included
        self._batch: dict[str, Tensor] = {}
        self._batch_bytes = 0
        self._problems: list[str] = []
        self._more = 0  # problems beyond those told in words
        self._thread: threading.Thread | None = None
        self._state = threading.Condition()
        self._made_folder = False
        self._batches = 0

    def put(self, tensor: Tensor, name: str) -> str | None:
        """Take the tensor as it is now, to be written under ``name``; the file's name, or None where nothing will be written.

        In the background, waits while more than ``queued_bytes`` wait for the disk. Never raises.
        """
        try:
            safe = file_name(name)
            copy = copy_of(tensor, on_host=self._kept is None, alias=self._at_once)
        except Exception as error:
            self._problem(name, error)
            return None
        if copy is None:
            return None
        if self._kept is not None:
            self._kept.append((safe, copy, None if copy.is_cpu else devices.current_stream(copy.device)))
            return safe
        self._take(safe, copy)
        return safe

    def _take(self, safe: str, copy: Tensor) -> None:
        """Write a host tensor now or in the background, for which it has to be nobody else's."""
        if not self._background:
            self._attempt(safe, copy)
            return
        size = numel(copy) * element_size(copy)
        with self._state:
            while self._queued and self._queued + size > self._limit:
                self._run()
                self._state.wait(1.0)
            self._queue.append((safe, copy))
            self._queued += size
            self._run()
            self._state.notify_all()

    def _release(self) -> None:
        """Fetch what has stayed on its device, each on the stream that copied it."""
        while self._kept:
            safe, copy, stream = self._kept.popleft()
            try:
                with out_of_sight(), devices.on_stream(copy.device, stream):
                    host = to(copy, "cpu")
            except Exception as error:
                self._problem(safe, error)
            else:
                self._take(safe, host)

    def flush(self) -> list[str]:
        """Wait until everything is in files; what went wrong since the last flush, in words."""
        self._release()
        with self._state:
            while self._queue or self._queued:
                self._run()
                self._state.wait(1.0)
            batch, self._batch, self._batch_bytes = self._batch, {}, 0
        if batch:
            self._write_batch(batch)
        with self._state:
            problems, self._problems = self._problems, []
            if self._more:
                problems.append(f"{self._more} more tensors could not be written")
            self._more = 0
        return problems

    def _run(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="numprobe-tensors", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._state:
                if not self._queue and not self._state.wait_for(lambda: bool(self._queue), IDLE_SECONDS):
                    self._thread = None
                    return
                name, tensor = self._queue.popleft()
            self._attempt(name, tensor)
            with self._state:
                self._queued -= numel(tensor) * element_size(tensor)
                self._state.notify_all()
            del tensor

    def _attempt(self, name: str, tensor: Tensor) -> None:
        try:
            self._write(name, tensor)
        except Exception as error:
            self._problem(name, error)

    def _write(self, name: str, tensor: Tensor) -> None:
        if not self._made_folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._made_folder = True
        if self._format == "pt":
            self._count(_write(str(self.folder), name, pt_parts(tensor)))
            return
        self._batch[name.removesuffix(".pt")] = tensor
        self._batch_bytes += numel(tensor) * element_size(tensor)
        if self._batch_bytes >= BATCH_BYTES:
            batch, self._batch, self._batch_bytes = self._batch, {}, 0
            self._write_batch(batch)

    def _write_batch(self, batch: dict[str, Tensor]) -> None:
        try:
            file = f"tensors-{self._batches:05d}.safetensors"
            self._batches += 1
            self._count(_write(str(self.folder), file, safetensors_parts(batch)))
            with (self.folder / "index.jsonl").open("a", encoding="utf-8") as index:
                index.write(json.dumps({"file": file, "tensors": list(batch)}) + "\n")
        except Exception as error:
            for name in batch:
                self._problem(name, error)

    def _count(self, size: int) -> None:
        with self._state:
            self.files += 1
            self.bytes += size

    def _problem(self, name: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        with self._state:
            self.dropped += 1
            if len(self._problems) < PROBLEMS:
                self._problems.append(f"tensor {name} was not written: {reason}")
            else:
                self._more += 1
