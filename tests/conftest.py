"""No test sees the settings of whoever runs it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["XDG_CONFIG_HOME"] = str(Path(tempfile.gettempdir(), "numprobe-tests-without-settings"))
for name in [
    name for name in os.environ if name == "NUMPROBE_CONFIG" or name.startswith(("NUMPROBE_LANG", "NUMPROBE_LLM"))
]:
    del os.environ[name]
