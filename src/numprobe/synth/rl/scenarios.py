"""What is wrong on one of the two sides, drawn from a seed, and what a tool has to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from numprobe.synth.rl.model import Model
from numprobe.synth.rl.side import Side

FOUND, NONE = ("difference_found",), ("no_difference",)
UNJOINED = ("premise_broken",)
INSIDE = ("implementation_difference",)
ORDER = ("layout_error", "implementation_difference")


@dataclass(frozen=True)
class Expected:
    """Any one of the classes at any one of the places is right; places as in :attr:`Recorder.places`."""

    classes: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Two sides and the truth about them: ``figures`` from Max, Min, Mean and Norm, ``tensors`` from every element.

    ``blind`` names the transform that figures cannot show, which an answer from figures has to name. ``shown_by``: the slot of
    ``figures.places[0]`` where it is to be measured whether figures show the fault at all; where both sides have its elements in
    the ``same_order``, whether tensors do. ``unjoined``: the two sides have tokens in common, but only ids tell which.
    """

    model: Model
    train: Side
    rollout: Side
    verdicts: tuple[str, ...] = NONE
    figures: Expected = Expected()
    tensors: Expected = Expected()
    blind: str = ""
    ratio: float | None = None
    shown_by: str = ""
    same_order: bool = False
    unjoined: bool = False

    def found(self, classes: tuple[str, ...], *places: str) -> Plan:
        """The same fault is found in both modes."""
        expected = Expected(classes, places)
        return replace(self, verdicts=FOUND, figures=expected, tensors=expected)

    def wrong(self, side: str, **changes: object) -> Plan:
        """With changes of the side ``train`` or ``rollout``."""
        return replace(self, **{side: replace(getattr(self, side), **changes)})


def _clean(draw: Random, *, latent: bool | None = None, style: str = "megatron", dtype: str | None = None) -> Plan:
    """A pair of sides that compute the same, in another layout and order."""
    hidden, heads = draw.choice(((64, 8), (64, 4), (96, 6), (128, 8)))
    groups = draw.choice([g for g in (2, 4, 8, 6) if heads % g == 0 and g % 2 == 0])
    if latent is None:
        latent = draw.random() < 0.35
    model = Model(
        layers=draw.choice((3, 4, 4, 5)),
        hidden=hidden,
        heads=heads,
        groups=groups,
        ffn=draw.choice((128, 160, 192)),
        tokens=draw.randint(9, 40),
        latent=latent,
        bias=not latent and draw.random() < 0.3,
    )
    dtypes = draw.choices((("bf16", "bf16"), ("fp32", "bf16"), ("fp32", "fp32")), (7, 1, 2))[0]
    train = Side(
        style,
        dtype=dtype or dtypes[0],
        parts=draw.choice((1, 2)),
        fused_norm=draw.random() < 0.4,
        level=draw.choice(("L0", "mix")),
        shows_activation=False,  # Megatron takes the function before it can be wrapped
        short_figures=draw.random() < 0.3,
    )
    rollout = Side(
        "engine",
        dtype=dtype or dtypes[1],
        parts=draw.choice((2, 4)),
        level=draw.choice(("L0", "mix")),
        warm_up=draw.choice((0, 48, 64)),
        short_figures=draw.random() < 0.3,
    )
    return Plan(model, train, rollout)


def _sharded(draw: Random) -> Plan:
    plan = _clean(draw).wrong("train", world=2)
    return plan.wrong("rollout", world=2) if draw.random() < 0.2 else plan


def _activation(plan: Plan, draw: Random, side: str = "train") -> Plan:
    wrong = plan.wrong(side, activation=draw.choice(("gelu", "gelu", "relu")))
    return wrong.found(("missing_operator",), "layers.0.down", "layers.0.act")


def activation(draw: Random) -> Plan:
    return _activation(_clean(draw), draw)


def activation_tp2(draw: Random) -> Plan:
    return _activation(_sharded(draw), draw)


def activation_mix(draw: Random) -> Plan:
    """Both sides record the kernel of the activation."""
    plan = _clean(draw).wrong("train", level="mix", shows_activation=True).wrong("rollout", level="mix")
    return _activation(plan, draw).found(("configuration_difference",), "layers.0.down", "layers.0.act")


def activation_fsdp(draw: Random) -> Plan:
    plan = _activation(_clean(draw, latent=False, style="hf"), draw)
    return plan.found(("configuration_difference",), "layers.0.down", "layers.0.gate_act")


def activation_hidden(draw: Random) -> Plan:
    """Large gates: both activations pass most of them as they are or not at all."""
    plan = _clean(draw)
    plan = replace(plan, model=replace(plan.model, gate_scale=draw.choice((2.0, 4.0, 8.0)))).wrong(
        "train", activation="gelu"
    )
    return replace(
        plan.found(("missing_operator",), "layers.0.down", "layers.0.act"), shown_by="input_args", same_order=True
    )


def activation_rollout(draw: Random) -> Plan:
    """The engine is the side that is wrong."""
    return _activation(_clean(draw), draw, "rollout")


def clean(draw: Random) -> Plan:
    return _clean(draw)


def clean_fused(draw: Random) -> Plan:
    """The activation is part of another kernel and computes the same."""
    return _clean(draw).wrong("rollout", shows_activation=False)


def clean_residual(draw: Random) -> Plan:
    """Qwen2: the sum of the residual is made in the next norm, and projections have a bias."""
    plan = _clean(draw, latent=False)
    return replace(plan, model=replace(plan.model, bias=True))


def clean_tp2(draw: Random) -> Plan:
    return _sharded(draw)


def clean_fsdp(draw: Random) -> Plan:
    return _clean(draw, latent=False, style="hf")


def clean_deep(draw: Random) -> Plan:
    """Rounding errors add up over many layers."""
    plan = _clean(draw, dtype="bf16")
    return replace(plan, model=replace(plan.model, layers=24))


def weight(draw: Random) -> Plan:
    """A weight that was not synchronised."""
    plan, side = _clean(draw), draw.choice(("train", "rollout"))
    names = ["out", "gate", "up", "down"] + (["q_b", "kv_b", "q_a"] if plan.model.latent else ["q", "k", "v"])
    layer, name, factor = draw.randrange(plan.model.layers), draw.choice(names), draw.choice((0.97, 1.03, 1.05))
    place = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up", "q_a": "qkv_a"}.get(name, name)
    wrong = plan.wrong(side, stale={f"{layer}.{name}": factor})
    whole = factor if place == name else None
    wrong = wrong.found(("parameter_difference",), f"layers.{layer}.{place}")
    ratio = whole if side == "train" or whole is None else 1 / whole
    return replace(wrong, ratio=ratio, shown_by="parameters")


def shard(draw: Random) -> Plan:
    """One rank's part of a weight."""
    plan = _sharded(draw).wrong("rollout", world=1)
    layer, name = draw.randrange(plan.model.layers), draw.choice(("out", "down", "gate", "up"))
    stale = (f"{layer}.{name}", draw.randrange(2), draw.choice((0.9, 1.1)))
    place = {"gate": "gate_up", "up": "gate_up"}.get(name, name)
    plan = plan.wrong("train", stale_shard=stale).found(("parameter_difference",), f"layers.{layer}.{place}")
    return replace(plan, shown_by="parameters")


def attention_scale(draw: Random) -> Plan:
    """Scores are not divided by the root of a head's size, in one layer or all."""
    plan = _clean(draw)
    layer = draw.choice((None, 1))
    factor = float(plan.model.head**0.5)
    side = draw.choice(("train", "rollout"))
    return plan.wrong(side, attention_factor=factor, attention_layer=layer).found(INSIDE, f"layers.{layer or 0}.core")


def epsilon(draw: Random) -> Plan:
    plan = _clean(draw).wrong(draw.choice(("train", "rollout")), epsilon=draw.choice((0.05, 0.1)))
    fused = plan.train.fused_norm and not plan.model.latent
    return replace(plan.found(INSIDE, "layers.0.qkv" if fused else "layers.0.attn_norm"), shown_by="output")


def embedding_scale(draw: Random) -> Plan:
    plan = _clean(draw)
    factor = float(plan.model.hidden**0.5)
    side = draw.choice(("train", "rollout"))
    wrong = plan.wrong(side, embedding_factor=factor).found(("configuration_difference",), "embed")
    return replace(wrong, ratio=factor if side == "train" else 1 / factor)


def rotary_style(draw: Random) -> Plan:
    """Neighbours are rotated with each other instead of the halves of a head."""
    plan = _clean(draw, latent=False).wrong(draw.choice(("train", "rollout")), rotary="neighbours")
    plan = plan.found(INSIDE, "layers.0.core", "layers.0.out")
    return replace(plan, blind="rotary", tensors=Expected(ORDER, ("layers.0.core",)), shown_by="input_args")


def gate_up_exchanged(draw: Random) -> Plan:
    plan = _clean(draw).wrong(draw.choice(("train", "rollout")), exchanged_halves=True)
    plan = plan.found(("missing_operator", *INSIDE), "layers.0.down", "layers.0.act")
    exact = Expected(("layout_error",), ("layers.0.gate_up",))
    return replace(plan, blind="gate_up", tensors=exact, shown_by="input_args")


def heads_exchanged(draw: Random) -> Plan:
    plan = _clean(draw).wrong(draw.choice(("train", "rollout")), exchanged_heads=True)
    plan = plan.found(INSIDE, "layers.0.out", "layers.0.core", "layers.0.mlp_norm", "layers.0.gate_up")
    return replace(plan, blind="heads", tensors=Expected(ORDER, ("layers.0.core",)))


def qkv_rows(draw: Random) -> Plan:
    """The converter did not group the rows of q, k and v."""
    plan = _clean(draw, latent=False).wrong("train", stacked_rows=True)
    plan = plan.found(INSIDE, "layers.0.core", "layers.0.out")
    return replace(plan, blind="qkv_rows", tensors=Expected(("layout_error",), ("layers.0.qkv",)))


def prompt_shifted(draw: Random) -> Plan:
    """Another prompt of the same length: nobody is to blame."""
    plan = _clean(draw).wrong("rollout", shift=1)
    return replace(plan, verdicts=("premise_broken",), figures=Expected((), ("embed",)), shown_by="output")


def embedding_nan(draw: Random) -> Plan:
    """One rank's embedding is NaN."""
    plan = _clean(draw).wrong("rollout", world=2, nan_rank=draw.randrange(2))
    return plan.found(("nonfinite_one_side",), "embed")


def _stepped(draw: Random, unfed: int) -> Plan:
    """The engine reads a prompt, in one call or in two, and then its own answer token by token; training reads both at once."""
    plan = _clean(draw)
    answer = draw.randint(2, 6)
    prompt = plan.model.tokens - unfed - answer
    chunk = draw.choice((prompt, -(-prompt // 2)))
    chunks = (chunk, prompt - chunk) if chunk < prompt else (prompt,)
    return plan.wrong("rollout", steps=(*chunks, *[1] * answer))


def steps_clean(draw: Random) -> Plan:
    """The steps together have as many tokens as training."""
    return _stepped(draw, 0)


def decode_clean(draw: Random) -> Plan:
    """The token that was sampled last goes through no layer of the engine."""
    return replace(_stepped(draw, 1), unjoined=True)


def decode_activation(draw: Random) -> Plan:
    return replace(_activation(_stepped(draw, 1), draw, draw.choice(("train", "rollout"))), unjoined=True)


def decode_weight(draw: Random) -> Plan:
    plan = _stepped(draw, 1)
    layer = draw.randrange(plan.model.layers)
    wrong = plan.wrong(draw.choice(("train", "rollout")), stale={f"{layer}.down": draw.choice((0.95, 1.05))})
    return replace(wrong.found(("parameter_difference",), f"layers.{layer}.down"), unjoined=True)


SCENARIOS: dict[str, Callable[[Random], Plan]] = {
    scenario.__name__: scenario
    for scenario in (
        activation,
        activation_tp2,
        activation_mix,
        activation_fsdp,
        activation_hidden,
        activation_rollout,
        weight,
        shard,
        attention_scale,
        epsilon,
        embedding_scale,
        rotary_style,
        gate_up_exchanged,
        heads_exchanged,
        qkv_rows,
        prompt_shifted,
        embedding_nan,
        steps_clean,
        decode_clean,
        decode_activation,
        decode_weight,
        clean,
        clean_fused,
        clean_residual,
        clean_tp2,
        clean_fsdp,
        clean_deep,
    )
}
