"""Opening a tensor file of any format: what it is, where its tensors lie, and one error when it is not to be read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from numprobe.formats.tensors.content import Content, Damaged, Refused, Unfamiliar, Unsupported
from numprobe.formats.tensors.dtypes import STORED
from numprobe.formats.tensors.npy import MAGIC, read_npy
from numprobe.formats.tensors.pt import LEGACY, read_pt
from numprobe.formats.tensors.safetensors import looks_like_safetensors, read_safetensors
from numprobe.formats.tensors.tensor import Placed, TensorFile, c_strides, unreadable
from numprobe.formats.tensors.with_torch import SINCE, NoTorch, read_with_torch
from numprobe.record.errors import NumprobeError

MAX_BYTES = 10 << 30
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for


def open_tensor(
    path: str | Path, root: str | Path | None = None, *, name: str | None = None, max_bytes: int = MAX_BYTES
) -> TensorFile:
    """The tensor in a file, or the one called ``name`` in a file of several. No element is read yet, unless the file is small.

    Formats (found from the content): .pt and .pth of torch.save, .npy, .safetensors. No code in a file is ever run.

    Args:
        path: the file; relative to ``root`` where that is given.
        root: the folder that the file must lie in, links followed.
        name: dotted key of a checkpoint, or name in a safetensors file.
        max_bytes: larger files, and tensors that stand for more bytes (by strides of 0), are refused.

    Raises:
        NumprobeError: E-FMT-010 the file cannot be read, E-FMT-030 it is none of the formats, E-FMT-031 it is damaged,
            E-FMT-032 it wants code to be run, E-FMT-033 it lies outside ``root``, E-FMT-034 it is too large,
            E-FMT-035 it holds several tensors, none, or not that one, E-FMT-036 its tensors are of a kind that is not read.
    """
    tensors = open_tensors(path, root, max_bytes=max_bytes)
    if name is None and len(tensors) == 1:
        return next(iter(tensors.values()))
    if name is not None and name in tensors:
        return tensors[name]
    file = Path(path).name
    if name is not None:
        raise NumprobeError(
            "E-FMT-035",
            "{file} holds no tensor called {name}",
            where=str(path),
            found="{count} others, such as {some}" if tensors else "no tensor",
            do="check the name",
            file=file,
            name=name,
            count=len(tensors),
            some=", ".join(list(tensors)[:3]),
        )
    raise NumprobeError(
        "E-FMT-035",
        "{file} does not hold one tensor but {count}",
        where=str(path),
        do="give the name of one of them, or a file of one tensor",
        file=file,
        count=len(tensors),
    )


def open_tensors(
    path: str | Path, root: str | Path | None = None, *, max_bytes: int = MAX_BYTES
) -> dict[str, TensorFile]:
    """Every tensor in a file, in the order of the file: by dotted key (``model.layers.0.weight``), ``""`` where it is one only.

    Args and errors are those of :func:`open_tensor`.
    """
    fd, full = _open(path, root)
    try:
        return _read(fd, full, max_bytes)
    except Damaged as error:
        raise NumprobeError(
            "E-FMT-031",
            "{file} is damaged or cut short",
            where=str(full),
            found="{reason}",
            do="copy the file again, or dump again",
            file=full.name,
            reason=str(error),
        ) from None
    except Refused as error:
        raise NumprobeError(
            "E-FMT-032",
            "{file} wants code to be run, which numprobe never does",
            where=str(full),
            found="{name}",
            do="if you trust it, load it in Python and save its tensors alone",
            file=full.name,
            name=str(error)[:200],
        ) from None
    except Unsupported as error:
        raise NumprobeError(
            "E-FMT-036",
            "{file} holds what numprobe cannot read: {kind}",
            where=str(full),
            do="convert the tensor to a plain dtype before it is saved",
            file=full.name,
            kind=str(error),
        ) from None
    except OSError as error:
        raise unreadable(full, error.strerror or str(error)) from None
    finally:
        os.close(fd)


def _read(fd: int, path: Path, max_bytes: int) -> dict[str, TensorFile]:
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        raise unreadable(path, "it is no file")
    if facts.st_size > max_bytes:
        raise _too_large(path, facts.st_size, max_bytes)
    content = Content(fd, facts.st_size)
    start = content.read(0, min(len(LEGACY), content.size))
    try:
        if start.startswith(b"PK\x03\x04") or start == LEGACY:
            placed = read_pt(content)
        elif start.startswith(MAGIC):
            placed = [("", read_npy(content, path.name))]
        elif looks_like_safetensors(content):
            placed = read_safetensors(content)
        elif not start:
            raise Damaged("nothing: it is empty")
        elif start[0] == 0x80:
            raise Refused("a pickle that torch.save did not write")
        else:
            raise NumprobeError(
                "E-FMT-030",
                "{file} is no tensor file",
                where=str(path),
                found="it begins with {first!a}",
                do="give a .pt or .pth file of torch.save, a .npy or a .safetensors file",
                file=path.name,
                first=start[:8].decode("latin-1"),
            )
    except Unfamiliar as error:
        return _read_with_torch(fd, path, max_bytes, str(error))
    return {key: _tensor_file(path, content.data, one, max_bytes) for key, one in placed}


def _tensor_file(path: Path, data: bytes | None, placed: Placed, max_bytes: int) -> TensorFile:
    tensor = TensorFile(path, placed.dtype, placed.shape, placed.strides, placed.stored, placed.offset, data)
    if tensor.nbytes > max_bytes:
        raise _too_large(path, tensor.nbytes, max_bytes)
    return tensor


def _read_with_torch(fd: int, path: Path, max_bytes: int, kind: str) -> dict[str, TensorFile]:
    try:
        found = read_with_torch(fd)
    except NoTorch:
        raise NumprobeError(
            "E-FMT-036",
            "{file} holds what only PyTorch can read: {kind}",
            where=str(path),
            do="install PyTorch {version} or newer beside numprobe, or save plain tensors",
            file=path.name,
            kind=kind,
            version=".".join(map(str, SINCE)),
        ) from None
    return {
        key: _tensor_file(path, data, Placed(dtype, STORED[dtype], 0, shape, c_strides(shape)), max_bytes)
        for key, dtype, shape, data in found
    }


def _open(path: str | Path, root: str | Path | None) -> tuple[int, Path]:
    """The open file, and its path.

    A plain name inside ``root`` is opened without following a link; only for others the whole path is looked at.
    """
    full = Path(path) if root is None else Path(root, path)
    try:
        if root is None:
            return os.open(full, _FLAGS), full
        text = os.fspath(path)
        if os.sep not in text and text not in (os.curdir, os.pardir):
            try:
                return os.open(full, _FLAGS | os.O_NOFOLLOW), full
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
        real, folder = os.path.realpath(full), os.path.realpath(root)
        if os.path.commonpath((real, folder)) != folder:
            raise NumprobeError(
                "E-FMT-033",
                "{file} lies outside the folder that names it",
                where=str(full),
                found="{real}",
                do="copy the file into the folder",
                file=full.name,
                real=real,
            )
        return os.open(real, _FLAGS | os.O_NOFOLLOW), full
    except OSError as error:
        raise unreadable(full, error.strerror or str(error)) from None
    except ValueError:  # a NUL in it, or half a surrogate pair
        raise unreadable(full, "no file has such a name") from None


def _too_large(path: Path, size: int, limit: int) -> NumprobeError:
    return NumprobeError(
        "E-FMT-034",
        "{file} is too large: {size:,} bytes, where {limit:,} are allowed",
        where=str(path),
        do="leave it out, or save a part of the tensor",
        file=path.name,
        size=size,
        limit=limit,
    )
