"""One member of ``data`` in a dump.json: JSON bytes -> :class:`Record`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec

from numprobe.formats.msprobe.index import STORED
from numprobe.formats.msprobe.reference import TOO_DEEP, bounded_int, whole_characters
from numprobe.record.names import DEBUG, PARAMETERS_GRAD, OpName, parse_name
from numprobe.record.nonfinite import kind_bits, number
from numprobe.record.shapes import clean_shape
from numprobe.record.trace import DEBUG_VALUE, INPUT, OTHER, OUTPUT, PARAMETER, PARAMETER_GRAD, Record, Value

KEPT_DEPTH = 16  # of lists and objects inside one leaf; what lies deeper is cut off
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
        return msgspec.json.decode(quoted(bytes(raw)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # the standard library takes bare tokens wherever they stand, at a fifth of the speed
    return _decode_slowly(bytes(raw), None)


def decode_repeated(raw: bytes) -> Any:
    """As :func:`decode_member`, but nothing is lost where a key repeats: ``Max`` and ``Min`` keep a non-finite value, other
    keys hold the list of their values.

    Raises:
        UndecodableMember: no JSON, or nested too deeply.
    """
    return _decode_slowly(raw, _keep_repeated)


def _decode_slowly(raw: bytes, hook: Callable[[list[tuple[str, Any]]], Any] | None) -> Any:
    text = whole_characters(raw.decode("utf-8", "replace"))
    try:
        try:
            return json.loads(text, strict=False, object_pairs_hook=hook)
        except json.JSONDecodeError:
            raise
        except ValueError:  # an integer of more digits than int() takes
            return json.loads(text, strict=False, object_pairs_hook=hook, parse_int=bounded_int)
    except RecursionError:
        raise UndecodableMember(TOO_DEEP) from None
    except ValueError as error:
        raise UndecodableMember(str(error)) from None


def _keep_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    last = dict(pairs)
    if len(last) == len(pairs):
        return last
    values: dict[str, list[Any]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return {
        key: (max(found, key=_not_finite) if key in ("Max", "Min") else found) if len(found) > 1 else found[0]
        for key, found in values.items()
    }


def _not_finite(value: object) -> int:
    figure = number(value)
    if not isinstance(figure, float) or math.isfinite(figure):
        return figure is not None
    return 2


def quoted(raw: bytes) -> bytes:
    """Bare tokens in their usual place as strings, which mean the same; inside a string this breaks the JSON."""
    if b"NaN" in raw:
        raw = b': "NaN"'.join(raw.split(b": NaN"))  # a third faster than replace
    if b"Infinity" in raw:
        raw = raw.replace(b": Infinity", b': "Infinity"').replace(b": -Infinity", b': "-Infinity"')
    return raw


def section_role(op: OpName, section: str) -> str:
    """Role of the leaves below one key of a member."""
    if op.kind == PARAMETERS_GRAD:
        return PARAMETER_GRAD
    if op.kind == DEBUG:
        return DEBUG_VALUE
    return SECTION_ROLES.get(section, OTHER)


def flatten(op: OpName, body: object) -> tuple[Value, ...]:
    """Every leaf of a decoded member, in file order.

    A tensor inside another leaf's attributes is a leaf of its own.
    """
    leaves: list[Value] = []
    if op.kind == DEBUG or not isinstance(body, dict):
        _walk(body, "", DEBUG_VALUE if op.kind == DEBUG else OTHER, leaves)
    else:
        for section, content in body.items():
            _walk(content, section, section_role(op, section), leaves)
    return tuple(leaves)


def extrema(content: object) -> int:
    """:class:`Kinds` bits of all tensors in a part of a record, at any depth: what :func:`flatten` finds, without the values."""
    bits = 0
    stack = [content]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if "Max" in item or "Min" in item:
                bits |= kind_bits(number(item.get("Max")), number(item.get("Min")))
            item = list(item.values())
        if isinstance(item, list):
            stack.extend(part for part in item if isinstance(part, (list, dict)))
    return bits


def record_from(name: str, op_index: int, raw: bytes, offset: int) -> Record:
    """Decode one member.

    Raises:
        UndecodableMember: no JSON, or nested too deeply.
    """
    op = parse_name(name)
    return Record(op, op_index, flatten(op, decode_member(raw)), offset, len(raw))


def _walk(item: object, path: str, role: str, leaves: list[Value]) -> None:
    stack: list[tuple[object, str, bool]] = [(item, path, True)]  # not recursive: nesting may be as deep as JSON goes
    while stack:
        item, path, every = stack.pop()  # every: all leaves, else tensors only
        children: list[tuple[object, str, bool]] = []
        if isinstance(item, list):
            children = [(part, f"{path}.{i}" if path else str(i), every) for i, part in enumerate(item)]
        elif isinstance(item, dict):
            if "Max" in item or "Min" in item or ("dtype" in item and "shape" in item):
                leaves.append(_tensor(item, path, role))
                every = False
            elif isinstance(item.get("type"), str) or (not item and "." in path):
                if every:
                    leaves.append(_scalar(item, path, role))
                every = False
            elif isinstance(item.get("class_type"), str):  # P2POp: an object with a tensor in it
                if every:
                    leaves.append(_scalar({"type": item["class_type"], **item, "tensor": None}, path, role))
                    children = [(item.get("tensor"), f"{path}.tensor", True)]
                    item = {k: v for k, v in item.items() if k != "tensor"}
                every = False
            children += [
                (part, f"{path}.{key}" if path else key, every)
                for key, part in item.items()
                if every or isinstance(part, (list, dict))
            ]
        elif every:
            leaves.append(Value(role, path, "null" if item is None else type(item).__name__, scalar=item))
        stack.extend(reversed(children))


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
        attributes={k: _bounded(v) for k, v in item.items() if k not in _TENSOR_KEYS},
    )


def _scalar(item: dict[str, Any], path: str, role: str) -> Value:
    kind = str(item.get("type", ""))
    value = _bounded(item.get("value", item.get("format")))
    if isinstance(value, str) and kind.startswith(("float", "int")):
        value = number(value)  # "-inf" and the like
    rest = {k: _bounded(v) for k, v in item.items() if k not in ("type", "value", "format")}
    return Value(role, path, kind, scalar=value, attributes=rest)


def _bounded(value: Any, depth: int = 0) -> Any:
    if isinstance(value, list):
        return [_bounded(v, depth + 1) for v in value] if depth < KEPT_DEPTH else None
    if isinstance(value, dict):
        return {k: _bounded(v, depth + 1) for k, v in value.items()} if depth < KEPT_DEPTH else None
    return value


def member_flags(name: str, raw: bytes) -> tuple[int, int, int]:
    """Flags (input, output, parameter) of one member by full decode.

    Raises:
        UndecodableMember: no JSON, or nested too deeply.
    """
    op = parse_name(name)
    body = decode_repeated(raw)
    flags = [0, 0, 0]
    sections = body if isinstance(body, dict) and op.kind != DEBUG else {"": body}
    for section, content in sections.items():
        role = section_role(op, section)
        if role != OTHER:
            flags[0 if role == INPUT else 2 if role == PARAMETER else 1] |= extrema(content) & int(STORED)
    return flags[0], flags[1], flags[2]
