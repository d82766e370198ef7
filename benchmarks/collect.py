"""What the PyTorch collector adds to a training step, beside msProbe's.

    .venv/bin/python benchmarks/collect.py --msprobe-venv VENV
    .venv/bin/python benchmarks/collect.py --case L0 --width 256       # a quick look, without the peer

Added time is a step's time with a tool minus without, of the same program in processes of their own, taken in turns; the
fastest of the steps after warming up, and the fastest of the rounds, since other work on a machine only ever adds. On a busy
machine ``--clock cpu`` compares processor time instead, of all threads. The tensor task is held against ``torch.save`` of the
same tensors alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from measure import machine, table

PROGRAM = Path(__file__).parent / "collect_program.py"
WARM_UP = 2
LIMITS = {"python": 0.25, "bandwidth": 0.8}
SAVE_LIMIT = 1.3
CLOCKS = {"wall": ("seconds", 0), "cpu": ("cpu", 1)}  # key of the steps, place in save_alone
RECORDS = 102_000
CASES = {  # level, task, summary mode
    "L0": ("L0", "statistics", "statistics"),
    "L1": ("L1", "statistics", "statistics"),
    "mix": ("mix", "statistics", "statistics"),
    "mix md5": ("mix", "statistics", "md5"),
    "mix tensor": ("mix", "tensor", "statistics"),
}


def run(python: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run the program once."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(options["threads"]), "MSPROBE_LOG_LEVEL": "3"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [python, str(PROGRAM), json.dumps(options)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{options}\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def step_seconds(python: str, options: dict[str, Any], clock: str) -> dict[str, Any]:
    key, place = CLOCKS[clock]
    result = run(python, options)
    result["step"] = min(result[key][WARM_UP:])
    if "save_alone" in result:
        result["save_alone"] = result["save_alone"][place]
    return result


def many_records(tools: list[tuple[str, str]], threads: int) -> str:
    """Growth of the memory in a step of many records, and the time that goes into writing its json."""
    options = {
        "level": "L1",
        "task": "statistics",
        "summary_mode": "statistics",
        "calls": RECORDS // 3,
        "threads": threads,
    }
    got = {tool: run(python, {**options, "tool": tool}) for tool, python in tools}
    parts = [
        f"{tool} {one['grown_kb'] / 1024:.0f} MB, {one['writing']:.2f} s for its json"
        for tool, one in got.items()
        if tool != "none"
    ]
    return f"a step of {RECORDS:,} records: {'; '.join(parts)} (limits 64 MB, a tenth of the time)"


def import_seconds(python: str, module: str, repeat: int) -> float:
    """What ``import module`` adds over ``import torch``."""
    code = f"import time, torch; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    runs = [
        float(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()[-1])
        for _ in range(repeat)
    ]
    return min(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--msprobe-venv", type=Path, help="a virtual environment with mindstudio-probe and torch")
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--width", type=int, action="append", help="hidden size; default 256 and 4096")
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16"])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    peer = str(arguments.msprobe_venv / "bin/python") if arguments.msprobe_venv else None
    tools = [("none", sys.executable), ("numprobe", sys.executable), *([("msprobe", peer)] if peer else [])]
    print(machine())
    rows = []
    for width in arguments.width or [256, 4096]:
        wide = width > 512
        for dtype in arguments.dtype or ["float32", "bfloat16"]:
            for case in arguments.case or list(CASES):
                level, task, mode = CASES[case]
                options = {
                    "level": level,
                    "task": task,
                    "summary_mode": mode,
                    "dtype": dtype,
                    "width": width,
                    "layers": 2 if wide else arguments.layers,
                    "tokens": 64,
                    "steps": 4 if wide else arguments.steps,
                    "threads": arguments.threads,
                }
                best: dict[str, dict[str, Any]] = {}
                for _ in range(arguments.rounds):
                    for tool, python in tools:
                        got = step_seconds(python, {**options, "tool": tool}, arguments.clock)
                        if tool not in best or got["step"] < best[tool]["step"]:
                            best[tool] = got
                if best["numprobe"]["digest"] != best["none"]["digest"]:
                    raise SystemExit(f"{case}: training with numprobe ends with other parameters")
                rows.append(row(case, width, dtype, best, LIMITS["bandwidth" if wide else "python"]))
                print(rows[-1], file=sys.stderr, flush=True)
    header = ("width", "dtype", "case", "step ms", "numprobe adds ms", "msprobe adds ms", "ratio", "limit", "met")
    print(table(header, rows))
    print(f"\n{many_records(tools, arguments.threads)}")
    ours = import_seconds(sys.executable, "numprobe.pytorch", 5)
    line = f"\nimport numprobe.pytorch adds {ours * 1e3:.0f} ms to import torch"
    if peer:
        theirs = import_seconds(peer, "msprobe.pytorch", 3)
        line += f", import msprobe.pytorch {theirs * 1e3:.0f} ms: {ours / theirs:.3f} (limit 0.1)"
    print(line)


def row(case: str, width: int, dtype: str, best: dict[str, dict[str, Any]], limit: float) -> tuple[object, ...]:
    """``ratio`` is that to msProbe, or where tensors are saved that to torch.save alone."""
    plain = best["none"]["step"]
    ours = best["numprobe"]["step"] - plain
    theirs = best["msprobe"]["step"] - plain if "msprobe" in best else None
    other = best["numprobe"].get("save_alone", theirs)
    limit = SAVE_LIMIT if "save_alone" in best["numprobe"] else limit
    ratio, met = ("-", "-") if other is None else (ours / other, "yes" if ours <= limit * other else "NO")
    return width, dtype, case, plain * 1e3, ours * 1e3, "-" if theirs is None else theirs * 1e3, ratio, limit, met


if __name__ == "__main__":
    main()
