"""What the benchmarks share: timing a command, the private memory of its process tree, the machine, a table."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

NUMPROBE = str(Path(sys.executable).parent / "numprobe")
MB = 1_000_000


@dataclass(frozen=True)
class Ran:
    seconds: float
    code: int
    stdout: str
    stderr: str
    peak_uss: int | None = None  # bytes; None when memory was not sampled


def run(
    command: Sequence[str],
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    sample_memory: bool = False,
    accept: Sequence[int] = (0,),
) -> Ran:
    """Run `command` to its end; an exit code outside `accept` stops the benchmark with what it said."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment(env), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    sampler = _Sampler(process.pid) if sample_memory else None
    if sampler:
        sampler.start()
    stdout, stderr = process.communicate()
    seconds = time.perf_counter() - began
    if sampler:
        sampler.done.set()
        sampler.join()
    if process.returncode not in accept:
        raise SystemExit(f"{' '.join(command)}\nexit code {process.returncode}\n{stdout[-2000:]}{stderr[-2000:]}")
    return Ran(seconds, process.returncode, stdout, stderr, sampler.peak if sampler else None)


class _Sampler(threading.Thread):
    """Every 20 ms, the sum of the unique set sizes (private pages) of a process and all its descendants; keeps the largest."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.done = pid, 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.peak = max(self.peak, sum(uss(pid) for pid in tree(self.pid)))


def tree(pid: int) -> list[int]:
    """The process and its descendants that are alive now."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found.extend(int(child) for child in (task / "children").read_text().split())
        except OSError:  # gone meanwhile
            continue
    return found


def uss(pid: int) -> int:
    """Private_Clean + Private_Dirty in bytes, 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def median(measure: Callable[[], float], repeat: int) -> float:
    return statistics.median(measure() for _ in range(repeat))


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """This process's, with compiled modules allowed: what is installed has them, and one run in a checkout writes them."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **(more or {})}


def seconds_of(command: Sequence[str], repeat: int, *, accept: Sequence[int] = (0,)) -> float:
    """Median wall time of a command, after one run that warms the page cache."""
    run(command, accept=accept)
    return median(lambda: run(command, accept=accept).seconds, repeat)


def dump_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("dump.json"))


def warm(folder: Path) -> int:
    """Read every file once, so that all contenders find them in the page cache; the number of bytes read."""
    total = 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while chunk := file.read(1 << 22):
                    total += len(chunk)
    return total


JSON_LOAD = """
import json, sys, time
began = time.perf_counter()
for path in sys.stdin.read().split("\\n"):
    with open(path, encoding="utf-8") as file:
        try:
            json.load(file)
        except ValueError:  # the truncated rank of the CI size: parsed up to its end
            pass
print(time.perf_counter() - began)
"""


def json_load_seconds(files: Sequence[Path]) -> float:
    """Wall time of the standard library's json.load over the files one after another, without the interpreter's start."""
    listing = "\n".join(map(str, files))
    done = subprocess.run([sys.executable, "-c", JSON_LOAD], input=listing, capture_output=True, text=True, check=True)
    return float(done.stdout)


def machine() -> str:
    """One line about this machine: processor, cores, memory, system, Python. No names, no paths."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024 / 1e9
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB, {release.get('PRETTY_NAME', 'Linux').strip(chr(34))}, "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [list(header), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "" if value is None else str(value)
