"""One run in the words of no framework: per layer and role, the tensors that every framework has.

Megatron's fused ``linear_qkv`` and Hugging Face's ``q_proj``, ``k_proj``, ``v_proj`` become one record ``qkv``; the residual that
an engine's norm adds is taken where both sides have it whole. The result has the form of a dump, so that it is paired, measured
and judged like any other; every record remembers those that it came from.

Merged figures: Max the largest, Min the smallest, Mean weighted by elements, Norm the root of the sum of squares. They do not see
the order of rows: which head, gate or shard came first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.roles.figures import together
from numprobe.align.roles.form import EXPERTS, NORM_BEFORE, Form, Module, Numbering, has_norm_inside
from numprobe.align.roles.rules import HALVES, PLAIN, STACK, Role, Rules, standard_rules
from numprobe.formats.msprobe.values import ABSENT, GIVEN, ValueTable
from numprobe.record.names import FORWARD, parse_name
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

# classes of canonical records: they decide how errors are passed on
NORM, LINEAR, NORM_LINEAR, EMBEDDING, CORE, ACTIVATION, MIXTURE = (
    "RMSNorm",
    "Linear",
    "LayerNormLinear",
    "Embedding",
    "Attention",
    "SiLU",
    "MixtureOfExperts",
)
OTHER = "Module"  # of no known class
LATENT = ("q_b", "kv_b", "kv_a_norm", "qkv_a")  # the roles that latent attention is computed from
ROLES = {  # in the order of execution inside a layer
    "embed": EMBEDDING,
    "embed_norm": NORM,
    "token_norm": NORM,
    "hidden_norm": NORM,
    "mtp_proj": LINEAR,
    "attn_norm": NORM,
    "qkv": LINEAR,
    "qkv_a": LINEAR,
    "q": LINEAR,
    "kv_a": LINEAR,
    "q_a_norm": NORM,
    "q_b": LINEAR,
    "kv_a_norm": NORM,
    "kv_b": LINEAR,
    "q_norm": NORM,
    "k_norm": NORM,
    "indexer_q": LINEAR,
    "indexer_k": LINEAR,
    "indexer_k_norm": NORM,
    "indexer_weights": LINEAR,
    "linear_in": LINEAR,
    "linear_norm": NORM,
    "core": CORE,
    "out": LINEAR,
    "attn_post_norm": NORM,
    "mlp_norm": NORM,
    "router": LINEAR,
    "shared_gate": LINEAR,
    "gate_up": LINEAR,
    "act": ACTIVATION,
    "down": LINEAR,
    "moe": MIXTURE,
    "mlp_post_norm": NORM,
    "final_norm": NORM,
    "head": LINEAR,
}
_AT = {role: n for n, role in enumerate(ROLES)}
_EXPERT_UP = re.compile(r"(w13_weight|w13|weight1|gate_up_proj)(\.weight)?")
_EXPERT_DOWN = re.compile(r"(w2_weight|w2|weight2|down_proj)(\.weight)?")


@dataclass(frozen=True)
class Source:
    """What a canonical leaf is made of: ``rows`` of the dump, of one part of it after the other (q, k, v), and of each part one
    a call. ``layout`` says how elements lie inside of a part (:mod:`numprobe.align.roles.strips`)."""

    rows: tuple[int, ...]
    parts: int
    layout: str


@dataclass
class RoleSide:
    """``calls`` is the run in canonical form; ``origin`` has, by canonical record, the records of the dump that it came from,
    ``sources`` what each leaf was made of. ``unknown`` are module records that no rule knows, ``left_out`` the calls of the model
    without partner.

    Of several ranks, ``ranks`` are all of them and ``spread`` says by row how they hold it; rows are those of the first.
    ``odd`` has, by row, the rank whose part is taken where it is not that of the first, ``holders`` those whose parts make up
    what is sharded."""

    calls: Calls
    modules: Sequence[Module]
    origin: list[list[int]]
    original: Calls
    sources: list[Source] = field(default_factory=list)
    numbering: Numbering = field(default_factory=Numbering)
    unknown: list[str] = field(default_factory=list)
    left_out: int = 0
    ranks: Sequence[RoleSide] = ()
    spread: dict[int, str] = field(default_factory=dict)
    odd: dict[int, int] = field(default_factory=dict)
    holders: dict[int, Sequence[int]] = field(default_factory=dict)


@dataclass
class _Leaf:
    role: str
    path: str
    rows: list[int]  # of the dump: more than one are merged
    parts: int = 1
    layout: str = PLAIN

    def source(self) -> Source:
        parts = self.parts if self.parts and len(self.rows) % self.parts == 0 else 0
        return Source(tuple(self.rows), parts, self.layout)


Place = tuple[str, int | None, str]  # tower, layer, part


def canonical(
    calls: Calls, modules: Sequence[Module], form: Form, numbering: Numbering, rules: Rules | None = None
) -> RoleSide:
    """The canonical form of a run."""
    rules = rules or standard_rules()
    groups: dict[tuple[Place, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    path = _outermost(calls, modules)
    for m in modules:
        if m.call in numbering.calls and calls.ops[m.record].path == path[m.role]:
            place = (m.role.tower, m.role.layer, m.role.part)
            groups[place, numbering.calls[m.call]][m.role.name].append(m.record)
    experts = _experts(groups)
    others = {m.role.name for m in modules if m.role.given} - ROLES.keys()  # pairs that no rule knows
    recorded = _Leaves(calls.values)
    found: dict[str, tuple[list[_Leaf], list[int]]] = {}
    for (place, call), by_role in groups.items():
        if form.together and place[2].startswith(f"{EXPERTS}"):
            continue
        reader = _Reader(calls, recorded, rules, form, place, by_role, experts.get((place, call), {}))
        where = "".join(f"{p}." for p in (place[0], "" if place[1] is None else f"layers.{place[1]}", place[2]) if p)
        for role in (*reader.roles(), *(name for name in by_role if name in others)):
            kind, leaves, records = reader.read(role)
            if leaves:
                found[f"Module.{where}{role}.{kind}.{FORWARD}.{call}"] = leaves, records
    names = sorted(found, key=lambda name: max(found[name][1]))
    rows, origin = [found[n][0] for n in names], [found[n][1] for n in names]
    count = len(names)
    side = Calls(calls.dump, _table(names, rows, calls.values), [-1] * count, [""] * count, [FORWARD] * count)
    sources = [leaf.source() for record in rows for leaf in record]
    unknown = [calls.values.names[m.record] for m in modules if not m.role.known]
    return RoleSide(side, modules, origin, calls, sources, numbering, unknown, numbering.left_out)


def _outermost(calls: Calls, modules: Sequence[Module]) -> dict[Role, str]:
    """The path of every role; of several (wrappers, the base layer under an adapter) the outermost."""
    found: dict[Role, str] = {}
    for m in modules:
        path = calls.ops[m.record].path
        found[m.role] = min(found.get(m.role, path), path, key=lambda p: p.count("."))
    return found


Experts = dict[str, list[int]]  # role -> records of all experts


def _experts(groups: dict[tuple[Place, int], dict[str, list[int]]]) -> dict[tuple[Place, int], Experts]:
    """By place of a mixture of experts, the records that hold the weights of its experts."""
    found: dict[tuple[Place, int], Experts] = {}
    for ((tower, layer, part), call), by_role in groups.items():
        if part == EXPERTS or part.startswith(f"{EXPERTS}."):
            of = found.setdefault(((tower, layer, ""), call), defaultdict(list))
            for role, records in by_role.items():
                of[role] += records
    return found


class _Leaves:
    """What every row of a dump is: its role and path, whether it is a tensor, and one of neither integers nor booleans."""

    def __init__(self, values: ValueTable) -> None:
        self._first = values.first.tolist()
        slots, kinds = values.slot.tolist(), values.kind.tolist()
        self.role = [values.slots[n][0] for n in slots]
        self.path = [values.slots[n][1] for n in slots]
        self.tensor = [bool(values.kinds[n][2]) for n in kinds]
        floats = [bool(short) and "int" not in short and short != "bool" for _, _, short in values.kinds]
        self.float = [floats[n] for n in kinds]

    def rows(self, record: int) -> range:
        return range(self._first[record], self._first[record + 1])


class _Reader:
    """Picks the leaves of the records of one place that mean the same in every framework."""

    def __init__(
        self,
        calls: Calls,
        leaves: _Leaves,
        rules: Rules,
        form: Form,
        place: Place,
        by_role: dict[str, list[int]],
        experts: Experts,
    ) -> None:
        self.calls, self.values, self.rules, self.leaves = calls, calls.values, rules, leaves
        self.form, self.place, self.by_role, self.experts = form, place, by_role, experts

    def roles(self) -> list[str]:
        """The roles that may be read here, in the order of execution."""
        found = {name for name in self.by_role if name in ROLES} | {w for w in self.rules.merged if self._pieces(w)}
        found |= ({"gate_up"} if "up" in self.by_role else set()) | ({"moe"} if "router" in self.by_role else set())
        return sorted(found, key=_AT.__getitem__)

    def read(self, role: str) -> tuple[str, list[_Leaf], list[int]]:
        """Class, leaves and records of a role; no leaves where it is not recorded."""
        kind = ROLES.get(role, OTHER)
        if role == "moe":
            return kind, *self._mixture()
        parts = self._parts(role)
        records = [r for part in parts for r in part]
        if not records:
            return kind, [], []
        if kind == NORM:
            return (kind, [], []) if self._swallowed(role) else (kind, self._norm(records), records)
        if kind == CORE:
            return kind, [*self._core(records), *self._outputs(parts)], records
        if kind == ACTIVATION:
            return kind, self._activation(records), records
        if kind == LINEAR and (*self.place, role) in self.form.fused:
            leaves, norms = self._norm_and_linear(role, parts)
            return NORM_LINEAR, leaves, records + norms
        given = [row for r in parts[0] for row in (self._floats, self._all)[kind == EMBEDDING](r, INPUT)[:1]]
        leaves = [_Leaf(INPUT, "input_args.0", given)] if given else []
        layout = self._layout(role, parts)
        return kind, leaves + self._linear_outputs(role, parts, layout) + self._parameters(parts, layout), records

    def _layout(self, role: str, parts: Sequence[Sequence[int]]) -> str:
        """How the fused parts of a role lie in one tensor: by the rule for the name that the framework gives it."""
        if len(parts) > 1:
            return PLAIN
        found = self.rules.layout(self.calls.ops[parts[0][0]].path)
        if found == HALVES and "down" in self.by_role:  # an MLP without gate has no halves
            sizes = self.values.numel
            out = sum(int(sizes[row]) for r in parts[0] for row in self._floats(r, OUTPUT)[:1])
            taken = sum(int(sizes[row]) for r in self.by_role["down"] for row in self._floats(r, INPUT)[:1])
            return HALVES if out == 2 * taken else PLAIN
        return found

    def _parts(self, role: str) -> list[list[int]]:
        """Records of a role, or of the parts of it that another framework has fused; none where one of them is missing."""
        whole = next((fused for fused, parts in self.rules.merged.items() if role in parts), "")
        if whole and self._pieces(whole):
            return []  # read as part of that
        if role in self.by_role:
            return [self.by_role[role]]
        if role == "gate_up" and "gate" not in self.by_role and "up" in self.by_role:  # an MLP without gate
            return [self.by_role["up"]]
        return [self.by_role[part] for part in self._pieces(role)]

    def _pieces(self, role: str) -> list[str]:
        parts = self.rules.merged.get(role, [])
        return parts if role not in self.by_role and all(p in self.by_role for p in parts) else []

    def _swallowed(self, norm: str) -> bool:
        return any(NORM_BEFORE[role] == norm for role in NORM_BEFORE if (*self.place, role) in self.form.fused)

    def _norm(self, records: Sequence[int]) -> list[_Leaf]:
        """A norm that adds the residual first returns the sum as its second output: that is the input of the others."""
        out = [self._floats(record, OUTPUT)[:1] for record in records]
        found = [_Leaf(INPUT, "input_args.0", self._residual(records))]
        found += [_Leaf(OUTPUT, "output.0", [r for part in out for r in part])] if all(out) else []
        return [leaf for leaf in found if leaf.rows] + self._parameters([records])

    def _residual(self, records: Sequence[int]) -> list[int]:
        whole: list[int] = []
        for record in records:
            given, out = self._floats(record, INPUT), self._floats(record, OUTPUT)
            whole += out[1:2] if len(out) > 1 and len(given) > 1 else given[:1]
        return whole

    def _norm_and_linear(self, role: str, parts: Sequence[Sequence[int]]) -> tuple[list[_Leaf], list[int]]:
        """What a fused norm and linear has, and the norms that were read for it."""
        first = parts[0][0]
        if has_norm_inside(self.calls, first):
            norms: list[int] = []
            given = [row for r in parts[0] for row in self._floats(r, INPUT)[:1]]
            weight = self._named(first, "parameters.layer_norm_weight")
        else:
            norms = list(self.by_role.get(NORM_BEFORE[role], []))
            given = self._residual(norms)
            weight = self._named(norms[0], "parameters.weight") if norms else -1
        leaves = [_Leaf(INPUT, "input_args.0", given)] if given else []
        layout = self._layout(role, parts)
        leaves += self._linear_outputs(role, parts, layout) + self._parameters(parts, layout)
        return leaves + ([_Leaf(PARAMETER, "parameters.norm", [weight])] if weight >= 0 else []), norms

    def _core(self, records: Sequence[int]) -> list[_Leaf]:
        if any(role in self.by_role for role in LATENT):
            return self._latents()
        given = [self._floats(record, INPUT)[:3] for record in records]
        if any(len(g) != 3 for g in given):
            return []
        return [_Leaf(INPUT, f"input_args.{n}", [g[n] for g in given]) for n in range(3)]

    def _latents(self) -> list[_Leaf]:
        """What latent attention is computed from: each framework hands over something else of it."""
        found = []
        for n, role in enumerate(LATENT):
            parts = self._parts(role)
            rows = [row for part in parts for record in part for row in self._floats(record, OUTPUT)[:1]]
            found += [_Leaf(INPUT, f"input_args.{n}", rows, len(parts))] if rows else []
        return found

    def _activation(self, records: Sequence[int]) -> list[_Leaf]:
        """Of gate and up together, that is: of the gate alone it is inside of the others."""
        given = [row for r in records for row in self._floats(r, INPUT)[:1]]
        out = [row for r in records for row in self._floats(r, OUTPUT)[:1]]
        sizes = self.values.numel
        if not given or len(given) != len(out) or sizes[given].sum() != 2 * sizes[out].sum():
            return []
        return [_Leaf(INPUT, "input_args.0", given, layout=HALVES), _Leaf(OUTPUT, "output.0", out)]

    def _linear_outputs(self, role: str, parts: Sequence[Sequence[int]], layout: str) -> list[_Leaf]:
        """Of routers that are no plain linear, some return logits and some scores of one kind or another: those of one class are
        compared."""
        found = self._outputs(parts, layout)
        api = self.calls.ops[parts[0][0]].api
        if role == "router" and "linear" not in api.lower():
            return [_Leaf(OUTPUT, f"output.{api}", leaf.rows) for leaf in found]
        return found

    def _outputs(self, parts: Sequence[Sequence[int]], layout: str = PLAIN) -> list[_Leaf]:
        out = [self._floats(record, OUTPUT)[:1] for part in parts for record in part]
        rows = [r for one in out for r in one]
        return [_Leaf(OUTPUT, "output.0", rows, len(parts), layout)] if all(out) else []

    def _mixture(self) -> tuple[list[_Leaf], list[int]]:
        """All experts as one: what the block of a layer gets and returns, and the weights of all experts, unless those are
        compared one by one."""
        block = self.by_role.get("mlp", [])
        if "router" not in self.by_role or not block:
            return [], []
        given = [row for r in self.by_role["router"] for row in self._floats(r, INPUT)[:1]]
        leaves = [_Leaf(INPUT, "input_args.0", given)] if given else []
        leaves += self._outputs([block])
        for path, roles, pattern in (
            ("parameters.gate_up", ("gate_up", "gate", "up"), _EXPERT_UP),
            ("parameters.down", ("down",), _EXPERT_DOWN),
        ):
            single = [r for role in roles for r in self.experts.get(role, [])]
            single.sort(key=lambda r: _expert_number(self.calls.ops[r].path))  # of one expert, gate comes before up
            rows = [row for r in single for row in self._weights(r)]
            rows += [row for r in self.experts.get("experts", []) for row in self._weights(r, pattern)]
            leaves += [_Leaf(PARAMETER, path, rows, len(rows), STACK)] if rows and self.form.together else []
        inside = [r for records in self.experts.values() for r in records]
        return leaves, [*block, *self.by_role["router"], *inside]

    def _weights(self, record: int, pattern: re.Pattern[str] = re.compile(r"weight[0-9]*")) -> list[int]:
        of, numel = self.leaves, self.values.numel
        return [
            r
            for r in of.rows(record)
            if of.role[r] == PARAMETER and numel[r] > 0 and pattern.fullmatch(of.path[r].removeprefix("parameters."))
        ]

    def _parameters(self, parts: Sequence[Sequence[int]], layout: str = PLAIN) -> list[_Leaf]:
        found = []
        for name in ("weight", "bias"):
            rows = [self._named(part[0], f"parameters.{name}") for part in parts]
            if all(r >= 0 and self.values.numel[r] > 0 for r in rows):  # engines may empty those that they pack
                found.append(_Leaf(PARAMETER, f"parameters.{name}", rows, len(rows), layout))
        return found

    def _named(self, record: int, path: str) -> int:
        return next((r for r in self.leaves.rows(record) if self.leaves.path[r] == path), -1)

    def _all(self, record: int, role: str) -> list[int]:
        of = self.leaves
        return [r for r in of.rows(record) if of.role[r] == role and of.tensor[r]]

    def _floats(self, record: int, role: str) -> list[int]:
        of = self.leaves
        return [r for r in of.rows(record) if of.role[r] == role and of.float[r]]


def _expert_number(path: str) -> int:
    found = re.search(r"experts\.(?:local_experts\.)?([0-9]+)", path)
    return int(found.group(1)) if found else -1


def _table(names: list[str], rows: Sequence[Sequence[_Leaf]], values: ValueTable) -> ValueTable:
    """A value table of one row a canonical leaf. Shapes are flat: frameworks order batch and sequence differently."""
    flat = [leaf for record in rows for leaf in record]
    slots: dict[tuple[str, str], int] = {}
    slot = [slots.setdefault((leaf.role, leaf.path), len(slots)) for leaf in flat]
    first = np.array([leaf.rows[0] for leaf in flat], np.int64)
    figures, status, sizes = values.figures[first], values.status[first], values.numel[first]
    for n, leaf in enumerate(flat):
        if len(leaf.rows) > 1:
            figures[n], status[n] = _merged(values, leaf.rows)
            sizes[n] = values.numel[leaf.rows].sum()
    shapes: dict[tuple[int, ...], int] = {}
    shape = [shapes.setdefault((n,), len(shapes)) for n in sizes.tolist()]
    single = {n: leaf.rows[0] for n, leaf in enumerate(flat) if len(leaf.rows) == 1}
    return ValueTable(
        names,
        [parse_name(name) for name in names],
        np.cumsum([0, *(len(record) for record in rows)]).astype(np.int64),
        list(slots),
        values.kinds,
        list(shapes),
        np.array(slot, np.int32),
        values.kind[first],
        np.array(shape, np.int32),
        sizes,
        figures,
        status,
        exact={n: values.exact[r] for n, r in single.items() if r in values.exact},
        fine=values.fine,
        stat_dtypes={
            n: values.stat_dtypes[leaf.rows[0]] for n, leaf in enumerate(flat) if leaf.rows[0] in values.stat_dtypes
        },
    )


def _merged(values: ValueTable, rows: Iterable[int]) -> tuple[list[float], list[int]]:
    """Figures of several tensors as of one, and their status: absent where one part that has elements has none."""
    parts = list(rows)
    parts = [row for row in parts if values.numel[row]] or parts
    if len(parts) == 1:
        return values.figures[parts[0]].tolist(), values.status[parts[0]].tolist()
    given = (values.status[parts] == GIVEN).all(0)
    return together(values.figures[parts], values.numel[parts]), [GIVEN if g else ABSENT for g in given]
