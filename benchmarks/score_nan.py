"""How often the NaN skill is right, over simulated dumps with known truth, and how well its confidence is calibrated.

    make score                                          # 100 seeds a scenario, world 16
    .venv/bin/python benchmarks/score_nan.py --seeds 5 --scenario gap

Beside it the rules of msProbe's tools (``reference_nan``) on the same dumps. Held-out scenarios (``held_out_*``) were
never looked at while the skill was tuned. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import reference_nan as reference
from numprobe.diagnose.nan_overflow.skill import NanOptions, analyse
from numprobe.synth.nan import HELD_OUT, SCENARIOS, UNIT, simulate
from scoring import calibration, options_of, rate, runs

SIZE = replace(
    UNIT, name="unit, short", layers=1, micro_batches=2
)  # 16 ranks, half as deep, two of three micro-batches


@dataclass(frozen=True)
class Scored:
    """One run: what was right. ``None``: does not apply (nothing to find)."""

    scenario: str
    seed: int
    verdict: bool
    source: bool | None
    op: bool | None
    clazz: bool | None
    confidence: float | None
    cross_rank_source: bool
    overflow_check_source: bool
    overflow_check_op: bool | None
    got: str
    want: str

    @property
    def right(self) -> bool:
        return self.verdict and all(x is not False for x in (self.source, self.op, self.clazz))


def score(scenario: str, seed: int, scratch: str) -> Scored:
    """Simulate, analyse, compare with the truth."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        truth = simulate(scenario, folder / "dump", seed=seed, size=SIZE)
        result = analyse(folder / "dump", NanOptions(jobs=1, use_cache=False)).result
        step = folder / "dump" / f"step{truth.step if truth.step is not None else 0}"
        ranks = reference.load(step)
        complete = not truth.missing and not truth.partial and any(step.glob("rank*"))
        naive, peer = reference.cross_rank(ranks), reference.overflow_check(ranks, complete)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    want = tuple(truth.source_ranks) if truth.verdict == "overflow_found" else ()
    found = truth.verdict == "overflow_found"
    first = result.first
    got_ranks = tuple(sorted({r for c in result.sources for r in c.ranks}))
    single = scenario == "single_card"
    names = truth.first_ops or ((truth.first_op,) if truth.first_op else ())
    return Scored(
        scenario,
        seed,
        result.verdict == truth.verdict,
        (single or got_ranks == want) if found else None,
        (first is not None and first.op_name in names) if found else None,
        (result.clazz in truth.classes) if found else None,
        result.confidence if result.verdict == "overflow_found" else None,
        naive.ranks == want,
        peer.ranks == want and not peer.failed,
        (peer.op in names and peer.ranks == want) if found else None,
        f"{result.verdict} {got_ranks} {first.op_name if first else None} {result.clazz}",
        f"{truth.verdict} {want} {names} {truth.classes} {json.dumps(truth.settings)[:200]}",
    )


def main() -> int:
    parser = options_of(__doc__)
    options = parser.parse_args()
    names = options.scenario or list(dict.fromkeys([*SCENARIOS, *HELD_OUT]))
    began = time.monotonic()
    scored: dict[str, list[Scored]] = defaultdict(list)
    for one in runs(score, names, options):
        scored[one.scenario].append(one)
    report(names, scored, options.misses, time.monotonic() - began)
    return 0


def report(names: list[str], scored: dict[str, list[Scored]], misses: int, seconds: float) -> None:
    head = "| scenario | runs | verdict % | source ranks % | first operator % | class % |"
    print(head + " all right % (95 % interval) | cross_rank source % | overflow_check source % | operator % |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in names:
        rows = scored[name]
        print(
            f"| {name} | {len(rows)} | {rate([r.verdict for r in rows])} | {rate([r.source for r in rows])} |"
            f" {rate([r.op for r in rows])} | {rate([r.clazz for r in rows])} |"
            f" {rate([r.right for r in rows], interval=True)} |"
            f" {rate([r.cross_rank_source for r in rows])} | {rate([r.overflow_check_source for r in rows])} |"
            f" {rate([r.overflow_check_op for r in rows])} |"
        )
    every = [r for name in names for r in scored[name]]
    hits = sum(r.right for r in every)
    print(
        f"| **all** | {len(every)} | {rate([r.verdict for r in every])} | {rate([r.source for r in every])} |"
        f" {rate([r.op for r in every])} | {rate([r.clazz for r in every])} | {100 * hits / len(every):.1f} |"
        f" {rate([r.cross_rank_source for r in every])} | {rate([r.overflow_check_source for r in every])} |"
        f" {rate([r.overflow_check_op for r in every])} |"
    )
    print("\nCalibration: findings by confidence (a finding is right if ranks, operator and class are).\n")
    calibration([(r.confidence, r.right) for r in every if r.confidence is not None])
    print(f"\n{len(every)} runs in {seconds:.0f} s.")
    for name in names:
        wrong = [r for r in scored[name] if not r.right]
        for r in sorted(wrong, key=lambda r: r.seed)[:misses]:
            print(f"miss {name} seed {r.seed}: got {r.got}\n     want {r.want}")
    confident = Counter(r.right for r in every if r.confidence is not None and r.confidence >= 0.75)
    print(f"confidence >= 0.75: {confident[True]} right, {confident[False]} wrong")


if __name__ == "__main__":
    raise SystemExit(main())
