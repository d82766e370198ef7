"""Entry point of the ``numprobe`` command. Loads nothing before it can be interrupted without a traceback."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line; the exit code is that of the command (0, 1, 2, 3, 4, or 128 + the signal that ended it)."""
    try:
        from numprobe.cli import common
        from numprobe.cli.app import app

        common.end_on_signals()
        code = common.guarded(app)
    except KeyboardInterrupt:  # while modules are loaded, or once more while a run ends
        code = 130
    sys.exit(code)
