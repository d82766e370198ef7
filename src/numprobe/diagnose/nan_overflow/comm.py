"""Communication records: what each rank gave and what it got, per call.

The argument tables follow torch.distributed's signatures. An output buffer that is passed as an argument is never an
input, whatever garbage an old dump recorded for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

import msgspec

from numprobe.formats.layout import MAX_RANK
from numprobe.formats.msprobe.members import UndecodableMember, decode_member, quoted
from numprobe.record.names import OpName
from numprobe.record.nonfinite import Kinds, kind_bits, number
from numprobe.record.shapes import MAX_NUMEL


class Signature(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What joins are verified by: total numel, extrema, and the sum of squares; None where a statistic is absent."""

    numel: int
    max: float | None
    min: float | None
    square: float | None

    @property
    def finite(self) -> bool:
        return self.max is not None and self.min is not None and math.isfinite(self.max) and math.isfinite(self.min)


class CommCall(msgspec.Struct, array_like=True, gc=False):
    """One collective or one point-to-point transfer of one rank. A batch_isend_irecv gives one a P2POp."""

    index: int
    name: str
    api: str  # all_reduce, ..., or send | recv
    group: tuple[int, ...] | str | None  # global ranks, a group id where ranks were not recorded, None: world
    peer: int  # global rank; for broadcast, scatter, reduce, gather the root; -1: none
    asynchronous: bool
    reduce_op: str
    given: int  # Kinds bits of the real inputs
    got: int  # Kinds bits of the real outputs
    given_signature: Signature | None
    got_signature: Signature | None


class _Places(NamedTuple):
    """Position and keyword of the real input and of the real output; position -1: there is none."""

    given: int
    given_name: str
    got: int
    got_name: str


_ARGUMENTS: dict[str, _Places] = {
    "all_reduce": _Places(0, "tensor", 0, "tensor"),
    "all_reduce_coalesced": _Places(0, "tensors", 0, "tensors"),
    "broadcast": _Places(0, "tensor", 0, "tensor"),
    "reduce": _Places(0, "tensor", 0, "tensor"),
    "all_gather": _Places(1, "tensor", 0, "tensor_list"),
    "all_gather_into_tensor": _Places(1, "input_tensor", 0, "output_tensor"),
    "_all_gather_base": _Places(1, "input_tensor", 0, "output_tensor"),
    "reduce_scatter": _Places(1, "input_list", 0, "output"),
    "reduce_scatter_tensor": _Places(1, "input", 0, "output"),
    "_reduce_scatter_base": _Places(1, "input", 0, "output"),
    "all_to_all": _Places(1, "input_tensor_list", 0, "output_tensor_list"),
    "all_to_all_single": _Places(1, "input", 0, "output"),
    "gather": _Places(0, "tensor", 1, "gather_list"),
    "scatter": _Places(1, "scatter_list", 0, "tensor"),
    "send": _Places(0, "tensor", -1, ""),
    "isend": _Places(0, "tensor", -1, ""),
    "recv": _Places(-1, "", 0, "tensor"),
    "irecv": _Places(-1, "", 0, "tensor"),
}
ROOTED = frozenset(("broadcast", "scatter", "reduce", "gather"))
# all members end with the same values
REPLICATING = frozenset(
    ("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "_all_gather_base", "broadcast")
)
REDUCING = frozenset(
    ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base")
)
PARTIAL_RECEIVERS = frozenset(
    ("all_to_all", "all_to_all_single", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base", "scatter")
)
_KEEPS_SQUARES = frozenset(("all_to_all", "all_to_all_single"))


def keeps_squares(api: str) -> bool:
    return api in _KEEPS_SQUARES


class _Item(msgspec.Struct, gc=False):
    """Any object in a communication record: a tensor, a scalar, a process group, a P2POp. What is not needed is skipped."""

    type: Any = None
    dtype: Any = None
    shape: Any = None
    Max: Any = None
    Min: Any = None
    Norm: Any = None
    value: Any = None
    group_ranks: msgspec.Raw = msgspec.Raw(b"")
    group_id: Any = None
    class_type: Any = None
    op: Any = None
    peer: Any = None
    tensor: Any = None


class _Call(msgspec.Struct, gc=False):
    input_args: list[_Item | list[Any] | str | int | float | bool | None] | None = None
    input_kwargs: dict[str, _Item | list[Any] | str | int | float | bool | None] | None = None
    output: list[_Item | list[Any] | str | int | float | bool | None] | None = None


_DECODER = msgspec.json.Decoder(_Call)
_ITEM = msgspec.json.Decoder(_Item)
_DECODER_OF_MANY = msgspec.json.Decoder(list[_Call])
_AT_ONCE = 256
_POINT_TO_POINT = {"isend": "send", "irecv": "recv"}
_BATCH = "batch_isend_irecv"
_MOVING = frozenset((*_ARGUMENTS, _BATCH))


def comm_calls(records: Iterable[tuple[OpName, int, bytes]]) -> Iterator[CommCall]:
    """The transfers of communication records (name, op_index, JSON); one that cannot be decoded has none.

    None either for calls that move no tensors (barrier, new_group, ...). Records are not flattened: there are thousands.
    """
    moving = ((op, api, i, raw) for op, i, raw in records if (api := op.api.rsplit(".", 1)[-1]) in _MOVING)
    while chunk := list(islice(moving, _AT_ONCE)):
        for (op, api, i, _), call in zip(chunk, _decode([raw for *_, raw in chunk]), strict=True):
            if call is None:
                continue
            positional, named = call.input_args or [], call.input_kwargs or {}
            if api == _BATCH:
                yield from _batched(op, i, [*positional, *named.values()])
            else:
                yield _transfer(op, i, api, positional, named, call.output)


def _decode(records: list[bytes]) -> Sequence[_Call | None]:
    try:
        calls = _DECODER_OF_MANY.decode(quoted(b"[%b]" % b",".join(records)))
        if len(calls) == len(records):
            return calls
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return [_decode_one(raw) for raw in records]


def _decode_one(raw: bytes) -> _Call | None:
    try:
        return _DECODER.decode(quoted(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:  # numbers such as 1e400, which msgspec does not take
        return _DECODER.decode(json.dumps(_spelled(decode_member(raw))))
    except (UndecodableMember, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _spelled(item: Any) -> Any:
    """With every number that is not finite as a string, which means the same."""
    if isinstance(item, list):
        return [_spelled(part) for part in item]
    if isinstance(item, dict):
        return {key: _spelled(part) for key, part in item.items()}
    return str(item) if isinstance(item, float) and not math.isfinite(item) else item


def _transfer(
    op: OpName, index: int, api: str, positional: list[Any], named: dict[str, Any], output: list[Any] | None
) -> CommCall:
    places = _ARGUMENTS[api]
    kind = _POINT_TO_POINT.get(api, api)
    group = _group(positional, named)
    peer = _peer(positional, named, group, kind) if kind in ("send", "recv") or kind in ROOTED else -1
    waits = kind != api or _value(named.get("async_op")) is True
    given, given_signature = _look(_argument(positional, named, places.given, places.given_name))
    got, got_signature = _look(_after(output, positional, named, places.got, places.got_name))
    reduce_op = _reduce_op(positional, named) if kind in REDUCING else ""
    return CommCall(index, op.name, kind, group, peer, waits, reduce_op, given, got, given_signature, got_signature)


def _argument(positional: list[Any], named: dict[str, Any], position: int, name: str) -> Any:
    if 0 <= position < len(positional):
        return positional[position]
    return named.get(name)


def _after(output: list[Any] | None, positional: list[Any], named: dict[str, Any], position: int, name: str) -> Any:
    """The argument after the call: the output lists all arguments, positional ones first, keywords in call order."""
    if position < 0 or output is None:
        return None
    if position >= len(positional):
        if name not in named:
            return None
        position = len(positional) + list(named).index(name)
    return output[position] if position < len(output) else None


def _batched(op: OpName, index: int, arguments: list[Any]) -> list[CommCall]:
    """One call a P2POp.

    The output is recorded when the call returns, before the waits, so what it shows of a receive says nothing.
    """
    calls: list[CommCall] = []
    unknown = int(Kinds.UNKNOWN)
    for operation in _operations(arguments):
        what, peer = str(operation.op).lower(), operation.peer
        if not _is_rank(peer) or not ("send" in what or "recv" in what):
            continue
        group = _ranks(operation)
        kinds, whole = _look(operation.tensor)
        if "send" in what:
            calls.append(CommCall(index, op.name, "send", group, peer, True, "", kinds, unknown, whole, None))
        else:
            size = Signature(whole.numel, None, None, None) if whole else None
            calls.append(CommCall(index, op.name, "recv", group, peer, True, "", unknown, unknown, None, size))
    return calls


def _tensors(item: Any) -> list[_Item]:
    if isinstance(item, _Item):
        return [item] if item.shape is not None or item.Max is not None else []
    if isinstance(item, list):
        return [t for part in item for t in _tensors(part)]
    if isinstance(item, dict):
        return _tensors(_nested(item))
    return []


def _nested(item: dict[str, Any]) -> _Item:
    """An object below the outer level: msgspec types only that."""
    return _ITEM.decode(msgspec.json.encode(item))


def _operations(item: Any) -> list[_Item]:
    if isinstance(item, dict):
        item = _nested(item)
    if isinstance(item, _Item):
        return [item] if str(item.class_type).endswith("P2POp") else []
    return [o for part in item for o in _operations(part)] if isinstance(item, list) else []


def _look(item: Any) -> tuple[int, Signature | None]:
    """Kinds and signature of what was put in or got out."""
    if type(item) is _Item and (size := _size(item.shape)):  # one tensor: nearly always
        x = item.Max if type(item.Max) is float else number(item.Max)
        y = item.Min if type(item.Min) is float else number(item.Min)
        if x is not None and y is not None and x != -math.inf:
            n = item.Norm if type(item.Norm) is float else number(item.Norm)
            squares = n * n if n is not None and abs(n) < 1e150 else None
            return kind_bits(x, y), Signature(size, x, y, squares)
    tensors = _tensors(item)
    if not tensors:
        return int(Kinds.UNKNOWN), None
    bits = total = 0
    high = low = -math.inf
    squares = 0.0
    known = sized = True
    for t in tensors:
        size = _size(t.shape)
        if size == 0:
            continue
        x, y, n = number(t.Max), number(t.Min), number(t.Norm)
        bits |= kind_bits(x, y)
        sized = sized and size is not None
        total += size or 0
        if x is None or y is None:
            known = False
            continue
        high = float(x) if x > high or x != x else high
        low = float(-y) if -y > low or y != y else low
        squares = None if squares is None or n is None or not abs(n) < 1e150 else squares + float(n) ** 2
    if not sized:
        return bits, None
    if not known or high == -math.inf:
        return bits, Signature(total, None, None, None)
    return bits, Signature(total, high, -low, squares)


def _size(shape: Any) -> int | None:
    if type(shape) is not list:
        return None
    try:
        size = math.prod(shape)
    except TypeError:
        return None
    return size if type(size) is int and 0 <= size <= MAX_NUMEL else None


def _group(positional: list[Any], named: dict[str, Any]) -> tuple[int, ...] | str | None:
    item = named.get("group")
    if _is(item, "ProcessGroup"):
        return _ranks(item)
    return next((_ranks(p) for p in positional if _is(p, "ProcessGroup")), None)


def _is(item: Any, kind: str) -> TypeGuard[_Item]:
    return type(item) is _Item and type(item.type) is str and item.type.endswith(kind)


@lru_cache(maxsize=4096)
def _rank_list(text: bytes) -> tuple[int, ...] | None:
    ranks = msgspec.json.decode(text)
    if isinstance(ranks, list) and ranks and all(_is_rank(r) for r in ranks):
        return tuple(ranks)
    return None


def _ranks(item: _Item) -> tuple[int, ...] | str | None:
    """Global ranks of a group, else its id. The same few groups stand in thousands of records."""
    text = bytes(item.group_ranks)
    ranks = _rank_list(text) if text else None
    return ranks or (item.group_id if isinstance(item.group_id, str) else None)


def _peer(positional: list[Any], named: dict[str, Any], group: tuple[int, ...] | str | None, kind: str) -> int:
    """Global rank of the partner or root: keyword ``dst``/``src``, group-local ``group_dst``/``group_src``, or position."""
    word = "dst" if kind in ("send", "reduce", "gather") else "src"
    whole = _value(named.get(word))
    if _is_rank(whole):
        return whole
    local = _value(named.get(f"group_{word}"))
    if isinstance(local, int):
        return group[local] if isinstance(group, tuple) and 0 <= local < len(group) else -1
    position = 2 if kind in ("gather", "scatter") else 1
    placed = _value(positional[position]) if position < len(positional) else None
    return placed if _is_rank(placed) else 0 if kind in ROOTED else -1


def _is_rank(item: object) -> TypeGuard[int]:
    return type(item) is int and 0 <= item <= MAX_RANK


def _reduce_op(positional: list[Any], named: dict[str, Any]) -> str:
    item = named.get("op")
    if item is None:
        item = next((p for p in positional[1:] if _is(p, "ReduceOp")), None)
    return str(item.value).rsplit(".", 1)[-1].upper() if _is(item, "ReduceOp") else "SUM"


def _value(item: Any) -> object:
    return item.value if type(item) is _Item else None
