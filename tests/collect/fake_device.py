"""A device in pure Python: PrivateUse1 under the name ``fake``, with memory of the host and the kernels of the CPU.

Importing it registers the device, for good: only in a process of its own. Tensors are real ones, with addresses, strides, views
and autograd; what torch does not know about the device is what it would not know about a vendor's. Operators in ``forbidden`` are
not implemented, as some are not on an NPU; float64 never is. ``copies`` lists what leaves the device: each waits for it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from numprobe.collect.pytorch.plain import BASE

forbidden: set[str] = set()
copies: list[str] = []
launches: list[str] = []
stream_now: list[int] = [0]
capturing: list[bool] = [False]

aten = torch.ops.aten
_HOST = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_kept: list[Any] = []  # memory of the device, never freed


class Module:
    """What stands in ``torch.fake``, as ``torch.npu`` does."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def current_stream(self, device: object = None) -> int:
        return stream_now[0]

    @contextmanager
    def stream(self, stream: int):
        before, stream_now[0] = stream_now[0], stream
        try:
            yield
        finally:
            stream_now[0] = before

    def is_current_stream_capturing(self) -> bool:
        return capturing[0]

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend("fake", backend_module=Module())


_stride: Any = BASE.stride  # kernels are not to be recorded themselves
_put: Any = aten.set_.source_Storage_storage_offset.redispatch


def _storage(tensor: torch.Tensor, device: str) -> Any:
    """The memory of a tensor, said to be another device's."""
    own = tensor.untyped_storage()
    build: Any = torch._C._construct_storage_from_data_pointer  # type: ignore[attr-defined]
    return build(own.data_ptr(), torch.device(device), own.nbytes())


def _on(device: str, like: torch.Tensor) -> torch.Tensor:
    """A tensor of a device over the memory of another one."""
    empty = (
        torch.empty(0, dtype=like.dtype) if device == "cpu" else torch._C._acc.create_empty_tensor((0,), like.dtype)  # type: ignore[attr-defined]
    )
    return _put(_HOST, empty, _storage(like, device), like.storage_offset(), like.shape, _stride(like))


def _to_device(tensor: torch.Tensor) -> torch.Tensor:
    _kept.append(tensor.untyped_storage())
    return _on("fake:0", tensor)


def _to_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type == "fake":
        return _on("cpu", value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator: the CPU's, over the same memory."""
    if op.name().partition("::")[2].partition(".")[0] in forbidden:
        raise NotImplementedError(f"{op} on the device")
    launches.append(f"{op.name()} on {stream_now[0]}")
    declared = op._schema.arguments
    args = tuple(
        torch.tensor(v) if isinstance(v, (int, float)) and str(a.type) == "Tensor" else v  # numbers beside tensors
        for v, a in zip(args, declared, strict=False)
    )
    tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    if any(v.dtype is torch.float64 and v.device.type == "fake" for v in tensors) or any(
        v is torch.float64 for v in tree_leaves(kwargs)
    ):
        raise NotImplementedError(f"{op}: float64 on the device")
    given = tree_map(_to_host, (args, kwargs))
    grows = {a.name for a in declared if a.is_out} & kwargs.keys()  # an empty one is given its size
    grows = {name for name in grows if kwargs[name].numel() == 0}
    given[1].update({name: torch.empty(0, dtype=kwargs[name].dtype) for name in grows})
    hosted = [v for v in tree_leaves(given) if isinstance(v, torch.Tensor)]
    output = op(*given[0], **given[1])
    for name in grows:
        made = given[1][name]
        _kept.append(made.untyped_storage())
        storage = _storage(made, "fake:0")
        _put(_HOST, kwargs[name], storage, 0, made.shape, _stride(made))
    same = {id(host): device for host, device in zip(hosted, tensors, strict=True)}

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return same[id(value)] if id(value) in same else _to_device(value)

    return tree_map(back, output)


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if target.is_cpu:
        copies.append(f"{tuple(source.shape)} on {stream_now[0]}")
    elif target.dtype is torch.float64:
        raise NotImplementedError("float64 on the device")
    _to_host(target).copy_(_to_host(source))
    return target


def _item(tensor: torch.Tensor) -> Any:
    copies.append("item")
    return _to_host(tensor).item()


def _as_view(op: Any) -> Any:
    return lambda *args, **kwargs: op.redispatch(_HOST, *args, **kwargs)


def _empty(size: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
    return _to_device(torch.empty(size, dtype=dtype, memory_format=options.get("memory_format")))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
    return _to_device(torch.empty_strided(size, stride, dtype=dtype))


_any = torch.library.Library("_", "IMPL", "PrivateUse1")
_any.fallback(_kernel)
_some = torch.library.Library("aten", "IMPL", "PrivateUse1")
for _op in (aten.as_strided.default, aten.view.default, aten._reshape_alias.default, aten.unfold.default):
    _some.impl(_op, _as_view(_op))
_some.impl("_copy_from", _copy)
_some.impl("_local_scalar_dense", _item)
_some.impl("empty.memory_format", _empty)
_some.impl("empty_strided", _empty_strided)
_autocast = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
_autocast.fallback(torch.library.fallthrough_kernel)
