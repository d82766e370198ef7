"""`numprobe nan` against the released msProbe's `overflow_check`, on a dump that both answer.

    .venv/bin/python benchmarks/peer.py --msprobe-venv VENV [--ranks 8] [--megabytes 10] [--repeat 3]

VENV is an environment of its own with `mindstudio-probe` in it; the tool is run as anyone would run it. The time of `--help`
(msprobe) and of `--version` (numprobe) is taken off, and the whole times are printed too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import plain_dump
from measure import MB, NUMPROBE, dump_files, machine, run, seconds_of, table, warm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--msprobe-venv", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    msprobe = str(args.msprobe_venv.absolute() / "bin" / "msprobe")
    source = args.ranks - 1
    with tempfile.TemporaryDirectory(prefix="numprobe-bench-") as temporary:
        scratch = Path(temporary)
        dump = scratch / "dump"
        guilty = plain_dump.write(dump, ranks=args.ranks, megabytes=args.megabytes, source=source)
        warm(dump)
        volume = sum(path.stat().st_size for path in dump_files(dump))
        theirs, their_start = [], seconds_of([msprobe, "--help"], args.repeat)
        for index in range(args.repeat):
            place = scratch / f"theirs{index}"
            place.mkdir()
            command = [msprobe, "overflow_check", "-i", str(dump / "step0"), "-o", "./output"]
            theirs.append(run(command, cwd=place).seconds)
            answers = [json.loads(path.read_text()) for path in (place / "output").glob("anomaly_analyze_*.json")]
            named = [(rank, item["op_name"]) for answer in answers for rank, items in answer.items() for item in items]
            if (f"rank_{source}", guilty) not in named:
                raise SystemExit(f"msprobe named {named}, the fault is {guilty} on rank {source}: nothing to compare")
        ours, our_start = {}, seconds_of([NUMPROBE, "--version"], max(5, args.repeat))
        for jobs in (1, 2):
            times = []
            for index in range(args.repeat + 1):  # the first one compiles modules and templates
                out, cache = scratch / f"ours{jobs}{index}", scratch / f"cache{jobs}{index}"
                command = [NUMPROBE, "nan", str(dump), "--json", "-o", str(out), "--jobs", str(jobs)]
                ran = run(command, env={"XDG_CACHE_HOME": str(cache)}, accept=(1,))
                result = json.loads(ran.stdout)
                if result["source_ranks"] != [source] or result["first_anomaly"]["op_name"] != guilty:
                    raise SystemExit(f"numprobe named {result}, the fault is {guilty} on rank {source}")
                times.append(ran.seconds)
            ours[jobs] = statistics.median(times[1:])
    print(machine())
    print(f"{args.ranks} ranks, {volume / MB:.0f} MB of dump.json; both name {guilty} on rank {source}\n")
    peer = statistics.median(theirs)
    if peer < 1.5 * their_start:
        raise SystemExit(f"msprobe took {peer:.1f} s, {their_start:.1f} s of it to start: take a larger dump")
    rows = [("msprobe overflow_check", None, peer, their_start, peer - their_start, None, None)]
    for jobs, whole in ours.items():
        net = whole - our_start
        rows.append(("numprobe nan", jobs, whole, our_start, net, (peer - their_start) / net, peer / whole))
    header = ("command", "jobs", "whole s", "start-up s", "net s", "times faster, net (>= 10)", "times faster, whole")
    print(table(header, rows))


if __name__ == "__main__":
    main()
