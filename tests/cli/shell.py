"""The command line as a user meets it: two streams and an exit code."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

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
    """No colours, an English locale, a cache and settings of its own."""
    left_out = ("FORCE_COLOR", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "COLUMNS")
    kept = {k: v for k, v in os.environ.items() if k not in left_out and not k.startswith("NUMPROBE_")}
    own = {"XDG_CACHE_HOME": str(cwd / ".cache"), "XDG_CONFIG_HOME": str(cwd / ".config")}
    return {**kept, "LANG": "en_US.UTF-8", "PYTHONUTF8": "1", **own, **more}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from numprobe.cli.main import run; run()", *map(str, arguments)]


def process(cwd: Path, *arguments: object, **environ: str) -> Ran:
    """A process of its own: about a second."""
    ran = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(cwd, **environ),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def numprobe(cwd: Path, *arguments: object, **environ: str) -> Ran:
    """The same command line in this process, on streams of its own."""
    from numprobe.cli.app import app
    from numprobe.cli.common import guarded

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = Path.cwd()
    os.chdir(cwd)
    try:
        with (
            mock.patch.dict(os.environ, environment(cwd, **environ), clear=True),
            mock.patch.object(sys, "argv", ["numprobe", *map(str, arguments)]),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            code = guarded(app)
    finally:
        os.chdir(before)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8"))  # type: ignore[attr-defined]
    assert "Traceback" not in texts[1]
    return Ran(code, texts[0], texts[1])


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
