"""A finding of the judge with everything that a reader needs to check it: names, places, figures, whose it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.shards.joined import JoinedCalls
from numprobe.compare import result as data
from numprobe.compare.blame import blamed
from numprobe.compare.expected import WARNING
from numprobe.compare.ledger import Finding
from numprobe.compare.measure import REASONS
from numprobe.formats.dump import RankDump
from numprobe.metrics.gains import PARAMETER_SLOTS
from numprobe.metrics.permutation import find_layouts
from numprobe.record.errors import NumprobeError
from numprobe.record.names import FORWARD, PARAMETERS_GRAD, OpName, parse_name
from numprobe.record.trace import PARAMETER, PARAMETER_GRAD

if TYPE_CHECKING:
    from numprobe.compare.rank import Compared


def finding_of(compared: Compared, found: Finding) -> data.Finding:
    """A finding with everything that a reader needs to check it."""
    target, golden, pair, row = compared.target, compared.golden, found.pair, found.row
    t, g = compared.records.target[pair], compared.records.golden[pair]
    calls, i = (target, t) if t >= 0 else (golden, g)
    judged = compared.judgement
    rows = range(int(compared.leaves.first[pair]), int(compared.leaves.first[pair + 1]))
    names = [_name(compared, p) for p in found.unmatched]
    slot = _slot(compared, row)[1] if len(rows) else ""
    inside = calls.inside(i)
    dump, k = calls.recorded(i)
    ranks, diverged = _blamed(compared, t, row)
    if ranks and t >= 0:
        dump, k = ranks[0]
    return data.Finding(
        cause=found.cause,
        reason=found.reason or ("rank_divergence" if diverged else ""),
        severity=found.severity,
        op=dump.index.names[k] if t >= 0 else None,
        golden_op=recorded_name(golden, g) if g >= 0 else None,
        slot=slot,
        step=compared.task.step,
        rank_keys=[d.place.key for d, _ in ranks] or [compared.task.target.key],
        ranks=[r for r in ([d.place.rank for d, _ in ranks] or [compared.task.target.rank]) if r is not None],
        op_index=k,
        phase=calls.phase[i],
        layer=next((layer for n in [calls.ops[i].name, *inside] if (layer := _layer(n)) is not None), None),
        rho=number(found.rho),
        error=number(compared.errors[row]) if len(rows) else None,
        expected=number(judged.expected[row]) if len(rows) else None,
        after=_name(compared, found.after)[0] if found.after is not None and found.after >= 0 else None,
        parameter=_parameter(compared, row, inside) if found.cause == "parameter" else "",
        extra=_alone(compared, found, "target"),
        missing=_alone(compared, found, "golden"),
        only_target=[name for name, side in names if side == "target"],
        only_golden=[name for name, side in names if side == "golden"],
        inside=inside,
        stack=_stack(dump, k),
        leaves=[_leaf(compared, r) for r in rows],
        consequences=found.consequences,
        target_place=_place((dump, k), compared.task.target_root) if t >= 0 else None,
        golden_place=_place(golden.recorded(g), compared.task.golden_root) if g >= 0 else None,
        layout=_layout(compared, row) if found.cause in ("introduced", "parameter") else "",
    )


def _layout(compared: Compared, row: int) -> str:
    """``block_swap axis 1, 16 each: 0, 1`` and the like, where the target holds the golden elements in another order."""
    if row not in compared.measures.details:
        return ""
    sides = ((compared.target, int(compared.leaves.target[row])), (compared.golden, int(compared.leaves.golden[row])))
    try:
        one, other = (calls.tensors.open(calls.values.files[i]) for calls, i in sides)
        found = find_layouts(one, other, tolerance=WARNING * max(compared.judgement.expected[row], 0.0))
    except (NumprobeError, KeyError):
        return ""
    if not found:
        return ""
    first = found[0]
    axes = f" axis {', '.join(map(str, first.axes))}" if first.axes else ""
    size = f", {first.size} each" if first.size else ""
    return f"{first.kind}{axes}{size}{': ' + ', '.join(map(str, first.blocks)) if first.blocks else ''}"


def _layer(name: str) -> int | None:
    return parse_name(name).layer


def _with_stack(op: OpName) -> str:
    """Stacks are recorded for forward calls only."""
    return op.name.replace(".backward", ".forward") if op.direction != FORWARD else op.name


def _stack(dump: RankDump, k: int) -> list[str]:
    """The frames of a record, innermost first."""
    return list(dump.stacks.get(_with_stack(parse_name(dump.index.names[k]))) or [])[:12]


def _alone(compared: Compared, found: Finding, side: str) -> data.Call | None:
    """The first call of a gap that ``side`` alone has, and where it is made."""
    calls = compared.target if side == "target" else compared.golden
    records = compared.records.target if side == "target" else compared.records.golden
    if found.reason not in data.GAPS:
        return None
    for pair in found.unmatched:
        if _name(compared, pair)[1] == side:
            dump, k = calls.recorded(records[pair])
            return data.Call(dump.index.names[k], calls.inside(records[pair]), _stack(dump, k))
    return None


def _name(compared: Compared, pair: int) -> tuple[str, str]:
    t, g = compared.records.target[pair], compared.records.golden[pair]
    return (recorded_name(compared.target, t), "target") if t >= 0 else (recorded_name(compared.golden, g), "golden")


def _slot(compared: Compared, row: int) -> tuple[str, str]:
    t, g = int(compared.leaves.target[row]), int(compared.leaves.golden[row])
    values, i = (compared.target.values, t) if t >= 0 else (compared.golden.values, g)
    slot: tuple[str, str] = values.slots[values.slot[i]]
    return slot


def _parameter(compared: Compared, row: int, inside: list[str]) -> str:
    """``layers.1.mlp.up_proj.weight``: the module around the call, and the name if it is known: given by the record, by the
    position among the arguments, or as the only parameter of this shape that the module has."""
    name = _slot(compared, row)[1].rsplit(".", 1)[-1]
    module = next((op for n in inside if (op := parse_name(n)).is_module), None)
    own = compared.target.ops[compared.records.target[int(compared.leaves.pair[row])]]
    if own.is_module:
        module = own
    if name.isdigit():
        name = _argument(own.api.strip("_"), int(name)) or _only_alike(compared, row, module)
    return ".".join(p for p in (module.path if module else "", name) if p)


def _argument(api: str, position: int) -> str:
    """The name of a parameter by its place among the arguments; empty if it has none there."""
    names = ("bias", "weight") if api == "addmm" else ("weight", "bias")
    return dict(zip(PARAMETER_SLOTS.get(api, ()), names, strict=False)).get(position, "")


def _only_alike(compared: Compared, row: int, module: OpName | None) -> str:
    """The parameter of the shape of this row, by the module's record and the gradients; empty if none or several."""
    if module is None:
        return ""
    values, position = compared.target.values, compared.target.position
    shape = values.shapes[values.shape[int(compared.leaves.target[row])]]
    records = (module.name, f"{module.prefix}.{module.path}.{module.api}.{PARAMETERS_GRAD}.0")
    slots = (
        values.slots[values.slot[r]]
        for name in records
        if name in position
        for r in values.rows(position[name])
        if values.shapes[values.shape[r]] == shape
    )
    names = {
        path.removeprefix("parameters.").split(".")[0] for role, path in slots if role in (PARAMETER, PARAMETER_GRAD)
    }
    return names.pop() if len(names) == 1 else ""


def recorded_name(calls: Calls, i: int) -> str:
    """The name of a record in the dump that it lies in."""
    dump, k = calls.recorded(i)
    return dump.index.names[k]


def _blamed(compared: Compared, record: int, row: int) -> tuple[list[tuple[RankDump, int]], bool]:
    """Of a side that is several ranks: the dumps of those that a finding is about, with its record there; and whether they
    should have had what the others have."""
    side = compared.target
    if record < 0 or not isinstance(side, JoinedCalls):
        return [], False
    leaf = int(compared.leaves.target[row]) if row < len(compared.leaves) else -1
    if leaf < 0:
        return [side.recorded(record)], False
    partner = np.full(len(side.values), -1, np.int64)
    both = compared.leaves.both
    partner[compared.leaves.target[both]] = compared.leaves.golden[both]
    tensors = bool(compared.measures.from_tensors[row])
    blame = blamed(side, compared.golden, record, leaf, partner, compared.judgement.expected[row], tensors=tensors)
    return [side.recorded_by(record, column) for column in blame.columns], blame.diverged


def _place(where: tuple[RankDump, int], root: Path | None) -> data.Place:
    dump, k = where
    index, place = dump.index, dump.place
    begin, end = int(index.start[k]), int(index.end[k])
    file = place.dump.relative_to(root) if root and place.dump.is_relative_to(root) else Path(place.file)
    return data.Place(file.as_posix(), begin, end - begin)


def _leaf(compared: Compared, row: int) -> data.Leaf:
    judged, m = compared.judgement, compared.measures
    role, path = _slot(compared, row)
    details = m.details.get(row)
    return data.Leaf(
        role,
        path,
        _side(compared.target, int(compared.leaves.target[row])),
        _side(compared.golden, int(compared.leaves.golden[row])),
        judged.verdict[row],
        judged.status[row],
        REASONS[m.reason[row]],
        number(compared.errors[row]),
        number(judged.expected[row]),
        number(judged.rho[row]),
        bool(m.from_tensors[row]),
        details.mismatching if details else None,
        list(details.max_abs_index) if details and details.max_abs_index else None,
    )


def _side(calls: Calls, row: int) -> data.Side | None:
    if row < 0:
        return None
    v = calls.values
    shape = v.shapes[v.shape[row]]
    given = [f if s == 2 else None for f, s in zip(v.figures[row].tolist(), v.status[row].tolist(), strict=True)]
    high, low, mean, norm = v.exact.get(row) or given
    scalar = v.scalars.get(row)
    return data.Side(
        v.kinds[v.kind[row]][2] or v.kinds[v.kind[row]][0],
        list(shape) if shape is not None else None,
        high,
        low,
        mean,
        norm,
        digest=v.digests.get(row, ""),
        scalar="" if scalar is None else str(scalar)[:200],
    )


def number(value: float) -> float | None:
    return None if value != value else float(value)
