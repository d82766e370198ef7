"""What the scores share: rates with intervals, runs side by side, calibration of a confidence."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

BINS = (0.0, 0.25, 0.5, 0.6, 0.75, 0.85, 1.0)
Scored = TypeVar("Scored")


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927)."""
    if not n:
        return 0.0, 1.0
    z = 1.96
    p = hits / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def rate(values: Iterable[bool | None], *, interval: bool = False) -> str:
    """In percent of those that are not None; a dash if there are none."""
    known = [v for v in values if v is not None]
    if not known:
        return "-"
    low, high = wilson(sum(known), len(known))
    return f"{100 * sum(known) / len(known):.1f}" + (f" ({100 * low:.0f}-{100 * high:.0f})" if interval else "")


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """The options of every score."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=1000, help="seeds below 1000 were used while tuning")
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--misses", type=int, default=0, help="print so many misses a scenario (and mode)")
    return parser


def runs(
    score: Callable[[str, int, str], Scored], names: Sequence[str], options: argparse.Namespace
) -> Iterator[Scored]:
    """``score(name, seed, scratch)`` of every name and seed, as they get ready; progress on stderr. ``scratch`` is a folder that
    is gone afterwards."""
    began = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    shm = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None, ignore_cleanup_errors=True) as scratch,
        ProcessPoolExecutor(options.jobs) as pool,
    ):
        futures = [pool.submit(score, name, seed, scratch) for seed in seeds for name in names]
        for done, future in enumerate(as_completed(futures), 1):
            yield future.result()
            if done % 100 == 0:
                print(f"{done}/{len(futures)} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)


def calibration(found: Sequence[tuple[float, bool]]) -> None:
    """Print how often findings of a confidence are right."""
    print("| confidence | findings | right % (95 % interval) |\n|---|--:|--:|")
    for low, high in itertools.pairwise(BINS):
        group = [right for confidence, right in found if low <= confidence < high + (high == 1.0)]
        if group:
            print(f"| {low:.2f} to {high:.2f} | {len(group)} | {rate(group, interval=True)} |")
