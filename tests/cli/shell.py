"""The command line as a user meets it: a process of its own, its two streams and its exit code."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTEROP = Path(__file__).parent.parent / "data" / "interop"
H = INTEROP / "pytorch" / "h_distributed_4rank_nan" / "dump"
CLEAN = INTEROP / "pytorch" / "a_statistics_mix_2steps"
NO_FIGURES = INTEROP / "pytorch" / "g_structure_mix"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """stdout as the one JSON object that it must be."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def environment(cwd: Path, **more: str) -> dict[str, str]:
    """No colours, an English locale, a cache of its own."""
    kept = {
        k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "COLUMNS")
    }
    return {**kept, "LANG": "en_US.UTF-8", "PYTHONUTF8": "1", "XDG_CACHE_HOME": str(cwd / ".cache"), **more}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from numprobe.cli.main import run; run()", *map(str, arguments)]


def numprobe(cwd: Path, *arguments: object, **environ: str) -> Ran:
    ran = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(cwd, **environ),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert "Traceback" not in ran.stderr
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def copy_of_h(folder: Path) -> Path:
    """Four ranks; rank 2 is at fault."""
    shutil.copytree(H, folder)
    return folder


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Digest and time of change of every file, and the times of the folders."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (digest, path.stat().st_mtime_ns)
    return found
