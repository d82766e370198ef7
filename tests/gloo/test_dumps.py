"""The committed dumps show what their expected.json says, judged without numprobe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from show import dirty_slots, read

DATA = Path(__file__).parent.parent / "data" / "gloo"
CASES = sorted(path.parent.name for path in DATA.glob("*/expected.json"))


def expected(case: str) -> dict[str, Any]:
    return json.loads((DATA / case / "expected.json").read_text())


def outputs_dirty(record: dict[str, Any]) -> bool:
    return any(slot.startswith("output") for slot in dirty_slots(record))


FAULTY = [case for case in CASES if expected(case)["verdict"] == "overflow_found"]
CLEAN = [case for case in CASES if expected(case)["verdict"] == "no_overflow"]


def test_every_case_is_complete():
    assert len(FAULTY) >= 15
    assert len(CLEAN) >= 4
    for case in CASES:
        ranks = list((DATA / case).glob("step*/*/"))
        assert ranks
        for rank in ranks:
            assert {path.name for path in rank.iterdir()} == {"dump.json", "stack.json", "construct.json"}


@pytest.mark.parametrize("case", FAULTY)
def test_the_named_record_is_where_dirt_begins(case: str):
    want = expected(case)
    step = DATA / case / f"step{want['step']}"
    for rank in want["source_ranks"]:
        data = read(step / (f"rank{rank}" if isinstance(rank, int) else rank))
        names = list(data)
        for op in want["first_ops"]:
            record = data[op]
            assert outputs_dirty(record), f"{op} is not dirty"
            dirty_inputs = [slot for slot in dirty_slots(record) if not slot.startswith("output")]
            if not {"bad_parameter", "bad_input_data"} & set(want["classes"]):
                assert dirty_inputs == []
            else:
                assert dirty_inputs  # the fault came in with a parameter, a buffer or data
            gaps = want["gap_after"] if isinstance(want["gap_after"], list) else [want["gap_after"]]
            for gap in filter(None, gaps):
                assert names.index(gap) < names.index(op)
                assert dirty_slots(data[gap]) == []


@pytest.mark.parametrize("case", FAULTY)
def test_earlier_steps_are_clean(case: str):
    for step in range(expected(case)["step"]):
        for rank in (DATA / case / f"step{step}").iterdir():
            assert [name for name, record in read(rank).items() if dirty_slots(record)] == []


@pytest.mark.parametrize("case", CLEAN)
def test_clean_cases_have_look_alikes(case: str):
    """A clean case is worth something only if a naive search would stop at it."""
    ranks = list((DATA / case).glob("step*/*/"))
    assert any(dirty_slots(record) for rank in ranks for record in read(rank).values())


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_the_machine_is_in_the_files(case: str):
    for path in (DATA / case).rglob("*.json"):
        text = path.read_text()
        for line in text.splitlines():
            if "File /" in line:
                assert line.strip().strip('"').startswith("File /workspace/"), f"{path}: {line}"
