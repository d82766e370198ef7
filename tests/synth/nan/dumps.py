"""Reading simulated dumps the plain way, for checks that owe nothing to the simulator or to numprobe's readers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def ranks(step: Path) -> dict[int, dict[str, Record]]:
    """rank -> {record name: record}, of the rank folders whose dump.json is complete."""
    found = {}
    for folder in sorted(step.glob("rank*"), key=lambda p: int(p.name[4:])):
        try:
            found[int(folder.name[4:])] = json.loads((folder / "dump.json").read_text())["data"]
        except json.JSONDecodeError:
            continue
    return found


def ranks_of(step: Path, rank: int) -> dict[str, Record]:
    """The records of one rank."""
    data: dict[str, Record] = json.loads((step / f"rank{rank}" / "dump.json").read_text())["data"]
    return data


def tensors(value: Any) -> Iterator[Record]:
    """All tensor records inside a value, in order."""
    if isinstance(value, list):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        if value.get("type") == "torch.Tensor":
            yield value
        else:
            for part in value.values():
                yield from tensors(part)


def number(value: Any) -> float | None:
    return None if value is None else float(value)


def statistics(tensor: Record) -> tuple[Any, ...]:
    """Shape and the four statistics, comparable also where they are NaN."""
    return (tuple(tensor["shape"]), *(str(number(tensor[k])) for k in ("Max", "Min", "Mean", "Norm")))


def holds_nan(value: Any) -> bool:
    return any(math.isnan(x) for t in tensors(value) for k in ("Max", "Min") if (x := number(t[k])) is not None)


def holds_nonfinite(value: Any) -> bool:
    return any(not math.isfinite(x) for t in tensors(value) for k in ("Max", "Min") if (x := number(t[k])) is not None)


def group(record: Record) -> tuple[int, ...] | None:
    """The ranks of the process group that a communication names; None: the world."""
    named = record["input_kwargs"].get("group")
    return tuple(named["group_ranks"]) if named else None


def collectives(data: dict[str, Record], api: str) -> dict[tuple[tuple[int, ...] | None, int], Record]:
    """(group, ordinal in that group) -> record, for one API."""
    counts: dict[tuple[int, ...] | None, int] = {}
    found = {}
    for name, record in data.items():
        if name.startswith(f"Distributed.{api}."):
            key = group(record)
            found[key, counts.get(key, 0)] = record
            counts[key] = counts.get(key, 0) + 1
    return found
