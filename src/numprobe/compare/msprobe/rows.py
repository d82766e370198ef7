"""Pairs of records -> the rows of msProbe's result table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from numprobe.compare.msprobe.columns import FIGURES, Mode
from numprobe.compare.msprobe.items import NO_FILE, Cell, Item, items_of
from numprobe.compare.msprobe.verdicts import Verdict, judge
from numprobe.metrics.reference import NOT_APPLICABLE, UNSUPPORTED
from numprobe.record.trace import Record

Pair: TypeAlias = "tuple[Record | None, Record | None]"
Matched: TypeAlias = "tuple[Item, Item | None]"
Figures: TypeAlias = Callable[[Item, Item], Sequence[Cell]]

_TORCH_FLOATS = frozenset(f"torch.{name}" for name in ("float16", "float32", "float64", "bfloat16"))
_MINDSPORE_FLOATS = frozenset(("Float16", "Float32", "Float64", "BFloat16"))


@dataclass(frozen=True, slots=True)
class Row:
    """One row. ``golden`` is None where the target's item has no partner; ``figures`` are those of :data:`FIGURES`, and behind
    them the user's own.

    ``op`` is the target record's name; ``stack`` its stack on its first row, None on others.
    """

    op: str
    target: Item
    golden: Item | None
    figures: Sequence[Cell]
    verdict: Verdict
    stack: Sequence[str] | None = None

    @property
    def consistent(self) -> bool:
        """Whether requires_grad is the same; against no partner only N/A is."""
        return self.target.requires_grad == (self.golden.requires_grad if self.golden else NOT_APPLICABLE)


def rows(
    pairs: Iterable[Pair], mode: Mode, figures: Figures | None = None, stacks: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Row]:
    """The rows of all pairs, in their order. What is only in the golden side has no row.

    Args:
        figures: the figures of two items that have a partner; not asked in md5 mode, and in tensor mode only where both
            have a file. A file that cannot be read is its business: it answers with ``unsupported``.
        stacks: the target's stacks by record name.
    """
    matched = (
        (target.name.name, match_items(items_of(target), items_of(golden) if golden is not None else ()))
        for target, golden in pairs
        if target is not None
    )
    yield from rows_of_items(matched, mode, figures, stacks, len(FIGURES[mode]))


def rows_of_items(
    records: Iterable[tuple[str, Iterable[Matched]]],
    mode: Mode,
    figures: Figures | None,
    stacks: Mapping[str, Sequence[str]] | None,
    number: int,
) -> Iterator[Row]:
    """:func:`rows` of records whose items are known and matched: (name of the target's record, its items with their partners).

    ``number``: how many figures a row has."""
    for op, matched in records:
        compared = [(t, g, _figures(t, g, mode, figures, number)) for t, g in matched]
        stack = stacks.get(op) if stacks else None
        for (t, g, found), verdict in zip(compared, judge(compared, mode), strict=True):
            yield Row(op, t, g, found, verdict, stack)
            stack = None


def match_items(targets: Iterable[Item], goldens: Iterable[Item]) -> Iterator[Matched]:
    """Every target item with the golden item of the same place; a place that repeats is matched in order.

    Items whose dtypes msProbe does not compare (:func:`comparable`) have no partner.
    """
    waiting: dict[str, list[Item]] = defaultdict(list)
    for item in goldens:
        waiting[item.key].append(item)
    for item in targets:
        candidates = waiting.get(item.key)
        partner = candidates.pop(0) if candidates else None
        yield item, partner if partner is not None and comparable(item.dtype, partner.dtype) else None


def comparable(target: str, golden: str) -> bool:
    """msProbe's gate: two dtypes that differ are compared only where both are floating-point ones of the usual widths.

    Across frameworks, dtypes of one kind (integer, floating-point, boolean, complex) are.
    """
    if target == golden:
        return True
    if target.startswith("torch.") != golden.startswith("torch."):
        return _kind(target) is not None and _kind(target) == _kind(golden)
    return {target, golden} <= _TORCH_FLOATS or {target, golden} <= _MINDSPORE_FLOATS


def _kind(dtype: str) -> str | None:
    """Kind of a dtype of PyTorch (``torch.int64``) or MindSpore (``Int64``); None of anything else."""
    if not (dtype.startswith("torch.") or dtype[:1].isupper()):
        return None
    word = dtype.rpartition(".")[2].lower()
    return next((kind for kind in ("float", "int", "bool", "complex") if kind in word), None)


def _figures(target: Item, golden: Item | None, mode: Mode, figures: Figures | None, number: int) -> Sequence[Cell]:
    if not number:
        return ()
    if mode is Mode.TENSOR and (golden is None or NO_FILE in (target.data_name, golden.data_name)):
        return (UNSUPPORTED,) * number
    if golden is None:
        return (NOT_APPLICABLE,) * number
    if figures is None:
        raise ValueError(f"mode {mode.value} needs figures")
    return figures(target, golden)


def cells(row: Row, mode: Mode, *, stack: bool) -> list[Cell | list[str]]:
    """The cells of a row, as :func:`~numprobe.compare.msprobe.columns.header` names them."""
    t, g = row.target, row.golden
    none = NOT_APPLICABLE
    line: list[Cell | list[str]] = [
        t.name,
        g.name if g else none,
        t.dtype,
        g.dtype if g else none,
        t.shape,
        g.shape if g else none,
        t.requires_grad,
        g.requires_grad if g else none,
        *row.figures,
    ]
    if mode is Mode.MD5:
        line += (t.md5, g.md5 if g else none)
    else:
        line += (t.max, t.min, t.mean, t.norm)
        line += (g.max, g.min, g.mean, g.norm) if g else (none, none, none, none)
    line += (row.consistent, row.verdict.result, row.verdict.err_message)
    if stack:
        line.append(list(row.stack) if row.stack is not None else none)
    if mode is Mode.TENSOR:
        line.append([t.data_name, g.data_name if g else none])
    return line
