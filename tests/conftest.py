"""No test sees the settings of whoever runs it; what a compiled kernel does is tested without it too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from numprobe.native import kernels

os.environ["XDG_CONFIG_HOME"] = str(Path(tempfile.gettempdir(), "numprobe-tests-without-settings"))
for name in [
    name for name in os.environ if name == "NUMPROBE_CONFIG" or name.startswith(("NUMPROBE_LANG", "NUMPROBE_LLM"))
]:
    del os.environ[name]


@pytest.fixture(scope="module", params=["compiled", "python"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """What holds with a compiled kernel holds without; ``WITHOUT_KERNEL`` of the test module: owner, attribute, value."""
    if request.param == "compiled" and kernels is None:
        pytest.skip("the kernels are not compiled here")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(*request.module.WITHOUT_KERNEL)
        yield
