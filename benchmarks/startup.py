"""How long `numprobe --help` and `numprobe inspect` on a small dump take, against `msprobe --help`.

.venv/bin/python benchmarks/startup.py [--msprobe-venv VENV] [--repeat 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from measure import NUMPROBE, machine, seconds_of, table

SMALL = Path(__file__).parent.parent / "tests" / "data" / "interop" / "pytorch" / "h_distributed_4rank_nan" / "dump"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--msprobe-venv", type=Path, help="without it only numprobe is timed")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    commands = {
        "numprobe --version": [NUMPROBE, "--version"],
        "numprobe --help": [NUMPROBE, "--help"],
        "numprobe inspect (4 ranks, 0.5 MB)": [NUMPROBE, "inspect", str(SMALL)],
    }
    times = {name: seconds_of(command, args.repeat, accept=(0, 1)) for name, command in commands.items()}
    peer = None
    if args.msprobe_venv:
        msprobe = str(args.msprobe_venv.absolute() / "bin" / "msprobe")
        peer = seconds_of([msprobe, "--help"], args.repeat)
    rows = [(name, seconds, peer / seconds if peer else None) for name, seconds in times.items()]
    if peer:
        rows.append(("msprobe --help", peer, 1.0))
    print(machine())
    print()
    print(table(("command", "s", "times faster than msprobe --help (>= 10)"), rows))


if __name__ == "__main__":
    main()
