"""What a difference at a place means: class, anchor, what lies between, the layers that show it too, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from numprobe.compare.ledger import Finding
from numprobe.diagnose.rl_consistency import result as data
from numprobe.record.names import parse_name
from numprobe.record.trace import OUTPUT

if TYPE_CHECKING:
    from numprobe.diagnose.rl_consistency.skill import View

ACTIVATIONS = ("silu", "gelu", "relu", "swiglu", "geglu", "sigmoid", "tanh", "mish", "quick_gelu")
BASE, ADJACENT, PARAMETERS, ONE_SIDED, REPEATS, EXPLAINED = 0.30, 0.20, 0.15, 0.20, 0.15, 0.10


def place(name: str) -> str:
    """``Module.layers.3.down.Linear.forward.0`` -> ``layers.3.down``; a later call keeps its number."""
    op = parse_name(name)
    return op.path + (f" #{op.call}" if op.call else "")


def number(value: float) -> float | None:
    return None if value != value else float(value)


def premise(view: View) -> str:
    """Why the two runs cannot be compared: other tokens, other positions, another number of them. Empty if they can."""
    for f in view.judged.findings:
        if f.severity != "error":
            continue
        name = next(n for n in view.names(f.pair) if n)
        first = parse_name(name).path.rsplit(".", 1)[-1]
        if f.cause == "input" or (f.reason == "shape" and first in ("embed", "attn_norm")):
            return "tokens"
        if first == "embed" and f.cause == "introduced" and _scale(view, f.row) is None:
            return "tokens"
        return ""
    return ""


def findings(view: View) -> list[data.Finding]:
    """The errors of the judgement, in the order of execution."""
    return [_finding(view, f) for f in view.judged.findings if f.severity == "error"]


def _finding(view: View, f: Finding) -> data.Finding:
    train, rollout = view.keys(f.pair)
    name = next(n for n in view.names(f.pair) if n)
    role = parse_name(name).path.rsplit(".", 1)[-1]
    anchor = _anchor(view, f)
    segment = _segment(view, anchor, f.pair)
    clazz, kind = _class(view, f, role, segment)
    layers = _layers(view, f, name)
    slot = _slot(view, f.row)
    terms = _terms(view, f, anchor, segment, layers)
    confidence = min(max(sum(t.value for t in terms), 0.05), 0.97)
    anchor_keys = view.keys(anchor) if anchor is not None else ([], [])
    return data.Finding(
        clazz,
        kind,
        role,
        round(confidence, 2),
        terms,
        data.Key(_one(anchor_keys[0]), _one(anchor_keys[1])) if anchor is not None else None,
        data.Key(_one(train), _one(rollout)),
        segment,
        layers,
        None,
        slot,
        number(_apart(view, f.row)),
        number(view.judged.expected[f.row]),
        _scale(view, f.row),
        slot.rsplit(".", 1)[-1] if f.cause == "parameter" else "",
        _figures(view, f.pair),
        _figures(view, anchor) if anchor is not None else [],
        f.consequences,
    )


def _one(names: list[str]) -> str | None:
    return names[0] if names else None


def _class(view: View, f: Finding, role: str, segment: list[str]) -> tuple[str, str]:
    if f.cause == "parameter":
        return ("nonfinite_one_side", "parameter") if f.reason == "nonfinite" else ("parameter_difference", "value")
    if f.cause == "nonfinite":
        return "nonfinite_one_side", "output"
    if f.cause == "layout" or f.reason == "shape":
        return "interface_difference", "shape"
    if role in ("down", "act") and _slot(view, f.row).startswith(("input", "output.0") if role == "act" else "input"):
        return _activation(view, f)
    if _scale(view, f.row) is not None and role in ("embed", "attn_norm", "core", "router"):
        return "configuration_difference", "scale"
    return "implementation_difference", "unrecorded" if f.reason == "gap" else "inside"


def _activation(view: View, f: Finding) -> tuple[str, str]:
    """The gate's activation: recorded on both sides, on one, or on none."""
    layer = parse_name(next(n for n in view.names(f.pair) if n)).layer
    kinds = [_activations(side, layer) for side in (view.train, view.rollout)]
    if kinds[0] and kinds[1]:
        return (
            ("configuration_difference", "different")
            if kinds[0] != kinds[1]
            else ("implementation_difference", "inside")
        )
    return "missing_operator", "unrecorded"


def _activations(side: object, layer: int | None) -> set[str]:
    """Names of the activations that are recorded in the MLP of a layer."""
    from numprobe.align.roles.side import RoleSide

    assert isinstance(side, RoleSide)
    calls = side.original
    inside = {m.record for m in side.modules if m.role.layer == layer and m.role.name in ("mlp", "act", "experts")}
    found = set()
    for i, op in enumerate(calls.ops):
        if (i in inside and op.is_module) or (op.kind == "api" and calls.parent[i] in inside):
            words = op.api.lower()
        else:
            continue
        found |= {a for a in ("gelu", "silu", "relu", "mish", "tanh") if a in words}
    return found


def _anchor(view: View, f: Finding) -> int | None:
    """The last record pair before the finding whose output agrees."""
    if f.after is not None and f.after >= 0:
        return f.after
    for pair in range(f.pair - 1, -1, -1):
        if view.records.target[pair] < 0 or view.records.golden[pair] < 0:
            continue
        rows = range(int(view.leaves.first[pair]), int(view.leaves.first[pair + 1]))
        outputs = [r for r in rows if _role(view, r) == OUTPUT]
        if outputs and all(view.judged.verdict[r] in ("pass", "warning") for r in outputs):
            return pair
    return None


def _segment(view: View, anchor: int | None, suspect: int) -> list[str]:
    """Module records strictly between anchor and suspect that have no partner, on either side, as the dumps name them."""
    if anchor is None:
        return []
    found = []
    for side, records in ((view.train, view.records.target), (view.rollout, view.records.golden)):
        if records[anchor] < 0 or records[suspect] < 0:
            continue
        begin, end = max(side.origin[records[anchor]]), min(side.origin[records[suspect]])
        paired = {i for n, origin in enumerate(side.origin) for i in origin if n in _both(view, side is view.train)}
        leaf = [m.record for m in side.modules if begin < m.record < end and not side.original.children[m.record]]
        apis = [
            i
            for i in range(begin + 1, end)
            if side.original.ops[i].kind == "api" and any(a in side.original.ops[i].api.lower() for a in ACTIVATIONS)
        ]
        modules = [
            m.record
            for m in side.modules
            if begin < m.record < end
            and m.record not in paired
            and m.role.name in ("act", "rotary", "core", "q_norm", "k_norm")
        ]
        found += [
            side.original.values.names[i] for i in sorted({*modules, *apis, *(r for r in leaf if r not in paired)})
        ]
    return found[:16]


def _both(view: View, train: bool) -> set[int]:
    """Canonical records of a side that have a partner."""
    mine, others = (view.records.target, view.records.golden) if train else (view.records.golden, view.records.target)
    return {a for a, b in zip(mine, others, strict=True) if a >= 0 and b >= 0}


def _layers(view: View, f: Finding, name: str) -> list[int]:
    """Layers where the same place jumps in the same way.

    Norms bring the inputs back to size in every layer, so that the jump shows again whatever comes with the residual."""
    op = parse_name(name)
    if op.layer is None:
        return []
    path = _slot(view, f.row)
    wanted = _size(view, f.row)
    found = []
    for pair in range(len(view.records)):
        other = next(n for n in view.names(pair) if n)
        o = parse_name(other)
        if (
            o.layer is None
            or o.path.split(f".{o.layer}.", 1)[-1] != op.path.split(f".{op.layer}.", 1)[-1]
            or o.call != op.call
        ):
            continue
        rows = range(int(view.leaves.first[pair]), int(view.leaves.first[pair + 1]))
        row = next((r for r in rows if _slot(view, r) == path), None)
        if (
            row is not None
            and view.judged.verdict[row] == "error"
            and (o.layer == op.layer or _jumps(view, pair, row, wanted))
        ):
            found.append(o.layer)
    return sorted(set(found))


def _jumps(view: View, pair: int, row: int, wanted: float) -> bool:
    """Is this slot much further apart than what comes before it?"""
    size = _size(view, row)
    before = [
        r
        for p in range(max(pair - 1, 0), pair)
        for r in range(int(view.leaves.first[p]), int(view.leaves.first[p + 1]))
        if _role(view, r) == OUTPUT
    ]
    earlier = max((_size(view, r) for r in before), default=0.0)
    return size > 0.3 * wanted and size > 2 * earlier


def _size(view: View, row: int) -> float:
    m = view.measures
    return float(np.nan_to_num(m.d_norm[row]))


def _terms(view: View, f: Finding, anchor: int | None, segment: list[str], layers: list[int]) -> list[data.Term]:
    terms = [data.Term("term.base", BASE)]
    if anchor is not None:
        terms.append(data.Term("term.anchor", ADJACENT))
    rows = range(int(view.leaves.first[f.pair]), int(view.leaves.first[f.pair + 1]))
    parameters = [r for r in rows if _role(view, r) == "parameter" and view.leaves.both[r]]
    if parameters and f.cause != "parameter" and all(view.judged.verdict[r] == "pass" for r in parameters):
        terms.append(data.Term("term.parameters", PARAMETERS))
    if f.cause in ("parameter", "nonfinite"):
        terms.append(data.Term("term.exact", PARAMETERS + ONE_SIDED))
    if any(any(a in name.lower() for a in ACTIVATIONS) for name in segment):
        terms.append(data.Term("term.one_sided", ONE_SIDED))
    total = len({op.layer for op in view.train.calls.ops if op.layer is not None})
    if layers and total and len(layers) >= 0.6 * total:
        terms.append(data.Term("term.repeats", REPEATS))
    elif len([x for x in view.judged.findings if x.severity == "error"]) == 1:
        terms.append(data.Term("term.explained", EXPLAINED))
    return terms


def _figures(view: View, pair: int) -> list[data.Figures]:
    found = []
    a, b = view.train.calls.values, view.rollout.calls.values
    for row in range(int(view.leaves.first[pair]), int(view.leaves.first[pair + 1])):
        t, g = int(view.leaves.target[row]), int(view.leaves.golden[row])
        found.append(
            data.Figures(
                _slot(view, row),
                [number(x) for x in a.figures[t]] if t >= 0 else [None] * 4,
                [number(x) for x in b.figures[g]] if g >= 0 else [None] * 4,
                number(_apart(view, row)),
                number(view.judged.expected[row]),
                view.judged.verdict[row],
            )
        )
    return found


def _apart(view: View, row: int) -> float:
    """What the figures differ by, where that is more than was expected; else the estimate of the error from them."""
    m = view.measures
    plain = float(np.fmax(m.d_norm[row], m.d_extreme[row]))
    return plain if plain > 4 * view.judged.expected[row] else float(m.error[row])


def _scale(view: View, row: int) -> float | None:
    """The factor, where all figures of one side are the other's times one number."""
    t, g = int(view.leaves.target[row]), int(view.leaves.golden[row])
    if t < 0 or g < 0:
        return None
    one, other = view.train.calls.values.figures[t], view.rollout.calls.values.figures[g]
    with np.errstate(all="ignore"):
        ratios = (one / other)[[0, 1, 3]]
    if not np.isfinite(ratios).all() or abs(ratios[2] - 1) < 0.02:
        return None
    return float(ratios[2]) if np.allclose(ratios, ratios[2], rtol=0.02) else None


def _slot(view: View, row: int) -> str:
    t, g = int(view.leaves.target[row]), int(view.leaves.golden[row])
    values, i = (view.train.calls.values, t) if t >= 0 else (view.rollout.calls.values, g)
    return str(values.slots[values.slot[i]][1])


def _role(view: View, row: int) -> str:
    t, g = int(view.leaves.target[row]), int(view.leaves.golden[row])
    values, i = (view.train.calls.values, t) if t >= 0 else (view.rollout.calls.values, g)
    return str(values.slots[values.slot[i]][0])
