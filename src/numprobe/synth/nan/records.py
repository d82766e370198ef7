"""The text of records: json as the collector writes it (indent 1), with holes for what a rank fills in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

# of the collector's risk sets the names that the model uses; linear is in neither
_LOW = """arange bfloat16 bool cat chunk clamp clone double empty empty_like expand flatten float full full_like half int ones
permute reshape split squeeze stack to transpose tril triu type_as unsqueeze view zeros zeros_like"""
_CORE = "embedding layer_norm matmul bmm mm addmm scaled_dot_product_attention _fused_adamw_"
LOW_RISK, CORE_RISK = frozenset(_LOW.split()), frozenset(_CORE.split())

RAW, GRAD, PLAIN = 0, 1, 2  # what fills a hole: ready text, a tensor with requires_grad true, one with false


class Var:
    """A value of the program: the register it lives in, and whether autograd follows it. Compared by identity."""

    __slots__ = ("grad", "reg")

    def __init__(self, reg: int, grad: bool) -> None:
        self.reg = reg
        self.grad = grad


@dataclass(frozen=True)
class Plain:
    """A tensor recorded with requires_grad false although the model differentiates it: collectives work on detached data."""

    var: Var


@dataclass(frozen=True)
class Text:
    """A register that holds ready json text: a process group, a placeholder buffer, split sizes."""

    reg: int


# what a record may hold: tensors, ready text, and lists and objects of them
Item: TypeAlias = "Var | Plain | Text | str | list[Any] | dict[str, Any]"


@dataclass(frozen=True)
class Row:
    """A record. ``skeleton`` is its text with ``%s`` for each slot (register, what fills it, extra levels of indent).

    ``inputs`` and ``outputs`` are the registers whose state decides whether the record shows a fault; ``index`` is the
    record's place in the file.
    """

    name: str
    skeleton: str
    slots: tuple[tuple[int, int, int], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    index: int


@dataclass(frozen=True)
class Collector:
    """What is recorded. ``level`` and ``risk`` as in the collector's configuration, ``only`` its list filter.

    ``unrecorded`` names roles of operators that no wrapper sees, or prefixes of records (with a dot at the end).
    """

    level: str
    risk: str
    only: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()

    def keeps(self, name: str, role: str) -> bool:
        """Does a call of this record name by an operator of this role leave a record?"""
        if role in self.unrecorded or any(u.endswith(".") and name.startswith(u) for u in self.unrecorded):
            return False
        if self.only:
            return any(part in name for part in self.only)
        prefix, rest = name.split(".", 1)
        if prefix == "Module":
            return self.level != "L1"
        if self.level == "L0":
            return False
        api = rest.rsplit(".", 2)[0]
        if self.risk == "CORE":
            return api in CORE_RISK or prefix in ("Distributed", "NPU", "MindSpeed")
        return self.risk == "ALL" or api not in LOW_RISK


def scalar(kind: str, value: object) -> str:
    """The record of a number, bool or string four levels deep: ``scalar("float", 1e-5)``."""
    return f'{{\n     "type": "{kind}",\n     "value": {json.dumps(value)}\n    }}'


def deeper(text: str, levels: int) -> str:
    """``text`` with its lines but the first indented by so many levels more."""
    return text.replace("\n", "\n" + " " * levels) if levels else text


def row(name: str, parts: dict[str, Any], inputs: Sequence[Var], outputs: Sequence[Var], index: int) -> Row:
    """A record whose ``parts`` are its members: lists of items, or objects of name -> item."""
    slots: list[tuple[int, int, int]] = []
    members = []
    for key, value in parts.items():
        body = _fields(value, 3, slots) if isinstance(value, dict) else _elements(value, 3, slots)
        members.append(f'   "{key}": {body}')
    skeleton = f'  "{name}": {{\n' + ",\n".join(members) + "\n  }"
    return Row(name, skeleton, tuple(slots), tuple(v.reg for v in inputs), tuple(v.reg for v in outputs), index)


def _fields(value: dict[str, Any], depth: int, slots: list[tuple[int, int, int]]) -> str:
    if not value:
        return "{}"
    pad = "\n" + " " * (depth + 1)
    inner = ("," + pad).join(f'"{k}": {_text(v, depth + 1, slots)}' for k, v in value.items())
    return f"{{{pad}{inner}\n{' ' * depth}}}"


def _elements(value: Sequence[Any], depth: int, slots: list[tuple[int, int, int]]) -> str:
    if not value:
        return "[]"
    pad = "\n" + " " * (depth + 1)
    inner = ("," + pad).join(_text(v, depth + 1, slots) for v in value)
    return f"[{pad}{inner}\n{' ' * depth}]"


def _text(item: Item, depth: int, slots: list[tuple[int, int, int]]) -> str:
    if isinstance(item, str):
        return deeper(item, depth - 4).replace("%", "%%")
    if isinstance(item, list):
        return _elements(item, depth, slots)
    if isinstance(item, dict):
        return _fields(item, depth, slots)
    if isinstance(item, Text):
        slots.append((item.reg, RAW, depth - 4))
    elif isinstance(item, Plain):
        slots.append((item.var.reg, PLAIN, depth - 4))
    else:
        slots.append((item.reg, GRAD if item.grad else PLAIN, depth - 4))
    return "%s"


def construct_text(parents: dict[str, tuple[str | None, int]], micro_steps: int | None) -> str:
    """construct.json from name -> (parent, micro step); with ``micro_steps`` its values are pairs and the count is added."""
    if not parents:
        return "{}"
    lines = []
    for name, (parent, micro_step) in parents.items():
        value = "null" if parent is None else f'"{parent}"'
        lines.append(f' "{name}": ' + (value if micro_steps is None else f"[\n  {value},\n  {micro_step}\n ]"))
    if micro_steps is not None:
        lines.append(f' "megatron_micro_step_number": {micro_steps}')
    return "{\n" + ",\n".join(lines) + "\n}"
