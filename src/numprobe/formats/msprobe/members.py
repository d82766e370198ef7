"""One member of ``data`` in a dump.json: JSON bytes -> :class:`Record`."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from numprobe.record.names import DEBUG, PARAMETERS_GRAD, OpName, parse_name
from numprobe.record.nonfinite import number
from numprobe.record.shapes import clean_shape
from numprobe.record.trace import DEBUG_VALUE, INPUT, OTHER, OUTPUT, PARAMETER, PARAMETER_GRAD, Record, Value

MAX_DEPTH = 64
_STATISTICS = (("Max", "max"), ("Min", "min"), ("Mean", "mean"), ("Norm", "norm"))
_TENSOR_KEYS = frozenset(
    ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad"),
)
SECTION_ROLES = {
    "input_args": INPUT,
    "input_kwargs": INPUT,
    "input": INPUT,
    "output": OUTPUT,
    "parameters": PARAMETER,
}


class UndecodableMember(ValueError):
    """A member that is no JSON, or nested too deeply."""


def decode_member(raw: bytes | memoryview) -> Any:
    """JSON of one member, with bare ``NaN``, ``Infinity``, ``-Infinity`` and numbers such as 1e400 (infinite).

    Raises:
        UndecodableMember: no JSON, or nested too deeply.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # the standard library takes the bare tokens, at a fifth of the speed
    try:
        return json.loads(bytes(raw).decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise UndecodableMember(str(error)) from None


def section_role(op: OpName, section: str) -> str:
    """Role of the leaves below one key of a member."""
    if op.kind == PARAMETERS_GRAD:
        return PARAMETER_GRAD
    if op.kind == DEBUG:
        return DEBUG_VALUE
    return SECTION_ROLES.get(section, OTHER)


def flatten(op: OpName, body: object) -> tuple[Value, ...]:
    """Every leaf of a decoded member, in file order.

    Raises:
        UndecodableMember: nested more than 64 levels deep.
    """
    leaves: list[Value] = []
    if op.kind == DEBUG or not isinstance(body, dict):
        _walk(body, "", DEBUG_VALUE if op.kind == DEBUG else OTHER, leaves, 0)
    else:
        for section, content in body.items():
            _walk(content, section, section_role(op, section), leaves, 0)
    return tuple(leaves)


def record_from(name: str, op_index: int, raw: bytes, offset: int) -> Record:
    """Decode one member.

    Raises:
        UndecodableMember: no JSON, or nested too deeply.
    """
    op = parse_name(name)
    return Record(op, op_index, flatten(op, decode_member(raw)), offset, len(raw))


def _walk(item: object, path: str, role: str, leaves: list[Value], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise UndecodableMember(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(item, list):
        for i, part in enumerate(item):
            _walk(part, f"{path}.{i}" if path else str(i), role, leaves, depth + 1)
    elif isinstance(item, dict):
        if "Max" in item or "Min" in item or ("dtype" in item and "shape" in item):
            leaves.append(_tensor(item, path, role))
        elif isinstance(item.get("type"), str) or (not item and depth):
            leaves.append(_scalar(item, path, role))
        elif isinstance(item.get("class_type"), str):  # P2POp: an object with a tensor in it
            leaves.append(_scalar({"type": item["class_type"], **item, "tensor": None}, path, role))
            _walk(item.get("tensor"), f"{path}.tensor", role, leaves, depth + 1)
        else:
            for key, part in item.items():
                _walk(part, f"{path}.{key}" if path else key, role, leaves, depth + 1)
    else:
        leaves.append(Value(role, path, "null" if item is None else type(item).__name__, scalar=item))


def _tensor(item: dict[str, Any], path: str, role: str) -> Value:
    figures = {field: number(item[key]) for key, field in _STATISTICS if key in item}
    return Value(
        role,
        path,
        str(item.get("type", "")),
        str(item.get("dtype") or ""),
        clean_shape(item.get("shape")),
        **figures,
        present=frozenset(figures),
        requires_grad=item.get("requires_grad") if isinstance(item.get("requires_grad"), bool) else None,
        attributes={k: v for k, v in item.items() if k not in _TENSOR_KEYS},
    )


def _scalar(item: dict[str, Any], path: str, role: str) -> Value:
    value = item.get("value", item.get("format"))
    rest = {k: v for k, v in item.items() if k not in ("type", "value", "format")}
    return Value(role, path, str(item.get("type", "")), scalar=value, attributes=rest)
