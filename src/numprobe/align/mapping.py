"""What the user says about names: modules, APIs, layers and single leaves of the target, as the golden run calls them.

A :class:`Mapping` is what the files say. For two ranks it becomes a :class:`~numprobe.align.naming.Naming`, by which records are
paired, and after that the leaves that pair otherwise than by their place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field
from functools import cached_property

from numprobe.align.calls import Calls
from numprobe.align.items import INPUT, OUTPUT, keys_of, rows_of
from numprobe.align.layers import Children, translate
from numprobe.align.mindspore import pytorch_api
from numprobe.align.naming import SAME_NAMES, Names, Naming, model_of, same_api, same_module, unwrapped
from numprobe.align.records import RecordPairs
from numprobe.record.names import BACKWARD, PARAMETERS_GRAD, OpName

NO_PARTNER = "N/A"
Pairs = tuple[tuple[str, str], ...]  # of the target and of the golden side


@dataclass(frozen=True)
class ApiRule:
    """``target`` and ``golden`` are prefix and name (``("Mint", "add")``). ``slots``: of input, output, parameters and
    parameters_grad, which index or name is which. What such a list leaves out has no partner; without a list, places decide."""

    target: tuple[str, str]
    golden: tuple[str, str]
    slots: Dict[str, Pairs] = field(default_factory=dict)


@dataclass(frozen=True)
class Mapping:
    """The mapping files. ``items``: leaf (or record) -> leaf (or record), :data:`NO_PARTNER` for none. ``cells``: old and new
    ``path.Class`` of a module, or a part of it. ``layers``: class of a module -> its children on both sides, None without a file.
    """

    items: Dict[str, str] = field(default_factory=dict)
    cells: Pairs = ()
    apis: tuple[ApiRule, ...] = ()
    layers: Dict[str, Children] | None = None


NO_MAPPING = Mapping()


def naming_of(mapping: Mapping, target: Calls, golden: Calls) -> Naming:
    """How the records of these two ranks are called. MindSpore's APIs have their PyTorch names against PyTorch."""
    frameworks = [calls.dump.index.info.framework for calls in (target, golden)]
    known = pytorch_api if frameworks == ["mindspore", "pytorch"] else same_api
    listed = _is_listed(target), _is_listed(golden)
    if mapping == NO_MAPPING and known is same_api and listed[0] == listed[1]:
        return SAME_NAMES
    as_golden: Names = same_module if listed[0] == listed[1] else in_a_list if listed[1] else in_no_list
    module: Names = RenamedModules(mapping.cells) if mapping.cells else as_golden
    if mapping.layers is not None:
        module = TranslatedModules(translate(mapping.layers, target.ops, golden.ops).paths, module)
    api = RenamedApis({rule.target: rule.golden for rule in mapping.apis}, known) if mapping.apis else known
    return Naming(module, api, _given_records(mapping, target, golden))


def _is_listed(calls: Calls) -> bool:
    """Was a list of one model recorded?"""
    modules = (op for op in calls.ops if op.is_module)
    first = next(modules, None)  # mostly it is of no list, and tells
    return first is not None and model_of(first.path) == 0 and all(model_of(op.path) == 0 for op in modules)


def in_a_list(path: str, kind: str) -> tuple[str, str]:
    """What is recorded of a model, as of the only one of a list."""
    return same_module(f"0.{path}" if path else "0", kind)


def in_no_list(path: str, kind: str) -> tuple[str, str]:
    """What is recorded of the only model of a list, as of that model alone."""
    return same_module(path.partition(".")[2], kind)


@dataclass(frozen=True)
class RenamedModules:
    """By old and new ``path.Class``: where one is the whole of it that one, else every old text in it once, in order."""

    cells: Pairs

    def __call__(self, path: str, kind: str) -> tuple[str, str]:
        path, _, kind = self.renamed(f"{path}.{kind}" if path else kind).rpartition(".")
        return same_module(path, kind)

    def renamed(self, text: str) -> str:
        if text in self._whole:
            return self._whole[text]
        for old, new in self.cells:
            text = text.replace(old, new, 1)
        return text

    @cached_property
    def _whole(self) -> dict[str, str]:
        return dict(self.cells)


@dataclass(frozen=True)
class TranslatedModules:
    """By a table of unwrapped paths; a path that it leaves alone is ``others``' to name."""

    paths: Dict[str, str]
    others: Names

    def __call__(self, path: str, kind: str) -> tuple[str, str]:
        new = self.paths.get(unwrapped(path), path)
        return same_module(new, kind) if new != unwrapped(path) else self.others(path, kind)


@dataclass(frozen=True)
class RenamedApis:
    """By a table of prefix and name; an API that it does not have is ``others``' to name."""

    apis: Dict[tuple[str, str], tuple[str, str]]
    others: Names

    def __call__(self, prefix: str, api: str) -> tuple[str, str]:
        return self.apis.get((prefix, api)) or self.others(prefix, api)


# --- single records and leaves ----------------------------------------------------------------------------------------


def _given_records(mapping: Mapping, target: Calls, golden: Calls) -> dict[int, int]:
    """Records that the items name, and those of leaves: each with the one that most of its leaves are given."""
    if not mapping.items:
        return {}
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    owner_t, owner_g = target.values.op_of(), golden.values.op_of()
    for t, g in _given_rows(mapping, target, golden).items():
        if g >= 0:
            votes[int(owner_t[t])][int(owner_g[g])] += 1
    found = {t: vote.most_common(1)[0][0] for t, vote in votes.items()}
    for one, other in mapping.items.items():
        if one in target.position and other in golden.position:
            found[target.position[one]] = golden.position[other]
    return found


def _given_rows(mapping: Mapping, target: Calls, golden: Calls) -> dict[int, int]:
    if not mapping.items:
        return {}
    ts = rows_of(target.values, mapping.items.keys() - target.position.keys())
    gs = rows_of(golden.values, {mapping.items[name] for name in ts} - {NO_PARTNER})
    return {row: gs.get(mapping.items[name], -1) for name, row in ts.items()}


def given_leaves(mapping: Mapping, records: RecordPairs, target: Calls, golden: Calls) -> dict[int, int]:
    """Leaf rows of the target -> the golden rows that they are given, -1 for none. All others pair by their places."""
    rules = {rule.target: rule.slots for rule in mapping.apis if rule.slots}
    found: dict[int, int] = {}
    for t, g in zip(records.target, records.golden, strict=True) if rules else ():
        slots = rules.get((target.ops[t].prefix, target.ops[t].api)) if t >= 0 and g >= 0 else None
        if slots is not None:
            found.update(_by_slots(slots, target, t, golden, g))
    return {**found, **_given_rows(mapping, target, golden)}


def _by_slots(slots: Dict[str, Pairs], target: Calls, t: int, golden: Calls, g: int) -> dict[int, int]:
    """The leaves of one call. What a backward call gets are the gradients of the outputs, what it returns those of the inputs."""
    op = target.ops[t]
    partners = keys_of(golden.values, g)
    found: dict[int, int] = {}
    for key, row in keys_of(target.values, t).items():
        start, state, first, rest = _parts(op, key)
        of = {INPUT: OUTPUT, OUTPUT: INPUT}.get(state, state) if op.direction == BACKWARD else state
        if of in slots:
            partner = dict(slots[of]).get(first)
            found[row] = -1 if partner is None else partners.get(f"{start}.{partner}{rest}", -1)
    return found


def _parts(op: OpName, key: str) -> tuple[str, str, str, str]:
    """``.input.1.0`` -> (``.input``, ``input``, ``1``, ``.0``)."""
    if op.kind == PARAMETERS_GRAD:
        return "", PARAMETERS_GRAD, key[1:], ""
    state, _, inside = key[1:].partition(".")
    first, dot, rest = inside.partition(".")
    return f".{state}", state, first, f"{dot}{rest}"
