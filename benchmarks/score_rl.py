"""How often the RL-consistency skill is right, over computed pairs of dumps with known truth, from figures and from tensors.

    make score                                          # 100 seeds a scenario
    .venv/bin/python benchmarks/score_rl.py --seeds 5 --scenario weight --mode figures --misses 3

Right is: the verdict, the first finding's place and class, nothing else found; from figures what they cannot show has to be
named, not guessed. Beside it the rules of the reference scripts (``reference_rl``) with a perfect mapping. Intervals are
Wilson's, 95 %.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import reference_rl as reference
from numprobe.diagnose.rl_consistency.result import Finding, RlResult
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse
from numprobe.synth.rl import SCENARIOS, Expected, Truth, simulate
from scoring import calibration, options_of, rate, runs

MODES = ("figures", "tensors")


@dataclass(frozen=True)
class Scored:
    """One run. ``None``: does not apply."""

    scenario: str
    seed: int
    mode: str
    verdict: bool
    place: bool | None
    clazz: bool | None
    blind: bool | None
    single: bool
    mapping: float | None  # None where the calls of an engine cannot be told from its figures: then none is claimed
    confidence: float | None
    reference_place: bool | None
    reference_class: bool | None
    reference_clean: bool | None
    got: str
    want: str

    @property
    def right(self) -> bool:
        return self.verdict and self.single and all(x is not False for x in (self.place, self.clazz, self.blind))


def score(name: str, seed: int, scratch: str) -> Scored:
    """Compute, analyse, compare with the truth."""
    mode, _, scenario = name.partition(":")
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        truth = simulate(scenario, folder / "pair", seed=seed, tensors=mode == "tensors")
        sides = [folder / "pair" / side / "step0" for side in ("train", "rollout")]
        result = analyse(sides[0], sides[1], RlOptions(use_cache=False))
        peer = _reference(sides, truth)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    want: Expected = getattr(truth, mode)
    found = "difference_found" in truth.verdicts and result.verdict == "difference_found"
    must = truth.verdicts == ("difference_found",)
    first = result.findings[0] if result.findings else None
    right = {n for p in want.places for side in truth.places.get(p, {}).values() for n in side}
    keys = [k for k in (first.suspect.train, first.suspect.rollout) if k] if first else []
    return Scored(
        scenario,
        seed,
        mode,
        result.verdict in truth.verdicts,
        (bool(keys) and all(k in right for k in keys)) if found else None,
        (first is not None and first.clazz in want.classes) if found else None,
        (first is not None and truth.blind in first.blind) if found and truth.blind and mode == "figures" else None,
        len(result.findings) == (1 if found else 0),
        None if result.reason == "steps" and result.verdict in truth.verdicts else _f1(result, truth),
        first.confidence if first else None,
        (bool(peer) and peer[0].train in right) if must else None,
        (bool(peer) and peer[0].clazz in want.classes) if must else None,
        None if must else not peer,
        f"{result.verdict} {result.reason} {[_told(f) for f in result.findings]}",
        f"{truth.verdicts} {want.classes} {want.places} {truth.blind} {truth.settings}",
    )


def _told(f: Finding) -> str:
    return f"{f.clazz}/{f.kind} {f.role} {f.layers} {f.suspect.train or f.suspect.rollout} {f.blind}"


def _reference(sides: list[Path], truth: Truth) -> list[reference.Suspect]:
    """The scripts read one file a side."""
    train, rollout = (json.loads((side / "rank0" / "dump.json").read_text())["data"] for side in sides)
    pairs = {t: names["rollout"][0] for names in truth.places.values() if names["rollout"] for t in names["train"]}
    return reference.suspects(train, rollout, pairs)


def _f1(result: RlResult, truth: Truth) -> float:
    """Of the pairs of leaf modules."""
    leaves = {n for sides in truth.places.values() for side in sides.values() for n in side}
    want = {(t, r) for sides in truth.places.values() for t in sides["train"] for r in sides["rollout"]}
    got = {(t, r) for pair in result.mapping for t in pair.train for r in pair.rollout if t in leaves and r in leaves}
    return 2 * len(want & got) / (len(want) + len(got))


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--mode", action="append", default=[], choices=MODES)
    options = parser.parse_args()
    names = options.scenario or list(SCENARIOS)
    modes = options.mode or list(MODES)
    began = time.monotonic()
    scored: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for one in runs(score, [f"{m}:{n}" for m in modes for n in names], options):
        scored[one.mode, one.scenario].append(one)
    for mode in modes:
        _report(mode, {n: scored[mode, n] for n in names}, options.misses)
    print(f"\n{sum(map(len, scored.values()))} runs in {time.monotonic() - began:.0f} s.")
    return 0


def _report(mode: str, scored: dict[str, list[Scored]], misses: int) -> None:
    print(f"\nFrom {mode}:\n")
    print("| scenario | runs | verdict % | place % | class % | blind named % | all right % (95 % interval) |", end="")
    print(" mapping F1 | reference: place % | class % | clean % |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    every = [r for rows in scored.values() for r in rows]
    for name, rows in [*scored.items(), ("**all**", every)]:
        print(f"| {name} | {len(rows)} | {_columns(rows)} |")
    print("\nCalibration: a finding is right if it is the only one, at the right place, of the right class.\n")
    calibration([(r.confidence, r.right) for r in every if r.confidence is not None])
    for name, rows in scored.items():
        for r in sorted((r for r in rows if not r.right), key=lambda r: r.seed)[:misses]:
            print(f"miss {mode} {name} seed {r.seed}: got {r.got}\n     want {r.want}")


def _columns(rows: Iterable[Scored]) -> str:
    rows = list(rows)
    rates = [rate([getattr(r, k) for r in rows]) for k in ("verdict", "place", "clazz", "blind")]
    peer = [rate([getattr(r, f"reference_{k}") for r in rows]) for k in ("place", "class", "clean")]
    mapped = [r.mapping for r in rows if r.mapping is not None]
    mapping = f"{sum(mapped) / len(mapped):.3f}" if mapped else "-"
    return " | ".join([*rates, rate([r.right for r in rows], interval=True), mapping, *peer])


if __name__ == "__main__":
    raise SystemExit(main())
