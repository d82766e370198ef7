"""One run in the words of no framework: per layer and role, the tensors that every framework has.

Megatron's fused ``linear_qkv`` and Hugging Face's ``q_proj``, ``k_proj``, ``v_proj`` become one record ``qkv``; the residual that
an engine's norm adds is taken where both sides have it whole. The result has the form of a dump, so that it is paired, measured
and judged like any other; every row remembers the records that it came from.

Merged figures: Max the largest, Min the smallest, Mean weighted by elements, Norm the root of the sum of squares. They do not see
the order of rows: which head, gate or shard came first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.roles.rules import Role, Rules, layer_container, standard_rules
from numprobe.formats.msprobe.values import ABSENT, GIVEN, ValueTable
from numprobe.record.names import FORWARD, parse_name
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

# role -> class of the canonical record (it decides how errors are passed on) and the slots that are compared
NORM, LINEAR, EMBEDDING, CORE, ACTIVATION = "RMSNorm", "Linear", "Embedding", "Attention", "SiLU"
ORDER = {
    role: (place, kind)
    for place, (role, kind) in enumerate(
        [
            ("embed", EMBEDDING),
            ("attn_norm", NORM),
            ("qkv", LINEAR),
            ("qkv_a", LINEAR),
            ("q_a_norm", NORM),
            ("q_b", LINEAR),
            ("kv_a_norm", NORM),
            ("kv_b", LINEAR),
            ("indexer_q", LINEAR),
            ("indexer_k", LINEAR),
            ("indexer_weights", LINEAR),
            ("core", CORE),
            ("out", LINEAR),
            ("mlp_norm", NORM),
            ("router", LINEAR),
            ("gate_up", LINEAR),
            ("act", ACTIVATION),
            ("down", LINEAR),
            ("final_norm", NORM),
            ("head", LINEAR),
        ]
    )
}


@dataclass(frozen=True)
class Module:
    """A forward record of a module with its role."""

    record: int
    role: Role
    call: int


@dataclass
class RoleSide:
    """``calls`` is the run in canonical form; ``origin`` has, by canonical record, the records of the dump that it came from."""

    calls: Calls
    modules: list[Module]
    origin: list[list[int]]
    original: Calls
    unknown: list[str] = field(default_factory=list)


@dataclass
class _Row:
    role: str
    path: str
    rows: list[int]  # of the dump: more than one are merged


def modules_of(calls: Calls, rules: Rules | None = None) -> list[Module]:
    """The roles of all forward records of modules, in execution order. Calls are numbered by role, as they come."""
    rules = rules or standard_rules()
    records = [i for i, op in enumerate(calls.ops) if op.kind == "module" and calls.phase[i] == FORWARD]
    container = layer_container(calls.ops[i].path for i in records)
    seen: dict[tuple[Role, str], int] = defaultdict(int)
    found = []
    for i in records:
        role = rules.role(calls.ops[i].path, container)
        key = (role, calls.ops[i].path)
        found.append(Module(i, role, seen[key]))
        seen[key] += 1
    return found


def canonical(calls: Calls, rules: Rules | None = None) -> RoleSide:
    """The canonical form of a run."""
    rules = rules or standard_rules()
    modules = modules_of(calls, rules)
    groups: dict[tuple[str, int | None, str, int], dict[str, int]] = defaultdict(dict)
    for m in modules:
        groups[m.role.tower, m.role.layer, m.role.part, m.call].setdefault(m.role.name, m.record)
    names: list[str] = []
    rows: list[list[_Row]] = []
    origin: list[list[int]] = []
    for (tower, layer, part, call), by_role in sorted(groups.items(), key=lambda item: _order(*item[0])):
        reader = _Reader(calls.values, calls)
        for role, (_, kind) in ORDER.items():
            records = [by_role[role]] if role in by_role else _pieces(rules, role, by_role)
            leaves = reader.leaves(role, records) if records else []
            if leaves:
                where = "".join(f"{p}." for p in (tower, "" if layer is None else f"layers.{layer}", part) if p)
                names.append(f"Module.{where}{role}.{kind}.{FORWARD}.{call}")
                rows.append(leaves)
                origin.append(records)
    position = sorted(range(len(names)), key=lambda n: (max(origin[n]), n))
    names, rows, origin = ([part[n] for n in position] for part in (names, rows, origin))  # type: ignore[assignment]
    table = _table(names, rows, calls.values)
    count = len(names)
    side = Calls(calls.dump, table, [-1] * count, [""] * count, [FORWARD] * count)
    unknown = [calls.values.names[m.record] for m in modules if not m.role.known]
    return RoleSide(side, modules, origin, calls, unknown)


def _order(tower: str, layer: int | None, part: str, call: int) -> tuple[str, int, int, str]:
    return tower, call, -1 if layer is None else layer, part


def _pieces(rules: Rules, role: str, by_role: dict[str, int]) -> list[int]:
    """The records of the parts that another framework has fused; none where one of them is missing."""
    parts = rules.merged.get(role, [])
    return [by_role[p] for p in parts] if parts and all(p in by_role for p in parts) else []


class _Reader:
    """Picks the leaves of a record that mean the same in every framework."""

    def __init__(self, values: ValueTable, calls: Calls) -> None:
        self.values, self.calls = values, calls

    def leaves(self, role: str, records: Sequence[int]) -> list[_Row]:
        first = records[0]
        kind = ORDER[role][1]
        found: list[_Row] = []
        if kind == NORM:
            found += self._norm(first)
        elif kind == CORE:
            found += [_Row(INPUT, f"input_args.{n}", [r]) for n, r in enumerate(self._floats(first, INPUT)[:3])]
            found += self._outputs(records)
        elif kind == ACTIVATION:
            given, out = self._floats(first, INPUT)[:1], self._floats(first, OUTPUT)[:1]
            if (
                given and out and self.values.numel[given[0]] == 2 * self.values.numel[out[0]]
            ):  # of gate and up together
                found += [_Row(INPUT, "input_args.0", given), _Row(OUTPUT, "output.0", out)]
        else:
            fused_norm = "layernorm" in self.calls.ops[first].api.lower()
            given = self._all(first, INPUT)[:1] if kind == EMBEDDING else self._floats(first, INPUT)[:1]
            if given and not fused_norm:
                found.append(_Row(INPUT, "input_args.0", given))
            found += self._outputs(records)
        return found + self._parameters(records)

    def _norm(self, record: int) -> list[_Row]:
        """A norm that adds the residual first returns the sum as its second output: that is the input of the others."""
        given, out = self._floats(record, INPUT), self._floats(record, OUTPUT)
        added = len(out) > 1 and len(given) > 1
        whole = out[1:2] if added else given[:1]
        rows = [_Row(INPUT, "input_args.0", whole)] if whole else []
        return rows + ([_Row(OUTPUT, "output.0", out[:1])] if out else [])

    def _outputs(self, records: Sequence[int]) -> list[_Row]:
        out = [self._floats(record, OUTPUT)[:1] for record in records]
        return [_Row(OUTPUT, "output.0", [r for part in out for r in part])] if all(out) else []

    def _parameters(self, records: Sequence[int]) -> list[_Row]:
        found = []
        for name in ("weight", "bias"):
            rows = [self._named(record, f"parameters.{name}") for record in records]
            if all(
                r >= 0 and self.values.numel[r] > 0 for r in rows
            ):  # engines may leave the storage of packed weights empty
                found.append(_Row(PARAMETER, f"parameters.{name}", rows))
        return found

    def _named(self, record: int, path: str) -> int:
        return next((r for r in self.values.rows(record) if self.values.slots[self.values.slot[r]][1] == path), -1)

    def _all(self, record: int, role: str) -> list[int]:
        v = self.values
        return [r for r in v.rows(record) if v.slots[v.slot[r]][0] == role and v.kinds[v.kind[r]][2]]

    def _floats(self, record: int, role: str) -> list[int]:
        v = self.values
        return [
            r for r in self._all(record, role) if "int" not in v.kinds[v.kind[r]][2] and v.kinds[v.kind[r]][2] != "bool"
        ]


def _table(names: list[str], rows: Sequence[Sequence[_Row]], values: ValueTable) -> ValueTable:
    """A value table of one row a canonical leaf. Shapes are flat: frameworks order batch and sequence differently."""
    flat = [leaf for record in rows for leaf in record]
    slots: dict[tuple[str, str], int] = {}
    slot = [slots.setdefault((leaf.role, leaf.path), len(slots)) for leaf in flat]
    merged = [_merged(values, leaf.rows) for leaf in flat]
    sizes = np.array([int(values.numel[leaf.rows].sum()) for leaf in flat], np.int64)
    shapes: dict[tuple[int, ...], int] = {}
    shape = [shapes.setdefault((int(n),), len(shapes)) for n in sizes]
    single = {n: leaf.rows[0] for n, leaf in enumerate(flat) if len(leaf.rows) == 1}
    return ValueTable(
        names,
        [parse_name(name) for name in names],
        np.cumsum([0, *(len(record) for record in rows)]).astype(np.int64),
        list(slots),
        values.kinds,
        list(shapes),
        np.array(slot, np.int32),
        np.array([values.kind[leaf.rows[0]] for leaf in flat], np.int32),
        np.array(shape, np.int32),
        sizes,
        np.array([figures for figures, _ in merged]).reshape(-1, 4),
        np.array([status for _, status in merged], np.uint8).reshape(-1, 4),
        exact={n: values.exact[r] for n, r in single.items() if r in values.exact},
        stat_dtypes={
            n: values.stat_dtypes[leaf.rows[0]] for n, leaf in enumerate(flat) if leaf.rows[0] in values.stat_dtypes
        },
    )


def _merged(values: ValueTable, rows: Iterable[int]) -> tuple[list[float], list[int]]:
    """Figures of several tensors as of one, and their status: absent where one part has none."""
    rows = list(rows)
    figures, status = values.figures[rows], values.status[rows]
    size = values.numel[rows].astype(float)
    with np.errstate(all="ignore"):
        joined = [
            figures[:, 0].max(),
            figures[:, 1].min(),
            (figures[:, 2] * size).sum() / max(size.sum(), 1),
            np.sqrt((figures[:, 3] ** 2).sum()),
        ]
    given = (status == GIVEN).all(0)
    return [float(f) for f in joined], [GIVEN if g else ABSENT for g in given]
