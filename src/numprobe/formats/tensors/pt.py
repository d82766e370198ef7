"""Tensors of files that torch.save wrote, without PyTorch: zip archives since its version 1.6, one stream before.

The pickle says how tensors lie in storages (``opcodes.py`` reads it without running it), the bytes of
the storages lie beside it as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from numprobe.formats.tensors.archive import begin_of, read_directory
from numprobe.formats.tensors.content import Content, Damaged, Refused, Unfamiliar, Unsupported
from numprobe.formats.tensors.dtypes import STORED, stored_as
from numprobe.formats.tensors.opcodes import Attributes, NotListed, read_pickle
from numprobe.formats.tensors.rebuild import LISTED, Element, Storage, Strided
from numprobe.formats.tensors.tensor import Placed
from numprobe.record.dtypes import short_dtype
from numprobe.record.shapes import MAX_NUMEL

MAX_PICKLE = 8 << 20  # a byte can make an object of 64
MAX_DEPTH = 100
MAX_VALUES = 1_000_000
MAX_KEY = 4096
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickle of torch's magic number, 0x1950a86a20f9469cfc6c
LEGACY_PROTOCOL = 1001


def read_pt(content: Content) -> list[tuple[str, Placed]]:
    """Every tensor, by its dotted key ("" where the file is one tensor): keys of dicts, numbers in lists.

    Raises:
        Damaged: no such file, or one that contradicts itself.
        Refused: it wants something to be called that is not on the list.
        Unsupported: a dtype that numpy does not have.
        Unfamiliar: a kind of tensor that only PyTorch knows.
    """
    legacy = content.size >= len(LEGACY) and content.read(0, len(LEGACY)) == LEGACY
    try:
        return _read_stream(content) if legacy else _read_zip(content)
    except NotListed as error:
        if error.name.startswith("torch."):
            raise Unfamiliar(error.name) from None
        raise Refused(error.name) from None


def _read_zip(content: Content) -> list[tuple[str, Placed]]:
    records = read_directory(content)
    folder = next(iter(records), "").partition("/")[0]
    pickle = records.get(f"{folder}/data.pkl")
    if pickle is None or f"{folder}/constants.pkl" in records:
        raise Damaged("it is no file of torch.save: it has no record data.pkl, or is a TorchScript program")
    if pickle.size > MAX_PICKLE:
        raise Damaged(f"its pickle has {pickle.size} bytes")
    order = records.get(f"{folder}/byteorder")
    if order is not None and order.size < 16 and content.read(begin_of(order, content), order.size) != b"little":
        raise Unfamiliar("big-endian tensors")
    value, _ = read_pickle(content.read(begin_of(pickle, content), pickle.size), LISTED, _storage)
    begins: dict[str, int] = {}

    def begin(storage: Storage) -> int:
        if storage.key not in begins:
            record = records.get(f"{folder}/data/{storage.key}")
            if record is None:
                raise Damaged(f"storage {storage.key[:40]} is missing")
            if record.size != storage.nbytes:
                raise Damaged(f"storage {storage.key[:40]} has {record.size} bytes, not {storage.nbytes}")
            begins[storage.key] = begin_of(record, content)
        return begins[storage.key]

    return [(key, _placed(tensor, begin(tensor.storage))) for key, tensor in flatten(value)]


def _read_stream(content: Content) -> list[tuple[str, Placed]]:
    """The format before zip: pickles of a magic number, a version, facts about the machine, the value and the keys of its
    storages, then each storage: how many elements it has (int64), and these."""
    size = min(content.size, MAX_PICKLE)
    data = content.read(0, size)
    sizes: dict[str, tuple[int, int]] = {}  # bytes, and of an element

    def storage(identity: object) -> Storage:
        found = _storage(identity)
        sizes[found.key] = found.nbytes, STORED[found.dtype].itemsize if found.dtype else 1
        return found

    at = len(LEGACY)
    version, at = read_pickle(data, LISTED, _storage, at)
    machine, at = read_pickle(data, LISTED, _storage, at)
    value, at = read_pickle(data, LISTED, storage, at)
    keys, at = read_pickle(data, LISTED, _storage, at)
    if version != LEGACY_PROTOCOL or not isinstance(machine, dict) or not isinstance(keys, list):
        raise Damaged("it is no file of torch.save")
    if machine.get("little_endian") is not True:
        raise Unfamiliar("big-endian tensors")
    begins: dict[str, int] = {}
    for key in keys:
        if not isinstance(key, str) or key not in sizes:
            raise Damaged("its list of storages is broken")
        nbytes, width = sizes[key]
        if int.from_bytes(content.read(at, 8), "little") * width != nbytes or at + 8 + nbytes > content.size:
            raise Damaged(f"storage {key[:40]} has not the {nbytes} bytes that it should")
        begins[key] = at + 8
        at += 8 + nbytes
    tensors = list(flatten(value))
    for _, tensor in tensors:
        if tensor.storage.key not in begins:
            raise Damaged(f"storage {tensor.storage.key[:40]} is missing")
    return [(key, _placed(tensor, begins[tensor.storage.key])) for key, tensor in tensors]


def _storage(identity: object) -> Storage:
    """A persistent id: ("storage", class, key, device, elements), before zip with a view of another storage at the end."""
    if type(identity) is not tuple or len(identity) < 5 or identity[0] != "storage":
        raise TypeError
    kind, key, _, numel = identity[1:5]
    if (
        not isinstance(kind, Element)
        or not isinstance(key, str)
        or type(numel) is not int
        or not 0 <= numel <= MAX_NUMEL
    ):
        raise TypeError
    if any(view is not None for view in identity[5:]):
        raise Unfamiliar("a view of a storage")
    return Storage(key, kind.name, numel * (STORED[kind.name].itemsize if kind.name else 1))


def _placed(tensor: Strided, begin: int) -> Placed:
    stored = stored_as(tensor.dtype)
    if stored is None:
        raise Unsupported(f"dtype {tensor.dtype}")
    offset = tensor.offset * stored.itemsize
    if all(tensor.shape):
        last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
        if (last + 1) * stored.itemsize > tensor.storage.nbytes:
            raise Damaged(f"a tensor reaches beyond its storage of {tensor.storage.nbytes} bytes")
    return Placed(short_dtype(tensor.dtype), stored, begin + offset, tensor.shape, tensor.strides)


def flatten(value: object) -> Iterator[tuple[str, Strided]]:
    """Tensors inside containers, in order, by their dotted keys; equal keys get ``~2``, ``~3``, ...

    Raises:
        Damaged: containers nested deeper than MAX_DEPTH, or more than MAX_VALUES values.
    """
    seen: dict[str, int] = {}
    left = MAX_VALUES
    todo: list[tuple[str, int, object]] = [("", 0, value)]
    while todo:
        prefix, depth, one = todo.pop()
        left -= 1
        if isinstance(one, Attributes):
            one = one.fields
        if isinstance(one, Strided):
            seen[prefix] = times = seen.get(prefix, 0) + 1
            yield (prefix if times == 1 else f"{prefix}~{times}"), one
        elif isinstance(one, (dict, list)) or type(one) is tuple:
            left -= len(one)
            if depth == MAX_DEPTH or left < 0:
                raise Damaged(
                    f"its containers are nested deeper than {MAX_DEPTH}, or hold more than {MAX_VALUES} values"
                )
            items = one.items() if isinstance(one, dict) else enumerate(one)
            todo.extend(
                (_key(prefix, key), depth + 1, item)
                for key, item in reversed(list(items))
                if isinstance(item, (Strided, dict, list, tuple, Attributes))
            )


def _key(prefix: str, key: object) -> str:
    if (isinstance(key, int) and key.bit_length() > 64) or (isinstance(key, (str, bytes)) and len(key) > MAX_KEY):
        raise Damaged("a key of one of its dicts is absurdly long")
    full = f"{prefix}.{key}" if prefix else str(key)
    if len(full) > MAX_KEY:
        raise Damaged("a key of one of its dicts is absurdly long")
    return full
