"""``compare -da``: every operator of every rank, and the ones that were chosen as first."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from numprobe.compare.msprobe.columns import Mode
from numprobe.compare.msprobe.diff_analyze import differs, write_first, write_states
from numprobe.compare.msprobe.files import result_name
from numprobe.compare.msprobe.rows import Row
from numprobe.record.errors import NumprobeError

from .msprobe_tables import our_rows, same
from .test_msprobe_rows import INTEROP, STORE

STAMP = "20260101000000"
IGNORED = ("Torch.empty", "Torch.fill", "Tensor.__setitem__")


def first_of_every_rank(ranks: Mapping[str, Sequence[Row]], mode: Mode) -> dict[str, dict[str, list[Row]]]:
    """msProbe's first stage: of what comes before communication, the first operator that differs."""
    chosen: dict[str, dict[str, list[Row]]] = {}
    for key, rows in ranks.items():
        for op, group in groupby(rows, key=lambda row: row.op):
            of_op = list(group)
            if op.startswith("Distributed."):
                break
            if any(differs(row, mode) for row in of_op) and not op.startswith(IGNORED):
                chosen[key] = {op: of_op}
                break
    return chosen


def write(folder: Path, out: Path, mode: Mode, *, stack: bool) -> list[Path]:
    ranks = {
        f"rank{rank}": list(our_rows(*(folder / side / "step0" / f"rank{rank}" for side in ("target", "golden")), mode))
        for rank in (0, 1)
    }
    paths = [write_states(out, result_name(STAMP, rank=key), rows, mode, stack=stack) for key, rows in ranks.items()]
    return [*paths, write_first(out, first_of_every_rank(ranks, mode), mode)]


CASES = [
    (INTEROP / "ranks", "diff_analyze", Mode.STATISTICS, False),
    (STORE / "diff", "result", Mode.STATISTICS, True),
    (STORE / "diff_md5", "result", Mode.MD5, True),
]


def equal(ours: Any, theirs: Any) -> bool:
    """JSON values, numbers to 1e-9. msProbe makes floats of integers where a whole column is numbers."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(equal(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    return same(str(ours), str(theirs))


# Of an operator without partner, msProbe writes the P2POp of the golden side's next row, of the last ones NaN (which is no JSON):
# rows behind Functional.unmatched.0.forward have that of one or two rows later.
GOLDEN_P2P = ("Bench P2POp op", "Bench P2POp peer")


def corrected(entry: dict[str, Any]) -> dict[str, Any]:
    """msProbe's entry without these, and without the NaN that it writes for no message in md5 mode."""
    for item in entry["op_items"]:
        for key in GOLDEN_P2P:
            del item[key]
        if item["Err_message"] != item["Err_message"]:
            item["Err_message"] = ""
    return entry


def without_golden_p2p(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "op_items": [{k: v for k, v in item.items() if k not in GOLDEN_P2P} for item in entry["op_items"]]}


@pytest.mark.parametrize(("folder", "result", "mode", "stack"), CASES, ids=[case[0].name for case in CASES])
def test_every_value_is_the_stored_one(folder: Path, result: str, mode: Mode, stack: bool, tmp_path: Path) -> None:
    *ours, chosen = write(folder, tmp_path, mode, stack=stack)
    *theirs, their_choice = sorted((folder / result).glob("*.json"))
    assert [path.name for path in ours] == [f"compare_result_rank{rank}_{STAMP}.json" for rank in (0, 1)]
    for one, other in zip(ours, theirs, strict=True):
        a, b = (json.loads(path.read_text(encoding="utf-8")) for path in (one, other))
        assert list(a) == list(b)
        for op in a:
            assert equal(without_golden_p2p(a[op]), corrected(b[op])), op
    assert re.fullmatch(r"diff_analyze_[0-9]{18,}\.json", chosen.name)
    a, b = (json.loads(path.read_text(encoding="utf-8")) for path in (chosen, their_choice))
    assert equal(a, b)


def test_the_layout_is_that_of_msprobe(tmp_path: Path) -> None:
    """Byte for byte, also where the objects are written one by one; NaN of the last row apart."""
    ours = write(INTEROP / "ranks", tmp_path, Mode.STATISTICS, stack=False)
    theirs = sorted((INTEROP / "ranks" / "diff_analyze").glob("*.json"))
    for one, other in zip(ours, theirs, strict=True):
        assert one.read_bytes() == other.read_bytes().replace(b'": NaN', b'": "None"')


def test_p2p_of_both_sides_stands_in_one_item(tmp_path: Path) -> None:
    first, *_ = write(STORE / "diff", tmp_path, Mode.STATISTICS, stack=True)
    entries = json.loads(first.read_text(encoding="utf-8"))
    found = {
        item["NPU Name"]: (item["NPU P2POp op"], *(item[key] for key in GOLDEN_P2P))
        for entry in entries.values()
        for item in entry["op_items"]
    }
    assert {name: ops for name, ops in found.items() if ops != ("None", "None", "None")} == {
        "Distributed.batch_isend_irecv.0.forward.input.0.0": ("isend", "isend", 1),
        "Distributed.batch_isend_irecv.0.forward.input.0.1": ("irecv", "irecv", 3),
    }


def test_the_same_on_both_sides(tmp_path: Path) -> None:
    same_sides = INTEROP / "ranks" / "golden" / "step0" / "rank0"
    rows = our_rows(same_sides, same_sides, Mode.STATISTICS)
    path = write_states(tmp_path, "one", rows, Mode.STATISTICS, stack=False)
    assert all(entry["is_same"] for entry in json.loads(path.read_text(encoding="utf-8")).values())
    empty = write_states(tmp_path, "none", [], Mode.STATISTICS, stack=False)
    assert json.loads(empty.read_text(encoding="utf-8")) == {}


def test_the_choice_is_the_callers(tmp_path: Path) -> None:
    """Also a later operator, of one rank only."""
    rows = our_rows(*(INTEROP / "ranks" / side / "step0" / "rank1" for side in ("target", "golden")), Mode.STATISTICS)
    zero = [row for row in rows if row.op == "Functional.zero.0.forward"]
    report = write_first(tmp_path, {"rank1": {zero[0].op: zero}}, Mode.STATISTICS)
    found = json.loads(report.read_text(encoding="utf-8"))
    assert [entry["op_name"] for entry in found["rank_1"]] == ["Functional.zero.0.forward"]
    assert list(found["rank_1"][0]["data_info"]["output"]) == ["Functional.zero.0.forward.output.0"]


def test_a_result_that_is_there_is_kept(tmp_path: Path) -> None:
    write(INTEROP / "ranks", tmp_path, Mode.STATISTICS, stack=False)
    with pytest.raises(NumprobeError) as error:
        write(INTEROP / "ranks", tmp_path, Mode.STATISTICS, stack=False)
    assert error.value.code == "E-CMP-030"


def test_what_counts_as_a_difference() -> None:
    sides = (STORE / "diff" / side / "step0" / "rank0" for side in ("target", "golden"))
    differing = [row.target.name for row in our_rows(*sides, Mode.STATISTICS) if differs(row, Mode.STATISTICS)]
    assert "Functional.half.0.forward.output.0" not in differing  # exactly 50 %
    assert "Functional.inf.0.forward.output.0" not in differing  # no percentage
    assert not any("fusion_attention" in name for name in differing)
    assert "Module.m.Layer.forward.0.output.0" in differing
