"""What supports a finding: the last place that agrees, what lies between, the layers that show it too, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from numprobe.compare.expected import WARNING
from numprobe.compare.ledger import Finding
from numprobe.diagnose.rl_consistency import result as data
from numprobe.diagnose.rl_consistency.classify import ACTIVATIONS, Meaning, meaning, probe
from numprobe.diagnose.rl_consistency.rotary import TURNED
from numprobe.diagnose.rl_consistency.view import View, number, place_in_layer, ratio, role_of
from numprobe.formats.msprobe.values import GIVEN, ValueTable
from numprobe.record.names import parse_name
from numprobe.record.trace import OUTPUT, PARAMETER

# terms of the confidence; the base and what is added to it
BASE = 0.30
TERMS = {
    "anchor": 0.20,  # the place before agrees
    "parameters": 0.15,  # so do the parameters of the suspect
    "exact": 0.35,  # a weight or a NaN needs no judgement
    "one_sided": 0.20,  # an activation that only one side records lies between
    "repeats": 0.15,  # most layers show it again, though their inputs are brought back to size
    "measured": 0.10,  # tensors confirm what is between
    "explained": 0.15,  # it is the only finding: it explains everything behind it
    "blind": -0.15,  # figures cannot tell it from another order of the elements
    "realigned": -0.20,  # what comes next agrees again
    "coverage": -0.15,  # little was paired
}
MOST_LAYERS = 0.6
ENOUGH_PAIRED = 0.6
COMPETING = 0.1
PROBED = ("missing_operator", "configuration_difference", "implementation_difference", "layout_error")
NEAR = 3  # outputs behind the suspect
MOST_SEGMENT = 16  # of one side
_BETWEEN = ("act", "rotary", "core", "q_norm", "k_norm", "softmax")
_APIS = {"down": ACTIVATIONS, "act": ACTIVATIONS, "core": ("rotary", "rope"), "out": ("attention", "softmax", "rotary")}


@dataclass
class _Group:
    """Findings of the judgement that are one: the same place and meaning in several layers."""

    first: Finding
    what: Meaning
    all: list[Finding]


def findings(view: View, errors: Sequence[Finding], coverage: float) -> list[data.Finding]:
    """The errors of the judgement in the order of execution; what repeats in other layers once, with the layers."""
    groups: dict[object, _Group] = {}
    for f in errors:
        expert = _from_expert(view, f, groups.values())
        if expert is not None:
            expert.consequences += 1 + f.consequences
            continue
        what = meaning(view, f)
        where = place_in_layer(view.name(f.pair))
        slot = "" if what.clazz == "layout_error" else view.slot(f.row)  # weight and bias are converted together
        key = what if what.kind == "everywhere" else (what, where, slot)
        groups.setdefault(key, _Group(f, what, [])).all.append(f)
    found = [_finding(view, group, len(groups) == 1, coverage) for group in groups.values()]
    return [
        msgspec.structs.replace(f, competing=n > 0 and f.confidence > found[0].confidence - COMPETING)
        for n, f in enumerate(found)
    ]


def _from_expert(view: View, f: Finding, groups: Iterable[_Group]) -> Finding | None:
    """The finding inside of an expert that a mixture's output comes from."""
    path = parse_name(view.name(f.pair)).path
    if not path.endswith(".moe"):
        return None
    experts = path.removesuffix("moe") + "experts."
    inside = (one for group in groups for one in group.all)
    return next((one for one in inside if parse_name(view.name(one.pair)).path.startswith(experts)), None)


def _finding(view: View, group: _Group, only: bool, coverage: float) -> data.Finding:
    f, what = group.first, group.what
    anchor = _anchor(view, f)
    segment = _segment(view, anchor, f.pair)
    layers = _layers(view, group)
    tried = probe(view, f) if what.clazz in PROBED else None
    terms = _terms(view, group, anchor, segment, layers, only, coverage, tried)
    slot = view.slot(f.row)
    return data.Finding(
        what.clazz,
        what.kind,
        role_of(view.name(f.pair)),
        round(min(max(sum(t.value for t in terms), 0.05), 0.97), 2),
        terms,
        _key(view, anchor) if anchor is not None else None,
        _key(view, f.pair),
        [name for _, name in segment],
        layers,
        what.kind if what.clazz == "layout_error" else None,
        slot,
        number(view.apart(f.row)),
        number(view.judged.expected[f.row]),
        ratio(view, f.row),
        slot.rsplit(".", 1)[-1] if f.cause == "parameter" else "weight" if what.clazz == "parameter_difference" else "",
        _figures(view, f.pair),
        _figures(view, anchor) if anchor is not None else [],
        sum(one.consequences for one in group.all),
        list(what.blind),
        layouts=list(what.layouts),
        probe=tried,
        segment_sides=[side for side, _ in segment],
    )


def _key(view: View, pair: int) -> data.Key:
    train, rollout = view.keys(pair)
    return data.Key(train[0] if train else None, rollout[0] if rollout else None)


def _anchor(view: View, f: Finding) -> int | None:
    """The last record pair before the finding whose output agrees without doubt."""
    return next((pair for pair in range(f.pair - 1, -1, -1) if view.agrees(pair)), None)


def _segment(view: View, anchor: int | None, suspect: int) -> list[tuple[str, str]]:
    """(side, name in its dump) of records between anchor and suspect: without partner, or with one and in doubt."""
    if anchor is None or not (view.paired(anchor) and view.paired(suspect)):
        return []
    found: list[tuple[str, str]] = []
    words = _APIS.get(role_of(view.name(suspect)), ())
    partners = list(zip(view.records.target, view.records.golden, strict=True))
    for number_of_side, (label, side) in enumerate((("train", view.train), ("rollout", view.rollout))):
        begin = max(side.origin[partners[anchor][number_of_side]])
        end = min(side.origin[partners[suspect][number_of_side]])
        sure = [
            p for p, both in enumerate(partners) if min(both) >= 0 and (p <= anchor or p >= suspect or view.agrees(p))
        ]
        paired = {i for p in sure for i in side.origin[partners[p][number_of_side]]}
        calls = side.original
        modules = {
            m.record
            for m in side.modules
            if begin < m.record < end
            and m.record not in paired
            and (m.role.name in _BETWEEN or not any(calls.ops[i].is_module for i in calls.children[m.record]))
        }
        apis = {
            i
            for i in range(begin + 1, end)
            if calls.ops[i].kind == "api" and any(word in calls.ops[i].api.lower() for word in words)
        }
        found += [(label, calls.values.names[i]) for i in sorted(modules | apis)[:MOST_SEGMENT]]
    return found


def _layers(view: View, group: _Group) -> list[int]:
    """Layers where the same place is off, by more than what comes before it explains.

    Norms bring the inputs back to size in every layer, so that a jump shows again whatever comes with the residual."""
    f = group.first
    where = place_in_layer(view.name(f.pair))
    found = {parse_name(view.name(one.pair)).layer for one in group.all}
    if group.what.kind != "everywhere":
        for pair in range(f.pair + 1, len(view.records)):
            if place_in_layer(view.name(pair)) == where and any(
                view.slot(r) == view.slot(f.row) and view.judged.verdict[r] == "error" and _jumps(view, pair, r, f.row)
                for r in view.rows(pair)
            ):
                found.add(parse_name(view.name(pair)).layer)
    return sorted(layer for layer in found if layer is not None)


def _jumps(view: View, pair: int, row: int, first: int) -> bool:
    """Is this slot nearly as far apart as the first one, and much further than the outputs before it?"""
    size, wanted = _size(view, row), _size(view, first)
    earlier = max((_size(view, r) for r in view.of_pair(max(pair - 1, 0), OUTPUT)), default=0.0)
    return size > 0.3 * wanted and size > 2 * earlier


def _size(view: View, row: int) -> float:
    return float(np.nan_to_num(view.measures.d_norm[row]))


def _terms(
    view: View,
    group: _Group,
    anchor: int | None,
    segment: Sequence[tuple[str, str]],
    layers: Sequence[int],
    only: bool,
    coverage: float,
    tried: data.Probe | None,
) -> list[data.Term]:
    f = group.first
    parameters = view.of_pair(f.pair, PARAMETER)
    exact = f.cause in ("parameter", "nonfinite")
    layout = group.what.clazz == "layout_error"
    total = {op.layer for op in view.train.calls.ops} - {None}
    repeats = len(total) > 1 and len(layers) >= MOST_LAYERS * len(total)
    behind = [pair for pair in range(f.pair + 1, len(view.records)) if view.of_pair(pair, OUTPUT)]
    near = behind[:NEAR]
    holds = {
        "anchor": anchor is not None or (f.pair == 0 and view.slot_role(f.row) == OUTPUT),
        "parameters": bool(parameters) and not exact and all(view.judged.verdict[r] == "pass" for r in parameters),
        "exact": exact,
        "one_sided": any(a in name.lower() for _, name in segment for a in ACTIVATIONS),
        "repeats": repeats,
        "explained": only and not repeats,
        "measured": layout or group.what.kind in TURNED or _fits(tried),
        "blind": bool(group.what.blind) and group.what.kind == "order",
        "realigned": not ((exact and not layout) or (repeats and not layout) or group.what.kind == "scale")
        and len(near) == NEAR
        and all(view.judged.rho[r] <= WARNING for pair in near for r in view.of_pair(pair, OUTPUT)),
        "coverage": not exact and coverage < ENOUGH_PAIRED,
    }
    return [data.Term("term.base", BASE), *(data.Term(f"term.{k}", TERMS[k]) for k, held in holds.items() if held)]


def _fits(tried: data.Probe | None) -> bool:
    """Was an activation found on both sides, on tensors?"""
    return tried is not None and tried.exact and bool(tried.train and tried.rollout)


def _four(values: ValueTable, row: int) -> list[float | None]:
    """The figures of a leaf; NaN is one, None where the file gives none."""
    if row < 0:
        return [None] * 4
    given = zip(values.figures[row].tolist(), values.status[row].tolist(), strict=True)
    return [figure if status == GIVEN else None for figure, status in given]


def _figures(view: View, pair: int) -> list[data.Figures]:
    found = []
    a, b = view.train.calls.values, view.rollout.calls.values
    for row in view.rows(pair):
        t, g = int(view.leaves.target[row]), int(view.leaves.golden[row])
        found.append(
            data.Figures(
                view.slot(row),
                _four(a, t),
                _four(b, g),
                number(view.apart(row)),
                number(view.judged.expected[row]),
                view.judged.verdict[row],
            )
        )
    return found
