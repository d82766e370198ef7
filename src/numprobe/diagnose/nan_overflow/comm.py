"""Communication records: what each rank gave and what it got, per call.

The argument tables follow torch.distributed's signatures. An output buffer that is passed as an argument is never an
input, whatever garbage an old dump recorded for it.
"""

from __future__ import annotations

import math

import msgspec

from numprobe.diagnose.nan_overflow.apis import base
from numprobe.record.nonfinite import DIRTY, Kinds
from numprobe.record.trace import INPUT, OUTPUT, Record, Value


class Signature(msgspec.Struct, frozen=True, array_like=True):
    """What joins are verified by: total numel, extrema, and the sum of squares; None where a statistic is absent."""

    numel: int
    max: float | None
    min: float | None
    square: float | None

    @property
    def finite(self) -> bool:
        return self.max is not None and self.min is not None and math.isfinite(self.max) and math.isfinite(self.min)


class CommCall(msgspec.Struct, array_like=True):
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


# api -> (places of the real input, places of the real output); a place is an argument position or keyword
_ARGUMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all_reduce": (("0", "tensor"), ("0", "tensor")),
    "all_reduce_coalesced": (("0", "tensors"), ("0", "tensors")),
    "broadcast": (("0", "tensor"), ("0", "tensor")),
    "reduce": (("0", "tensor"), ("0", "tensor")),
    "all_gather": (("1", "tensor"), ("0", "tensor_list")),
    "all_gather_into_tensor": (("1", "input_tensor"), ("0", "output_tensor")),
    "_all_gather_base": (("1", "input_tensor"), ("0", "output_tensor")),
    "reduce_scatter": (("1", "input_list"), ("0", "output")),
    "reduce_scatter_tensor": (("1", "input"), ("0", "output")),
    "_reduce_scatter_base": (("1", "input"), ("0", "output")),
    "all_to_all": (("1", "input_tensor_list"), ("0", "output_tensor_list")),
    "all_to_all_single": (("1", "input"), ("0", "output")),
    "gather": (("0", "tensor"), ("1", "gather_list")),
    "scatter": (("1", "scatter_list"), ("0", "tensor")),
    "send": (("0", "tensor"), ()),
    "isend": (("0", "tensor"), ()),
    "recv": ((), ("0", "tensor")),
    "irecv": ((), ("0", "tensor")),
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


def comm_calls(record: Record) -> list[CommCall]:
    """The transfers of one communication record; empty for calls that move no tensors (barrier, new_group, ...)."""
    api = base(record.name)
    if api == "batch_isend_irecv":
        return _batched(record)
    places = _ARGUMENTS.get(record.name.api.rsplit(".", 1)[-1]) or _ARGUMENTS.get(api)
    if places is None:
        return []
    group = _group(record)
    inputs = [v for v in record.of(INPUT) if v.is_tensor and _place(v) in places[0]]
    # after the call all arguments are listed, positional ones first, then keywords in the order of the call
    arguments = list(dict.fromkeys(_place(v) for v in record.of(INPUT)))
    at = [str(n) for n, place in enumerate(arguments) if place in places[1]]
    outputs = [v for v in record.of(OUTPUT) if v.is_tensor and _place(v) in at]
    kind = {"isend": "send", "irecv": "recv"}.get(api, api)
    peer = -1
    if kind in ("send", "recv") or kind in ROOTED:
        peer = _peer(record, group, kind)
    return [_call(record, kind, group, peer, inputs, outputs, api in ("isend", "irecv"))]


def _call(
    record: Record,
    api: str,
    group: tuple[int, ...] | str | None,
    peer: int,
    inputs: list[Value],
    outputs: list[Value],
    asynchronous: bool,
) -> CommCall:
    return CommCall(
        record.op_index,
        record.name.name,
        api,
        group,
        peer,
        asynchronous or _flag(record, "async_op"),
        _reduce_op(record),
        _kinds(inputs),
        _kinds(outputs),
        _signature(inputs),
        _signature(outputs),
    )


def _batched(record: Record) -> list[CommCall]:
    """One call a P2POp.

    The output is recorded when the call returns, before the waits, so what it shows of a receive says nothing.
    """
    calls: list[CommCall] = []
    group = _group(record)
    tensors = {v.path: v for v in record.of(INPUT) if v.is_tensor}
    for operation in record.of(INPUT):
        what = str(operation.attributes.get("op", "")).lower()
        peer = operation.attributes.get("peer")
        if not operation.value_type.endswith("P2POp") or not isinstance(peer, int):
            continue
        given = tensors.get(f"{operation.path}.tensor")
        if "send" in what:
            calls.append(_call(record, "send", group, peer, [given] if given else [], [], True))
        elif "recv" in what:
            call = _call(record, "recv", group, peer, [], [], True)
            call.got_signature = Signature(given.numel, None, None, None) if given and given.numel is not None else None
            calls.append(call)
    return calls


def _place(value: Value) -> str:
    """Argument position or keyword: ``input_args.1.3`` -> ``1``, ``input_kwargs.tensor`` -> ``tensor``."""
    parts = value.path.split(".")
    return parts[1] if len(parts) > 1 else ""


def _kinds(values: list[Value]) -> int:
    kinds = Kinds.CLEAN
    for v in values:
        kinds |= v.kinds
    if not values:
        kinds = Kinds.UNKNOWN
    return int(kinds & (DIRTY | Kinds.UNKNOWN | Kinds.MAYBE_NAN))


def _signature(values: list[Value]) -> Signature | None:
    total = 0
    high: float | None = None
    low: float | None = None
    square: float | None = 0.0
    seen = False
    for v in values:
        if v.numel is None:
            return None
        total += v.numel
        if v.numel == 0:
            continue
        if v.max is None or v.min is None:
            return Signature(total, None, None, None)
        a, b = float(v.max), float(v.min)
        high = a if high is None or a > high or a != a else high
        low = b if low is None or b < low or b != b else low
        square = (
            None if square is None or v.norm is None else square + float(v.norm) ** 2 if abs(v.norm) < 1e150 else None
        )
        seen = True
    return Signature(total, high, low, square if seen else None) if values else None


def _group(record: Record) -> tuple[int, ...] | str | None:
    for v in record.of(INPUT):
        if v.value_type.endswith("ProcessGroup"):
            ranks = v.attributes.get("group_ranks")
            if isinstance(ranks, list) and ranks and all(isinstance(r, int) for r in ranks):
                return tuple(ranks)
            identity = v.attributes.get("group_id")
            if isinstance(identity, str):
                return identity
        if "P2POp" in v.value_type and isinstance(v.attributes.get("group_ranks"), list):
            return tuple(r for r in v.attributes["group_ranks"] if isinstance(r, int))  # type: ignore[attr-defined]
    return None


def _peer(record: Record, group: tuple[int, ...] | str | None, kind: str) -> int:
    """Global rank of the partner or root: keyword ``dst``/``src``, group-local ``group_dst``/``group_src``, or position."""
    by_place: dict[str, int] = {}
    for v in record.of(INPUT):
        if isinstance(v.scalar, int) and not isinstance(v.scalar, bool):
            by_place[_place(v)] = v.scalar
    word = "dst" if kind in ("send", "reduce", "gather") else "src"
    if word in by_place:
        return by_place[word]
    local = by_place.get(f"group_{word}")
    if local is not None:
        return group[local] if isinstance(group, tuple) and 0 <= local < len(group) else -1
    position = "2" if kind in ("gather", "scatter") else "1"
    return by_place.get(position, 0 if kind in ("gather", "scatter", "broadcast", "reduce") else -1)


def _flag(record: Record, keyword: str) -> bool:
    return any(v.path == f"input_kwargs.{keyword}" and v.scalar is True for v in record.of(INPUT))


def _reduce_op(record: Record) -> str:
    for v in record.of(INPUT):
        if v.value_type.endswith("ReduceOp") and isinstance(v.scalar, str):
            return v.scalar.rsplit(".", 1)[-1].upper()
    return "SUM"
