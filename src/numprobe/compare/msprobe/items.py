"""The items of one record: one row a leaf, in msProbe's order and spelling."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from numprobe.metrics.reference import NAN, NOT_APPLICABLE
from numprobe.record.names import DEBUG, PARAMETERS_GRAD, OpName
from numprobe.record.nonfinite import Number
from numprobe.record.trace import Record, Value

Cell: TypeAlias = "str | int | float | bool"

NO_FILE = "-1"
NONE = "None"

INPUT, PARAMETERS, OUTPUT = "input", "parameters", "output"
_STATES = {"input_args": INPUT, "input_kwargs": INPUT, "input": INPUT, "parameters": PARAMETERS, "output": OUTPUT}
_ORDER = ("input_args", "input_kwargs", "input", "parameters", "output", PARAMETERS_GRAD, DEBUG)
_P2P = "torch.distributed.P2POp"
_PEERS = frozenset(("src", "dst", "group_src", "group_dst"))


class Item(NamedTuple):
    """A leaf as msProbe shows it.

    ``key`` is its place in the record (``.input.0``), which is what two records' items are matched by; ``path`` is
    :attr:`Value.path`. ``state`` is input, parameters, output, parameters_grad or debug. Texts and figures are the cells of a
    result; an infinite figure is a float, NaN the text ``Nan``, null ``None``. ``p2p_op`` and ``p2p_peer`` are those of the
    ``P2POp`` that holds the tensor.
    """

    key: str
    name: str
    path: str
    state: str
    dtype: str
    shape: str
    requires_grad: str
    max: Cell
    min: Cell
    mean: Cell
    norm: Cell
    md5: str
    data_name: str
    p2p_op: Cell = NONE
    p2p_peer: Cell = NONE

    @property
    def is_output(self) -> bool:
        """As the verdict rules see it: by the name, so that an output that is no list is none."""
        return ".output." in self.name

    @property
    def is_scalar(self) -> bool:
        return "class" in self.dtype and self.shape == "[]"


def items_of(record: Record) -> list[Item]:
    """The items of a record: inputs, parameters, outputs, parameter gradients, whatever their order in the file.

    What msProbe does not list has no item: records of no known kind (as :func:`listed`), empty objects, other keys.
    """
    found: dict[str, list[Item]] = {section: [] for section in _ORDER}
    op = record.name
    if listed(op):
        around: tuple[str, Mapping[str, object]] = ("", {})
        for value in record.values:
            if value.value_type == _P2P:
                around = (value.path, value.attributes)
                continue
            if not value.value_type and not value.is_tensor:
                continue  # an empty object
            path = value.path
            p2p: Mapping[str, object] = {}
            if around[0] and path == f"{around[0]}.tensor":
                path, p2p = around
            section, state, key = _place(op, path)
            if state:
                found[section].append(_item(op, value, state, key, p2p))
    return [item for section in _ORDER for item in found[section]]


def listed(op: OpName) -> bool:
    """Whether msProbe compares such a record at all."""
    return op.kind != "other"


def _place(op: OpName, path: str) -> tuple[str, str, str]:
    """Section, state and key; no state for a leaf that is not listed."""
    if op.kind == DEBUG:
        return DEBUG, DEBUG, f".{path}" if path else ""
    if op.kind == PARAMETERS_GRAD:
        name, _, index = path.rpartition(".")
        return PARAMETERS_GRAD, PARAMETERS_GRAD, f".{name}" if name and index.isdecimal() else f".{path}"
    section, dot, rest = path.partition(".")
    state = _STATES.get(section, "")
    return section, state, f".{state}{dot}{rest}"


def _item(op: OpName, value: Value, state: str, key: str, p2p: Mapping[str, object]) -> Item:
    file = value.attributes.get("data_name")
    name = file.rpartition(".")[0] if isinstance(file, str) and "." in file else f"{op.name}{key}"
    dtype, shape, grad, figures, md5 = _shown(value, key.rpartition(".")[2])
    return Item(
        key,
        name,
        value.path,
        state,
        dtype,
        shape,
        grad,
        *figures,
        md5,
        file if isinstance(file, str) and file else NO_FILE,
        _cell(p2p.get("op")),
        _cell(p2p.get("peer")),
    )


_Figures: TypeAlias = "tuple[Cell, Cell, Cell, Cell]"


def _shown(value: Value, last: str) -> tuple[str, str, str, _Figures, str]:
    """dtype, shape, requires_grad, the four statistics, md5. ``last`` is the last part of the item's name."""
    if value.dtype:
        return (
            value.dtype,
            NOT_APPLICABLE if value.shape is None else str(list(value.shape)),
            NOT_APPLICABLE if value.requires_grad is None else str(value.requires_grad),
            (_figure(value.max), _figure(value.min), _figure(value.mean), _figure(value.norm)),
            _md5(value, ""),
        )
    kind, scalar = value.value_type, value.scalar
    if kind == "null":
        return NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE, _four(NONE), NOT_APPLICABLE
    if kind == "torch.Size":
        return kind, str(scalar), NOT_APPLICABLE, _four(NONE), _md5(value, scalar)
    if kind == "slice":
        length = len(scalar) if isinstance(scalar, list) else 0
        return kind, f"({length},)", NOT_APPLICABLE, _four(NONE), _md5(value, scalar)
    if last in _PEERS:
        return kind, "[]", NOT_APPLICABLE, _four(str(scalar)), str(scalar)
    if kind == "torch.ProcessGroup":
        text = str(value.attributes.get("group_ranks"))
        return kind, "[]", NOT_APPLICABLE, _four(text), text
    if kind == "torch.memory_format" or value.is_tensor:  # only the key ``value`` is looked at
        return str(type(None)), "[]", NOT_APPLICABLE, _four(NONE), _md5(value, "")
    return str(type(scalar)), "[]", NOT_APPLICABLE, _four(_cell(scalar)), _md5(value, scalar)


def _four(cell: Cell) -> _Figures:
    return cell, cell, cell, cell


def _figure(value: Number) -> Cell:
    return str(value) if isinstance(value, bool) else _cell(value)


def _cell(value: object) -> Cell:
    if isinstance(value, float):
        return NAN if value != value else value
    return value if isinstance(value, (int, str)) else str(value)


def _md5(value: Value, scalar: object) -> str:
    """The recorded checksum; where there is none, the CRC-32 of the value's text."""
    recorded = value.attributes.get("md5")
    return recorded if isinstance(recorded, str) else f"{zlib.crc32(str(scalar).encode('utf-8', 'replace')):08x}"
