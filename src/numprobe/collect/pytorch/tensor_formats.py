"""The bytes of tensor files: the archive that ``torch.save`` writes for one tensor, and safetensors for many.

Both as parts to be written one after another: the memory of a tensor is a part of its own, which nothing copies.
"""

from __future__ import annotations

import functools
import io
import json
import pickle
import struct
import sys
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from numprobe.collect.pytorch.plain import element_size, memory_of, numel

Part = bytes | memoryview

_save = torch.save

# PKWARE APPNOTE 6.3: signature, versions, flags, method (stored), time, date (1 January 1980), CRC-32, sizes, ...
_LOCAL = struct.Struct("<4s5H3L2H")  # ... lengths of name and extra field
_CENTRAL = struct.Struct("<4s6H3L5H2L")  # ... and of comment, disk, attributes, offset of the local header
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_VERSION, _VERSION_64, _DATE = 20, 45, 0x21
_ALIGNMENT = 64  # torch's own, so that the elements can be mapped
_LARGE = 0xFFFF_0000  # bytes from which sizes and offsets need zip64's 8 bytes: what comes after the elements is short

# Types that torch had before UntypedStorage; the names of the others stand in the pickle as dtypes.
_STORAGES = {
    torch.float64: torch.DoubleStorage,
    torch.float32: torch.FloatStorage,
    torch.float16: torch.HalfStorage,
    torch.bfloat16: torch.BFloat16Storage,
    torch.complex128: torch.ComplexDoubleStorage,
    torch.complex64: torch.ComplexFloatStorage,
    torch.int64: torch.LongStorage,
    torch.int32: torch.IntStorage,
    torch.int16: torch.ShortStorage,
    torch.int8: torch.CharStorage,
    torch.uint8: torch.ByteStorage,
    torch.bool: torch.BoolStorage,
}

# https://github.com/huggingface/safetensors, "Format"
_SAFETENSORS_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
}


def pt_parts(tensor: Tensor) -> Sequence[Part]:
    """A ``.pt`` file of a contiguous host tensor without its gradient; ``torch.load(weights_only=True)`` reads it.

    As ``torch.save`` would write it but for what only torch's writer knows: the number of its format, an identification. Equal
    tensors give equal bytes.
    """
    if tensor.is_quantized:
        file = io.BytesIO()
        _save(tensor, file)
        return (file.getbuffer(),)
    frame = _frame(tensor.dtype, tuple(tensor.shape))
    data = memory_of(tensor)
    checksum = zlib.crc32(data).to_bytes(4, "little")
    return (
        frame.head + checksum + frame.head_after_checksum,
        data,
        frame.tail + checksum + frame.tail_after_checksum,
    )


class _Frame(NamedTuple):
    """What stands around the elements, cut where their CRC-32 goes."""

    head: bytes
    head_after_checksum: bytes
    tail: bytes
    tail_after_checksum: bytes


@functools.lru_cache(maxsize=4096)
def _frame(dtype: torch.dtype, shape: tuple[int, ...]) -> _Frame:
    size = dtype.itemsize
    for length in shape:
        size *= length
    head = central = b""
    # The reader takes the archive's name from the first member. The elements come last: nothing before depends on their size.
    texts = {"data.pkl": _pickled(dtype, shape, size), "byteorder": sys.byteorder.encode(), "version": b"3\n"}
    for name, content in texts.items():
        local, entry = _headers(f"archive/{name}", len(head), len(content), zlib.crc32(content))
        head, central = head + local + content, central + entry
    local, entry = _headers("archive/data/0", len(head), size, 0)
    end = _end(len(texts) + 1, len(central + entry), len(head + local) + size)
    cut_head, cut_tail = len(head) + 14, len(central) + 16  # where the formats have the CRC-32
    head, tail = head + local, central + entry + end
    return _Frame(head[:cut_head], head[cut_head + 4 :], tail[:cut_tail], tail[cut_tail + 4 :])


def _headers(name: str, offset: int, size: int, checksum: int) -> tuple[bytes, bytes]:
    """The local header, padded so that the content is aligned, and the entry of the central directory."""
    path = name.encode()
    large = size >= _LARGE
    sizes = struct.pack("<2H2Q", 1, 16, size, size) if large else b""
    short = 0xFFFF_FFFF if large else size
    common = (_VERSION_64 if large else _VERSION, 0, 0, 0, _DATE, checksum, short, short, len(path))
    room = -(offset + _LOCAL.size + len(path) + len(sizes) + 4) % _ALIGNMENT
    extra = sizes + struct.pack("<2sH", b"FB", room) + b"Z" * room  # the field of torch's writer
    local = _LOCAL.pack(b"PK\3\4", *common, len(extra)) + path + extra
    central = _CENTRAL.pack(b"PK\1\2", common[0], *common, len(sizes), 0, 0, 0, 0, offset) + path + sizes
    return local, central


def _end(members: int, size: int, offset: int) -> bytes:
    """The end of the archive, whose central directory has this size and offset."""
    if offset < _LARGE:
        return _END.pack(b"PK\5\6", 0, 0, members, members, size, offset, 0)
    return (
        _END_64.pack(b"PK\6\6", _END_64.size - 12, _VERSION_64, _VERSION_64, 0, 0, members, members, size, offset)
        + _LOCATOR_64.pack(b"PK\6\7", 0, offset + size, 1)
        + _END.pack(b"PK\5\6", 0, 0, members, members, size, 0xFFFF_FFFF, 0)
    )


class _Rebuilt:
    """Pickled as a call of one of torch's functions."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._reduced


class _Storage(NamedTuple):
    """The only storage of a file."""

    kind: type
    length: int


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        return ("storage", value.kind, "0", "cpu", value.length) if type(value) is _Storage else None


def _pickled(dtype: torch.dtype, shape: tuple[int, ...], size: int) -> bytes:
    """``data.pkl``, byte for byte that of ``torch.save``."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    layout: tuple[object, ...] = 0, shape, tuple(reversed(strides)), False, OrderedDict()
    kind = _STORAGES.get(dtype)
    utilities: Any = torch._utils
    if kind is None:
        storage = _Storage(torch.UntypedStorage, size)
        value = _Rebuilt(utilities._rebuild_tensor_v3, storage, *layout, dtype)
    else:
        value = _Rebuilt(utilities._rebuild_tensor_v2, _Storage(kind, size // dtype.itemsize), *layout)
    out = io.BytesIO()
    _Pickler(out, protocol=2).dump(value)
    return out.getvalue()


def safetensors_parts(tensors: dict[str, Tensor]) -> Sequence[Part]:
    """Host tensors as one safetensors file: length of the header (8 bytes), the header in JSON, the bytes of the tensors.

    dtypes the format has no name for are written as the uint8 of their bytes, with the dtype in ``__metadata__``.
    """
    header: dict[str, Any] = {}
    parts: list[Part] = []
    others: dict[str, str] = {}
    begin = 0
    # Widest first keeps every tensor aligned to its elements.
    for name, tensor in sorted(tensors.items(), key=lambda item: -element_size(item[1])):
        dtype = str(tensor.dtype).removeprefix("torch.")
        known = _SAFETENSORS_DTYPES.get(dtype)
        if known is None:
            others[name] = dtype
        size = numel(tensor) * element_size(tensor)
        header[name] = {
            "dtype": known or "U8",
            "shape": list(tensor.shape) if known else [size],
            "data_offsets": [begin, begin + size],
        }
        parts.append(memory_of(tensor))
        begin += size
    if others:
        header = {"__metadata__": others, **header}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]
