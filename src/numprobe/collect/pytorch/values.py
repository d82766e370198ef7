"""Python values as a record holds them: tensors with their figures to come, scalars, groups, nested containers."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import torch

from numprobe.formats.msprobe.write import figure

ANY_KEY = "*"  # of positional arguments whose dtypes and devices are to be told
KEPT_DEPTH = 64  # containers nested more deeply are cut off
_TYPED_KEYS = frozenset(("device", "dtype", "output_dtype"))
_MEMORY_FORMATS = {
    torch.contiguous_format: "contiguous_format",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
    torch.preserve_format: "preserve_format",
}

TensorRecord = dict[str, Any]
OnTensor = Callable[[torch.Tensor, str], TensorRecord]


def describe(value: object, path: str, on_tensor: OnTensor, key: str = "", depth: int = 0) -> Any:
    """``value`` as JSON can hold it; ``on_tensor(tensor, path)`` gives the record of each tensor.

    ``path`` is dotted and names the place in the argument list (``input.0.k``); ``key`` is the last name in it: devices and
    dtypes are only told under their usual names, as in the reference, or under :data:`ANY_KEY`. What is not known is None.
    """
    if isinstance(value, torch.Tensor):
        return on_tensor(value, path)
    kind = type(value)
    if value is None:
        return None
    if kind is bool or kind is int or kind is str:
        if key in _TYPED_KEYS and kind is not bool:
            return {"type": f"torch.{key.removeprefix('output_')}", "value": value}
        return {"type": kind.__name__, "value": spelled(value) if kind is str else value}  # type: ignore[arg-type]
    if kind is float:
        return {"type": "float", "value": figure(value)}  # type: ignore[arg-type]
    if depth >= KEPT_DEPTH:
        return None
    if isinstance(value, torch.Size):
        return {"type": "torch.Size", "value": list(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _mapping(dict(zip(value._fields, value, strict=True)), path, on_tensor, depth)
    if isinstance(value, (list, tuple)):
        inside = key if key is ANY_KEY else ""
        return [describe(part, f"{path}.{i}", on_tensor, inside, depth + 1) for i, part in enumerate(value)]
    if isinstance(value, dict):
        return _mapping(value, path, on_tensor, depth)
    return _leaf(value, path, on_tensor, key, depth)


def _mapping(value: dict[Any, Any], path: str, on_tensor: OnTensor, depth: int) -> dict[str, Any]:
    return {spelled(str(k)): describe(v, f"{path}.{k}", on_tensor, str(k), depth + 1) for k, v in value.items()}


def spelled(value: str) -> str:
    """A text as a file can hold it: half of a surrogate pair, which names of files may bring, is spelled out."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")


def _leaf(value: Any, path: str, on_tensor: OnTensor, key: str, depth: int) -> Any:
    kind = type(value)
    if kind is torch.dtype:
        return {"type": "torch.dtype", "value": str(value)} if key in _TYPED_KEYS or key is ANY_KEY else {}
    if kind is torch.device:
        return {"type": "torch.device", "value": str(value)} if key in _TYPED_KEYS or key is ANY_KEY else {}
    if value is Ellipsis:
        return {"type": "ellipsis", "value": "..."}
    if kind is slice:
        ends = (value.start, value.stop, value.step)
        return {"type": "slice", "value": [v if isinstance(v, int) else None for v in ends]}
    if kind is torch.memory_format:
        return {"type": "torch.memory_format", "format": _MEMORY_FORMATS.get(value, str(value))}
    if isinstance(value, complex):
        return {"type": "complex", "value": str(value)}
    if isinstance(value, (int, float, str)):  # subclasses: bool-like enums, numpy.float64
        plain = value.item() if hasattr(value, "item") else value.value if hasattr(value, "value") else value
        return {
            "type": kind.__name__,
            "value": figure(plain) if isinstance(plain, (int, float)) else spelled(str(plain)),
        }
    module = kind.__module__.partition(".")[0]
    if module == "numpy":
        return _numpy(value, path, on_tensor)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return _mapping(fields, path, on_tensor, depth)
    return _communication(value, kind, path, on_tensor)


def _numpy(value: Any, path: str, on_tensor: OnTensor) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return {"type": "numpy.ndarray", "dtype": str(value.dtype), "shape": list(value.shape)} | _NO_FIGURES
        try:
            record = on_tensor(torch.from_numpy(np.ascontiguousarray(value)), path)
        except TypeError:  # a dtype that torch does not know
            return {"type": "numpy.ndarray", "dtype": str(value.dtype), "shape": list(value.shape)} | _NO_FIGURES
        record.update(type="numpy.ndarray", dtype=str(value.dtype))
        record.pop("requires_grad", None)
        return record
    if isinstance(value, np.generic):
        plain = value.item()
        if isinstance(plain, (int, float)):
            return {"type": type(value).__name__, "value": figure(plain)}
        return {"type": type(value).__name__, "value": str(plain)}
    return None


_NO_FIGURES: dict[str, Any] = {"Max": None, "Min": None, "Mean": None, "Norm": None}


def _communication(value: Any, kind: type, path: str, on_tensor: OnTensor) -> Any:
    name = kind.__name__
    if name == "ProcessGroup" or name.startswith("ProcessGroup"):
        ranks = group_ranks(value)
        return {"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": group_id(ranks)}
    if name in ("ReduceOp", "RedOpType"):
        return {"type": "torch.distributed.ReduceOp", "value": str(value).replace("<", "").replace(">", "")}
    if name == "P2POp":
        ranks = group_ranks(value.group)
        return {
            "class_type": "torch.distributed.P2POp",
            "tensor": on_tensor(value.tensor, f"{path}.tensor"),
            "op": getattr(value.op, "__name__", str(value.op)),
            "peer": value.peer,
            "tag": value.tag,
            "group_id": group_id(ranks),
            "group_ranks": ranks,
        }
    return None


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a process group; of the world where it is None."""
    import torch.distributed as dist

    try:
        return list(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
    except (RuntimeError, ValueError, KeyError):
        return []


def group_id(ranks: list[int]) -> str:
    """crc32 of the list's text, as the reference has it."""
    return f"{zlib.crc32(str(ranks).encode()):08x}"


def tensor_type(tensor: torch.Tensor) -> str:
    """The name that a record gives to the tensor's class."""
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return "torch.Tensor"
    known = _CLASSES.get(kind.__name__)
    return known or "torch.Tensor"


_CLASSES = {
    "DTensor": "torch.distributed.tensor.DTensor",
    "FakeTensor": "torch._subclasses.fake_tensor.FakeTensor",
    "AsyncCollectiveTensor": "torch.distributed._functional_collectives.AsyncCollectiveTensor",
    "NestedTensor": "torch.nested._internal.nested_tensor.NestedTensor",
}
