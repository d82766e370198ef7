"""Speed and memory of `numprobe nan` against the standard library's json.load over the same files.

    .venv/bin/python benchmarks/nan.py                      # ci (512 ranks), 8x10, 8x100: the figures of docs/benchmarks.md
    .venv/bin/python benchmarks/nan.py --size 8x10 --repeat 1    # a quick look

Every ratio is of two times from the same run. Each timed run has an empty numprobe cache unless the row says otherwise; all
files are in the page cache; the time of `numprobe --version` is taken off and printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import plain_dump
from measure import MB, NUMPROBE, Ran, dump_files, json_load_seconds, machine, median, run, seconds_of, table, warm

LIMITS = {  # largest accepted share of json.load's time, by (folder is 8x100, jobs)
    (True, 1): 0.5,
    (True, 2): 0.25,
    (False, 1): 0.75,
    (False, 2): 0.5,
}


@dataclass
class Bench:
    scratch: Path
    repeat: int
    start: float  # seconds of `numprobe --version`
    extra: list[str]  # options of the warm rerun
    taken: int = field(default=0)

    def nan(self, dump: Path, jobs: int, *options: str, cache: Path | None = None, memory: bool = False) -> Ran:
        """One run of the skill; with a fresh cache folder unless one is given."""
        self.taken += 1
        out = self.scratch / f"out{self.taken}"
        own = cache or self.scratch / f"cache{self.taken}"
        command = [NUMPROBE, "nan", str(dump), "--json", "-o", str(out), "--jobs", str(jobs), *options]
        ran = run(command, env={"XDG_CACHE_HOME": str(own)}, accept=(0, 1, 3), sample_memory=memory)
        shutil.rmtree(out, ignore_errors=True)
        if cache is None:
            shutil.rmtree(own, ignore_errors=True)
        return ran

    def seconds(self, dump: Path, jobs: int) -> float:
        """Median of cold-cache runs, without start-up."""
        return median(lambda: self.nan(dump, jobs).seconds, self.repeat) - self.start

    def warm_seconds(self, dump: Path, jobs: int) -> tuple[float, float]:
        """(the same run again, a run with other exclusions), both with the cache that a first run left."""
        cache = self.scratch / "kept"
        self.nan(dump, jobs, cache=cache)
        same = median(lambda: self.nan(dump, jobs, cache=cache).seconds, self.repeat) - self.start
        other = median(lambda: self.nan(dump, jobs, *self.extra, cache=cache).seconds, self.repeat) - self.start
        shutil.rmtree(cache, ignore_errors=True)
        return same, other

    def peak(self, dump: Path, jobs: int, *options: str) -> float:
        """Peak private memory of the process tree in MB; the smallest of the repeats would hide peaks, so the largest."""
        peaks = [self.nan(dump, jobs, *options, memory=True).peak_uss or 0 for _ in range(min(self.repeat, 2))]
        return max(peaks) / MB


def make(folder: Path, size: str, maker: str) -> None:
    if maker == "synth":
        command = [NUMPROBE, "synth", "nan", "-o", str(folder), "--scenario", "grouped_matmul_nan"]
        run([*command, "--size", size, "--seed", "1"])
        return
    if size != "ci" and not re.fullmatch(r"\d+x[\d.]+", size):
        raise SystemExit(f"--maker plain knows ci and RANKSxMB, not {size}")
    ranks, megabytes = (512, 0.4) if size == "ci" else map(float, size.split("x"))
    plain_dump.write(folder, ranks=int(ranks), megabytes=megabytes, source=min(3, int(ranks) - 1))


def verdict(ran: Ran) -> str:
    result = json.loads(ran.stdout)
    first = result["first_anomaly"] or {}
    return f"{result['verdict']} {result['source_ranks']} {first.get('op_name')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", help="ci, unit, large or RANKSxMB; may be repeated")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--maker", choices=["synth", "plain"], default="synth", help="simulated dumps, or plain_dump.py's"
    )
    parser.add_argument("--dumps", type=Path, help="keep the dumps in this folder and use those that are there")
    parser.add_argument("--memory-jobs", type=int, nargs="*", default=[1, 2, 8])
    parser.add_argument(
        "--rerun", nargs="*", default=["--exclude", "Torch.clone"], help="options of the second warm run"
    )
    args = parser.parse_args()
    sizes = args.size or ["ci", "8x10", "8x100"]
    print(machine())
    with tempfile.TemporaryDirectory(prefix="numprobe-bench-") as temporary:
        scratch = Path(temporary)
        start = seconds_of([NUMPROBE, "--version"], max(5, args.repeat))
        print(f"numprobe --version: {start:.3f} s, taken off every time below\n")
        bench = Bench(scratch, args.repeat, start, args.rerun)
        speed, cache, memory, growth = [], [], [], []
        per_byte: dict[str, tuple[int, float, float]] = {}
        for size in sizes:
            folder = (args.dumps or scratch) / f"{args.maker}-{size}"
            if not folder.exists():
                make(folder, size, args.maker)
            warm(folder)
            bench.nan(folder, 1)  # compiles modules and templates
            files = dump_files(folder)
            volume = sum(path.stat().st_size for path in files)
            loads = [json_load_seconds(files) for _ in range(args.repeat)]
            load = statistics.median(loads)
            for jobs in (1, 2):
                took = bench.seconds(folder, jobs)
                limit = LIMITS[size == "8x100", jobs]
                speed.append(
                    (
                        size,
                        len(files),
                        volume / MB,
                        load,
                        jobs,
                        took,
                        took / load,
                        limit,
                        "yes" if took / load <= limit else "NO",
                    )
                )
                if jobs == 1:
                    per_byte[size] = volume, took, load
            same, other = bench.warm_seconds(folder, 1)
            cache.append((size, per_byte[size][1], same, other, other / per_byte[size][1]))
            for jobs in args.memory_jobs:
                peak = bench.peak(folder, jobs)
                memory.append((size, jobs, peak, 1000, "yes" if peak < 1000 else "NO"))
            if len(files) >= 128:
                few, few_ranks = bench.peak(folder, 1, "--rank", "0-63"), 64
                many = bench.peak(folder, 1)
                slope = (many - few) / (len(files) - few_ranks)
                growth.append((size, few, many, slope, 0.5, "yes" if slope < 0.5 else "NO"))
            print(f"{size}: {verdict(bench.nan(folder, 2))}", flush=True)
            if not args.dumps:
                shutil.rmtree(folder)
        show("Time", ("folder", "ranks", "MB", "json.load s", "jobs", "nan s", "ratio", "limit", "met"), speed)
        show(
            "Again with the cache of a first run, one worker",
            ("folder", "cold s", "same s", "other exclusions s", "ratio"),
            cache,
        )
        show("Peak private memory of the process tree", ("folder", "jobs", "MB", "limit", "met"), memory)
        show("Growth with ranks, one worker", ("folder", "64 ranks MB", "all MB", "MB a rank", "limit", "met"), growth)
        show("Linear in bytes (1.0 is linear)", ("from", "to", "bytes", "nan", "json.load"), linearity(per_byte))


def linearity(per_byte: dict[str, tuple[int, float, float]]) -> list[tuple[object, ...]]:
    """For each pair of folders with the same number of ranks: how much time grows for each time that bytes grow."""
    shaped = [(size, *figures) for size, figures in per_byte.items() if re.fullmatch(r"\d+x[\d.]+", size)]
    rows: list[tuple[object, ...]] = []
    for (small, few, fast, load), (large, many, slow, longer) in itertools.pairwise(shaped):
        if small.split("x")[0] == large.split("x")[0]:
            factor = many / few
            rows.append((small, large, factor, slow / fast / factor, longer / load / factor))
    return rows


def show(title: str, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    if rows:
        print(f"\n**{title}**\n\n{table(header, rows)}")


if __name__ == "__main__":
    main()
