"""The recorder on a device that is neither the host nor a GPU: one in pure Python, registered as PrivateUse1.

Registering cannot be taken back: its tests (programs/fake_device_tests.py) run in a process of their own, once; this file tells
how each ended.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch.utils.backend_registration")

from .conftest import Once

TESTS = Path(__file__).parent / "programs" / "fake_device_tests.py"
NAMES = re.findall(r"^def (test_\w+)", TESTS.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def report(once: Once) -> str:
    def make(folder: Path) -> None:
        import torch.utils.backend_registration as registration

        if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
            (folder / "report").write_text("skipped: a backend in Python needs a newer torch")
            return
        command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
        done = subprocess.run(
            [*command, "--basetemp", str(folder / "tmp"), str(TESTS)],
            cwd=TESTS.parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
        (folder / "report").write_text(done.stdout + done.stderr)

    return (once("fake_device", make) / "report").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_on_a_device_of_our_own(report: str, name: str):
    if report.startswith("skipped"):
        pytest.skip(report)
    outcomes = re.findall(rf"^(PASSED|FAILED|ERROR) \S+::{name}(?:\[| |$)", report, re.MULTILINE)
    assert outcomes, report[-5000:]
    assert set(outcomes) == {"PASSED"}, report[-20_000:]
