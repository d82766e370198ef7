"""What the RL-consistency skill concludes, as data."""

from __future__ import annotations

import msgspec

EXIT_CODES = {"no_difference": 0, "difference_found": 1, "premise_broken": 3, "inconclusive": 3}
CLASSES = (
    "missing_operator",
    "implementation_difference",
    "parameter_difference",
    "upstream_propagation",
    "configuration_difference",
    "layout_error",
    "interface_difference",
    "nonfinite_one_side",
    "needs_review",
)


class Figures(msgspec.Struct, frozen=True):
    """One slot on both sides: Max, Min, Mean, Norm; None where a side has none."""

    slot: str
    train: list[float | None]
    rollout: list[float | None]
    error: float | None
    expected: float | None
    verdict: str


class Key(msgspec.Struct, frozen=True):
    """A record on both sides, by its full name; None on the side that has none."""

    train: str | None
    rollout: str | None


class Term(msgspec.Struct, frozen=True):
    """One term of a confidence: the key of its text and its value."""

    key: str
    value: float


class Probe(msgspec.Struct, frozen=True):
    """Activations that turn what the gate gave into what comes behind it, by side: measured on tensors (``exact``, with the
    relative error of every one that was tried), or consistent with the figures. A name with ``exchanged``: up is the gate."""

    exact: bool
    train: list[str]
    rollout: list[str]
    train_errors: dict[str, float] = {}
    rollout_errors: dict[str, float] = {}


class Finding(msgspec.Struct, frozen=True):
    """Where the two sides part.

    ``role`` is that of the suspect, ``segment`` what lies between anchor and suspect on either side without a partner, and
    ``segment_sides`` which side recorded each (``train``, ``rollout``), ``layers`` all layers that show the same, ``ratio`` the
    factor where one side is a multiple of the other. ``blind`` are transforms that figures do not show and that would look the
    same (``rotary``, ``heads``, ``gate_up``, ``qkv_rows``, ``order``), ``competing`` says that it is about as sure as the first.
    Of a layout error, ``transform`` is the order under which the tensors are equal, and ``layouts`` are those that the rules say
    of training and rollout.
    """

    clazz: str
    kind: str
    role: str
    confidence: float
    terms: list[Term]
    anchor: Key | None
    suspect: Key
    segment: list[str]
    layers: list[int]
    transform: str | None
    slot: str
    error: float | None
    expected: float | None
    ratio: float | None
    parameter: str
    figures: list[Figures]
    anchor_figures: list[Figures]
    consequences: int
    blind: list[str] = []
    competing: bool = False
    layouts: list[str] = []
    probe: Probe | None = None
    segment_sides: list[str] = []


class Pair(msgspec.Struct, frozen=True):
    """One row of the mapping: a canonical place, the records that fill it on both sides, and the worst verdict of its slots."""

    place: str
    train: list[str]
    rollout: list[str]
    verdict: str
    error: float | None
    ratio: float | None


class UnknownName(msgspec.Struct, frozen=True):
    """A name of the mapping file that no record has; ``side``: train, rollout or place."""

    side: str
    name: str
    close: list[str]


class Steps(msgspec.Struct, frozen=True):
    """Calls that were taken together as one: chunks of a prompt, steps of one token, one request a call. ``tokens`` are those in
    both, by their ids; None where only the sizes of the calls say that they belong together."""

    train_calls: int
    rollout_calls: int
    tokens: int | None
    train_tokens: int | None
    rollout_tokens: int | None


class RlResult(msgspec.Struct):
    """The conclusion. ``verdict``: difference_found | no_difference | premise_broken | inconclusive."""

    verdict: str
    reason: str
    coverage: float
    train: str
    rollout: str
    findings: list[Finding]
    mapping: list[Pair]
    unmatched_train: list[str]
    unmatched_rollout: list[str]
    counts: dict[str, int]
    layers: int
    merged: dict[str, int]
    detection_limit: float | None
    warnings: int = 0
    tensors: int = 0  # slots that were compared element by element
    unknown_names: list[UnknownName] = []
    frameworks: dict[
        str, str
    ] = {}  # by side: megatron, huggingface, engine, sglang, or empty where the names do not tell
    exchanged: bool = False  # the first dump that was given is the rollout side
    steps: Steps | None = None
    note: str = ""  # both dumps are of one side: trainers, engines
    next: dict[str, str] = {}  # by side, the file in the run's folder that records the tensors which decide

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]
