"""Names in a mapping that no record has: mostly misspelled, so the nearest name is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches

import msgspec

from numprobe.align.calls import Calls
from numprobe.align.items import item_name, keys_of, record_of, rows_of
from numprobe.align.layers import ROOTS, translate, windows
from numprobe.align.mapping import NO_PARTNER, Mapping, RenamedModules
from numprobe.align.naming import unwrapped
from numprobe.record.names import module_key

MOST = 20  # names of one side for which a similar one is looked for


class Unknown(msgspec.Struct, frozen=True):
    """``option`` (``-dm``, ...) gave a ``name`` that the ``side`` (target or golden) does not have. ``nearest`` may be empty."""

    option: str
    side: str
    name: str
    nearest: str = ""


def unknown_names(mapping: Mapping, target: Calls, golden: Calls) -> list[Unknown]:
    """The names that mean nothing on these two ranks."""
    sides = (("target", target), ("golden", golden))
    found: list[Unknown] = []
    if mapping.items:
        names = (mapping.items.keys(), {*mapping.items.values()} - {NO_PARTNER})
        for (side, calls), wanted in zip(sides, names, strict=True):
            known = rows_of(calls.values, set(wanted)).keys() | calls.position.keys()
            found += _unknown("-dm", side, (n for n in wanted if n not in known), lambda n, c=calls: _items(c, n))  # type: ignore[misc]
    if mapping.cells:
        modules = sorted({module_key(op) for op in target.ops if op.is_module})
        found += _unknown("-cm", "target", _unused(mapping.cells, modules), lambda _: modules)
    for i, (side, calls) in enumerate(sides if mapping.apis else ()):
        apis = {f"{op.prefix}.{op.api}" for op in calls.ops if op.kind == "api"}
        rules = dict.fromkeys(".".join((rule.target, rule.golden)[i]) for rule in mapping.apis)
        found += _unknown("-am", side, (n for n in rules if n not in apis), lambda _, a=apis: sorted(a))  # type: ignore[misc]
    if mapping.layers:
        found += _layers(mapping, target, golden)
    return found


def _unknown(option: str, side: str, names: Iterable[str], similar: Callable[[str], Sequence[str]]) -> list[Unknown]:
    return [
        Unknown(option, side, name, next(iter(get_close_matches(name, similar(name), 1)), "") if i < MOST else "")
        for i, name in enumerate(names)
    ]


def _items(calls: Calls, name: str) -> Sequence[str]:
    """What a leaf may be called: the leaves of its record, or where there is no such record, the records."""
    i = record_of(name, calls.position)
    if i is None:
        return calls.values.names
    values = calls.values
    return [item_name(values.ops[i], key, values.files.get(row)) for key, row in keys_of(values, i).items()]


def _unused(cells: Sequence[tuple[str, str]], modules: Sequence[str]) -> Iterator[str]:
    """The old names that no module has, as a whole or in part, when those before were replaced."""
    whole = {old for old, _ in cells} & set(modules)
    texts = [m for m in modules if m not in whole]
    for i, (old, _) in enumerate(cells):
        before = RenamedModules(tuple(cells[:i]))
        if old not in whole and not any(old in before.renamed(text) for text in texts):
            yield old


def _layers(mapping: Mapping, target: Calls, golden: Calls) -> list[Unknown]:
    paths = [{unwrapped(op.path) for op in calls.ops if op.is_module} for calls in (target, golden)]
    kinds = {op.api for op in target.ops if op.is_module}
    layers = mapping.layers or {}
    used = translate(layers, target.ops, golden.ops).used
    found = _unknown("-lm", "target", (k for k in layers if k not in {*kinds, *ROOTS}), lambda _: sorted(kinds))
    for kind, children in layers.items():
        rules = [
            (ROOTS[0] if kind in ROOTS else kind, child, new) for child, new in children if kind in {*kinds, *ROOTS}
        ]
        unused = (child for rule_kind, child, _ in rules if (rule_kind, child) not in used)
        found += _unknown("-lm", "target", unused, lambda n: windows(paths[0], n.count(".") + 1))
        absent = (new for rule_kind, child, new in rules if used.get((rule_kind, child)) is False)
        found += _unknown("-lm", "golden", absent, lambda n: windows(paths[1], n.count(".") + 1))
    return found
