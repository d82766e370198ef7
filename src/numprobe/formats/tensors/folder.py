"""Tensors of a dump by the names that dump.json gives them, whichever way they were written."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import msgspec

from numprobe.formats.tensors.open import MAX_BYTES, open_tensor, open_tensors
from numprobe.formats.tensors.tensor import TensorFile, c_strides, unreadable
from numprobe.record.errors import NumprobeError

INDEX = "index.jsonl"
MAX_INDEX = 256 << 20  # bytes


class _Line(msgspec.Struct):
    file: str
    tensors: list[str]


class TensorFolder:
    """A folder of tensors: one file each, or safetensors files of many with ``index.jsonl`` beside (the collector writes both).

    Headers of safetensors files are read once and kept. Threads may share it.
    """

    def __init__(self, folder: str | Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.folder = Path(folder)
        self._max_bytes = max_bytes
        self._files: dict[str, str] | None = None  # by name of a tensor; None: not read yet
        self._open: dict[str, dict[str, TensorFile]] = {}

    def open(self, name: str, shape: tuple[int, ...] | None = None) -> TensorFile:
        """The tensor of a ``data_name``, such as ``Torch.exp.0.forward.output.0.pt``.

        ``shape`` is that of dump.json; it is given to tensors of which the file knows only the number of elements (dtypes that
        safetensors has no name for).

        Raises:
            NumprobeError: as :func:`~numprobe.formats.tensors.open.open_tensor`; E-FMT-031 also where the index is broken.
        """
        key = name.removesuffix(".pt")
        file = self._index().get(key)
        if file is None:
            return open_tensor(name, self.folder, max_bytes=self._max_bytes)
        if file not in self._open:
            self._open[file] = open_tensors(file, self.folder, max_bytes=self._max_bytes)
        found = self._open[file].get(key)
        if found is None:
            return open_tensor(file, self.folder, name=key, max_bytes=self._max_bytes)  # says what there is instead
        if shape is not None and len(found.shape) == 1 and prod(shape) == found.numel:
            return replace(found, shape=shape, strides=c_strides(shape))
        return found

    def _index(self) -> dict[str, str]:
        if self._files is None:
            self._files = _read_index(self.folder / INDEX)
        return self._files


def _read_index(path: Path) -> dict[str, str]:
    """File by tensor; empty where there is no index. A last line that is cut short is that of a job that was killed."""
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_INDEX).splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from None
    files: dict[str, str] = {}
    for number, text in enumerate(lines, 1):
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number == len(lines):
                break
            raise NumprobeError(
                "E-FMT-031",
                "{file} is damaged at line {number}",
                where=str(path),
                found="{reason}",
                do="copy the file again, or dump again",
                file=path.name,
                number=number,
                reason=str(error),
            ) from None
        files.update(dict.fromkeys(line.tensors, line.file))
    return files
