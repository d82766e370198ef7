"""Tensors that only PyTorch can make sense of (sparse, quantised, of a class of their own): read by it, where it is installed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any

from numprobe.formats.tensors.content import Damaged, Refused, Unsupported
from numprobe.formats.tensors.dtypes import STORED
from numprobe.formats.tensors.pt import MAX_DEPTH, MAX_VALUES
from numprobe.record.dtypes import short_dtype

SINCE = (2, 6)  # before, torch.load(weights_only=True) could be made to run code (CVE-2025-32434)
MAX_DENSE = 256 << 20  # bytes of a tensor that its file describes with fewer


class NoTorch(Exception):
    """PyTorch is not there, or too old."""


def read_with_torch(fd: int) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Dotted key, short dtype, shape and the bytes of the elements in C order, of every tensor in the file.

    Sparse and nested tensors become dense ones, quantised ones what they stand for.

    Raises:
        NoTorch: it cannot be imported, or is older than SINCE.
        Refused: torch.load(weights_only=True) refuses the file too.
        Damaged: it cannot make sense of the file either.
        Unsupported: a tensor has no plain form, or none in reasonable memory.
    """
    try:
        import torch
    except ImportError:
        raise NoTorch from None
    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < SINCE:
        raise NoTorch
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        try:
            value = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise Refused(_line(error)) from None
        except Exception as error:  # torch raises what it likes
            raise Damaged(_line(error)) from None
    return [(key, *_plain(tensor, torch)) for key, tensor in _tensors(value, torch.Tensor)]


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _tensors(value: Any, kind: type, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kind):
        yield key, value
    elif isinstance(value, (dict, list, tuple)):
        if depth == MAX_DEPTH or len(value) > MAX_VALUES:
            raise Damaged(f"its containers are nested deeper than {MAX_DEPTH}, or hold more than {MAX_VALUES} values")
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(item, kind, f"{key}.{name}" if key else str(name), depth + 1)


def _plain(tensor: Any, torch: Any) -> tuple[str, tuple[int, ...], bytes]:
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        raise Unsupported("a nested tensor")
    if tensor.layout is not torch.strided:
        if tensor.numel() * tensor.element_size() > MAX_DENSE:
            raise Unsupported(f"a sparse tensor of {tensor.numel()} elements")
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    name = short_dtype(str(tensor.dtype))
    if name not in STORED or type(tensor) is not torch.Tensor:
        raise Unsupported(f"{type(tensor).__name__} of dtype {name}")
    if tensor.numel() * tensor.element_size() > max(MAX_DENSE, tensor.untyped_storage().nbytes()):
        raise Unsupported(f"an expanded tensor of {tensor.numel()} elements")
    flat = tensor.clone(memory_format=torch.contiguous_format).view(-1)
    return name, tuple(tensor.shape), (flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
