"""The tensors of a side in canonical form, where both dumps hold them: element by element what every framework has.

Each role has one expected layout, by the names of its framework (``layouts`` in ``rules.json``) and the sizes of the heads; it is
the same for weight, bias and activation and in all layers. Other layouts are never tried here: see
:mod:`numprobe.diagnose.rl_consistency.layouts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np

from numprobe.align.calls import Calls, Tensors
from numprobe.align.roles.figures import rows_by_slot
from numprobe.align.roles.form import EXPERTS, Module, Numbering, calls_in_order, expert_count
from numprobe.align.roles.ranks import SHARDED
from numprobe.align.roles.rules import PLAIN, STACK, Rules, standard_rules
from numprobe.align.roles.side import RoleSide, Source
from numprobe.align.roles.strips import Heads, Order, Unfit, in_order, reshaped, side_by_side
from numprobe.align.roles.tokens import Ids, Tokens, in_common_order, in_steps, tokens_of
from numprobe.align.shards.tensor import Piece, joined
from numprobe.formats.msprobe.values import ABSENT
from numprobe.formats.tensors import TensorFile
from numprobe.formats.tensors.tensor import c_strides
from numprobe.metrics.figures import figures_of
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

COLUMNS = (
    "qkv",
    "q",
    "k",
    "v",
    "gate_up",
    "q_b",
    "kv_b",
    "head",
    "indexer_q",
    "linear_in",
)  # rows of the weight on ranks
PER_HEAD = ("core", "act", "q_norm", "k_norm")
ROWS = ("out", "down")  # columns of the weight on ranks
TRANSPOSED_EXPERTS = ("Llama4TextExperts",)  # classes whose weights of experts are (experts, columns, rows)
Opened = Callable[[int, int], TensorFile]  # number of a rank, row of its dump


@dataclass
class RoleCalls(Calls):
    """A run in canonical form whose tensors can be opened."""

    canonical: RoleTensors | None = None

    @cached_property
    def tensors(self) -> Tensors:
        assert self.canonical is not None
        return self.canonical


@dataclass
class RoleTensors:
    """The tensors of one side, by the names that its table gives their files: the numbers of its rows."""

    side: RoleSide
    tokens: Tokens | None
    heads: Heads
    slots: list[dict[tuple[str, tuple[str, str]], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks: Sequence[RoleSide] = self.side.ranks or (self.side,)
        self.slots = [rows_by_slot(rank.calls.values) for rank in self.ranks]
        self._folders = [rank.original.tensors for rank in self.ranks]
        self.record = self.side.calls.values.op_of()

    def open(self, name: str, shape: tuple[int, ...] | None = None) -> TensorFile:
        """As :meth:`~numprobe.formats.tensors.TensorFolder.open`; ``name`` is the number of a row."""
        try:
            return self.assembled(int(name), self._opened)
        except Unfit:
            raise NumprobeError(
                "E-RLC-002",
                "a tensor has another shape than its record says",
                where=str(self._folders[0]),
                found="{record}",
                do="copy the dump again, or dump again",
                record=self.side.calls.values.names[int(self.record[int(name)])],
            ) from None

    def fits(self, row: int) -> bool:
        """Are there files for all of a row, and do their shapes fit together?"""
        try:
            found = self.assembled(row, self._described)
        except Unfit:
            return False
        return bool(found.numel == self.side.calls.values.numel[row] > 0)

    def _opened(self, rank: int, row: int) -> TensorFile:
        values = self.ranks[rank].original.values
        return self._folders[rank].open(values.files[row], values.shapes[values.shape[row]])

    def _described(self, rank: int, row: int) -> TensorFile:
        """A tensor without elements, of the dtype and shape that the record gives."""
        values = self.ranks[rank].original.values
        shape = values.shapes[values.shape[row]]
        if shape is None or row not in values.files:
            raise Unfit
        kind = values.kinds[values.kind[row]][2]
        return TensorFile(Path(), kind, shape, c_strides(shape), np.dtype(np.uint8), 0)

    # --- one row -----------------------------------------------------------------------------------------------------

    def assembled(self, row: int, opened: Opened) -> TensorFile:
        """A canonical tensor.

        Raises:
            Unfit: the shapes do not fit together.
        """
        values = self.side.calls.values
        op = parse_name(values.names[int(self.record[row])])
        role, _ = values.slots[values.slot[row]]
        source = self.side.sources[row]
        if not source.parts or not source.rows:
            raise Unfit
        if role == PARAMETER:
            return self._parameter(row, op.path.rsplit(".", 1)[-1], opened)
        if EXPERTS in op.path.split("."):
            raise Unfit  # the tokens of one expert have no order that both sides share
        return self._activation(row, op.path.rsplit(".", 1)[-1], role, opened)

    def _rows(self, row: int) -> list[tuple[int, tuple[int, ...]]]:
        """(number of a rank, rows of its dump) of all ranks that hold a part of it."""
        whole = self.side.spread.get(row) != SHARDED
        if whole and row not in self.side.odd:
            return [(0, self.side.sources[row].rows)]
        values = self.side.calls.values
        slot = values.names[int(self.record[row])], values.slots[values.slot[row]]
        ranks = [self.side.odd[row]] if whole else self.side.holders[row]
        return [(n, self.ranks[n].sources[self.slots[n][slot]].rows) for n in ranks]

    def _parameter(self, row: int, role: str, opened: Opened) -> TensorFile:
        source, ranks = self.side.sources[row], self._rows(row)
        tensors = [[opened(rank, rows[part]) for rank, rows in ranks] for part in range(source.parts)]
        if source.layout == STACK:
            return self._experts(source, ranks, tensors)
        first = tensors[0][0]
        if len(first.shape) == 2 and self._is_transposed(row):
            tensors = [[_transposed(t) for t in part] for part in tensors]
        dim = 1 if role in ROWS and len(first.shape) == 2 else 0
        if len(ranks) > 1 and role not in (*ROWS, *COLUMNS, "embed"):
            raise Unfit
        return side_by_side(tensors, dim, source.layout, self.heads)

    def _experts(
        self, source: Source, ranks: Sequence[tuple[int, tuple[int, ...]]], tensors: Sequence[Sequence[TensorFile]]
    ) -> TensorFile:
        """The weights of all experts, those of one rank behind those of another: only where each expert is whole on one rank."""
        values, ops = self.side.original.values, self.side.original.ops
        record = int(values.op_of()[source.rows[0]])
        path = values.slots[values.slot[source.rows[0]]][1]
        local = self._count // len(ranks)
        each = [[_by_expert(t, ops[record].api, path, local) for t in part] for part in tensors]
        separate = any(m.record == record and m.role.name in ("gate", "up") for m in self.side.modules)
        count = sum(t.shape[0] if len(t.shape) == 3 else 1 for part in each for t in part)
        if len(ranks) > 1 and count != self._count * (2 if separate else 1):
            raise Unfit
        return _stacked([part[n] for n in range(len(ranks)) for part in each])

    @cached_property
    def _count(self) -> int:
        return expert_count(self.side.original, self.side.modules)

    def _is_transposed(self, row: int) -> bool:
        """Weights of GPT-2's ``Conv1D`` are (in, out)."""
        return any(self.side.original.ops[r].api == "Conv1D" for r in self.side.origin[int(self.record[row])])

    def _activation(self, row: int, role: str, slot: str, opened: Opened) -> TensorFile:
        tokens, source, ranks = self.tokens, self.side.sources[row], self._rows(row)
        if tokens is None or not tokens.count:
            raise Unfit
        features = (role in COLUMNS and slot == OUTPUT) or role in PER_HEAD or (role in ROWS and slot == INPUT)
        layout = source.layout if slot != INPUT or role == "act" else PLAIN
        calls = len(source.rows) // source.parts
        parts = []
        for part in range(source.parts):
            each = [[opened(rank, rows[part * calls + call]) for call in range(calls)] for rank, rows in ranks]
            if len(ranks) > 1 and len(tokens.blocks) == calls * len(ranks):  # each rank has tokens of its own
                parts.append([self._flat([one for rank in each for one in rank], tokens)])
            elif len(ranks) == 1 or features:
                parts.append([self._flat(one, tokens) for one in each])
            elif len(tokens.blocks) == calls:  # sequence parallel: of every call, each rank has a part of the tokens
                parts.append([self._flat([rank[call] for call in range(calls) for rank in each], tokens, len(ranks))])
            else:
                raise Unfit
        whole = side_by_side(parts, 1, layout, self.heads)
        together = len(ranks) > 1 and not features and len(tokens.blocks) == calls
        order = tokens.embed if role == "embed" and not (together and slot == OUTPUT) else tokens.layers
        return in_order(whole, order)

    @staticmethod
    def _flat(tensors: Sequence[TensorFile], tokens: Tokens, ranks: int = 1) -> TensorFile:
        """Calls one after the other, tokens by features."""
        if len(tensors) != len(tokens.blocks) * ranks:
            raise Unfit
        found = []
        for n, tensor in enumerate(tensors):
            b, s = tokens.blocks[n // ranks]
            count, rest = divmod(b * s, ranks)
            if rest or not count or tensor.numel % count:
                raise Unfit
            found.append(reshaped(tensor, (count, tensor.numel // count)))
        return _below(found)


def _transposed(tensor: TensorFile) -> TensorFile:
    if not tensor.contiguous:
        raise Unfit
    return replace(tensor, shape=tensor.shape[::-1], strides=c_strides(tensor.shape)[::-1])


def _by_expert(tensor: TensorFile, kind: str, path: str, experts: int) -> TensorFile:
    """(experts, rows, columns) of what a class keeps as (experts, columns, rows); others as they are.

    Megatron's ``GroupedMLP`` has all experts of a rank in one matrix: ``weight1`` of (columns, experts times rows), ``weight2``
    of (experts times columns, rows), both of which it takes for (experts, columns, rows).
    """
    shape = tensor.shape
    if kind == "GroupedMLP" and len(shape) == 2:
        first, last = (1, experts) if path.endswith("weight1") else (experts, 1)
        if not experts or shape[0] % first or shape[1] % last:
            raise Unfit
        shape = (experts, shape[0] // first, shape[1] // last)
    elif kind not in TRANSPOSED_EXPERTS or len(shape) != 3:
        return tensor
    if not tensor.contiguous:
        raise Unfit
    (e, columns, rows), strides = shape, c_strides(shape)
    return replace(tensor, shape=(e, rows, columns), strides=(strides[0], strides[2], strides[1]))


def _stacked(tensors: Sequence[TensorFile]) -> TensorFile:
    """Weights of experts, (experts, rows, columns) or one a tensor, as rows of one matrix."""
    if any(len(t.shape) not in (2, 3) or not t.numel for t in tensors):
        raise Unfit
    return _below([reshaped(t, (prod(t.shape[:-1]), t.shape[-1])) for t in tensors])


def _below(tensors: Sequence[TensorFile]) -> TensorFile:
    """Matrices of one width and dtype, one below the other."""
    if len({(t.shape[1], t.dtype, t.stored) for t in tensors}) != 1:
        raise Unfit
    if len(tensors) == 1:
        return tensors[0]
    return joined(tensors, 0, [Piece(n, 0, t.shape[0]) for n, t in enumerate(tensors)])


# --- both sides ------------------------------------------------------------------------------------------------------


def with_tensors(train: RoleSide, rollout: RoleSide, rules: Rules | None = None) -> tuple[RoleSide, RoleSide]:
    """Both sides with the files of their tensors, where both dumps have any."""
    sides = (train, rollout)
    if not all(rank.original.values.files for side in sides for rank in (side.ranks or (side,))):
        return train, rollout
    rules = rules or standard_rules()
    heads = heads_of(sides)
    one, other = (_tokens(side, rules) for side in sides)
    if one is not None and other is not None:
        one, other = in_common_order(one, other)
    return _with_files(train, one, heads), _with_files(rollout, other, heads)


def _with_files(side: RoleSide, tokens: Tokens | None, heads: Heads) -> RoleSide:
    if tokens is not None and tokens.is_cut:
        side = _cut(RoleTensors(side, tokens, heads))
    tensors = RoleTensors(side, tokens, heads)
    values = side.calls.values
    files = {row: str(row) for row in range(len(values)) if tensors.fits(row)}
    calls = side.calls
    return replace(
        side,
        calls=RoleCalls(
            calls.dump, replace(values, files=files), calls.parent, calls.around, calls.phase, canonical=tensors
        ),
    )


def _cut(tensors: RoleTensors) -> RoleSide:
    """The side with the sizes and figures of the tokens that are compared. What cannot be cut has none."""
    side, values = tensors.side, tensors.side.calls.values
    figures, status, numel = values.figures.copy(), values.status.copy(), values.numel.copy()
    shapes = list(values.shapes)
    shape = values.shape.copy()
    sizes = {s: n for n, s in enumerate(shapes)}
    for row in range(len(values)):
        if values.slots[values.slot[row]][0] == PARAMETER:
            continue
        try:
            whole = tensors.assembled(row, tensors._opened)
            numel[row], figures[row] = whole.numel, figures_of(whole)
        except (Unfit, NumprobeError):
            numel[row], status[row] = 1, ABSENT
        size = None if status[row, 0] == ABSENT else (int(numel[row]),)
        if size not in sizes:
            sizes[size] = len(shapes)
            shapes.append(size)
        shape[row] = sizes[size]
    exact = {row: found for row, found in values.exact.items() if values.slots[values.slot[row]][0] == PARAMETER}
    table = replace(values, figures=figures, status=status, numel=numel, shapes=shapes, shape=shape, exact=exact)
    return replace(side, calls=replace(side.calls, values=table))


# --- which calls ------------------------------------------------------------------------------------------------------

Recorded = tuple[Calls, Sequence[Module]]


def calls_by_ids(train: Recorded, rollout: Recorded) -> tuple[Numbering, Numbering] | None:
    """Which calls of both runs hold the same tokens, by ids and positions, where they are not one for one: None where they are,
    where ids are not recorded, or are others."""
    one, other = (_recorded_tokens(*side) for side in (train, rollout))
    if one is None or other is None or _one_for_one(one, other):
        return None
    found = in_steps(one, other)
    return (_numbering(one, found[0]), _numbering(other, found[1])) if found is not None else None


def _one_for_one(one: Tokens, other: Tokens) -> bool:
    """Has every call of one side a call of the other with the same tokens?"""
    calls = [_ids_of_calls(side) for side in (one, other)]
    pairs = calls_in_order(*([len(ids) for ids in of] for of in calls))
    return len(pairs) in map(len, calls) and all(np.array_equal(calls[0][a], calls[1][b]) for a, b in pairs)


def _ids_of_calls(tokens: Tokens) -> list[Ids]:
    """Sorted: prompts may be in another order."""
    assert tokens.ids is not None
    ends = np.cumsum([b * s for b, s in tokens.blocks])
    return [np.sort(ids) for ids in np.split(tokens.ids, ends[:-1])]


def _numbering(tokens: Tokens, places: Order) -> Numbering:
    ends = np.cumsum([b * s for b, s in tokens.blocks])
    used = np.unique(np.searchsorted(ends, places, side="right")).tolist()
    return Numbering(dict.fromkeys(used, 0), len(tokens.blocks) - len(used))


def _recorded_tokens(calls: Calls, modules: Sequence[Module]) -> Tokens | None:
    """The tokens of all calls of a rank."""
    embeds = [m for m in modules if m.role.name == "embed" and m.role.layer is None and not m.role.tower]
    path = min((calls.ops[m.record].path for m in embeds), key=lambda p: p.count("."), default="")
    blocks, ids, positions = [], [], []
    for m in embeds:
        if calls.ops[m.record].path != path:
            continue
        row = _integer_row(calls, m.record)
        found = _integers(calls, row) if row >= 0 else None
        shape = calls.values.shapes[calls.values.shape[row]]
        if found is None or shape is None or not 1 <= len(shape) <= 2:
            return None
        blocks.append((shape[0], shape[1]) if len(shape) == 2 else (1, shape[0]))
        ids.append(found)
        positions.append(_positions(calls, modules, m.call, len(found)))
    if not blocks:
        return None
    return tokens_of(blocks, sequence_first=False, ids=_all(ids), positions=_all(positions))


def _integer_row(calls: Calls, record: int) -> int:
    """The first input of integers: the ids."""
    v = calls.values
    rows = (r for r in v.rows(record) if v.slots[v.slot[r]][0] == INPUT and "int" in v.kinds[v.kind[r]][2])
    return next(rows, -1)


def heads_of(sides: Sequence[RoleSide]) -> Heads:
    """Query heads a group and elements a head, from the shapes of what attention and its projections have on either side."""
    per_group = size = 0
    for side in sides:
        values, raw = side.calls.values, side.original.values
        for record, name in enumerate(values.names):
            role = parse_name(name).path.rsplit(".", 1)[-1]
            rows = {values.slots[values.slot[row]][1]: side.sources[row] for row in values.rows(record)}
            if role == "core" and {"input_args.0", "input_args.1"} <= rows.keys():
                q, k = (raw.shapes[raw.shape[rows[f"input_args.{n}"].rows[0]]] for n in range(2))
                if q and k and len(q) > 2 and q[-1] == k[-1]:
                    per_group, size = per_group or q[-2] // max(k[-2], 1), size or q[-1]
                elif q and k:
                    per_group = per_group or prod(q) // max(prod(k), 1)
            elif role == "qkv" and (source := rows.get("output.0")) and source.parts == 3:
                calls = len(source.rows) // 3
                per_group = per_group or int(raw.numel[source.rows[0]] // max(raw.numel[source.rows[calls]], 1))
            elif role in ("q_norm", "k_norm") and (source := rows.get("parameters.weight")):
                size = size or int(raw.numel[source.rows[0]])
        if per_group and size:
            break
    return Heads(per_group, size)


def _tokens(side: RoleSide, rules: Rules) -> Tokens | None:
    """The tokens of a side, from what its embedding was given; None where that is not recorded."""
    values = side.calls.values
    record = next((i for i, n in enumerate(values.names) if parse_name(n).path == "embed"), -1)
    if record < 0:
        return None
    row = next((r for r in values.rows(record) if values.slots[values.slot[r]] == (INPUT, "input_args.0")), -1)
    if row < 0 or side.calls.ops[record].call:
        return None
    tensors = RoleTensors(side, None, Heads())
    blocks, parts, positions = [], [], []
    for rank, rows in tensors._rows(row):
        of = tensors.ranks[rank]
        chosen = sorted(of.numbering.calls)
        for call, one in enumerate(rows):
            raw = of.original.values
            shape = raw.shapes[raw.shape[one]]
            if shape is None or not 1 <= len(shape) <= 2:
                return None
            blocks.append((shape[0], shape[1]) if len(shape) == 2 else (1, shape[0]))
            parts.append(_integers(of.original, one))
            number = chosen[call] if call < len(chosen) else -1
            positions.append(_positions(of.original, of.modules, number, prod(shape)))
    first = any(rules.sequence_first.fullmatch(op.path.rpartition(".")[2]) for op in side.original.ops if op.is_module)
    ranks = len(tensors._rows(row))
    return tokens_of(blocks, sequence_first=first, ids=_all(parts), positions=_all(positions), ranks=ranks)


def _all(parts: Sequence[Ids | None]) -> Ids | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known and len(known) == len(parts) else None


def _integers(calls: Calls, row: int) -> Ids | None:
    """What a row of a dump holds, flat; None where it is not there or holds no integers."""
    values = calls.values
    if row not in values.files or "int" not in values.kinds[values.kind[row]][2]:
        return None
    try:
        found = calls.tensors.open(values.files[row], values.shapes[values.shape[row]])
        return found.array().reshape(-1).astype(np.int64)
    except NumprobeError:
        return None


def _positions(calls: Calls, modules: Sequence[Module], call: int, count: int) -> Ids | None:
    """The positions of the tokens of a call, which engines hand to the layers."""
    values = calls.values
    for m in modules:
        if m.role.name not in ("layer", "attn", "model") or m.call != call:
            continue
        for row in values.rows(m.record):
            role, path = values.slots[values.slot[row]]
            named = "position" in path
            if role != INPUT or values.numel[row] != count or ("ids" in path and not named):
                continue
            found = _integers(calls, row)
            if found is not None and found.min() >= 0 and (named or _begins_at_zero(found)):
                return found
    return None


def _begins_at_zero(positions: Ids) -> bool:
    """Are these whole prompts, one after the other?"""
    steps = np.diff(positions)
    return positions[0] == 0 and bool((steps[steps != 1] <= 0).all())
