"""What a comparison concludes, as data. Every page, table and answer is drawn from these objects and the table alone."""

from __future__ import annotations

import msgspec

from numprobe.record.nonfinite import Number

EXIT_CODES = {"pass": 0, "fail": 1, "inconclusive": 3}
CAUSES = ("introduced", "parameter", "input", "nonfinite", "layout", "unmatched", "unknown")
GAPS = ("gap", "operator_missing", "operator_extra", "operator_differs")  # reasons: between two records, not in one
VERDICTS = ("pass", "warning", "error", "incomparable", "unmatched_target", "unmatched_golden")


class Side(msgspec.Struct, frozen=True):
    """One side of a leaf: what its file says. ``scalar`` is the text of a value that is no tensor."""

    dtype: str = ""
    shape: list[int] | None = None
    max: Number = None
    min: Number = None
    mean: Number = None
    norm: Number = None
    digest: str = ""
    scalar: str = ""


class Leaf(msgspec.Struct, frozen=True):
    """A pair of leaves that a finding cites. ``error`` is ||t - g|| / ||g||, estimated where only figures are there.

    ``mismatching`` is the share of elements that are not equal, ``worst`` where the largest difference is."""

    role: str
    path: str
    target: Side | None
    golden: Side | None
    verdict: str
    status: str = ""
    reason: str = ""
    error: float | None = None
    expected: float | None = None
    rho: float | None = None
    from_tensors: bool = False
    mismatching: float | None = None
    worst: list[int] | None = None


class Place(msgspec.Struct, frozen=True):
    """Where a record lies in a dump: ``file`` relative to the dump folder, ``offset`` and ``length`` in bytes."""

    file: str
    offset: int
    length: int


class Call(msgspec.Struct, frozen=True):
    """A call that one side alone makes: the modules around it, and its frames, both innermost first."""

    op: str
    inside: list[str]
    stack: list[str]


class Finding(msgspec.Struct):
    """One event, however many records show it.

    ``op`` is the innermost record of the target that shows it, ``golden_op`` its partner; None on the side that has none.
    ``cause`` is one of :data:`CAUSES`, ``reason`` a code that says more. ``after`` is the last record before a gap that agreed,
    ``only_target`` and ``only_golden`` the records without partner that belong to it, ``inside`` the modules around the record,
    ``parameter`` the name of a parameter that differs, ``consequences`` how many leaves hand it on. ``layout`` says in which
    order the target holds the golden elements, where that is all that differs (:mod:`numprobe.metrics.permutation`). ``extra``
    and ``missing`` are the first call of a gap that the target, and that the golden run, alone makes.
    """

    cause: str
    reason: str
    severity: str
    op: str | None
    golden_op: str | None
    slot: str
    step: int | None
    rank_keys: list[str]
    ranks: list[int]
    op_index: int
    phase: str
    layer: int | None
    rho: float | None
    error: float | None
    expected: float | None
    after: str | None
    parameter: str
    only_target: list[str]
    only_golden: list[str]
    inside: list[str]
    stack: list[str]
    leaves: list[Leaf]
    consequences: int
    target_place: Place | None
    golden_place: Place | None
    layout: str = ""
    extra: Call | None = None
    missing: Call | None = None


class RankPair(msgspec.Struct, frozen=True):
    """Two rank folders that were compared, or one that has no partner. ``status``: ok | partial | missing | unreadable."""

    step: int | None
    rank: int | None
    target: str
    golden: str
    status: str
    note: str = ""
    records: int = 0
    leaves: int = 0
    compared: int = 0
    counts: dict[str, int] = {}
    mode: str = ""
    detection_limit: float | None = None


PREMISES = {
    "ranks": ("missing", "unpaired", "unreadable", "cut", "damaged", "growing", "empty"),
    "coverage": ("little",),
    "mode": ("no_tensors", "no_digests"),
}


class Problem(msgspec.Struct, frozen=True):
    """Something that the comparison lacks. Kinds in :data:`PREMISES`, of a side that is compared, leave no verdict of pass; the
    others are told: what was compared holds without them.

    ``side``: target, golden, noise, baseline, or empty for both; ``rank`` the key of its folder, ``file`` what it is about.
    """

    kind: str
    side: str = ""
    step: int | None = None
    rank: str = ""
    file: str = ""
    values: dict[str, str | int | float] = {}

    @property
    def premise(self) -> str:
        """The premise that it breaks, empty if none."""
        if self.side in ("noise", "baseline"):
            return ""
        return next((name for name, kinds in PREMISES.items() if self.kind in kinds), "")


class Cell(msgspec.Struct, frozen=True):
    """One cell of the heat map: the worst verdict of what module ``part`` of layer ``layer`` did in ``phase``."""

    part: str
    layer: int | None
    phase: str
    verdict: str
    status: str
    rho: float | None


class CompareResult(msgspec.Struct):
    """The conclusion. ``verdict``: pass | fail | inconclusive; ``premise`` says why nothing can be blamed.

    Premises: inputs_differ, nothing_compared, parts, or one of :data:`PREMISES`, whose ``problems`` say of which rank and file.
    ``coverage`` is the share of recorded leaves, of the kinds of records that both sides have, that were compared. ``mode`` is
    statistics, tensor, digest or mixed; ``detection_limit`` the smallest relative error that figures could have shown;
    ``more_findings`` counts those that are in the table alone, ``later_findings`` those of steps after the first that differs:
    ``heat`` leaves such steps out too.
    """

    verdict: str
    premise: str
    mode: str
    target: str
    golden: str
    coverage: float
    counts: dict[str, int]
    findings: list[Finding]
    ranks: list[RankPair]
    heat: list[Cell]
    dtypes: list[str]
    notes: list[str]
    detection_limit: float | None = None
    more_findings: int = 0
    later_findings: int = 0
    problems: list[Problem] = []

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]
