"""Compiles ``numprobe.native`` while numprobe is installed or packed, where there are a C compiler and Python's headers.

Without them the installation is complete too: all that the kernels do is also there in Python. ``NUMPROBE_NATIVE=0`` leaves
them out. The extension uses Python's stable interface: one wheel a platform serves Python 3.10 and newer.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-O3", "-std=c11", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        extension = compiled(Path(self.root) / "src" / "numprobe" / "native")
        if extension is not None:
            build_data["pure_python"] = False
            build_data["tag"] = f"cp310-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"].append(extension.relative_to(self.root).as_posix())


def compiled(folder: Path) -> Path | None:
    """The extension, compiled from the C files in ``folder`` to a file beside them; None where that is not possible."""
    extension = folder / "_kernels.abi3.so"
    extension.unlink(missing_ok=True)
    if os.environ.get("NUMPROBE_NATIVE") == "0" or sys.platform == "win32":
        return None
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    linking = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    headers = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    unfinished = extension.with_suffix(".part")
    command = [*compiler, *FLAGS, *linking, *(f"-I{path}" for path in sorted(headers))]
    command += ["-o", str(unfinished), *map(str, sorted(folder.glob("*.c"))), "-lm"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        problem = (run.stderr.strip() or f"{compiler[0]} ended with {run.returncode}") if run.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        unfinished.unlink(missing_ok=True)
        print(f"numprobe is installed without its compiled kernels: {problem}", file=sys.stderr)
        return None
    unfinished.replace(extension)
    return extension
