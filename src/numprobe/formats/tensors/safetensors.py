"""Tensors of .safetensors files: length of the header (8 bytes), the header in JSON, then the bytes of all tensors.

https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

from math import prod

import msgspec

from numprobe.formats.tensors.content import Content, Damaged, Unsupported
from numprobe.formats.tensors.dtypes import STORED, stored_as
from numprobe.formats.tensors.tensor import Placed, c_strides
from numprobe.record.dtypes import short_dtype
from numprobe.record.shapes import clean_shape

MAX_HEADER = 32 << 20
_NAMES = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "e4m3",
    "F8_E5M2": "e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "BOOL": "bool",
    **{f"{sign}{bits}": f"{name}{bits}" for sign, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}


class _Entry(msgspec.Struct):
    dtype: str = ""
    shape: list[int] = []
    data_offsets: tuple[int, int] = (0, 0)


class _Metadata(msgspec.Struct):
    texts: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def looks_like_safetensors(content: Content) -> bool:
    return (
        content.size >= 10
        and content.read(8, 1) == b"{"
        and int.from_bytes(content.read(0, 8), "little") <= content.size - 8
    )


def read_safetensors(content: Content) -> list[tuple[str, Placed]]:
    """Every tensor by its name.

    The collector writes dtypes that the format has no name for as ``U8`` and the real one in ``__metadata__``; of these only
    the number of elements is known here, the shape is in dump.json.

    Raises:
        Damaged: cut short, a broken header, or offsets that overlap, leave holes or do not fit shape and dtype.
        Unsupported: a dtype that numpy does not have.
    """
    size = int.from_bytes(content.read(0, 8), "little")
    if size > MAX_HEADER or size > content.size - 8:
        raise Damaged(f"its header says it has {size} bytes; the file has {content.size}")
    header = content.read(8, size)
    try:
        entries = msgspec.json.decode(header, type=dict[str, _Entry])
        texts = msgspec.json.decode(header, type=_Metadata).texts
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"its header is broken: {error}") from None
    entries.pop("__metadata__", None)
    tensors = [(name, _placed(name, entry, texts, 8 + size)) for name, entry in entries.items()]
    end = 0  # a second entry of one name, which JSON hides, leaves a hole
    for begin, after, name in sorted((*entry.data_offsets, name) for name, entry in entries.items()):
        if begin != end:
            raise Damaged(f"tensor {name[:80]} begins at byte {begin}, the one before it ends at {end}")
        end = after
    if 8 + size + end != content.size:
        raise Damaged(f"its tensors end at byte {8 + size + end} of {content.size}")
    return tensors


def _placed(name: str, entry: _Entry, texts: dict[str, str], base: int) -> Placed:
    shape = clean_shape(entry.shape)
    begin, end = entry.data_offsets
    short = _NAMES.get(entry.dtype)
    if short is None:
        raise Unsupported(f"dtype {entry.dtype[:40]}")
    if short == "uint8" and stored_as(texts.get(name, "")) is not None and shape is not None and len(shape) == 1:
        short = short_dtype(texts[name])
        shape = (shape[0] // STORED[short].itemsize,)
    stored = STORED[short]
    if shape is None or begin < 0 or end - begin != prod(shape) * stored.itemsize:
        raise Damaged(f"tensor {name[:80]} has {end - begin} bytes, which does not fit its shape")
    return Placed(short, stored, base + begin, shape, c_strides(shape))
