"""The faults that can be simulated. Each scenario draws where it strikes and says what a correct analysis must conclude."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeAlias

from numprobe.synth.nan import tensor as T
from numprobe.synth.nan.program import Label
from numprobe.synth.nan.rank import Effect
from numprobe.synth.nan.settings import Size
from numprobe.synth.nan.tensor import INFINITE, MASKED_ROW, NAN, Tensor


@dataclass(frozen=True)
class Plan:
    """A fault and its right answer, as far as it is known before the run; the rest follows from the simulated state.

    ``classes`` are the acceptable classes, best first; none: there is nothing to find. ``effects`` change the output of
    operators, ``leaf_effects`` parameters and inputs, by rank. ``force`` are settings without which the scenario would not
    be what its name says, ``avoid`` ranks that must be complete. ``uses_unwritten``: rank, micro-batch and layer that
    compute with a buffer before anybody wrote it. ``size``: another job than the one asked for.
    """

    classes: tuple[str, ...] = ()
    effects: Mapping[tuple[int, Label], Effect] = field(default_factory=dict)
    leaf_effects: Mapping[tuple[int, str], Effect] = field(default_factory=dict)
    force: Mapping[str, object] = field(default_factory=dict)
    avoid: frozenset[int] = frozenset()
    verdict: str = ""
    uses_unwritten: tuple[int, int, int] | None = None
    step: int = 0
    steps: int = 1
    size: Size | None = None


Scenario: TypeAlias = Callable[[Random, Size], Plan]

APIS = ("mix", "mix", "mix", "L1")  # levels at which operators outside modules leave records
UNFILTERED = ("ALL", "ALL", "FOCUS")  # risk filters under which elementwise operators leave records


# -- effects


def becomes(kinds: int, slices: frozenset[int] | None = None) -> Effect:
    """The output gets non-finite values of ``kinds``, in the given slices or anywhere."""
    return lambda t: T.with_kinds(t, kinds, taint=True, slices=slices)


def _masked_row(t: Tensor) -> Tensor:
    return replace(t, kinds=t.kinds | MASKED_ROW)


def _amplified(factor: float) -> Effect:
    return lambda t: T.finite(t.dtype, t.shape, t.rms * factor, t.key ^ 1)


def _with_minimum(value: float) -> Effect:
    def effect(t: Tensor) -> Tensor:
        (low,) = T.rounded(t.dtype, value)
        return replace(t, min=low, text="", key=t.key ^ 1)

    return effect


def _all_zero(t: Tensor) -> Tensor:
    return T.constant(t.dtype, t.shape, 0.0, t.key ^ 1)


def _garbage_nan(t: Tensor) -> Tensor:
    dirty = T.with_kinds(t, NAN, taint=False)
    return replace(dirty, kinds=dirty.kinds | T.GARBAGE)


# -- places


def _position(draw: Random, size: Size) -> tuple[int, int, int]:
    """A rank, a micro-batch and the index of a layer with experts."""
    return draw.randrange(size.world), draw.randrange(size.micro_batches), draw.choice(size.expert_layers)


def _some_slices(draw: Random, size: Size) -> frozenset[int] | None:
    if draw.random() < 0.3:
        return None
    return frozenset(draw.sample(range(size.ep), max(1, size.ep // 4)))


def _forward(rank: int, mb: int, layer: int, role: str, effect: Effect) -> dict[tuple[int, Label], Effect]:
    """The effect in the forward and, a deterministic kernel failing again, in its recomputation."""
    phases = ("forward", "recompute") if layer >= 0 else ("forward",)  # only layers are recomputed
    return {(rank, Label(phase, mb, layer, role)): effect for phase in phases}


def _everywhere(
    ranks: Iterable[int], mb: int, layer: int, role: str, effect: Effect
) -> dict[tuple[int, Label], Effect]:
    merged: dict[tuple[int, Label], Effect] = {}
    for rank in ranks:
        merged.update(_forward(rank, mb, layer, role, effect))
    return merged


def _kinds(draw: Random) -> int:
    return draw.choices((NAN, INFINITE), (4, 1))[0]


# -- forward faults of one operator


def grouped_matmul_nan(draw: Random, size: Size) -> Plan:
    """The second grouped matmul of an expert layer turns modest finite inputs into NaN on one rank."""
    rank, mb, layer = _position(draw, size)
    force: dict[str, object] = {}
    if size.name == "ci":
        rank, mb, layer = 168, 0, 3
        force = {"partial": (311,), "missing": (77,), "harmless_division": (40,), "level": "mix", "risk": "ALL"}
    effects = _forward(rank, mb, layer, "gmm2", becomes(NAN, _some_slices(draw, size)))
    return Plan(("kernel_fault",), effects, force=force, avoid=frozenset({rank}))


def fully_masked_row(draw: Random, size: Size) -> Plan:
    """The router's mask closes every expert for some token: softmax over a row of -inf."""
    rank, mb, layer = _position(draw, size)
    ranks = size.group("tp", rank) if draw.random() < 0.5 else (rank,)
    effects = _everywhere(ranks, mb, layer, "router_mask", _masked_row)
    return Plan(("fully_masked_row",), effects, force={"masks": "inf"}, avoid=frozenset(ranks))


def fp16_overflow(draw: Random, size: Size) -> Plan:
    """fp16: outlier activations close to the limit (Max about 6e4) overflow in the matmul that follows."""
    rank, mb, layer = _position(draw, size)
    ranks = size.group("tp", rank)
    path = f"{size.layers_path}.{layer}"
    stage = size.place(rank)[0]
    members = [r for r in range(size.world) if size.place(r)[0] == stage]
    leaf_effects = {(r, f"{path}.input_layernorm.weight"): _amplified(5500.0) for r in members}
    widen = 2.4 / size.hidden**0.5
    leaf_effects |= {(r, f"{path}.qkv"): _amplified(widen / 0.03) for r in members}
    effects = _everywhere(ranks, mb, layer, "norm1", _amplified(2.4))
    return Plan(("range_overflow",), effects, leaf_effects, force={"dtype": "fp16"}, avoid=frozenset(ranks))


def replicated_source(draw: Random, size: Size) -> Plan:
    """All tensor-parallel peers compute the same NaN: one fault, seen on each of them."""
    rank, mb, layer = _position(draw, size)
    ranks = size.group("tp", rank)
    effects = _everywhere(ranks, mb, layer, draw.choice(("norm1", "router", "attention")), becomes(NAN))
    return Plan(("kernel_fault",), effects, avoid=frozenset(ranks))


def after_last_collective(draw: Random, size: Size) -> Plan:
    """Adam's root or step gives NaN on one rank, after the last communication of the step."""
    rank = draw.randrange(size.world)
    role = draw.choice(("root", "second_moment", "param_add"))
    effects = {(rank, Label("optimizer", size.micro_batches - 1, -1, role)): becomes(NAN)}
    force = {"grads": "all_reduce", "level": draw.choice(APIS), "risk": draw.choice(UNFILTERED)}
    return Plan(("kernel_fault", "unknown"), effects, force=force, avoid=frozenset({rank}))


def single_card(draw: Random, size: Size) -> Plan:
    """One process without distributed training: folder proc123."""
    alone = replace(size, name=f"{size.name}-single", world=1, tp=1, pp=1, ep=1)
    _, mb, layer = _position(draw, alone)
    effects = _forward(0, mb, layer, draw.choice(("gmm1", "gmm2", "attention")), becomes(NAN))
    return Plan(("kernel_fault",), effects, avoid=frozenset({0}), size=alone)


def uninitialised_used(draw: Random, size: Size) -> Plan:
    """A buffer is added to the tokens before anybody has written it."""
    rank, mb, layer = _position(draw, size)
    force = {"level": draw.choice(APIS), "risk": "ALL", "recompute": False, "unwritten": (rank,)}
    return Plan(
        ("uninitialised_memory_used",),
        leaf_effects={(rank, f"unwritten.{mb}.{layer}"): _garbage_nan},
        force=force,
        avoid=frozenset({rank}),
        uses_unwritten=(rank, mb, layer),
    )


def domain_error(draw: Random, size: Size) -> Plan:
    """A variance computed as a difference comes out negative (or zero): root, logarithm or reciprocal of it."""
    rank, mb, layer = _position(draw, size)
    ranks = size.group("tp", rank)
    kind = draw.choice(("sqrt", "log", "div"))
    effects = _everywhere(ranks, mb, layer, "spread_sub", _with_minimum(0.0 if kind == "div" else -0.0012))
    force = {"extras": frozenset({"spread"}), "spread": kind, "risk": draw.choice(UNFILTERED)}
    return Plan(("domain_error",), effects, force=force, avoid=frozenset(ranks))


def zero_times_inf(draw: Random, size: Size) -> Plan:
    """where(|x| > 0, log |x|, 0) with an exact zero: finite forward, the discarded branch's gradient is 0 / 0."""
    rank, mb, layer = _position(draw, size)
    ranks = size.group("tp", rank)
    effects = _everywhere(ranks, mb, layer, "gate_abs", _with_minimum(0.0))
    force = {"extras": frozenset({"gate"}), "risk": draw.choice(UNFILTERED)}
    return Plan(("zero_times_inf",), effects, force=force, avoid=frozenset(ranks))


def empty_batch(draw: Random, size: Size) -> Plan:
    """One micro-batch of one replica has no valid token: the loss is 0 / 0."""
    mb = draw.randrange(size.micro_batches)
    ranks = size.group("tp", size.rank_at(size.pp - 1, draw.randrange(size.dp), 0))
    force = {"level": draw.choice(APIS), "risk": draw.choice(UNFILTERED)}
    return Plan(
        ("empty_batch",),
        leaf_effects={(r, f"valid.{mb}"): _all_zero for r in ranks},
        force=force,
        avoid=frozenset(ranks),
    )


def bad_input_data(draw: Random, size: Size) -> Plan:
    """The features that are added to the embedding hold NaN in one micro-batch of one replica."""
    mb = draw.randrange(size.micro_batches)
    ranks = size.group("tp", size.rank_at(0, draw.randrange(size.dp), 0))
    force = {"extras": frozenset({"features"}), "level": draw.choice(APIS), "risk": draw.choice(UNFILTERED)}
    leaf_effects = {(r, f"features.{mb}"): becomes(NAN) for r in ranks}
    return Plan(("bad_input_data",), leaf_effects=leaf_effects, force=force, avoid=frozenset(ranks))


def bad_parameter(draw: Random, size: Size) -> Plan:
    """A weight is NaN when the step starts, on every rank that holds this shard."""
    rank, _, layer = _position(draw, size)
    pp, dp, tp = size.place(rank)
    path = f"{size.layers_path}.{layer}"
    name, shard = draw.choice((("router", ""), ("qkv", "tp"), ("w1", "ep")))
    holders = []
    for r in range(size.world):
        p, d, t = size.place(r)
        same = {"": True, "tp": t == tp, "ep": d % size.ep == dp % size.ep}[shard]
        if p == pp and same:
            holders.append(r)
    return Plan(
        ("bad_parameter",),
        leaf_effects={(r, f"{path}.{name}"): becomes(NAN) for r in holders},
        avoid=frozenset(holders),
    )


def tied_weights(draw: Random, size: Size) -> Plan:
    """A module that is called twice in a pass fails in its second call."""
    rank, mb, _ = _position(draw, size)
    effects = _forward(rank, mb, -1, "adapter_again", becomes(NAN))
    return Plan(("kernel_fault",), effects, force={"extras": frozenset({"adapter"})}, avoid=frozenset({rank}))


# -- backward and recomputation


def backward_only(draw: Random, size: Size) -> Plan:
    """The forward is finite everywhere; a backward kernel gives NaN or infinities, for the input or for a weight."""
    rank, mb, layer = _position(draw, size)
    role = draw.choice(("gmm1", "gmm2", "swiglu", "attention", "gmm1.1", "qkv.1"))
    effects = {(rank, Label("backward", mb, layer, role)): becomes(_kinds(draw))}
    return Plan(("gradient_overflow", "kernel_fault"), effects, avoid=frozenset({rank}))


def recompute_differs(draw: Random, size: Size) -> Plan:
    """The first forward of a layer was finite, its recomputation in the backward gives NaN."""
    rank, mb, layer = _position(draw, size)
    effects = {(rank, Label("recompute", mb, layer, draw.choice(("gmm1", "gmm2", "attention")))): becomes(NAN)}
    return Plan(("recompute_differs",), effects, force={"recompute": True}, avoid=frozenset({rank}))


def loss_scale(draw: Random, size: Size) -> Plan:
    """fp16 with loss scale 65536: scaled gradients overflow, the optimizer skips the step. Normal, nothing to find."""
    rank, mb, layer = _position(draw, size)
    effects = {(rank, Label("backward", mb, layer, draw.choice(("gmm2", "attention", "gmm1")))): becomes(INFINITE)}
    force = {
        "dtype": "fp16",
        "loss_scale": 65536.0,
        "update_skipped": True,
        "level": "mix",
        "partial": (),
        "missing": (),
    }
    return Plan(effects=effects, verdict="no_overflow", force=force)


# -- more than one place, communication, what the dump does not hold


def two_sources(draw: Random, size: Size) -> Plan:
    """Two independent faults in the same layer and micro-batch, on ranks that share no group there."""
    rank, mb, layer = _position(draw, size)
    pp, dp, tp = size.place(rank)
    other = size.rank_at(pp, (dp + 1 + draw.randrange(size.dp - 1)) % size.dp, (tp + 1) % size.tp)
    effects = _forward(rank, mb, layer, "gmm1", becomes(NAN)) | _forward(other, mb, layer, "gmm2", becomes(NAN))
    return Plan(("kernel_fault",), effects, avoid=frozenset({rank, other}))


def communication_fault(draw: Random, size: Size) -> Plan:
    """A collective with clean inputs on all members delivers NaN to one of them."""
    rank, mb, layer = _position(draw, size)
    role, group = draw.choice((("proj_reduce", "tp"), ("combine", "ep"), ("dispatch", "ep")))
    effects = _forward(rank, mb, layer, role, becomes(NAN))
    force = {"level": draw.choice(APIS)}
    return Plan(("communication_fault",), effects, force=force, avoid=frozenset(size.group(group, rank)))


def hidden_communication(draw: Random, size: Size) -> Plan:
    """No record of any communication: a dump of modules only, or collectives that the collector does not see."""
    rank, mb, layer = _position(draw, size)
    force: dict[str, object] = (
        {"level": "L0"} if draw.random() < 0.5 else {"level": "mix", "unrecorded": ("Distributed.",)}
    )
    effects = _forward(rank, mb, layer, draw.choice(("gmm2", "attention")), becomes(NAN, None))
    return Plan(("kernel_fault",), effects, force=force | {"partial": (), "missing": ()}, avoid=frozenset({rank}))


def gap(draw: Random, size: Size) -> Plan:
    """The faulty operator leaves no record: the first dirty record has a dirty input."""
    rank, mb, layer = _position(draw, size)
    if draw.random() < 0.5:
        role, force = "permute", {"level": "mix"}
    else:
        role = draw.choice(("gmm1", "swiglu", "attention"))
        force = {"level": "L1"}
    force_all: dict[str, object] = {**force, "unrecorded": (role,), "unwritten": ()}
    return Plan(
        ("unknown", "kernel_fault"),
        _forward(rank, mb, layer, role, becomes(NAN)),
        force=force_all,
        avoid=frozenset({rank}),
    )


def source_missing(draw: Random, size: Size) -> Plan:
    """The guilty rank's folder is not there."""
    rank, mb, layer = _position(draw, size)
    effects = _forward(rank, mb, layer, "gmm2", becomes(NAN))
    force = {"missing": (rank,), "partial": (), "level": draw.choice(APIS)}
    return Plan(("source_outside_view",), effects, force=force, verdict="inconclusive")


def all_dirty_from_start(draw: Random, size: Size) -> Plan:
    """The dump starts after the fault: every weight of every rank is NaN already."""
    leaf_effects = {(r, "weights"): becomes(NAN) for r in range(size.world)}
    return Plan(("unknown", "bad_parameter", "source_outside_view"), leaf_effects=leaf_effects, verdict="inconclusive")


def two_steps(draw: Random, size: Size) -> Plan:
    """Step 0 is clean, step 1 is not."""
    return replace(grouped_matmul_nan(draw, replace(size, name="")), step=1, steps=2)


def filtered_list(draw: Random, size: Size) -> Plan:
    """The collector's list kept some operators only."""
    rank, mb, layer = _position(draw, size)
    only = draw.choice((("linear", "grouped_matmul", "Distributed"), ("npu_", "Distributed"), ("mlp", "Distributed")))
    role = draw.choice(("gmm2", "gmm1", "swiglu"))
    force = {"only": only, "level": "mix", "unwritten": ()}
    return Plan(
        ("kernel_fault", "unknown"), _forward(rank, mb, layer, role, becomes(NAN)), force=force, avoid=frozenset({rank})
    )


# -- nothing to find


_WHOLE: dict[str, object] = {"partial": (), "missing": ()}
_QUIET: dict[str, object] = {**_WHOLE, "unwritten": (), "old_style": (), "harmless_division": (), "p2p": "isend"}


def clean(draw: Random, size: Size) -> Plan:
    """No fault; all the look-alikes of one."""
    return Plan(force=_WHOLE)


def clean_masks_only(draw: Random, size: Size) -> Plan:
    """No fault; -inf masks, nothing else."""
    return Plan(force={**_QUIET, "masks": "inf"})


def saturated_mask(draw: Random, size: Size) -> Plan:
    """No fault; masks of the dtype's most negative finite value, whose mean overflows in the recorder."""
    return Plan(force={**_QUIET, "masks": "finite"})


# -- held out: never look at these while tuning an analysis


def held_out_attention(draw: Random, size: Size) -> Plan:
    """A fused attention kernel fails on one rank, in a dump of APIs only."""
    rank, mb, layer = _position(draw, size)
    return Plan(
        ("kernel_fault",),
        _forward(rank, mb, layer, "attention", becomes(_kinds(draw))),
        force={"level": "L1"},
        avoid=frozenset({rank}),
    )


def held_out_clip(draw: Random, size: Size) -> Plan:
    """Gradient clipping gives NaN on one rank; the updated parameters are gathered from it."""
    rank = draw.randrange(size.world)
    effects = {(rank, Label("optimizer", size.micro_batches - 1, -1, "clip")): becomes(NAN)}
    force = {"grads": "reduce_scatter", "level": draw.choice(APIS), "risk": draw.choice(UNFILTERED)}
    return Plan(("kernel_fault", "unknown"), effects, force=force, avoid=frozenset({rank}))


def held_out_broadcast(draw: Random, size: Size) -> Plan:
    """A rank broadcasts a buffer that holds NaN to its replicas."""
    rank = size.rank_at(draw.randrange(size.pp), 0, draw.randrange(size.tp))
    force = {"extras": frozenset({"broadcast"}), "level": draw.choice(APIS)}
    return Plan(
        ("bad_parameter", "bad_input_data", "unknown"),
        leaf_effects={(rank, "scale"): becomes(NAN)},
        force=force,
        avoid=frozenset({rank}),
    )


def held_out_last_loss(draw: Random, size: Size) -> Plan:
    """1F1B with batched point-to-point calls; the loss kernel of one rank of the last stage fails."""
    rank = size.rank_at(size.pp - 1, draw.randrange(size.dp), draw.randrange(size.tp))
    mb = draw.randrange(size.micro_batches)
    force = {"p2p": "batch", "schedule": "1f1b", "level": draw.choice(APIS), "risk": draw.choice(UNFILTERED)}
    return Plan(("kernel_fault",), _forward(rank, mb, -1, "loss", becomes(NAN)), force=force, avoid=frozenset({rank}))


_TUNED: tuple[Scenario, ...] = (
    grouped_matmul_nan, fully_masked_row, fp16_overflow, replicated_source, after_last_collective, single_card,
    uninitialised_used, domain_error, zero_times_inf, empty_batch, bad_input_data, bad_parameter, tied_weights,
    backward_only, recompute_differs, loss_scale, two_sources, communication_fault, hidden_communication, gap,
    source_missing, all_dirty_from_start, two_steps, filtered_list, clean, clean_masks_only, saturated_mask,
)  # fmt: skip
_HELD_OUT: tuple[Scenario, ...] = (held_out_attention, held_out_clip, held_out_broadcast, held_out_last_loss)

SCENARIOS: dict[str, Scenario] = {f.__name__: f for f in (*_TUNED, *_HELD_OUT)}
HELD_OUT: frozenset[str] = frozenset(f.__name__ for f in _HELD_OUT)
