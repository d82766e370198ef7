"""Work in a copy of this process: its answer, and what happens where there is none. Each in a process without other threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = "import os, signal\nfrom numprobe.execution.beside import beside, can_fork\nhere = os.getpid()\n"


def said(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout


def test_the_answer_comes_from_another_process() -> None:
    code = "with beside(lambda: (os.getpid(), 'x' * 10**7)) as other:\n    pid, text = other()\nprint(pid != here, len(text))"
    assert said(code) == "True 10000000\n"


@pytest.mark.parametrize(
    "work",
    [
        "1 / 0 if os.getpid() != here else 'here'",
        "os.kill(os.getpid(), signal.SIGKILL) if os.getpid() != here else 'here'",
        "(lambda: 0) if os.getpid() != here else 'here'",  # what cannot be sent
    ],
)
def test_without_an_answer_the_work_is_done_here(work: str) -> None:
    assert said(f"with beside(lambda: {work}) as other:\n    print(other())") == "here\n"


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    code = "try:\n    with beside(lambda: 1 / 0) as other:\n        other()\nexcept ZeroDivisionError:\n    print('caught')"
    assert said(code) == "caught\n"


def test_nobody_is_left_when_nobody_waits() -> None:
    code = (
        "import time\n"
        "try:\n    with beside(lambda: time.sleep(600)) as other:\n        raise KeyboardInterrupt\n"
        "except KeyboardInterrupt:\n"
        "    try:\n        os.waitpid(-1, os.WNOHANG)\n    except ChildProcessError:\n        print('none')"
    )
    assert said(code) == "none\n"


def test_no_copy_of_a_process_with_threads_of_polars() -> None:
    assert said("import polars\nprint(can_fork())") == "False\n"


def test_both_sides_read_at_once_give_what_they_give_one_by_one() -> None:
    dumps = sorted(Path(__file__).parents[1].joinpath("data").rglob("dump.json"))[:40]
    assert dumps
    code = (
        "from numprobe.align import calls\nfrom numprobe.formats.dump import RankDump, open_dump\nimport numpy as np\n"
        "calls.AT_ONCE, calls.can_fork, calls.processors = 0, lambda: True, lambda: 2\n"
        f"for path in {[str(d) for d in dumps]!r}:\n"
        "    folder = open_dump(path, use_cache=False).steps[0].ranks[0]\n"
        "    both = (calls.read_both(RankDump(folder), RankDump(folder), at_once=how) for how in (True, False))\n"
        "    for one, other in zip(*both, strict=True):\n"
        "        for name in ('names', 'ops', 'slots', 'kinds', 'shapes', 'scalars', 'digests', 'files', 'grad'):\n"
        "            assert repr(getattr(one.values, name)) == repr(getattr(other.values, name)), (path, name)\n"
        "        for name in ('first', 'slot', 'kind', 'shape', 'numel', 'figures', 'status'):\n"
        "            assert np.array_equal(getattr(one.values, name), getattr(other.values, name), equal_nan=name == 'figures')\n"
        "        assert one.values.fine == other.values.fine\n"
        "        assert (one.parent, one.around, one.phase) == (other.parent, other.around, other.phase)\n"
        "        assert one.dump.index.damage == other.dump.index.damage\n"
        "print('same')"
    )
    assert said(code) == "same\n"
