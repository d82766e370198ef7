"""What may stand in the pickle of a tensor file, and what stands for it here: the fixed list of names.

Nothing copies or enlarges its arguments, so that a small pickle cannot fill the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from numprobe.formats.tensors.content import Damaged, Unfamiliar
from numprobe.formats.tensors.opcodes import Attributes, Call
from numprobe.record.shapes import MAX_DIMS, MAX_NUMEL


class Element(NamedTuple):
    """A dtype, or the class of a storage of that dtype; "" for one of bytes."""

    name: str


class Storage(NamedTuple):
    key: str
    dtype: str
    nbytes: int


class Strided(NamedTuple):
    """A tensor as its pickle describes it. ``offset`` and ``strides`` count elements of the storage."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor_v2(
    storage: Storage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: object = None,
    hooks: object = None,
    metadata: object = None,
) -> Strided:
    return _strided(storage, storage.dtype, offset, shape, strides, metadata)


def _tensor_v3(
    storage: Storage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: object,
    hooks: object,
    dtype: Element,
    metadata: object = None,
) -> Strided:
    return _strided(storage, dtype.name, offset, shape, strides, metadata)


def _npu_tensor(
    storage: Storage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: object = None,
    hooks: object = None,
    npu_format: object = None,
) -> Strided:
    """torch_npu before 2.1 wrote this; the storage is that of a copy on the CPU, in plain layout whatever ``npu_format``."""
    return _strided(storage, storage.dtype, offset, shape, strides, None)


def _strided(
    storage: Storage, dtype: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], metadata: object
) -> Strided:
    if not isinstance(storage, Storage) or type(shape) is not tuple or type(strides) is not tuple:
        raise TypeError
    for number in (offset, *shape, *strides):
        if type(number) is not int or number < 0 or number > MAX_NUMEL:
            raise Damaged("a tensor's shape, strides or offset are no possible numbers")
    if len(shape) != len(strides) or len(shape) > MAX_DIMS:
        raise Damaged(f"a tensor has {len(shape)} dimensions and {len(strides)} strides")
    if metadata:
        raise Unfamiliar("a lazily conjugated or negated tensor")
    return Strided(storage, dtype, offset, shape, strides)


def _rebuilt(function: Call, kind: object, arguments: tuple[object, ...], state: object) -> object:
    """A tensor with attributes of its own, or of a class of its own; of the latter only PyTorch knows what they are."""
    if kind not in ("Tensor", "Parameter"):
        raise Unfamiliar("a tensor of a class of its own")
    return function.build(*arguments)


def _first(first: object, *rest: object) -> object:
    return first


def _nothing(*arguments: object) -> None:
    return None


def _same(items: object = None) -> object:
    return [] if items is None else items


def _dict(*arguments: object) -> dict[object, object]:
    """Empty: the pickle fills it afterwards. The arguments are a factory of values, or there are none."""
    return {}


_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "bool"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
)
_STORAGES = {
    "Double": "fp64",
    "Float": "fp32",
    "Half": "fp16",
    "BFloat16": "bf16",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "Untyped": "",
}
_CORES = ("core", "_core")
_BUILTINS: dict[str, object] = {
    **{name: Call(_same) for name in ("set", "frozenset", "list", "tuple")},
    **{name: Call(_nothing) for name in ("int", "float", "bool", "str", "complex", "slice", "range", "bytearray")},
    "dict": Call(_dict),
}
# The fixed list: what may stand in a pickle, and what stands for it here.
LISTED: Mapping[str, object] = {
    "torch._utils._rebuild_tensor": Call(_tensor_v2),
    "torch._utils._rebuild_tensor_v2": Call(_tensor_v2),
    "torch._utils._rebuild_tensor_v3": Call(_tensor_v3),
    "torch._utils._rebuild_parameter": Call(_first),
    "torch._utils._rebuild_parameter_with_state": Call(_first),
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": Call(_first),
    "torch._tensor._rebuild_from_type_v2": Call(_rebuilt),
    "torch_npu.utils.storage._rebuild_npu_tensor": Call(_npu_tensor),
    "torch_npu.npu._format.Format": Call(_nothing),
    "torch.Tensor": "Tensor",
    "torch.nn.parameter.Parameter": "Parameter",
    **{f"torch.{name}Storage": Element(dtype) for name, dtype in _STORAGES.items()},
    **{f"torch.storage.{name}Storage": Element(dtype) for name, dtype in _STORAGES.items()},
    **{f"torch.{name}": Element(name) for name in _DTYPES},
    "torch.Size": Call(_same),
    "torch.device": Call(_nothing),
    "torch.serialization._get_layout": Call(_nothing),
    "collections.OrderedDict": Call(_dict),
    "collections.defaultdict": Call(_dict),
    "collections.Counter": Call(_same),
    "argparse.Namespace": Call(Attributes),
    "_codecs.encode": Call(_nothing),
    **{  # states of random generators in checkpoints
        f"numpy.{name}": Call(_nothing)
        for name in (
            "ndarray",
            "dtype",
            *(f"{core}.multiarray.{f}" for core in _CORES for f in ("_reconstruct", "scalar")),
        )
    },
    **{f"builtins.{name}": value for name, value in _BUILTINS.items()},
    **{f"__builtin__.{name}": value for name, value in _BUILTINS.items()},
}
