"""Executors give every result, let errors through, and leave no process behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from numprobe.execution.executor import choose, inline, process_pool
from numprobe.record.errors import NumprobeError

from . import tasks

EXECUTORS = [inline, process_pool(2)]
IDS = ["inline", "pool"]


@pytest.mark.parametrize("execute", EXECUTORS, ids=IDS)
def test_every_result_arrives_once(execute):
    assert sorted(execute(tasks.square, [5, 1, 4])) == [(0, 25), (1, 1), (2, 16)]
    assert list(execute(tasks.square, [])) == []


@pytest.mark.parametrize("execute", EXECUTORS, ids=IDS)
def test_errors_of_a_task_come_through_whole(execute):
    with pytest.raises(NumprobeError) as error:
        list(execute(tasks.refuse, ["rank3/dump.json"]))
    assert (error.value.code, error.value.where, error.value.do) == ("E-FMT-011", "rank3/dump.json", "look elsewhere")
    with pytest.raises(ZeroDivisionError):
        list(execute(tasks.divide, [1, 0]))


def test_closing_cancels_what_has_not_begun(tmp_path: Path):
    results = process_pool(1)(tasks.leave_mark, [tmp_path / str(i) for i in range(40)])
    next(results)
    results.close()
    begun = len(list(tmp_path.iterdir()))
    assert 1 <= begun < 10
    time.sleep(0.2)
    assert len(list(tmp_path.iterdir())) == begun
    assert not multiprocessing.active_children()


def test_inline_does_nothing_before_it_is_asked(tmp_path: Path):
    results = inline(tasks.leave_mark, [tmp_path / "a", tmp_path / "b"])
    assert list(tmp_path.iterdir()) == []
    next(results)
    results.close()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_worker_that_dies_is_reported():
    with pytest.raises(NumprobeError) as error:
        list(process_pool(2)(tasks.die, [1, 2]))
    assert error.value.what == "a worker process died, perhaps for want of memory"
    assert "--jobs" in error.value.do


def test_an_interrupt_leaves_no_worker(tmp_path: Path):
    """A process that runs a pool of two gets Ctrl-C: it ends as interrupted, and so do its workers."""
    code = "from tests_execution import tasks; tasks.main()"
    package = Path(__file__).parent
    (tmp_path / "tests_execution").symlink_to(package)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "marks")], env=environment, start_new_session=True
    )
    try:
        marks = tmp_path / "marks"
        deadline = time.monotonic() + 20
        while len(pids := [p.name for p in marks.iterdir()] if marks.exists() else []) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to all of the group
        assert child.wait(timeout=20) == 130
        time.sleep(0.3)
        assert [pid for pid in pids if running(int(pid))] == []
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("jobs", "items", "size", "pool"),
    [(1, 8, 10**9, False), (2, 8, 10**9, True), (2, 1, 10**9, False), (2, 8, 10**6, False), (None, 1, 10**9, False)],
)
def test_a_pool_only_where_it_pays(jobs: int | None, items: int, size: int, pool: bool):
    assert (choose(jobs, items, size) is not inline) == pool
