"""What the NaN-overflow skill concludes, as data. Every page, table and answer is drawn from these objects alone.

Sentences are not stored: a claim is a message key with parameters, worded by the catalogue in zh or en.
Statistics are floats, with NaN and infinities as values; None means that the dump has no such figure.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from numprobe.record.nonfinite import Number

VERDICTS = ("overflow_found", "no_overflow", "inconclusive")
EXIT_CODES = {"no_overflow": 0, "overflow_found": 1, "inconclusive": 3}

CLASSES = (  # the more specific first: where two fit, the earlier one is named
    "bad_parameter",
    "bad_input_data",
    "fully_masked_row",
    "empty_batch",
    "zero_times_inf",
    "domain_error",
    "uninitialised_memory_used",
    "recompute_differs",
    "range_overflow",
    "gradient_overflow",
    "communication_fault",
    "kernel_fault",
    "source_outside_view",
    "unknown",
)

ROLES = ("source", "relay", "victim", "clean", "partial", "missing")


Values: TypeAlias = "dict[str, str | int | float | list[int]]"


class Params(msgspec.Struct, frozen=True):
    """A message: its key in the catalogue and the figures and names that it needs."""

    key: str
    values: Values = {}


class Citation(msgspec.Struct, frozen=True):
    """Where a claim can be checked: ``file`` is relative to the dump folder, ``offset`` and ``length`` are bytes."""

    rank_key: str
    rank: int | None
    step: int | None
    op_index: int
    op_name: str
    slot: str = ""
    file: str = ""
    offset: int = -1
    length: int = 0

    @property
    def label(self) -> str:
        """``r168 #1644``."""
        who = f"r{self.rank}" if self.rank is not None else self.rank_key
        return f"{who} #{self.op_index}"


class Slot(msgspec.Struct, frozen=True):
    """One recorded leaf of a record: a tensor with statistics, or a scalar with ``value``."""

    slot: str  # input_args.0.0, input_kwargs.group_list, parameters.weight, output.0
    role: str  # input | parameter | placeholder | output
    type: str  # torch.Tensor, int, ...
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    max: Number = None
    min: Number = None
    mean: Number = None
    norm: Number = None
    state: str = "finite"  # finite | NaN | inf | -inf | "inf, -inf" | unknown
    value: str = ""  # text of a scalar


class Evidence(msgspec.Struct, frozen=True):
    """A numbered claim and the records that it rests on."""

    id: str  # E1, E2, ...
    message: Params
    citations: list[Citation] = []
    proves: bool = True  # False: an observation that proves nothing


class Term(msgspec.Struct, frozen=True):
    """A signed term of the confidence."""

    value: float
    message: Params


class Bound(msgspec.Struct, frozen=True):
    """An a-priori bound on |output| from the recorded inputs, and whether the output contradicts it."""

    applicable: bool
    reason: Params | None = None  # why not applicable
    rule: str = ""  # K*max|x|*max|w|
    formula: str = ""  # 512 x 8.000 x 0.1001
    value: float | None = None
    dtype: str = ""  # bf16
    dtype_max: float | None = None
    contradicts_output: bool = False


class ChainLink(msgspec.Struct, frozen=True):
    """One level of the call chain, innermost first. ``dirty_output`` None: this level has no record."""

    name: str
    dirty_input: bool | None = None
    dirty_output: bool | None = None
    op_index: int = -1


class Frame(msgspec.Struct, frozen=True):
    """A stack frame: the innermost one of the user's code."""

    file: str
    line: int
    function: str
    code: str = ""


class Candidate(msgspec.Struct):
    """A place where non-finite values were made, as far as the records tell."""

    ranks: list[int]  # replicated sources are one candidate with several ranks
    rank_key: str
    rank: int | None
    step: int | None
    op_name: str
    op_index: int
    kind: str  # introduced | gap | parameter | input_data | communication | outside
    clazz: str = msgspec.field(name="class", default="unknown")
    confidence: float = 0.05
    direction: str = "forward"
    phase: str = "forward"  # forward | recompute | backward | optimizer
    micro_batch: int | None = None
    layer: int | None = None
    module: str = ""  # path.Class of the innermost module around it, "" if unknown
    kinds: str = "NaN"  # what it made: NaN | inf | -inf | ...
    gap_after: str | None = None  # last clean record before, when the operator itself was not recorded
    gap_after_index: int = -1
    slots: list[Slot] = []
    chain: list[ChainLink] = []
    frame: Frame | None = None
    stack: list[str] = []
    bound: Bound | None = None
    peers_clean: int | None = None  # ranks on which the same record is clean with equal shapes
    terms: list[Term] = []
    citation: Citation | None = None
    explains: int = 0  # ranks whose first dirt this candidate reaches
    concurrent_with: list[str] = []  # op names of other sources that are neither before nor after
    suspects: list[int] = []  # source_outside_view: the ranks to look at


class Excluded(msgspec.Struct, frozen=True):
    """Look-alikes of one kind that were ruled out."""

    op: str  # the API or class: Tensor.masked_fill
    count: int
    ranks: int
    kinds: str  # -inf, NaN, ...
    reason: str  # catalogue key: mask_fill | allocation_overwritten | absorbed | placeholder | fill_value | user | ...
    lineage: str  # exact | matched | structural | unknown | name
    example: Citation


class RankRow(msgspec.Struct, frozen=True):
    """One rank of the run."""

    rank_key: str
    rank: int | None
    role: str  # one of ROLES; partial and missing are shown by status when the role is clean or unknown
    status: str  # ok | partial | missing | unreadable
    coords: dict[str, int] = {}  # pp, tp, ep, dp, as far as recorded or deduced
    records: int = 0
    first_dirty: str = ""
    first_dirty_index: int = -1
    via: str = ""  # id of the communication instance through which the first dirt came
    from_ranks: list[int] = []
    depends: bool = False  # partial, missing: could the conclusion change if this rank were read in full
    note: Params | None = None


class Spread(msgspec.Struct, frozen=True):
    """Communication instances of one position that made ranks dirty, in happened-before order."""

    order: int
    instance: str  # id of the first one: all_to_all_single@8fd1c5a2#7
    op_name: str  # as named on the rank that carried the dirt; for order 0 the first candidate itself
    api: str
    phase: str
    instances: int
    join: str  # verified | consistent | assumed | contradicted | hidden (no communication was recorded)
    new_ranks: list[int]
    from_ranks: list[int]
    total_dirty: int


class JoinSummary(msgspec.Struct):
    """How the communication records of all ranks were put together."""

    instances: int = 0
    verified: int = 0
    consistent: int = 0
    assumed: int = 0
    contradicted: int = 0
    dangling: int = 0  # a partner was not recorded
    notes: list[Params] = []


class StepRow(msgspec.Struct, frozen=True):
    """One step that was looked at."""

    step: int | None
    ranks: int
    partial: list[int]
    missing: list[int]
    records: int
    dirty_ranks: int
    state: str  # clean | dirty | look_alikes_only | not_scanned


class NanResult(msgspec.Struct):
    """The conclusion of one run of the skill."""

    verdict: str
    step: int | None = None
    source_ranks: list[int] = []
    rank: int | None = None
    clazz: str | None = msgspec.field(name="class", default=None)
    confidence: float | None = None
    headline: Params | None = None
    dump: str = ""  # name of the dump folder, no absolute path
    framework: str = ""
    level: str = ""
    sources: list[Candidate] = []  # independent origins, in order; the first one is the conclusion
    alternatives: list[Candidate] = []  # what could be the origin instead, with its own confidence
    evidence: list[Evidence] = []
    excluded: list[Excluded] = []
    ranks: list[RankRow] = []
    spread: list[Spread] = []
    join: JoinSummary = msgspec.field(default_factory=JoinSummary)
    steps: list[StepRow] = []
    partial_ranks: list[int] = []
    missing_ranks: list[int] = []
    limits: list[Params] = []  # what this conclusion does not cover
    next_checks: list[Params] = []
    notes: list[Params] = []  # expected: loss scaling, folders of two jobs, ...
    records: int = 0
    bytes: int = 0
    user_excluded: list[str] = []

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def first(self) -> Candidate | None:
        return self.sources[0] if self.sources else None
