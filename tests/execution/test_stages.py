"""Stages say where a job stands, in one protocol."""

from __future__ import annotations

import msgspec
import pytest

from numprobe.execution.progress import Progress
from numprobe.execution.stages import Stages


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("numprobe.execution.stages.time.monotonic", lambda: now[0])
    return now


def test_the_events_of_two_stages(clock: list[float]):
    events: list[Progress] = []
    stages = Stages(("discover", "scan"), events.append)
    stages.begin("discover")
    clock[0] += 0.5
    stages.end("512", done=512, total=512)
    stages.begin("scan", total=8)
    clock[0] += 3.0
    stages.update(2, 8, "1 GB")
    stages.stop("interrupted", done=2, total=8)
    assert events == [
        Progress(1, 2, "discover"),
        Progress(1, 2, "discover", 512, 512, None, "512", "done", 0.5),
        Progress(2, 2, "scan", 0, 8),
        Progress(2, 2, "scan", 2, 8, 9.0, "1 GB", "running", 3.0),
        Progress(2, 2, "scan", 2, 8, None, "", "interrupted", 3.0),
    ]
    assert stages.timings == {"discover": 0.5}


def test_no_estimate_before_it_means_something(clock: list[float]):
    events: list[Progress] = []
    stages = Stages(("scan",), events.append)
    stages.begin("scan", 8)
    clock[0] += 0.9
    stages.update(1, 8)
    clock[0] += 9.0
    stages.update(0, 8)
    stages.update(3, 0)
    assert [e.eta_s for e in events] == [None] * 4


def test_an_event_as_json():
    event = Progress(2, 5, "nan.stage.scan", 3, 8, 1.5, "12 MB")
    assert msgspec.json.decode(msgspec.json.encode(event)) == {
        "kind": "progress",
        "stage": 2,
        "of": 5,
        "name": "nan.stage.scan",
        "done": 3,
        "total": 8,
        "eta_s": 1.5,
        "note": "12 MB",
        "state": "running",
        "elapsed_s": 0.0,
    }


def test_an_unknown_stage_is_a_mistake_in_the_program():
    with pytest.raises(ValueError, match="not in tuple"):
        Stages(("scan",)).begin("join")
