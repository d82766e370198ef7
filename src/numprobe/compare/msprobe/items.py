"""The items of one record: one row a leaf, in msProbe's order and spelling."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from numprobe.align.items import item_name, place
from numprobe.metrics.reference import NAN, NOT_APPLICABLE
from numprobe.record.names import DEBUG, PARAMETERS_GRAD, OpName
from numprobe.record.nonfinite import Number
from numprobe.record.trace import Record, Value

Cell: TypeAlias = "str | int | float | bool"
FourFigures: TypeAlias = "tuple[Cell, Cell, Cell, Cell]"  # max, min, mean, norm

NO_FILE = "-1"
NONE = "None"

ORDER = ("input_args", "input_kwargs", "input", "parameters", "output", PARAMETERS_GRAD, DEBUG)
P2P = "torch.distributed.P2POp"
PROCESS_GROUP = "torch.ProcessGroup"
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
    found: dict[str, list[Item]] = {section: [] for section in ORDER}
    op = record.name
    if listed(op):
        around: tuple[str, Mapping[str, object]] = ("", {})
        for value in record.values:
            if value.value_type == P2P:
                around = (value.path, value.attributes)
                continue
            if not value.value_type and not value.is_tensor:
                continue  # an empty object
            path = value.path
            p2p: Mapping[str, object] = {}
            if around[0] and path == f"{around[0]}.tensor":
                path, p2p = around
            section, state, key = place(op, path)
            if state:
                found[section].append(_item(op, value, state, key, p2p))
    return [item for section in ORDER for item in found[section]]


def listed(op: OpName) -> bool:
    """Whether msProbe compares such a record at all."""
    return op.kind != "other"


def _item(op: OpName, value: Value, state: str, key: str, p2p: Mapping[str, object]) -> Item:
    recorded, file = value.attributes.get("md5"), value.attributes.get("data_name")
    digest = recorded if isinstance(recorded, str) else None
    if value.dtype:
        dtype = value.dtype
        shape = NOT_APPLICABLE if value.shape is None else str(list(value.shape))
        grad = NOT_APPLICABLE if value.requires_grad is None else str(value.requires_grad)
        figures = (figure(value.max), figure(value.min), figure(value.mean), figure(value.norm))
        md5 = digest if digest is not None else checksum("")
    else:
        groups = value.attributes.get("group_ranks")
        dtype, shape, grad, figures, md5 = shown_scalar(
            value.value_type,
            groups if value.value_type == PROCESS_GROUP else value.scalar,
            digest,
            key.rpartition(".")[2],
            has_figures=value.is_tensor,
        )
    return Item(
        key,
        item_name(op, key, file),
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


def shown_scalar(
    kind: str, content: object, digest: str | None, last: str, *, has_figures: bool
) -> tuple[str, str, str, FourFigures, str]:
    """dtype, shape, requires_grad, the four statistics and md5 of a leaf without dtype.

    Args:
        kind: its ``type``; ``null`` for null.
        content: its ``value``, of a process group its ranks.
        digest: the recorded checksum.
        last: the last part of the item's name.
        has_figures: it has Max or Min all the same.
    """
    none = NOT_APPLICABLE
    if kind == "null":
        return none, none, none, _four(NONE), none
    if kind in ("torch.Size", "slice"):
        length = len(content) if isinstance(content, list) else 0
        shape = str(content) if kind == "torch.Size" else f"({length},)"
        return kind, shape, none, _four(NONE), digest or checksum(content)
    if last in _PEERS or kind == PROCESS_GROUP:
        text = NONE if last in _PEERS and kind == PROCESS_GROUP else str(content)
        return kind, "[]", none, _four(text), text
    if kind == "torch.memory_format" or has_figures:  # only the key ``value`` is looked at
        return str(type(None)), "[]", none, _four(NONE), digest or checksum("")
    return str(type(content)), "[]", none, _four(_cell(content)), digest or checksum(content)


def _four(cell: Cell) -> FourFigures:
    return cell, cell, cell, cell


def figure(value: Number) -> Cell:
    """The cell of a statistic."""
    return str(value) if isinstance(value, bool) else _cell(value)


def _cell(value: object) -> Cell:
    if isinstance(value, float):
        return NAN if value != value else value
    return value if isinstance(value, (int, str)) else str(value)


def checksum(content: object) -> str:
    """What msProbe shows where none is recorded: the CRC-32 of the value's text."""
    return f"{zlib.crc32(str(content).encode('utf-8', 'replace')):08x}"
