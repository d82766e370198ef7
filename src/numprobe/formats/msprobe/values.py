"""The ``values`` table of one rank as columns: every leaf of every record, without an object a leaf.

What :func:`~numprobe.formats.msprobe.members.flatten` gives as objects, in the same order, at a fifth of its cost: records of
the usual form are decoded many at a time into typed structs; any other goes through ``flatten`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.members import SECTION_ROLES, UndecodableMember, decode_member, flatten, quoted
from numprobe.record.dtypes import float_format, short_dtype
from numprobe.record.names import DEBUG, PARAMETERS_GRAD, OpName, parse_name
from numprobe.record.nonfinite import Number, number
from numprobe.record.shapes import clean_shape, numel
from numprobe.record.trace import PARAMETER_GRAD, Value

if TYPE_CHECKING:
    from numprobe.formats.dump import RankDump

_Decoded = TypeVar("_Decoded")

TOGETHER = 1000  # records decoded at once
SINGLE = 24  # bits of the significand of fp32
FIGURES = ("max", "min", "mean", "norm")
ABSENT, NULL, GIVEN = 0, 1, 2  # status of a figure

_Figure = float | int | bool | str | None
_UNSET = msgspec.UNSET


class _Leaf(msgspec.Struct, forbid_unknown_fields=True):
    type: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    Max: _Figure | msgspec.UnsetType = _UNSET
    Min: _Figure | msgspec.UnsetType = _UNSET
    Mean: _Figure | msgspec.UnsetType = _UNSET
    Norm: _Figure | msgspec.UnsetType = _UNSET
    requires_grad: bool | None = None
    stat_dtype: str | None = None
    md5: str | None = None
    data_name: str | None = None
    value: Any = None
    group_ranks: Any = None
    group_id: Any = None
    device: Any = None
    stride: Any = None


_Item = _Leaf | list[_Leaf | None] | None


class _Member(msgspec.Struct, forbid_unknown_fields=True):
    input_args: list[_Item] | None = None
    input_kwargs: dict[str, _Item] | None = None
    input: list[_Item] | None = None
    output: list[_Item] | None = None
    parameters: dict[str, _Item] | None = None
    grad_of: list[str] | None = None


_Gradients = dict[str, list[_Leaf | None]]
_MEMBERS = msgspec.json.Decoder(list[_Member])
_MEMBER = msgspec.json.Decoder(_Member)
_GRADIENTS = msgspec.json.Decoder(_Gradients)
_SECTIONS = ("input_args", "input_kwargs", "input", "output", "parameters")
_NULL = _Leaf("null")


class Texts:
    """Texts (or other hashable things) by number: each once."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, text: Any) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.all)
            self.all.append(text)
        return found


@dataclass
class ValueTable:
    """One row a leaf, ``first[i] : first[i + 1]`` those of record ``i``.

    ``slot`` indexes ``slots`` (role, path), ``kind`` indexes ``kinds`` (type, dtype as written, short dtype), ``shape`` indexes
    ``shapes`` (None where unknown). ``figures`` is (rows, 4) float64: max, min, mean, norm, NaN where the file gives none;
    ``status`` (rows, 4) says which (:data:`ABSENT`, :data:`NULL`, :data:`GIVEN`). ``exact`` holds the figures of a row where
    one of them is no float in the file (integers of any length, booleans). ``scalars``, ``digests``, ``files``, ``grad``
    (requires_grad) and ``stat_dtypes`` are sparse: row -> value. ``grad_of`` names, by record, the inputs whose gradients its
    outputs are. ``fine`` has the short dtypes whose means and norms were computed with more digits than the dtype has.
    """

    names: list[str]
    ops: list[OpName]
    first: NDArray[np.int64]
    slots: list[tuple[str, str]]
    kinds: list[tuple[str, str, str]]
    shapes: list[tuple[int, ...] | None]
    slot: NDArray[np.int32]
    kind: NDArray[np.int32]
    shape: NDArray[np.int32]
    numel: NDArray[np.int64]
    figures: NDArray[np.float64]
    status: NDArray[np.uint8]
    exact: dict[int, tuple[Number, ...]] = field(default_factory=dict)
    scalars: dict[int, object] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    grad: dict[int, bool] = field(default_factory=dict)
    stat_dtypes: dict[int, str] = field(default_factory=dict)
    grad_of: dict[int, list[str]] = field(default_factory=dict)
    fine: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.slot)

    def rows(self, op: int) -> range:
        return range(int(self.first[op]), int(self.first[op + 1]))

    def op_of(self) -> NDArray[np.int64]:
        """The record of every row."""
        return np.repeat(np.arange(len(self.names)), np.diff(self.first))


def read_values(rank: RankDump) -> ValueTable:
    """All leaves of one rank, in file order. Records that cannot be decoded have none.

    Raises:
        NumprobeError: E-FMT-010 the file cannot be read any more.
    """
    build = _Builder()
    names = rank.index.names
    for begin in range(0, len(names), TOGETHER):
        positions = range(begin, min(begin + TOGETHER, len(names)))
        ops = [parse_name(names[i]) for i in positions]
        raws = rank.raw_together(positions)
        for op, raw, body in zip(ops, raws, _decode_together(ops, raws), strict=True):
            build.record(op, raw, body)
        build.end_block()
    return build.table(names)


def _decode_together(ops: Sequence[OpName], raws: Sequence[bytes]) -> Iterator[_Member | _Gradients | None]:
    """Bodies of the usual form; None for any other, and for records that are no calls."""
    calls = [raw for op, raw in zip(ops, raws, strict=True) if op.kind not in (PARAMETERS_GRAD, DEBUG)]
    try:
        members: Iterator[_Member | None] = iter(_MEMBERS.decode(quoted(b"[" + b",".join(calls) + b"]")))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        members = (_decoded(raw, _MEMBER) for raw in calls)
    for op, raw in zip(ops, raws, strict=True):
        if op.kind == PARAMETERS_GRAD:
            yield _decoded(raw, _GRADIENTS)
        else:
            yield None if op.kind == DEBUG else next(members)


def _decoded(raw: bytes, decoder: msgspec.json.Decoder[_Decoded]) -> _Decoded | None:
    try:
        return decoder.decode(quoted(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class _Builder:
    """Gathers leaves, and turns them into columns a block at a time."""

    def __init__(self) -> None:
        self.ops: list[OpName] = []
        self.first = [0]
        self.rows = 0  # of the blocks that have ended
        self.slots, self.kinds, self.shapes = Texts(), Texts(), Texts()
        self.sparse: dict[str, dict[int, Any]] = {
            name: {} for name in ("exact", "scalars", "digests", "files", "grad", "stat_dtypes", "grad_of")
        }
        self.blocks: list[tuple[NDArray[Any], ...]] = []
        self.slot: list[int] = []
        self.leaves: list[_Leaf] = []
        self._places: dict[tuple[str, object, int], int] = {}

    def record(self, op: OpName, raw: bytes, body: _Member | _Gradients | None) -> None:
        if body is None:
            self._slowly(op, raw)
        elif isinstance(body, dict):
            for name, item in body.items():
                self._item("", name, item, PARAMETER_GRAD)
        else:
            for section in _SECTIONS:
                content = getattr(body, section)
                if content:
                    role = SECTION_ROLES[section]
                    for key, item in content.items() if isinstance(content, dict) else enumerate(content):
                        self._item(section, key, item, role)
            if body.grad_of is not None:
                self.sparse["grad_of"][len(self.ops)] = body.grad_of
        self.ops.append(op)
        self.first.append(self.rows + len(self.slot))

    def _item(self, section: str, key: object, item: _Item, role: str) -> None:
        if isinstance(item, list):
            for number, leaf in enumerate(item):
                self.slot.append(self._place(section, key, number, role))
                self.leaves.append(leaf or _NULL)
        else:
            self.slot.append(self._place(section, key, -1, role))
            self.leaves.append(item or _NULL)

    def _place(self, section: str, key: object, number: int, role: str) -> int:
        place = (section, key, number)
        found = self._places.get(place)
        if found is None:
            path = ".".join(str(p) for p in (section, key, number) if p != "" and p != -1)
            found = self._places[place] = self.slots.number((role, path))
        return found

    def _slowly(self, op: OpName, raw: bytes) -> None:
        try:
            body = decode_member(raw)
        except UndecodableMember:
            return
        if isinstance(body, dict) and isinstance(body.get("grad_of"), list):
            self.sparse["grad_of"][len(self.ops)] = [str(p) for p in body.pop("grad_of")]
        for value in flatten(op, body):
            self.slot.append(self.slots.number((value.role, value.path)))
            self.leaves.append(_leaf_of(value))

    def end_block(self) -> None:
        """Turn the leaves gathered so far into columns."""
        leaves, base = self.leaves, self.rows
        kind = [self.kinds.number((leaf.type or "", leaf.dtype or "")) for leaf in leaves]
        shape = [self.shapes.number(leaf.shape) for leaf in leaves]
        figures, status = np.full((len(leaves), 4), np.nan), np.zeros((len(leaves), 4), np.uint8)
        for column, written in enumerate(
            ([x.Max for x in leaves], [x.Min for x in leaves], [x.Mean for x in leaves], [x.Norm for x in leaves])
        ):
            plain = np.array([f.__class__ is float for f in written], bool)
            figures[plain, column] = [f for f in written if f.__class__ is float]
            status[plain, column] = GIVEN
            for row in np.flatnonzero(~plain).tolist():
                if written[row] is not _UNSET:
                    self._odd_figure(figures, status, row, column, number(written[row]))
        sparse = self.sparse
        for row, leaf in enumerate(leaves, base):
            if leaf.requires_grad is not None:
                sparse["grad"][row] = leaf.requires_grad
            if leaf.stat_dtype is not None:
                sparse["stat_dtypes"][row] = leaf.stat_dtype
            if leaf.md5 is not None:
                sparse["digests"][row] = leaf.md5
            if leaf.data_name is not None:
                sparse["files"][row] = leaf.data_name
            if leaf.value is not None:
                spelled = isinstance(leaf.value, str) and (leaf.type or "").startswith(("float", "int"))
                sparse["scalars"][row] = number(leaf.value) if spelled else leaf.value  # "-inf" and the like
        self.blocks.append(
            (np.array(self.slot, np.int32), np.array(kind, np.int32), np.array(shape, np.int32), figures, status)
        )
        self.rows += len(leaves)
        self.slot, self.leaves = [], []

    def _odd_figure(
        self, figures: NDArray[np.float64], status: NDArray[np.uint8], row: int, column: int, figure: Number
    ) -> None:
        status[row, column] = NULL if figure is None else GIVEN
        if figure is None:
            return
        figures[row, column] = float(figure)
        if isinstance(figure, int):
            exact = self.sparse["exact"].setdefault(self.rows + row, [None] * 4)
            exact[column] = figure

    def table(self, names: list[str]) -> ValueTable:
        if not self.blocks:
            self.end_block()
        columns: list[NDArray[Any]] = [np.concatenate(column) for column in zip(*self.blocks, strict=True)]
        slot, kind, shape, figures, status = columns
        shapes = [clean_shape(s) for s in self.shapes.all]
        kinds = [(type_, dtype, short_dtype(dtype)) for type_, dtype in self.kinds.all]
        sizes = np.array([-1 if (n := numel(s)) is None else n for s in shapes], np.int64)
        exact = {
            row: tuple(
                figures[row, k].item() if f is None and status[row, k] == GIVEN else f for k, f in enumerate(written)
            )
            for row, written in self.sparse.pop("exact").items()
        }
        return ValueTable(
            names,
            self.ops,
            np.array(self.first, np.int64),
            self.slots.all,
            kinds,
            shapes,
            slot,
            kind,
            shape,
            sizes[shape] if len(shape) else np.zeros(0, np.int64),
            figures,
            status,
            exact,
            **self.sparse,
            fine=_fine(kinds, kind, figures[:, 3]),
        )


def _fine(kinds: list[tuple[str, str, str]], kind: NDArray[np.int32], norms: NDArray[np.float64]) -> frozenset[str]:
    """The dtypes of few digits of whose norms most have more."""
    found = set()
    for short in {short for _, _, short in kinds}:
        form = float_format(short)
        if form is None or form.p >= SINGLE:
            continue
        of_dtype = norms[np.array([s == short for _, _, s in kinds])[kind]]
        mantissas, _ = np.frexp(of_dtype[np.isfinite(of_dtype) & (of_dtype > 0)])
        scaled = mantissas * 2.0**form.p
        if len(scaled) and np.mean(scaled != np.rint(scaled)) > 0.5:
            found.add(short)
    return frozenset(found)


def _leaf_of(value: Value) -> _Leaf:
    """A leaf that went through :func:`flatten`, in the form of the others."""
    more: dict[str, Any] = {
        key: value.attributes[key]
        for key in ("stat_dtype", "md5", "data_name")
        if isinstance(value.attributes.get(key), str)
    }
    for key, name in zip(("Max", "Min", "Mean", "Norm"), FIGURES, strict=True):
        if name in value.present:
            more[key] = getattr(value, name)
    grad = value.requires_grad
    return _Leaf(value.value_type, value.dtype, value.shape, requires_grad=grad, value=value.scalar, **more)
