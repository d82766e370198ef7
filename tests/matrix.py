"""Runs the recorder's tests with other versions of torch, each in a virtual environment of its own.

    python tests/matrix.py                  # the newest torch that pip gives
    python tests/matrix.py --oldest         # 2.1 as well: on Linux that is a CUDA build, some 2.5 GB to download
    python tests/matrix.py --torch 2.6.0    # another one

Environments stay in --venvs and are used again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = ("torch==2.1.2", "numpy<2")  # the floor of pyproject.toml's text; built against numpy 1
TESTED_WITH = ("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.120", "PyYAML>=6")


def environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """The interpreter of a virtual environment with these packages and this repository."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, *packages, *TESTED_WITH, "-e", str(ROOT)], check=True)
        (folder / "complete").touch()
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oldest", action="store_true", help="torch 2.1 too (Python 3.10 or 3.11)")
    parser.add_argument("--torch", action="append", default=[], metavar="VERSION", help="instead of the newest")
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv" / "matrix", metavar="DIR")
    parser.add_argument("tests", nargs="*", default=["tests/collect"], help="what pytest is given")
    arguments = parser.parse_args()
    wanted = [(f"torch=={version}",) for version in arguments.torch] or [("torch",)]
    if arguments.oldest:
        wanted.append(OLDEST)
    failed = []
    for packages in wanted:
        folder = arguments.venvs / packages[0].replace("==", "-")
        python = environment(folder.resolve(), packages)
        code = "import torch, numpy, sys; print(f'torch {torch.__version__}, numpy {numpy.__version__}, Python {sys.version}')"
        subprocess.run([str(python), "-c", code], check=True)
        done = subprocess.run([str(python), "-m", "pytest", "-n", "2", *arguments.tests], cwd=ROOT, check=False)
        if done.returncode:
            failed.append(packages[0])
    print(f"failed with: {', '.join(failed)}" if failed else "passed with all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
