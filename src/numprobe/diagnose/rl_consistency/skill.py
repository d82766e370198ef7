"""Why training and rollout differ: both runs in canonical form, paired, judged, and the first difference named.

The judge is that of ``compare``: what a role's output may differ by follows from its inputs, its parameters and the arithmetic.
What is specific here is the form (:mod:`numprobe.align.roles`) and what the place of a difference means.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numprobe.align.calls import read_calls
from numprobe.align.leaves import LeafPairs, pair_leaves
from numprobe.align.records import RecordPairs, pair_records
from numprobe.align.roles.ranks import joined
from numprobe.align.roles.side import RoleSide, canonical
from numprobe.compare.judge import Judgement, judge
from numprobe.compare.measure import Measures, measure
from numprobe.diagnose.rl_consistency import classify
from numprobe.diagnose.rl_consistency import result as data
from numprobe.execution.stages import Listener, Stages, ignore
from numprobe.formats.dump import Dump, open_dump
from numprobe.formats.layout import choose_steps
from numprobe.record.errors import NumprobeError

STAGES = ("load", "map", "compare", "anchor", "report")
ENOUGH = 0.5  # of the canonical slots of both sides have to be compared


@dataclass(frozen=True)
class RlOptions:
    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    use_cache: bool = True


@dataclass
class View:
    """Both sides in canonical form, paired, measured and judged. ``train`` is the target."""

    train: RoleSide
    rollout: RoleSide
    records: RecordPairs
    leaves: LeafPairs
    measures: Measures
    judged: Judgement

    def names(self, pair: int) -> tuple[str | None, str | None]:
        """Canonical names of a record pair."""
        t, g = self.records.target[pair], self.records.golden[pair]
        a, b = self.train.calls.values.names, self.rollout.calls.values.names
        return (a[t] if t >= 0 else None, b[g] if g >= 0 else None)

    def keys(self, pair: int) -> tuple[list[str], list[str]]:
        """Names in the dumps of what a record pair was made of."""
        t, g = self.records.target[pair], self.records.golden[pair]
        return _named(self.train, t), _named(self.rollout, g)


def analyse(
    train: str | Path, rollout: str | Path, options: RlOptions = RlOptions(), listener: Listener = ignore
) -> data.RlResult:
    """Compare a training dump with a rollout dump of the same tokens.

    Raises:
        NumprobeError: nothing can be read at one of the two places; E-RL-001 a side has no modules.
    """
    stages = Stages(STAGES, listener)
    stages.begin("load")
    dumps = [open_dump(path, use_cache=options.use_cache) for path in (train, rollout)]
    sides = [_sides(dump, options) for dump in dumps]
    stages.end()
    stages.begin("map")
    one, merged_one = joined(sides[0], sides[1][0])
    other, merged_other = joined(sides[1], one)
    records = pair_records(one.calls, other.calls)
    leaves = pair_leaves(records, one.calls.values, other.calls.values)
    stages.end()
    stages.begin("compare")
    measures = measure(leaves, one.calls.values, other.calls.values)
    judged = judge(one.calls, other.calls, records, leaves, measures)
    view = View(one, other, records, leaves, measures, judged)
    stages.end()
    stages.begin("anchor")
    findings = classify.findings(view)
    stages.end()
    stages.begin("report")
    found = _result(dumps, view, findings, {**merged_one, **merged_other})
    stages.end()
    return found


def _sides(dump: Dump, options: RlOptions) -> list[RoleSide]:
    """The ranks of the first step that was asked for, in canonical form."""
    step = choose_steps(dump.steps, options.steps, options.ranks)[0]
    ranks = [r for r in step.ranks if not r.problem]
    sides = [canonical(read_calls(dump.rank(rank))) for rank in ranks]
    if not any(side.calls.values.names for side in sides):
        raise NumprobeError(
            "E-RL-001",
            "no module of a known role is recorded",
            where=str(dump.root),
            found="{modules} modules",
            do="record with level L0 or mix; at level L1 there are no modules",
            modules=sum(len(side.modules) for side in sides),
        )
    return sides


def _named(side: RoleSide, record: int) -> list[str]:
    return [side.original.values.names[i] for i in side.origin[record]] if record >= 0 else []


def _result(dumps: Sequence[Dump], view: View, findings: list[data.Finding], merged: dict[str, int]) -> data.RlResult:
    both = view.leaves.both
    total = len(view.train.calls.values) + len(view.rollout.calls.values)
    compared = int((both & (view.measures.by != 0)).sum())
    coverage = 2 * compared / total if total else 0.0
    judged = view.judged
    counts = Counter(judged.verdict)
    premise = classify.premise(view)
    verdict, reason = "no_difference", ""
    if premise:
        verdict, reason = "premise_broken", premise
    elif findings:
        verdict = "difference_found"
    elif coverage < ENOUGH:
        verdict, reason = "inconclusive", "coverage"
    pairs = [_pair(view, p) for p in range(len(view.records))]
    alone = [(t, g) for t, g in zip(view.records.target, view.records.golden, strict=True) if t < 0 or g < 0]
    layers = {op.layer for op in view.train.calls.ops if op.layer is not None}
    return data.RlResult(
        verdict,
        reason,
        round(min(coverage, 1.0), 4),
        str(dumps[0].root),
        str(dumps[1].root),
        [] if premise else findings,
        pairs,
        [name for t, _ in alone for name in _named(view.train, t)] + view.train.unknown,
        [name for _, g in alone for name in _named(view.rollout, g)] + view.rollout.unknown,
        {v: counts.get(v, 0) for v in ("pass", "warning", "error", "incomparable", "unmatched")},
        len(layers),
        merged,
        _limit(view),
        counts.get("warning", 0),
    )


def _limit(view: View) -> float | None:
    """The smallest relative error that the norms could show, median over the slots."""
    m, expected = view.measures, np.array(view.judged.expected)
    rows = m.is_float & ~np.isnan(expected) & (m.numel > 1)
    if not rows.any():
        return None
    lever = np.sqrt(np.sqrt(m.numel[rows]))
    return float(np.median(np.sqrt(2 * (16 * (expected[rows] / lever + expected[rows] ** 2 / 2) + m.stat[rows]))))


def _pair(view: View, pair: int) -> data.Pair:
    train, rollout = view.keys(pair)
    rows = range(int(view.leaves.first[pair]), int(view.leaves.first[pair + 1]))
    judged = view.judged
    order = ("unmatched", "incomparable", "pass", "warning", "error")
    worst = max(
        rows, key=lambda r: (order.index(judged.verdict[r]), judged.rho[r] if not math.isnan(judged.rho[r]) else 0)
    )
    name = next(n for n in view.names(pair) if n)
    return data.Pair(
        classify.place(name),
        train,
        rollout,
        judged.verdict[worst],
        classify.number(view.measures.error[worst]),
        classify.number(judged.rho[worst]),
    )
