"""How large a simulated job is, and what a scenario may vary about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A job: ``world`` ranks as pp x dp x tp (tp innermost), ``layers`` a stage, ``micro_batches`` a step.

    ``seq``, ``hidden`` and ``ffn`` are the model's dimensions. ``lean`` keeps to the operators of the specification's large
    case, with experts in every third layer, so that a step has about 600 records; else every layer has experts, and every
    module and API leaves its records (about 60 a layer and micro-batch).
    """

    name: str
    world: int
    tp: int
    pp: int
    ep: int
    layers: int
    micro_batches: int = 3
    seq: int = 32
    hidden: int = 64
    ffn: int = 128
    vocab: int = 512
    lean: bool = False

    def __post_init__(self) -> None:
        if self.world % (self.tp * self.pp) or self.dp % self.ep:
            raise ValueError(
                f"{self.name}: {self.world} ranks are no tp {self.tp} x pp {self.pp} x dp with ep {self.ep}"
            )

    @property
    def layers_path(self) -> str:
        """Module path of the list of layers."""
        return "layers" if self.lean else "module.decoder.layers"

    @property
    def expert_layers(self) -> range:
        """Indices of the layers of a stage that have experts."""
        return range(0, self.layers, 3) if self.lean else range(self.layers)

    @property
    def dp(self) -> int:
        return self.world // (self.tp * self.pp)

    def place(self, rank: int) -> tuple[int, int, int]:
        """(pp, dp, tp) coordinates of a rank."""
        pp, rest = divmod(rank, self.tp * self.dp)
        return pp, rest // self.tp, rest % self.tp

    def rank_at(self, pp: int, dp: int, tp: int) -> int:
        return (pp * self.dp + dp) * self.tp + tp

    def group(self, kind: str, rank: int) -> tuple[int, ...]:
        """The ranks of ``rank``'s tensor (tp), expert (ep), data (dp), pipeline (pp) or world group."""
        pp, dp, tp = self.place(rank)
        if kind == "tp":
            return tuple(self.rank_at(pp, dp, t) for t in range(self.tp))
        if kind == "ep":
            first = dp - dp % self.ep
            return tuple(self.rank_at(pp, d, tp) for d in range(first, first + self.ep))
        if kind == "dp":
            return tuple(self.rank_at(pp, d, tp) for d in range(self.dp))
        if kind == "pp":
            return tuple(self.rank_at(p, dp, tp) for p in range(self.pp))
        return tuple(range(self.world))


UNIT = Size("unit", world=16, tp=2, pp=2, ep=4, layers=2)
CI = Size("ci", world=512, tp=4, pp=4, ep=32, layers=8, seq=1024, hidden=256, ffn=512, vocab=4096, lean=True)
NIGHTLY = Size(
    "nightly", world=512, tp=4, pp=4, ep=32, layers=16, micro_batches=20, seq=1024, hidden=256, ffn=512, vocab=4096
)
ONE = Size("one", world=1, tp=1, pp=1, ep=1, layers=3)

_BYTES_A_LAYER_PASS = 61_000  # of dump.json, measured at level mix: forward and backward of a layer for one micro-batch


def sized(world: int, mb_per_rank: float) -> Size:
    """A job of ``world`` ranks whose dump.json have about ``mb_per_rank`` megabytes each (level mix, no risk filter)."""
    tp = 2 if world % 2 == 0 else 1
    pp = 2 if world % (2 * tp) == 0 and world >= 4 else 1
    passes = max(1, round(mb_per_rank * 1e6 / _BYTES_A_LAYER_PASS))
    layers = max(1, min(64, round((passes / 1.5) ** 0.5)))
    return Size(
        f"{world}x{mb_per_rank:g}MB",
        world,
        tp,
        pp,
        world // (tp * pp),
        layers,
        max(1, round(passes / layers)),
        seq=256,
        hidden=128,
        ffn=256,
    )


@dataclass(frozen=True)
class Settings:
    """What a seed draws about a run, apart from the fault itself."""

    level: str = "mix"  # mix | L1 (APIs only) | L0 (modules only, no communication)
    risk: str = "ALL"  # ALL | FOCUS | CORE: the collector's risk filter
    only: tuple[str, ...] = ()  # the collector's list filter: substrings of record names
    unrecorded: tuple[str, ...] = ()  # roles of operators, or APIs as "Distributed.", that leave no record
    dtype: str = "bf16"
    loss_scale: float = 1.0
    schedule: str = "1f1b"  # 1f1b | afab
    p2p: str = "isend"  # send | isend | batch
    p2p_keywords: bool = False  # arguments of isend and irecv by keyword
    recompute: bool = False
    grads: str = "reduce_scatter"  # reduce_scatter | all_reduce | async_all_reduce
    loss_first: bool = True  # order of two independent reductions
    mask_first: bool = True  # order of mask building and attention input
    norm: str = "layer_norm"  # layer_norm | npu_rms_norm
    micro_steps: bool = False  # construct.json with [parent, micro step]
    grouped_stacks: bool = True
    masks: str = "both"  # inf | finite | both: which attention masks there are
    extras: frozenset[str] = frozenset()  # gate, spread, features, adapter, broadcast
    spread: str = "sqrt"  # what the extra operator does with the variance: sqrt | log | div
    update_skipped: bool = False  # the optimizer found an infinity and leaves the parameters alone
    harmless_division: tuple[int, ...] = ()  # ranks whose load statistics divide by zero and discard it
    unwritten: tuple[int, ...] = ()  # ranks that allocate buffers and write them later
    old_style: tuple[int, ...] = ()  # ranks that record placeholder buffers
    quoted: tuple[int, ...] = ()  # ranks that spell "nan", "inf", "-inf"
    partial: tuple[int, ...] = ()  # ranks whose dump.json ends in the middle of a record
    missing: tuple[int, ...] = ()  # ranks without a folder
