"""The rows of two sides straight from their values tables, at a third of the cost of decoding every record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from numprobe.align.calls import Calls
from numprobe.align.items import item_name, keys_of, place
from numprobe.compare.msprobe.columns import FIGURES, Mode
from numprobe.compare.msprobe.figures import figures_for, with_custom
from numprobe.compare.msprobe.items import (
    NO_FILE,
    NONE,
    ORDER,
    P2P,
    PROCESS_GROUP,
    FourFigures,
    Item,
    checksum,
    figure,
    items_of,
    listed,
    shown_scalar,
)
from numprobe.compare.msprobe.rows import Matched, Row, match_items, rows_of_items
from numprobe.formats.msprobe.values import ABSENT, GIVEN
from numprobe.metrics.reference import NOT_APPLICABLE
from numprobe.record.names import DEBUG, PARAMETERS_GRAD, OpName

if TYPE_CHECKING:
    from numprobe.compare.custom import PairMetrics

Listed: TypeAlias = tuple[str, Iterable[Matched]]


def rank_rows(
    target: Calls,
    golden: Calls,
    pairs: Iterable[tuple[int, int | None]],
    mode: Mode,
    stacks: Mapping[str, Sequence[str]] | None = None,
    *,
    given: Mapping[int, int] = MappingProxyType({}),
    threads: int | None = None,
    device: str = "",
    custom: PairMetrics | None = None,
) -> Iterator[Row]:
    """The rows of paired records (by op_index; what has no partner has None) in their order.

    Args:
        stacks: the target's stacks by record name; looked up once a record.
        given: leaf rows of the target whose golden leaf is known (-1: it has none), whatever their places and dtypes.
        threads: that read tensors.
        device: where torch computes on them; numpy if empty.
        custom: the user's own metrics.

    Raises:
        NumprobeError: E-FMT-010 a dump.json cannot be read any more.
    """
    one, other = TableItems(target), TableItems(golden)
    figures = figures_for(mode, target.tensors, golden.tensors, threads, device)
    number = len(FIGURES[mode])
    if custom is not None and mode is Mode.TENSOR:
        figures, number = with_custom(figures, custom), number + len(custom.metrics.columns)
    partners = _Given(one, other, given) if given else None

    def matched(t: int, g: int | None) -> Listed:
        items, candidates = one.of(t), other.of(g) if g is not None else []
        by_place = match_items(items, candidates)
        return one.table.names[t], partners.instead(t, by_place) if partners else by_place

    yield from rows_of_items((matched(t, g) for t, g in pairs), mode, figures, stacks, number)


class _Given:
    """Golden items by the rows that they are given to."""

    def __init__(self, one: TableItems, other: TableItems, given: Mapping[int, int]) -> None:
        self.one, self.other, self.given = one, other, given
        owner = one.table.op_of()
        self.records = frozenset(int(owner[row]) for row in given)
        self.owner = other.table.op_of()

    def instead(self, t: int, matched: Iterable[Matched]) -> Iterable[Matched]:
        """The items of a record with the partners that they are given."""
        if t not in self.records:
            return matched
        rows = keys_of(self.one.table, t)
        return [(item, self._partner(rows.get(item.key, -1), by_place)) for item, by_place in matched]

    def _partner(self, row: int, by_place: Item | None) -> Item | None:
        if row not in self.given:
            return by_place
        golden = self.given[row]
        if golden < 0:
            return None
        g = int(self.owner[golden])
        key = next((key for key, at in keys_of(self.other.table, g).items() if at == golden), "")
        return next((item for item in self.other.of(g) if item.key == key), None)


class TableItems:
    """Items of the records of one side. Records with leaves that the table holds only in part (P2P operations, process groups)
    are decoded."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        table = self.table = calls.values
        self._places: dict[tuple[str, int], tuple[str, str, str]] = {}
        self._shapes = [NOT_APPLICABLE if shape is None else str(list(shape)) for shape in table.shapes]
        self._slot, self._kind, self._shape = table.slot.tolist(), table.kind.tolist(), table.shape.tolist()
        self._first: list[int] = table.first.tolist()

    @cached_property
    def _figures(self) -> list[FourFigures]:
        return [(high, low, mean, norm) for high, low, mean, norm in self.table.figures.tolist()]

    @cached_property
    def _plain(self) -> list[bool]:
        """Rows whose four figures are given, floats and no NaN."""
        plain = (self.table.status == GIVEN).all(1) & ~np.isnan(self.table.figures).any(1)
        plain[list(self.table.exact)] = False
        found: list[bool] = plain.tolist()
        return found

    @cached_property
    def _decoded(self) -> frozenset[int]:
        """Records that the table does not hold completely."""
        partial = [i for i, (kind, _, _) in enumerate(self.table.kinds) if kind in (P2P, PROCESS_GROUP)]
        return frozenset(np.unique(self.table.op_of()[np.isin(self.table.kind, partial)]).tolist())

    def of(self, op_index: int) -> list[Item]:
        op = self.table.ops[op_index]
        if not listed(op):
            return []
        if op_index in self._decoded:
            dump, there = self.calls.recorded(op_index)
            return items_of(dump.record(there))
        group = op.kind if op.kind in (DEBUG, PARAMETERS_GRAD) else ""
        found: dict[str, list[Item]] = {}
        for row in range(self._first[op_index], self._first[op_index + 1]):
            slot = self._slot[row]
            where = self._places.get((group, slot))
            if where is None:
                where = self._places[group, slot] = place(op, self.table.slots[slot][1])
            section, state, key = where
            if state and (item := self._item(op, row, self.table.slots[slot][1], state, key)) is not None:
                found.setdefault(section, []).append(item)
        return [item for section in ORDER for item in found.get(section, ())]

    def _item(self, op: OpName, row: int, path: str, state: str, key: str) -> Item | None:
        table = self.table
        kind, dtype, _ = table.kinds[self._kind[row]]
        digest, file = table.digests.get(row), table.files.get(row)
        is_tensor = bool(dtype)
        if is_tensor:
            grad = table.requires_grad(row)
            shape = self._shapes[self._shape[row]]
            wanted = NOT_APPLICABLE if grad is None else str(grad)
            figures = self._figures[row] if self._plain[row] else self._odd_figures(row)
            md5 = digest if digest is not None else checksum("")
        else:
            has_figures = bool((table.status[row] != ABSENT).any())
            if not kind and not has_figures:
                return None  # an empty object
            dtype, shape, wanted, figures, md5 = shown_scalar(
                kind, table.scalars.get(row), digest, key.rpartition(".")[2], has_figures=has_figures
            )
        name = item_name(op, key, file)
        return Item(key, name, path, state, dtype, shape, wanted, *figures, md5, file or NO_FILE, NONE, NONE)

    def _odd_figures(self, row: int) -> FourFigures:
        values = self.table.exact.get(row)
        if values is None:
            given = (self.table.status[row] == GIVEN).tolist()
            values = tuple(
                v if there else None for v, there in zip(self.table.figures[row].tolist(), given, strict=True)
            )
        high, low, mean, norm = values
        return figure(high), figure(low), figure(mean), figure(norm)
