"""Run the cases under the released recorder and put their dumps, with neutral paths, under tests/data/gloo.

python tests/gloo/generate.py [CASE ...]     # needs torch and mindstudio-probe in the python that runs it
python tests/gloo/generate.py --plain [CASE ...]   # the cases alone, nothing recorded
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data" / "gloo"
FILES = ("dump.json", "stack.json", "construct.json")


@dataclass(frozen=True)
class Case:
    script: str
    ranks: int = 4
    steps: int = 1
    level: str = "mix"
    risk: str = "FOCUS"  # the recorder's default: no views, casts, factories
    arguments: tuple[str, ...] = ()


CASES = {
    "fsdp2": Case("fsdp2.py", steps=2),
    "fsdp2_L0": Case("fsdp2.py", level="L0"),
    "sequence_parallel": Case("sequence_parallel.py"),
    "sequence_parallel_L0": Case("sequence_parallel.py", level="L0"),
    "sequence_parallel_L1": Case("sequence_parallel.py", level="L1"),
    "pipeline_1f1b": Case("pipeline.py", arguments=("--fault", "forward")),
    "pipeline_1f1b_L0": Case("pipeline.py", level="L0", arguments=("--fault", "forward")),
    "pipeline_backward": Case("pipeline.py", arguments=("--fault", "backward")),
    "recompute": Case("recompute.py"),
    "recompute_whole": Case("recompute.py", arguments=("--no-early-stop",)),
    "async_allreduce": Case("async_allreduce.py"),
    "moe_all_to_all": Case("moe.py", risk="ALL"),
    "moe_all_to_all_L1": Case("moe.py", level="L1"),
    "bad_weight": Case("bad_weight.py"),
    "bad_weight_core": Case("bad_weight.py", risk="CORE"),
    "clean_masks": Case("clean_masks.py", risk="ALL"),
    "clean_masks_focus": Case("clean_masks.py"),
    "collectives": Case("collectives.py", ranks=2),
    "broadcast": Case("broadcast.py"),
    "loss_scale": Case("loss_scale.py", ranks=2, steps=2),
    "single": Case("single.py", ranks=1, steps=2),
}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(case: Case, config: Path | None, folder: Path) -> None:
    """Start the processes in `folder`, wait for all, fail when one fails."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", MSPROBE_LOG_LEVEL="2")
    environment.pop("RANK", None)
    if case.ranks > 1:
        environment |= {"WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, str(HERE / case.script), "--steps", str(case.steps), *case.arguments]
    if config:
        command += ["--config", str(config)]
    processes = []
    for rank in range(case.ranks):
        mine = dict(environment, RANK=str(rank)) if case.ranks > 1 else environment
        processes.append(subprocess.Popen(command, env=mine, cwd=folder))
    codes = [process.wait(timeout=600) for process in processes]
    if any(codes):
        raise SystemExit(f"{case.script}: exit codes {codes}")


def neutral(text: str) -> str:
    """The same text without a trace of the machine it was made on."""
    places = [
        (sysconfig.get_path("purelib"), "/workspace/site-packages"),
        (sysconfig.get_path("stdlib"), "/workspace/python"),
        (str(HERE), "/workspace/gloo"),
    ]
    for place, name in places:
        text = text.replace(place, name)
    return text


def collect(dumps: Path, target: Path) -> None:
    expected = target / "expected.json"
    kept = expected.read_text() if expected.exists() else None
    shutil.rmtree(target, ignore_errors=True)
    for rank in sorted(dumps.glob("step*/*")):
        name = "proc1000" if rank.name.startswith("proc") else rank.name
        folder = target / rank.parent.name / name
        folder.mkdir(parents=True)
        for file in FILES:
            (folder / file).write_text(neutral((rank / file).read_text()))
    if kept is not None:
        expected.write_text(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--plain", action="store_true", help="run the cases without the recorder")
    args = parser.parse_args()
    for name in args.cases or CASES:
        case = CASES[name]
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            if args.plain:
                run(case, None, folder)
                continue
            config = folder / "config.json"
            settings = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
            settings["risk_level"] = case.risk
            config.write_text(
                json.dumps(
                    {
                        "task": "statistics",
                        "dump_path": str(folder / "dump"),
                        "rank": [],
                        "step": [],
                        "level": case.level,
                        "risk_level": case.risk,
                        "statistics": settings,
                    }
                )
            )
            run(case, config, folder)
            collect(folder / "dump", DATA / name)


if __name__ == "__main__":
    main()
