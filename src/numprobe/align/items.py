"""Leaves by the names that msProbe gives them: ``Torch.add.0.forward.input.1``, or the tensor's file without its suffix."""

from __future__ import annotations

from collections.abc import Mapping, Set

from numprobe.formats.msprobe.values import ValueTable
from numprobe.record.names import DEBUG, PARAMETERS_GRAD, OpName

INPUT, PARAMETERS, OUTPUT = "input", "parameters", "output"
_STATES = {"input_args": INPUT, "input_kwargs": INPUT, "input": INPUT, "parameters": PARAMETERS, "output": OUTPUT}


def place(op: OpName, path: str) -> tuple[str, str, str]:
    """Section, state and key (``.input.1``) of a leaf; no state for one that msProbe does not list."""
    if op.kind == DEBUG:
        return DEBUG, DEBUG, f".{path}" if path else ""
    if op.kind == PARAMETERS_GRAD:
        name, _, index = path.rpartition(".")
        return PARAMETERS_GRAD, PARAMETERS_GRAD, f".{name}" if name and index.isdecimal() else f".{path}"
    section, dot, rest = path.partition(".")
    state = _STATES.get(section, "")
    return section, state, f".{state}{dot}{rest}"


def item_name(op: OpName, key: str, file: object) -> str:
    """The name of the tensor's file without suffix; of what has none, the record's name and the place."""
    return file.rpartition(".")[0] if isinstance(file, str) and "." in file else f"{op.name}{key}"


def keys_of(values: ValueTable, op_index: int) -> dict[str, int]:
    """Rows of a record by their key."""
    op = values.ops[op_index]
    found: dict[str, int] = {}
    for row in values.rows(op_index):
        _, state, key = place(op, values.slots[values.slot[row]][1])
        if state:
            found.setdefault(key, row)
    return found


def rows_of(values: ValueTable, names: Set[str]) -> dict[str, int]:
    """Rows by item name, of those names that are there."""
    records = {values.names[i]: i for i in reversed(range(len(values.names)))}
    found: dict[str, int] = {}
    for i in {i for name in names if (i := record_of(name, records)) is not None}:
        for key, row in keys_of(values, i).items():
            found.setdefault(item_name(values.ops[i], key, values.files.get(row)), row)
    if not names <= found.keys():  # files may be called otherwise than their records
        for row, file in values.files.items():
            found.setdefault(file.rpartition(".")[0], row)
    return {name: found[name] for name in names if name in found}


def record_of(item: str, records: Mapping[str, int]) -> int | None:
    """The record whose name an item's name begins with; None where there is none."""
    end = len(item)
    while (end := item.rfind(".", 0, end)) > 0:
        if item[:end] in records:
            return records[item[:end]]
    return None
