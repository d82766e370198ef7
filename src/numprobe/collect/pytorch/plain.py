"""From whatever a program calls a tensor to the plain tensor whose memory holds the values, and torch functions nobody patched.

A recorder replaces attributes of ``torch``, ``torch.Tensor`` and ``torch.nn.functional``. The collector's own work must not
pass through them, so the functions it needs are bound here, when the module is imported, from the C classes below them.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

VARIABLE = torch._C._VariableFunctions
BASE: Any = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase  # torch 2.1
LINALG: Any = torch._C._linalg  # type: ignore[attr-defined]
_FUNCTORCH = torch._C._functorch

as_strided: Callable[..., Tensor] = BASE.as_strided
as_subclass: Callable[..., Tensor] = BASE.as_subclass
data_of: Callable[[Tensor], Tensor] = BASE.data.__get__  # a view outside autograd; less work than detach()
data_ptr: Callable[[Tensor], int] = BASE.data_ptr
storage_offset: Callable[[Tensor], int] = BASE.storage_offset
element_size: Callable[[Tensor], int] = BASE.element_size
contiguous: Callable[[Tensor], Tensor] = BASE.contiguous
numel: Callable[[Tensor], int] = BASE.numel
is_contiguous: Callable[[Tensor], bool] = BASE.is_contiguous
to: Callable[..., Tensor] = BASE.to
view: Callable[..., Tensor] = BASE.view
expand_as: Callable[[Tensor, Tensor], Tensor] = BASE.expand_as
permute: Callable[..., Tensor] = BASE.permute
stride: Callable[[Tensor], tuple[int, ...]] = BASE.stride

_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transform = _FUNCTORCH.peek_interpreter_stack
_arange = torch.arange
_index_select: Callable[..., Tensor] = VARIABLE.index_select

PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})  # types that add no behaviour
NARROW_FLOATS = frozenset(
    dtype
    for name in dir(torch)
    if name.startswith("float8_") and isinstance(dtype := getattr(torch, name), torch.dtype)
)
UNSIGNED = frozenset(  # which no reduction knows
    dtype for name in ("uint16", "uint32", "uint64") if isinstance(dtype := getattr(torch, name, None), torch.dtype)
)
FLOAT4: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)


class _Memory:
    """What NumPy asks for a view of foreign memory; keeps the tensor that owns it."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: Tensor, interface: dict[str, Any]) -> None:
        self.owner, self.__array_interface__ = owner, interface


_KINDS = {
    torch.float64: ("<f8", 8),
    torch.float32: ("<f4", 4),
    torch.float16: ("<f2", 2),
    torch.complex128: ("<c16", 16),
    torch.complex64: ("<c8", 8),
    torch.int64: ("<i8", 8),
    torch.int32: ("<i4", 4),
    torch.int16: ("<i2", 2),
    torch.int8: ("|i1", 1),
    torch.uint8: ("|u1", 1),
    torch.bool: ("|b1", 1),
}


_Window: Any = ctypes.c_byte * (sys.maxsize >> 1)
_float32 = np.dtype(np.float32)


def float32_at(address: int, count: int) -> NDArray[Any]:
    """An array over float32 values of the host, in a fifth of the time of :func:`array_of`; it keeps nothing alive."""
    array: NDArray[Any] = np.frombuffer(_Window.from_address(address), _float32, count)
    return array


def bytes_at(address: int, size: int) -> Any:
    """The same over bytes."""
    return np.frombuffer(_Window.from_address(address), np.uint8, size)


def array_of(tensor: Tensor) -> NDArray[Any]:
    """A read-only array over the memory of a strided CPU tensor.

    ``Tensor.numpy()`` would forbid for ever that the program resizes this storage, which FSDP does. Raises TypeError for views
    that read their memory in another way.
    """
    if tensor.is_neg() or tensor.is_conj():
        raise TypeError("a conjugate or negative view: its memory holds other values")
    kind = _KINDS.get(tensor.dtype)
    if kind is None or not tensor.is_cpu:
        array: NDArray[Any] = BASE.numpy(BASE.clone(tensor))
        return array
    spelling, size = kind
    if numel(tensor) == 0:  # numpy 1 takes no null address
        return np.empty(tuple(tensor.shape), spelling)
    strides = None if is_contiguous(tensor) else tuple(n * size for n in stride(tensor))
    interface = {
        "shape": tuple(tensor.shape),
        "typestr": spelling,
        "data": (data_ptr(tensor), True),
        "strides": strides,
        "version": 3,
    }
    return np.asarray(_Memory(tensor, interface))


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor of any dtype, read-only and without a call of an operator.

    Raises TypeError where :func:`array_of` does.
    """
    if tensor.is_neg() or tensor.is_conj():
        raise TypeError("a conjugate or negative view: its memory holds other values")
    size = numel(tensor) * element_size(tensor)
    if size == 0:
        return memoryview(b"")
    interface = {"shape": (size,), "typestr": "|u1", "data": (data_ptr(tensor), True), "version": 3}
    array: Any = np.asarray(_Memory(tensor, interface))
    return memoryview(array)


class Unsupported(Exception):
    """A tensor whose values cannot be reached by plain torch operations."""


def modes_active() -> bool:
    """True inside a torch dispatch mode, a torch function mode or a functorch transform: operations would be seen or wrapped."""
    return _dispatch_modes() > 0 or _function_modes() > 0 or _transform() is not None


@contextlib.contextmanager
def out_of_sight() -> Iterator[None]:
    """Within it, operations reach their kernels: no modes, no subclass overrides, no functorch, no autograd, no autocast."""
    with (
        torch._C._DisableFuncTorch(),
        torch._C._DisableTorchDispatch(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch.no_grad(),
    ):
        yield


def holds_no_memory(tensor: Tensor) -> bool:
    """True for a strided tensor whose storage was freed (FSDP resizes to 0): reading it would be a segmentation fault.

    Such a tensor's address is its offset from a null pointer.
    """
    address = data_ptr(tensor)
    return address < 1 << 38 and address == storage_offset(tensor) * element_size(tensor)


def plain_of(tensor: Tensor) -> Tensor | None:
    """The detached, strided, non-quantised tensor with the values, None where there are none (fake, meta, vmapped, freed, empty).

    DTensor: the local shard. Gradient-tracking wrappers of functorch: what they wrap. Sparse: the values (coalesced). Nested:
    the buffer. Quantised: dequantised. A pending asynchronous collective is waited for. Conjugate and negative views are
    resolved. Raises Unsupported for subclasses that hide their values. Call it inside :func:`out_of_sight`.
    """
    for _ in range(8):  # wrappers may be nested
        if _FUNCTORCH.is_functorch_wrapped_tensor(tensor):
            if not _FUNCTORCH.is_gradtrackingtensor(tensor):
                return None
            tensor = _FUNCTORCH.get_unwrapped(tensor)
            continue
        kind = type(tensor)
        if kind in PLAIN_TYPES:
            return _dense(tensor)
        name = kind.__name__
        if name in ("FakeTensor", "FunctionalTensor", "BatchedTensor"):
            return None
        if name == "AsyncCollectiveTensor":
            tensor = tensor.trigger_wait()  # type: ignore[attr-defined]
        elif isinstance(inner := getattr(tensor, "_local_tensor", None), Tensor) or (
            tensor.is_nested and isinstance(inner := getattr(tensor, "_values", None), Tensor)
        ):
            tensor = inner
        elif torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
            raise Unsupported(name)
        else:
            tensor = as_subclass(tensor, Tensor)
    raise Unsupported(type(tensor).__name__)


def _dense(tensor: Tensor) -> Tensor | None:
    if tensor.is_meta:
        return None
    tensor = data_of(tensor)
    if tensor.is_nested:
        tensor = BASE.values(tensor)
    elif tensor.layout is torch.sparse_coo:
        tensor = BASE._values(BASE.coalesce(tensor))
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr, torch.sparse_csc, torch.sparse_bsc):
        tensor = BASE.values(tensor)
    elif tensor.layout is not torch.strided:
        tensor = BASE.to_dense(tensor)
    if tensor.is_quantized:
        tensor = BASE.dequantize(tensor)
    if numel(tensor) == 0 or holds_no_memory(tensor):
        return None
    resolved: Tensor = BASE.resolve_neg(BASE.resolve_conj(tensor))
    return resolved


def flat(tensor: Tensor) -> Tensor:
    """All elements as one dimension, in the order of memory where that avoids a copy (transposed tensors), else copied."""
    if is_contiguous(tensor):
        return view(tensor, -1)
    strides = stride(tensor)
    sorted_view = permute(tensor, sorted(range(len(strides)), key=lambda axis: -strides[axis]))
    return view(contiguous(sorted_view), -1)


def decoded_float4(tensor: Tensor) -> Tensor:
    """float4_e2m1fn_x2, two values a byte, as a flat bfloat16 tensor of twice the length (order: low half, then high half).

    OCP Microscaling Formats 1.0, table 5: bit 3 is the sign, bits 2 and 1 the exponent e, bit 0 the mantissa m; the magnitude
    is m / 2 for e = 0, else (1 + m / 2) * 2**(e - 1). The table of the 16 codes is computed on the device: nothing is sent to it.
    """
    packed = view(contiguous(tensor), torch.uint8)
    codes = VARIABLE.cat([VARIABLE.bitwise_and(packed, 15), VARIABLE.bitwise_right_shift(packed, 4)])
    code = _arange(16, device=packed.device)
    half = VARIABLE.mul(to(VARIABLE.bitwise_and(code, 1), torch.bfloat16), 0.5)
    exponent = VARIABLE.bitwise_and(VARIABLE.bitwise_right_shift(code, 1), 3)
    power = VARIABLE.exp2(to(VARIABLE.sub(exponent, 1), torch.bfloat16))
    normal = VARIABLE.mul(VARIABLE.add(half, 1), power)
    magnitude = VARIABLE.where(VARIABLE.gt(exponent, 0), normal, half)
    table = VARIABLE.where(VARIABLE.gt(code, 7), VARIABLE.neg(magnitude), magnitude)
    return _index_select(table, 0, to(view(codes, -1), torch.int64))
