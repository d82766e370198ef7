"""Time to record one CPU tensor: numprobe's statistics against four reductions with an ``.item()`` each.

    .venv/bin/python benchmarks/collect_statistics.py

Best of many repeats, in microseconds; the two take turns, so that a busy machine disturbs both.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable

import torch

from numprobe.collect.pytorch.statistics import Statistics

SHAPES = [(), (8, 8), (2, 128, 64), (2, 128, 256), (4, 128, 512), (1024, 1024), (2048, 4096)]
DTYPES = [torch.float32, torch.bfloat16]
SECONDS = 1.5  # a shape, dtype and way


def four_reductions(tensor: torch.Tensor) -> tuple[float, ...]:
    """What the reference does (STA-1, STA-7)."""
    return torch.max(tensor).item(), torch.min(tensor).item(), torch.mean(tensor).item(), torch.norm(tensor).item()


def best_of_both(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Microseconds a call of each, the least of turns of about a millisecond."""
    number = max(1, int(1e-3 / min(timeit.repeat(one, number=1, repeat=20))))
    best = [float("inf"), float("inf")]
    until = time.perf_counter() + 2 * SECONDS
    while time.perf_counter() < until:
        for i, way in enumerate((one, other)):
            best[i] = min(best[i], timeit.timeit(way, number=number) / number * 1e6)
    return best[0], best[1]


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("| shape | dtype | four reductions, us | numprobe add, us | resolve, us | ratio |\n|---|---|---|---|---|---|")
    for shape in SHAPES:
        for dtype in DTYPES:
            tensor = torch.randn(shape).to(dtype)
            statistics = Statistics()
            theirs, ours = best_of_both(lambda t=tensor: four_reductions(t), lambda t=tensor, s=statistics: s.add(t))
            waiting = len(statistics._pending)
            began = time.perf_counter()
            statistics.resolve()
            resolve = (time.perf_counter() - began) / waiting * 1e6
            name = str(dtype).removeprefix("torch.")
            print(f"| {shape} | {name} | {theirs:.1f} | {ours:.1f} | {resolve:.2f} | {(ours + resolve) / theirs:.2f} |")


if __name__ == "__main__":
    main()
