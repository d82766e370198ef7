"""What a difference at a place means: its class, and what figures cannot tell about it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from numprobe.align.roles.side import CORE, LINEAR, MIXTURE, NORM_LINEAR, RoleSide
from numprobe.compare.ledger import Finding
from numprobe.diagnose.rl_consistency.layouts import other_layout
from numprobe.diagnose.rl_consistency.probe import EXCHANGED, activation
from numprobe.diagnose.rl_consistency.result import Probe
from numprobe.diagnose.rl_consistency.rotary import rotary
from numprobe.diagnose.rl_consistency.view import View, ratio, role_of
from numprobe.metrics.gains import UNIT_ROUNDOFF_FP32
from numprobe.record.dtypes import float_format
from numprobe.record.names import parse_name
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

ACTIVATIONS = ("silu", "gelu", "relu", "swiglu", "geglu", "sigmoid", "tanh", "mish")
_SAME = {"swiglu": "silu", "geglu": "gelu"}
LOOK_UP = 8.0  # times the random error of a figure
ROUNDED = 0.75  # spacings: what a figure may be off that was rounded to its tensor's dtype
EVERYWHERE = 0.8  # of the weights: another checkpoint
# what cannot be seen in figures, by the role where it would show first
BLIND = {
    "core": ("rotary", "qkv_rows"),
    "out": ("rotary", "qkv_rows", "heads"),
    "act": ("gate_up",),
    "down": ("gate_up",),
    "mlp_norm": ("rotary", "qkv_rows", "heads"),
    "attn_norm": ("order",),
    "final_norm": ("order",),
}
BLIND_INSIDE = {CORE: ("rotary", "qkv_rows"), NORM_LINEAR: ("order",), MIXTURE: ("gate_up",)}


@dataclass(frozen=True)
class Meaning:
    """``blind`` are the transforms that figures do not show and that would look the same; ``layouts`` those that the rules say of
    both sides, of a layout error."""

    clazz: str
    kind: str
    blind: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()


def meaning(view: View, f: Finding) -> Meaning:
    """The class of a finding."""
    found = _meaning(view, f)
    # in tensors, the order of elements does not hide
    return replace(found, blind=()) if f.row >= 0 and view.measures.from_tensors[f.row] else found


def _meaning(view: View, f: Finding) -> Meaning:
    other = other_layout(view, f.row) if f.cause in ("parameter", "introduced") else None
    if other is not None:
        return Meaning("layout_error", other.transform, (), other.expected)
    role, slot = role_of(view.name(f.pair)), view.slot_role(f.row)
    if f.cause == "parameter":
        if f.reason == "nonfinite":
            return Meaning("nonfinite_one_side", "parameter")
        return Meaning("parameter_difference", "everywhere" if _everywhere(view) else "value")
    if f.cause == "nonfinite":
        return Meaning("nonfinite_one_side", "input" if slot == INPUT else "output")
    if f.cause == "layout" or f.reason == "shape":
        return Meaning("interface_difference", "shape")
    if ratio(view, f.row) is not None and (role == "embed" or (slot == INPUT and not _anything_between(view, f))):
        return Meaning("configuration_difference", "scale")
    if (role == "down" and slot == INPUT) or (role == "act" and slot == OUTPUT):
        return _activation(view, f)
    if slot == INPUT:
        turned = rotary(view, f.pair, f.row) if role == "core" else ""
        return Meaning("implementation_difference", turned or "unrecorded", BLIND.get(role, ()))
    return _inside(view, f, role)


def _inside(view: View, f: Finding, role: str) -> Meaning:
    """An output that differs though the inputs agree."""
    kind = parse_name(view.name(f.pair)).api
    if kind in (LINEAR, NORM_LINEAR) and not view.of_pair(f.pair, PARAMETER):
        return Meaning("parameter_difference", "unrecorded")
    if kind == MIXTURE and _other_activation(view, f):
        return Meaning("configuration_difference", "different")
    if view.measures.from_tensors[f.row]:
        return Meaning("implementation_difference", "inside")
    if kind == LINEAR:  # nobody multiplies matrices wrongly: the order is another one
        return Meaning("implementation_difference", "order", (*BLIND.get(role, ()), "order"))
    return Meaning("implementation_difference", "inside", BLIND_INSIDE.get(kind, ()))


def _activation(view: View, f: Finding) -> Meaning:
    """The gate's activation: recorded on both sides, on one, or on none; and what the numbers say of it."""
    tried = probe(view, f)
    fits = [tried.train, tried.rollout] if tried is not None and tried.exact else [[], []]
    if all(fits) and any(EXCHANGED in of[0] for of in fits) and not all(EXCHANGED in of[0] for of in fits):
        return Meaning("layout_error", "gate_up")
    if _other_activation(view, f):
        return Meaning("configuration_difference", "different")
    layer = parse_name(view.name(f.pair)).layer
    if activations(view.train, layer) and activations(view.rollout, layer):
        return Meaning("implementation_difference", "unrecorded", BLIND["down"])
    if all(fits) and not set(fits[0]) & set(fits[1]):
        return Meaning("missing_operator", "missing" if "none" in (fits[0][0], fits[1][0]) else "different")
    return Meaning("missing_operator", "unrecorded", BLIND["down"])


def probe(view: View, f: Finding) -> Probe | None:
    """Which activations the numbers of both sides fit, for a finding behind one."""
    role, slot = role_of(view.name(f.pair)), view.slot_role(f.row)
    if not ((role == "down" and slot == INPUT) or (role == "act" and slot == OUTPUT)):
        return None
    layer = parse_name(view.name(f.pair)).layer
    return activation(view, f.pair, [activations(side, layer) for side in (view.train, view.rollout)])


def _other_activation(view: View, f: Finding) -> bool:
    """Do both sides record an activation in this layer, and not the same?"""
    layer = parse_name(view.name(f.pair)).layer
    train, rollout = activations(view.train, layer), activations(view.rollout, layer)
    return bool(train and rollout and train != rollout)


def activations(side: RoleSide, layer: int | None) -> set[str]:
    """Names of the activations that are recorded in the MLP of a layer, those of fused kernels as what they compute."""
    calls = side.original
    mlps = {m.record for m in side.modules if m.role.layer == layer and m.role.name in ("mlp", "act", "experts")}
    words = [
        op.api.lower()
        for i, op in enumerate(calls.ops)
        if (i in mlps and op.is_module) or (op.kind == "api" and calls.parent[i] in mlps)
    ]
    return {
        _SAME.get(a, a) for a in ACTIVATIONS for word in words if a in word and not (a == "relu" and "elu6" in word)
    }


def _anything_between(view: View, f: Finding) -> bool:
    """Is there an operator that is recorded on neither side, so that more than a factor may lie before this input?"""
    return role_of(view.name(f.pair)) in ("core", "out", "down")


def _everywhere(view: View) -> bool:
    weights = [r for r in range(len(view.leaves)) if view.leaves.both[r] and view.slot_role(r) == PARAMETER]
    wrong = [r for r in weights if view.judged.verdict[r] == "error"]
    return len(weights) > 4 and len(wrong) >= EVERYWHERE * len(weights)


def premise(view: View, errors: Iterable[Finding]) -> str:
    """Why the two runs cannot be compared: models of other sizes, other tokens, another number of them, calls that figures
    cannot join. Empty if they can."""
    if _other_sizes(view):
        return "models"
    first = next(iter(errors), None)
    if first is None:
        return "tokens" if _other_tokens(view) else ""
    role, slot = role_of(view.name(first.pair)), view.slot_role(first.row)
    if first.reason == "shape" and slot == INPUT and role in ("embed", "attn_norm"):
        recorded = all(side.original.values.files for side in (view.train, view.rollout))
        return "steps" if not recorded and (view.train.left_out or view.rollout.left_out) else "count"
    if role != "embed" and _other_tokens(view):
        return "tokens"
    if first.cause == "input":
        return "tokens" if ratio(view, first.row) is None else ""
    if role == "embed" and slot == OUTPUT and first.cause == "introduced" and ratio(view, first.row) is None:
        return "tokens"
    return ""


def _other_tokens(view: View) -> bool:
    """Did the two look up other rows of one embedding? A look-up computes nothing: what it gives has the figures of its table to
    their last digit, up to the rounding of a table that one side holds in another dtype, and a multiple of it is a setting."""
    pair = next((p for p in range(len(view.records)) if role_of(view.name(p)) == "embed" and view.paired(p)), -1)
    rows = view.of_pair(pair, OUTPUT) if pair >= 0 else []
    if not rows or any(view.judged.verdict[r] == "error" for r in view.of_pair(pair, PARAMETER)):
        return False
    m, row = view.measures, rows[0]
    if m.from_tensors[row] or not m.numel[row] or ratio(view, row) is not None:
        return False  # tensors are judged element by element
    t, g = int(view.leaves.target[row]), int(view.leaves.golden[row])
    one, other = view.train.calls.values, view.rollout.calls.values
    kinds = one.kinds[one.kind[t]][2], other.kinds[other.kind[g]][2]
    rounding, bound = (0.0, 0.0) if kinds[0] == kinds[1] else (float(m.rounding[row]), float(m.bound[row]))
    norms = float(one.figures[t, 3]), float(other.figures[g, 3])
    allowed = LOOK_UP * (rounding * (m.numel[row] ** -0.5 + rounding) + UNIT_ROUNDOFF_FP32) * max(norms)
    for norm, kind, values in zip(norms, kinds, (one, other), strict=True):
        allowed += 0.0 if kind in values.fine else ROUNDED * spacing(kind, norm)
    return abs(norms[0] - norms[1]) > allowed or float(m.d_extreme[row]) > bound


def spacing(short: str, value: float) -> float:
    """From one number of a dtype to the next, at ``value``."""
    form = float_format(short)
    return 2.0 ** (math.frexp(value)[1] - form.p) if form is not None and value > 0 else 0.0


def _other_sizes(view: View) -> bool:
    """Have the two models another width, or another number of layers?"""
    gains = [
        r
        for r in range(len(view.leaves))
        if view.leaves.both[r] and view.slot_role(r) == PARAMETER and "norm" in view.name(int(view.leaves.pair[r]))
    ]
    sizes = [
        (view.train.calls.values.numel[view.leaves.target[r]], view.rollout.calls.values.numel[view.leaves.golden[r]])
        for r in gains
    ]
    if sizes and all(a != b for a, b in sizes):
        return True
    layers = [{op.layer for op in side.calls.ops} - {None} for side in (view.train, view.rollout)]
    ends = [any(op.path in ("final_norm", "head") for op in side.calls.ops) for side in (view.train, view.rollout)]
    return all(ends) and all(layers) and layers[0] != layers[1] and _whole(layers[0]) and _whole(layers[1])


def _whole(layers: set[int | None]) -> bool:
    """All layers from the first on: not a part of a model that was chosen."""
    numbers = sorted(layer for layer in layers if layer is not None)
    return numbers == list(range(len(numbers)))
