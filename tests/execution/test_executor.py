"""Executors give every result, let errors through, and leave no process behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
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


@pytest.mark.parametrize(
    ("task", "number", "how"),
    [
        (tasks.die, 9, "ended before it answered: exit code 9"),
        (tasks.die_by, signal.SIGSEGV, "ended before it answered: SIGSEGV"),
        (tasks.die_by, signal.SIGTERM, "ended before it answered: SIGTERM"),
        (tasks.die_by, signal.SIGKILL, "was killed from outside, as the system does when memory runs out"),
    ],
    ids=["exit", "SIGSEGV", "SIGTERM", "SIGKILL"],
)
def test_a_worker_that_dies_is_reported(task, number: int, how: str):
    """How it ended is said; memory is blamed only where the system may have killed it."""
    with pytest.raises(NumprobeError) as error:
        list(process_pool(2)(task, [number, number]))
    assert (error.value.code, error.value.what) == ("E-EXE-001", f"a worker process {how}")
    assert "--jobs" in error.value.do
    assert "jobs=" in error.value.do


def test_a_server_of_workers_that_ends_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("multiprocessing.context.ForkServerProcess.start", tasks.no_server)
    with pytest.raises(NumprobeError) as error:
        list(process_pool(2)(tasks.square, [1, 2]))
    assert (error.value.code, error.value.what) == (
        "E-EXE-001",
        "a worker process ended before it answered: not started",
    )


SCRIPT = """
from tests_execution import tasks
from numprobe.execution.executor import process_pool
print(sorted(process_pool(2)(tasks.square, [1, 2, 3])))
"""


@pytest.mark.parametrize("how", ["script", "stdin", "exec"])
def test_the_main_script_needs_no_guard(how: str, tmp_path: Path):
    """Workers do not run it again, whether it is a file, comes from stdin or, as in a notebook, from nowhere."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = {"script": [str(script)], "stdin": ["-"], "exec": ["-c", SCRIPT]}[how]
    ran = subprocess.run(
        [sys.executable, *arguments],
        input=SCRIPT,
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[(0, 1), (1, 4), (2, 9)]\n", "")


def test_the_main_module_is_back_at_once():
    before = sys.modules["__main__"]
    results = process_pool(1)(tasks.square, [1, 2])
    next(results)
    assert sys.modules["__main__"] is before
    results.close()


def environment(tmp_path: Path) -> dict[str, str]:
    """In which this package can be imported without pytest."""
    link = tmp_path / "tests_execution"
    if not link.exists():
        link.symlink_to(Path(__file__).parent)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("number", "group", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, -signal.SIGTERM), (signal.SIGKILL, False, -signal.SIGKILL)],
    ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_no_process_outlives_the_parent(number: int, group: bool, code: int, tmp_path: Path):
    """A process that runs a pool of two is ended: workers, their server and the tracker end, and nobody holds stderr."""
    child = subprocess.Popen(
        [sys.executable, "-c", "from tests_execution import tasks; tasks.main()", str(tmp_path / "marks")],
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        marks = tmp_path / "marks"
        deadline = time.monotonic() + 20
        while len(pids := [p.name for p in marks.iterdir()] if marks.exists() else []) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (os.killpg if group else os.kill)(child.pid, number)  # a terminal sends Ctrl-C to all of the group
        _, err = child.communicate(timeout=20)  # ends when the last process has closed stderr
        assert child.returncode == code
        assert b"Traceback" not in err  # killed, it leaves semaphores: the tracker removes them, and says so
        time.sleep(0.3)
        assert [pid for pid in pids if running(int(pid))] == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")  # one that has ended, and that init has not reaped yet, is there as Z
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("jobs", "items", "size", "pool"),
    [(1, 8, 10**9, False), (2, 8, 10**9, True), (2, 1, 10**9, False), (2, 8, 10**6, False), (None, 1, 10**9, False)],
)
def test_a_pool_only_where_it_pays(jobs: int | None, items: int, size: int, pool: bool):
    assert (choose(jobs, items, size) is not inline) == pool
