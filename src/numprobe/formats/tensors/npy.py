"""Arrays of .npy files: a header that is a Python literal, then the elements (numpy's NEP 1)."""

from __future__ import annotations

import re

import numpy as np

from numprobe.formats.tensors.content import Content, Damaged, Unsupported
from numprobe.formats.tensors.dtypes import SHORT, STORED
from numprobe.formats.tensors.tensor import Placed, c_strides
from numprobe.record.dtypes import short_dtype
from numprobe.record.shapes import MAX_DIMS, MAX_NUMEL

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 16
_DESCR = re.compile(r"['\"]descr['\"]\s*:\s*['\"]([<>|=]?)([biufcV])(\d{1,3})['\"]")
_ORDER = re.compile(r"['\"]fortran_order['\"]\s*:\s*(True|False)")
_SHAPE = re.compile(r"['\"]shape['\"]\s*:\s*\(((?:\s*[0-9]{1,19}L?\s*,)*(?:\s*[0-9]{1,19}L?)?)\s*\)")
_ANY_DESCR = re.compile(r"['\"]descr['\"]\s*:\s*(.{1,60})")


def read_npy(content: Content, file_name: str) -> Placed:
    """The array. Dtypes that numpy itself lacks are stored as opaque bytes, ``V1`` or ``V2``: the file's name says which they
    are if it ends like MindSpore's, ``.float8_e4m3fn.npy``; else two bytes are bfloat16.

    Raises:
        Damaged: no such file, or shorter than its header says.
        Unsupported: Python objects, texts, times, records, or an unknown dtype.
    """
    begin, header = _header(content)
    order, shape = _ORDER.search(header), _SHAPE.search(header)
    if order is None or shape is None or "descr" not in header:
        raise Damaged("its header is broken")
    sizes = [int(n) for n in re.findall("[0-9]+", shape[1])]
    if len(sizes) > MAX_DIMS or any(n > MAX_NUMEL for n in sizes):
        raise Damaged("its shape is impossible")
    name, swapped = _dtype(header, file_name)
    stored = STORED[name].newbyteorder(">") if swapped else STORED[name]
    left = (content.size - begin) // stored.itemsize
    for n in sizes if all(sizes) else ():
        left //= n
    if not left and all(sizes):
        raise Damaged(f"its header says shape {tuple(sizes)}, more than its {content.size} bytes can hold")
    strides = c_strides(sizes[::-1])[::-1] if order[1] == "True" else c_strides(sizes)
    return Placed(name, stored, begin, tuple(sizes), strides)


def _header(content: Content) -> tuple[int, str]:
    """Where the elements begin, and the text."""
    major = content.read(len(MAGIC), 2)[0]
    if major not in (1, 2, 3):
        raise Damaged(f"version {major} of the format is unknown")
    width = 2 if major == 1 else 4
    at = len(MAGIC) + 2
    size = int.from_bytes(content.read(at, width), "little")
    if size > MAX_HEADER:
        raise Damaged(f"its header says it has {size} bytes")
    return at + width + size, content.read(at + width, size).decode("latin-1")


def _dtype(header: str, file_name: str) -> tuple[str, bool]:
    """The short name, and whether the bytes are the wrong way round."""
    found = _DESCR.search(header)
    if found is None:
        text = _ANY_DESCR.search(header)
        raise Unsupported(f"dtype {text[1] if text else '?'}")
    order, kind, size = found.groups()
    if kind in "Vf" and size in ("1", "2") and kind + size != "f2":
        hint = short_dtype(file_name.removesuffix(".npy").rpartition(".")[2])
        name = (
            hint
            if hint in STORED and STORED[hint].itemsize == int(size)
            else {"V2": "bf16", "f1": "e5m2"}.get(kind + size)
        )
        if name is None:
            raise Unsupported(f"dtype {kind}{size}")
        return name, False
    try:
        name = SHORT.get(np.dtype(f"{kind}{size}"))
    except TypeError:
        name = None
    if name is None:
        raise Unsupported(f"dtype {kind}{size}")
    return name, order == ">" and STORED[name].itemsize > 1
