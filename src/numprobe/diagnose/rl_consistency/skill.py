"""Why training and rollout differ: both runs in canonical form, paired, judged, and the first difference named.

The judge is that of ``compare``: what a role's output may differ by follows from its inputs, its parameters and the arithmetic.
What is specific here is the form (:mod:`numprobe.align.roles`) and what the place of a difference means.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from numprobe.align.calls import Calls, read_both, read_calls
from numprobe.align.leaves import pair_leaves
from numprobe.align.roles.frameworks import ROLLOUT, TRAIN, Framework, are_exchanged, framework_of
from numprobe.align.roles.given import NOTHING_GIVEN, Given, Row, given_roles, read_rows
from numprobe.align.roles.pairing import both_sides, pair_places
from numprobe.align.roles.side import RoleSide
from numprobe.align.roles.stages import whole_models
from numprobe.align.roles.tensors import RoleCalls
from numprobe.compare.expected import detection_limit
from numprobe.compare.judge import judge
from numprobe.compare.measure import NOTHING, measure
from numprobe.compare.tensors import measure_tensors
from numprobe.diagnose.rl_consistency import classify, evidence
from numprobe.diagnose.rl_consistency import result as data
from numprobe.diagnose.rl_consistency.noise import expect_copies, noise_of_experts
from numprobe.diagnose.rl_consistency.view import View, number, place
from numprobe.execution.stages import Listener, Stages, ignore
from numprobe.formats.dump import Dump, RankDump, open_dump
from numprobe.formats.layout import choose_steps
from numprobe.metrics.stream import default_threads
from numprobe.record.errors import NumprobeError

STAGES = ("load", "map", "compare", "anchor", "report")
_VERDICTS = ("unmatched", "incomparable", "pass", "warning", "error")  # the worst of what was compared last
ENOUGH = 0.5  # of the canonical slots of both sides have to be compared


@dataclass(frozen=True)
class RlOptions:
    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    use_cache: bool = True
    mapping: str = ""  # a file that says which modules belong together
    as_given: bool = False  # the first dump is the training side, whatever its modules are


def analyse(
    train: str | Path, rollout: str | Path, options: RlOptions = RlOptions(), listener: Listener = ignore
) -> data.RlResult:
    """Compare a training dump with a rollout dump of the same tokens.

    Raises:
        NumprobeError: nothing can be read at one of the two places; E-RLC-001 a side has no modules; the mapping file is
            wrong, as for :func:`~numprobe.align.roles.given.read_rows` and :func:`~numprobe.align.roles.given.given_roles`.
    """
    return analyse_with_view(train, rollout, options, listener)[0]


def analyse_with_view(
    train: str | Path, rollout: str | Path, options: RlOptions = RlOptions(), listener: Listener = ignore
) -> tuple[data.RlResult, View]:
    """As :func:`analyse`, with what the result was drawn from."""
    stages = Stages(STAGES, listener)
    stages.begin("load")
    dumps = [open_dump(path, use_cache=options.use_cache) for path in (train, rollout)]
    ranks = _read(*(_ranks(dump, options) for dump in dumps))
    frameworks = [framework_of(side[0]) if side else Framework() for side in ranks]
    exchanged = are_exchanged(frameworks) and not options.as_given
    if exchanged:
        dumps, ranks, frameworks = dumps[::-1], ranks[::-1], frameworks[::-1]
    stages.end()
    stages.begin("map")
    given = _given(options.mapping, ranks, exchanged)
    one, other, merged = both_sides(ranks[0], ranks[1], given=given)
    for dump, side in zip(dumps, (one, other), strict=True):
        _need_modules(dump, side)
    records = pair_places(one, other)
    leaves = pair_leaves(records, one.calls.values, other.calls.values)
    stages.end()
    stages.begin("compare")
    measures = measure(leaves, one.calls.values, other.calls.values)
    measure_tensors(measures, leaves, one.calls, other.calls, threads=default_threads())
    expect_copies(measures, leaves, one.calls.values, other.calls.values)
    allowed = noise_of_experts(one, records, leaves, measures)
    judged = judge(one.calls, other.calls, records, leaves, measures, allowed, foreign=True)
    view = View(one, other, records, leaves, measures, judged)
    stages.end()
    stages.begin("anchor")
    errors = [f for f in judged.findings if f.severity == "error"]
    known = min(_known(side) for side in (one, other))
    premise = classify.premise(view, errors) if known >= ENOUGH else ""
    coverage = min(_coverage(view), known)
    findings = [] if premise or known < ENOUGH else evidence.findings(view, errors, coverage)
    stages.end()
    stages.begin("report")
    found = _result(dumps, view, premise, findings, coverage, merged)
    found.unknown_names = [data.UnknownName(n.side, n.name, list(n.close)) for n in given.unknown]
    found.frameworks = {side: f.name for side, f in zip((TRAIN, ROLLOUT), frameworks, strict=True)}
    found.exchanged = exchanged
    found.steps = None if premise else _steps(view)
    kinds = {f.side for f in frameworks}
    found.note = "trainers" if kinds == {TRAIN} else "engines" if kinds == {ROLLOUT} else ""
    stages.end()
    return found, view


def _given(mapping: str, ranks: Sequence[Sequence[Calls]], exchanged: bool) -> Given:
    """What a mapping file says. Its sides may be exchanged with the dumps, or be right already: as more of its names fit."""
    if not mapping:
        return NOTHING_GIVEN
    path = Path(mapping)
    rows = read_rows(path)
    turned = [replace(row, train=row.rollout, rollout=row.train) for row in rows]
    if exchanged and _fitting(turned, ranks) > _fitting(rows, ranks):
        rows = turned
    return given_roles(rows, ranks[0], ranks[1], path)


def _fitting(rows: Sequence[Row], ranks: Sequence[Sequence[Calls]]) -> int:
    """How many names of a mapping file are those of a module on the side that they are given for."""
    known = [
        {name for rank in side for op in rank.ops if op.is_module for name in (op.name, f"{op.path}.{op.api}")}
        for side in ranks
    ]
    return sum(name in known[n] for row in rows for n, of in enumerate((row.train, row.rollout)) for name in of)


def _ranks(dump: Dump, options: RlOptions) -> list[RankDump]:
    """The readable ranks of the first step that was asked for."""
    step = choose_steps(dump.steps, options.steps, options.ranks)[0]
    return [dump.rank(rank) for rank in step.ranks if not rank.problem]


def _read(train: Sequence[RankDump], rollout: Sequence[RankDump]) -> list[list[Calls]]:
    """The calls of both sides, stages of a pipeline as whole models."""
    if len(train) == len(rollout) == 1:
        one, other = read_both(train[0], rollout[0], at_once=True)
        return [[one], [other]]
    return [whole_models([read_calls(dump) for dump in side]) for side in (train, rollout)]


def _steps(view: View) -> data.Steps | None:
    calls = [max(sum(n == 0 for n in side.numbering.calls.values()), 1) for side in (view.train, view.rollout)]
    tokens = [
        side.calls.canonical.tokens if isinstance(side.calls, RoleCalls) and side.calls.canonical else None
        for side in (view.train, view.rollout)
    ]
    one, other = tokens
    cut = one is not None and other is not None and (one.is_cut or other.is_cut)
    if calls == [1, 1] and not cut:
        return None
    if one is None or other is None or one.ids is None or other.ids is None:
        return data.Steps(calls[0], calls[1], None, None, None)
    return data.Steps(calls[0], calls[1], len(one.layers), one.count, other.count)


def _need_modules(dump: Dump, side: RoleSide) -> None:
    if not any(m.role.known for m in side.modules):
        raise NumprobeError(
            "E-RLC-001",
            "no module of a known role is recorded",
            where=str(dump.root),
            found="{modules} modules",
            do="record with level L0 or mix; at level L1 there are no modules",
            modules=len(side.modules),
        )


def _coverage(view: View) -> float:
    """The share of the canonical slots of both sides that were compared."""
    total = len(view.train.calls.values) + len(view.rollout.calls.values)
    return 2 * int((view.leaves.both & (view.measures.by != NOTHING)).sum()) / total if total else 0.0


def _known(side: RoleSide) -> float:
    """The share of the modules whose role is known: of the others nothing is a slot."""
    return sum(m.role.known for m in side.modules) / len(side.modules) if side.modules else 0.0


def _result(
    dumps: Sequence[Dump],
    view: View,
    premise: str,
    findings: list[data.Finding],
    coverage: float,
    merged: dict[str, int],
) -> data.RlResult:
    counts = Counter(view.judged.verdict)
    verdict, reason = "no_difference", ""
    if premise:
        verdict, reason = "premise_broken", premise
    elif findings:
        verdict = "difference_found"
    elif coverage < ENOUGH:
        verdict, reason = "inconclusive", "coverage"
    alone = [pair for pair in range(len(view.records)) if not view.paired(pair)]
    return data.RlResult(
        verdict,
        reason,
        round(coverage, 4),
        str(dumps[0].root),
        str(dumps[1].root),
        findings,
        [_pair(view, pair) for pair in range(len(view.records))],
        [name for pair in alone for name in view.keys(pair)[0]] + view.train.unknown,
        [name for pair in alone for name in view.keys(pair)[1]] + view.rollout.unknown,
        {v: counts.get(v, 0) for v in _VERDICTS},
        len({op.layer for op in view.train.calls.ops} - {None}),
        merged,
        detection_limit(view.measures, view.judged.expected),
        counts.get("warning", 0),
        int(view.measures.from_tensors.sum()),
    )


def _pair(view: View, pair: int) -> data.Pair:
    judged = view.judged
    worst = max(
        view.rows(pair),
        key=lambda r: (_VERDICTS.index(judged.verdict[r]), judged.rho[r] if not math.isnan(judged.rho[r]) else 0),
    )
    train, rollout = view.keys(pair)
    return data.Pair(
        place(view.name(pair)),
        train,
        rollout,
        judged.verdict[worst],
        number(view.apart(worst)),
        number(judged.rho[worst]),
    )
