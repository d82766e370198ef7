"""What ``--json`` prints, as types: the schema of the results is made from these. More keys may come."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from numprobe.diagnose.rl_consistency.result import Key, Probe, Steps, UnknownName

Figure: TypeAlias = "float | Literal['nan', 'inf', '-inf'] | None"
"""JSON has no NaN and no infinities: they are these words."""

RunFolder: TypeAlias = Annotated[str, Meta(description="The run's folder: report.md, report.html, artifacts.")]


class Anomaly(msgspec.Struct):
    """The innermost first dirty record; with ``gap_after``, the operator itself was not recorded."""

    op_name: str
    gap_after: str | None
    exec_order: int
    kind: str
    rank_key: str
    phase: str
    micro_batch: int | None
    layer: int | None


class NanSource(msgspec.Struct):
    ranks: list[int]
    op_name: str
    clazz: str = msgspec.field(name="class")
    confidence: float


class NanOverflow(msgspec.Struct):
    """The result of nan-overflow."""

    verdict: Literal["overflow_found", "no_overflow", "inconclusive"]
    step: int | None
    source_ranks: list[int]
    rank: int | None
    clazz: str | None = msgspec.field(name="class")
    confidence: float | None
    first_anomaly: Anomaly | None
    partial_ranks: list[int]
    missing_ranks: list[int]
    out: RunFolder
    reason: Annotated[str, Meta(description="The conclusion as one English sentence.")]
    suspect_ranks: list[int]
    sources: list[NanSource]
    notes: list[str]


class RlFinding(msgspec.Struct):
    """Where the two sides part. Keys are full names of records, null on the side that has none."""

    clazz: str = msgspec.field(name="class")
    kind: str
    confidence: float
    anchor: Key | None
    suspect: Key
    segment: list[str]
    segment_sides: list[str]
    layers: list[int]
    transform: str | None
    layouts: list[str]
    probe: Probe | None
    role: str
    slot: str
    error: Figure
    expected: Figure
    ratio: Figure


class Unmatched(msgspec.Struct):
    train: list[str]
    rollout: list[str]


class RlConsistency(msgspec.Struct):
    """The result of rl-consistency."""

    verdict: Literal["difference_found", "no_difference", "premise_broken", "inconclusive"]
    coverage: float
    out: RunFolder
    findings: list[RlFinding]
    reason: str
    counts: dict[str, int]
    unmatched: Unmatched
    detection_limit: Figure
    tensors: int
    unknown_names: list[UnknownName]
    next: Annotated[
        dict[str, str], Meta(description="By side, the file in the run's folder that records what decides.")
    ]
    frameworks: dict[str, str]
    exchanged: Annotated[bool, Meta(description="The first dump that was given is the rollout side.")]
    note: Annotated[str, Meta(description="trainers or engines where both dumps are of one side.")]
    steps: Steps | None


class CompareFinding(msgspec.Struct):
    """What brought a difference in. ``error`` and ``expected`` are relative."""

    op: str | None
    cause: Literal["introduced", "parameter", "input", "nonfinite", "layout", "unmatched", "unknown"]
    reason: str
    severity: str
    slot: str
    golden_op: str | None
    parameter: str
    after: str | None
    only_target: list[str]
    only_golden: list[str]
    step: int | None
    ranks: list[int]
    layer: int | None
    error: Figure
    expected: Figure


class Problem(msgspec.Struct):
    kind: str
    side: str
    step: int | None
    rank: str
    file: str


class Compare(msgspec.Struct):
    """The result of compare."""

    verdict: Literal["pass", "fail", "inconclusive"]
    coverage: float
    out: RunFolder
    first: CompareFinding | None
    counts: dict[str, int]
    premise: str
    mode: str
    dtypes: list[str]
    detection_limit: Figure
    findings: list[CompareFinding]
    not_compared: list[str]
    problems: list[Problem]
    notes: list[str]
