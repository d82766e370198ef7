"""Where a comparison of many ranks first goes wrong, in the files of msProbe's ``compare -da``.

``compare_result_<rank>_<time>.json`` has every operator of a rank with its items, ``diff_analyze_<ns>.json`` the operators that
come first. Which they are is not decided here: the order in time over ranks is the caller's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from numprobe.align.items import INPUT, OUTPUT
from numprobe.compare.msprobe.columns import BASIC, CHECKSUMS, DIFFERENCES, STATISTICS, Mode, header
from numprobe.compare.msprobe.files import new_text
from numprobe.compare.msprobe.items import NONE
from numprobe.compare.msprobe.rows import Row, cells
from numprobe.metrics.reference import NOT_APPLICABLE

THRESHOLD = 0.5  # of a relative difference of an output
_RELATIVE = slice(DIFFERENCES.index("MaxRelativeErr"), None)
_NO_PARTNER = "No bench data matched."
_GRAD_DIFFERS = "Requires_grad inconsistent. "
_LEAST_PARTS = 4  # of an operator's name


def write_states(folder: Path, name: str, rows: Iterable[Row], mode: Mode, *, stack: bool) -> Path:
    """Write ``<name>.json``: every operator of one rank, and whether it is the same on both sides.

    Args:
        rows: those of :func:`~numprobe.compare.msprobe.rows.rows` in statistics or md5 mode.
        stack: the rows have stacks.

    Raises:
        NumprobeError: E-CMP-030 the file exists, E-OUT-002 it cannot be written.
    """
    path = folder / f"{name}.json"
    with new_text(path) as file:
        _write_object(file, _states(rows, mode, stack))
    return path


def _states(rows: Iterable[Row], mode: Mode, stack: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    for op, group in groupby(rows, key=lambda row: row.op):
        if op.count(".") + 1 >= _LEAST_PARTS:
            of_op = list(group)
            same = not any(differs(row, mode) for row in of_op)
            yield op, {"is_same": same, "op_items": [item_entry(row, mode, stack=stack) for row in of_op]}


def write_first(folder: Path, first: Mapping[str, Mapping[str, Sequence[Row]]], mode: Mode) -> Path:
    """Write ``diff_analyze_<ns>.json``.

    Args:
        first: rank key (``rank3``) -> the operators that come first there, each by name with its rows: none, where the target's
            record has no values.

    Raises:
        NumprobeError: E-OUT-002 it cannot be written.
    """
    path = folder / f"diff_analyze_{time.time_ns()}.json"
    report = {
        _report_key(key): [_reported(op, rows, mode) for op, rows in operators.items()]
        for key, operators in first.items()
    }
    with new_text(path) as file:
        json.dump(report, file, indent=2)
    return path


def differs(row: Row, mode: Mode) -> bool:
    """Whether this is an output that msProbe calls different: a statistic more than 50 % off, or another checksum.

    A percentage only: NaN, infinite and missing differences never count.
    """
    if row.target.state != OUTPUT or row.golden is None or _is_auxiliary(row.target.name):
        return False
    if mode is Mode.MD5:
        return row.target.md5 != row.golden.md5
    percents = [cell for cell in row.figures[_RELATIVE] if isinstance(cell, str) and cell.endswith("%")]
    return any(float(cell[:-1]) / 100 > THRESHOLD for cell in percents)


def _is_auxiliary(name: str) -> bool:
    """Outputs of fused attention whose contents are not defined."""
    return "npu_fusion_attention" in name and name.endswith((".output.4", ".output.5"))


def item_entry(row: Row, mode: Mode, *, stack: bool) -> dict[str, Any]:
    """One element of ``op_items``: the columns, with what -da writes for the verdict, and where the tensor was sent."""
    entry: dict[str, Any] = dict(zip(header(mode, stack=stack), cells(row, mode, stack=stack), strict=True))
    entry["Result"], entry["Err_message"] = _verdict(row, mode)
    golden = row.golden
    entry |= {
        "state": row.target.state,
        "api_origin_name": row.op,
        "NPU P2POp op": row.target.p2p_op,
        "Bench P2POp op": golden.p2p_op if golden else NONE,
        "NPU P2POp peer": row.target.p2p_peer,
        "Bench P2POp peer": golden.p2p_peer if golden else NONE,
    }
    return entry


def _verdict(row: Row, mode: Mode) -> tuple[str, str]:
    if mode is Mode.MD5:
        if row.golden is None:
            return NOT_APPLICABLE, _NO_PARTNER
        return ("pass" if row.target.md5 == row.golden.md5 else "Different"), ""
    grad = "" if row.consistent else _GRAD_DIFFERS
    return (NOT_APPLICABLE, _NO_PARTNER + grad) if row.golden is None else ("", grad)


def _reported(op: str, rows: Sequence[Row], mode: Mode) -> dict[str, Any]:
    """What is said of one operator."""
    shown = CHECKSUMS[:1] if mode is Mode.MD5 else STATISTICS[:4]
    info: dict[str, dict[str, Any]] = {INPUT: {}, OUTPUT: {}}
    for row in rows:
        if row.target.state in info:
            entry = item_entry(row, mode, stack=True)
            figures = {column: entry[column] for column in (*shown, "NPU P2POp peer")}
            info[row.target.state][entry[BASIC[0]]] = figures
    stack = rows[0].stack if rows else None
    return {"op_name": op, "data_info": info, "stack_info": list(stack) if stack else None}


def _report_key(key: str) -> str:
    return key.replace("rank", "rank_", 1)


def _write_object(file: TextIO, members: Iterable[tuple[str, Any]]) -> None:
    """A JSON object member by member, as ``json.dump(..., indent=4)`` lays it out."""
    before = "{"
    for key, value in members:
        text = json.dumps({key: value}, indent=4)
        file.write(before + text[1:-2])
        before = ","
    file.write("{}" if before == "{" else "\n}")
