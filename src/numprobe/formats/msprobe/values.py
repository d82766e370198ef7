"""The ``values`` table of one rank as columns: every leaf of every record, without an object a leaf.

What :func:`~numprobe.formats.msprobe.members.flatten` gives as objects, in the same order, at a fifth of its cost: records of
the usual form are decoded many at a time into typed structs; any other goes through ``flatten`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
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


class _Leaf(msgspec.Struct, forbid_unknown_fields=True, gc=False):
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


class _Member(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    input_args: list[_Item] | None = None
    input_kwargs: dict[str, _Item] | None = None
    input: list[_Item] | None = None
    output: list[_Item] | None = None
    parameters: dict[str, _Item] | None = None
    grad_of: list[str] | None = None


_Gradients = dict[str, list[_Leaf | None]]
_MEMBERS = msgspec.json.Decoder(list[_Member])
_NAMED = msgspec.json.Decoder(dict[str, _Member])
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
    one of them is no float in the file (integers of any length, booleans). ``scalars``, ``digests``, ``files`` and
    ``stat_dtypes`` are sparse: row -> value. ``grad_of`` names, by record, the inputs whose gradients its
    outputs are. ``grad`` says by row what the file says of requires_grad (-1: nothing), or is empty. ``fine`` has the dtypes
    whose means and norms were computed with more digits than the dtype has.
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
    stat_dtypes: dict[int, str] = field(default_factory=dict)
    grad_of: dict[int, list[str]] = field(default_factory=dict)
    fine: frozenset[str] = frozenset()
    grad: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))

    def __len__(self) -> int:
        return len(self.slot)

    def rows(self, op: int) -> range:
        return range(int(self.first[op]), int(self.first[op + 1]))

    def requires_grad(self, row: int) -> bool | None:
        return bool(self.grad[row]) if len(self.grad) and self.grad[row] >= 0 else None

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
        text, starts, ends = rank.text_of(positions)
        found = _decode_whole(ops, text)
        if found is not None:
            for op, body in zip(ops, found, strict=True):
                build.member(op, body)
        else:
            raws = [text[start:end] for start, end in zip(starts, ends, strict=True)]
            for op, raw, other in zip(ops, raws, _decode_together(ops, raws), strict=True):
                build.record(op, raw, other)
        build.end_block()
    return build.table(names)


def _decode_whole(ops: Sequence[OpName], text: bytes) -> list[_Member] | None:
    """The bodies of neighbouring calls, from the text between the first and the last; None where it holds anything else."""
    if not _CALLS.issuperset(map(_KIND, ops)):
        return None
    members = _named(b'{"":%b}' % text)
    if members is None or list(members)[1:] != [op.name for op in ops[1:]]:
        return None
    return list(members.values())


def _named(text: bytes) -> dict[str, _Member] | None:
    try:
        return _NAMED.decode(text)  # mostly there is nothing that would have to be quoted
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return _NAMED.decode(quoted(text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


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


_GRAD = {None: -1, False: 0, True: 1}
_KIND = attrgetter("kind")
_CALLS = frozenset(("api", "module", "other"))
_ONLY_LEAVES, _ONLY_FLOATS = {_Leaf}, {float}


def _all(leaves: list[_Leaf], name: str) -> list[Any]:
    return list(map(attrgetter(name), leaves))


def _enter(found: dict[int, Any], rows: list[int], column: list[Any]) -> None:
    """Add what is given of a column."""
    absent = column.count(None)
    if not absent:
        found.update(zip(rows, column, strict=True))
    elif absent < len(column):
        found.update((row, value) for row, value in zip(rows, column, strict=True) if value is not None)


class _Builder:
    """Gathers leaves, and turns them into columns a block at a time."""

    def __init__(self) -> None:
        self.ops: list[OpName] = []
        self.first = [0]
        self.rows = 0  # of the blocks that have ended
        self.slots, self.kinds, self.shapes = Texts(), Texts(), Texts()
        self.sparse: dict[str, dict[int, Any]] = {
            name: {} for name in ("exact", "scalars", "digests", "files", "stat_dtypes", "grad_of")
        }
        self.blocks: list[tuple[NDArray[Any], ...]] = []
        self.slot: list[int] = []
        self.leaves: list[_Leaf] = []
        self._places: dict[tuple[str, object, int], int] = {}
        self._places_of: dict[str, list[int]] = {section: [] for section in SECTION_ROLES}
        self._kinds: dict[tuple[str | None, str | None], int] = {}
        self._shapes: dict[object, int] = {}

    def member(self, op: OpName, body: _Member) -> None:
        if body.input_args:
            self._list("input_args", body.input_args)
        if body.input_kwargs:
            self._dict("input_kwargs", body.input_kwargs)
        if body.input:
            self._list("input", body.input)
        if body.output:
            self._list("output", body.output)
        if body.parameters:
            self._dict("parameters", body.parameters)
        if body.grad_of is not None:
            self.sparse["grad_of"][len(self.ops)] = body.grad_of
        self._end(op)

    def record(self, op: OpName, raw: bytes, body: _Member | _Gradients | None) -> None:
        if isinstance(body, _Member):
            self.member(op, body)
            return
        if body is None:
            self._slowly(op, raw)
        else:
            for name, item in body.items():
                self._item("", name, item, PARAMETER_GRAD)
        self._end(op)

    def _end(self, op: OpName) -> None:
        self.ops.append(op)
        self.first.append(self.rows + len(self.slot))

    def _list(self, section: str, content: list[_Item]) -> None:
        role = SECTION_ROLES[section]
        if set(map(type, content)) != _ONLY_LEAVES:
            for number, item in enumerate(content):
                self._item(section, number, item, role)
            return
        places = self._places_of[section]
        for number in range(len(places), len(content)):
            places.append(self._place(section, number, -1, role))
        self.slot += places[: len(content)]
        self.leaves += content  # type: ignore[arg-type]

    def _dict(self, section: str, content: dict[str, _Item]) -> None:
        for key, item in content.items():
            self._item(section, key, item, SECTION_ROLES[section])

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
        leaves, n = self.leaves, len(self.leaves)
        rows = list(range(self.rows, self.rows + n))
        pairs = list(zip(_all(leaves, "type"), _all(leaves, "dtype"), strict=True))
        for pair in dict.fromkeys(pairs):
            if pair not in self._kinds:
                self._kinds[pair] = self.kinds.number((pair[0] or "", pair[1] or ""))
        shapes = _all(leaves, "shape")
        for shape in dict.fromkeys(shapes):
            if shape not in self._shapes:
                self._shapes[shape] = self.shapes.number(shape)
        figures, status = np.full((n, 4), np.nan), np.zeros((n, 4), np.uint8)
        for column, name in enumerate(("Max", "Min", "Mean", "Norm")):
            written = _all(leaves, name)
            if set(map(type, written)) == _ONLY_FLOATS:
                figures[:, column], status[:, column] = written, GIVEN
                continue
            plain = np.array([f.__class__ is float for f in written], bool)
            figures[plain, column] = [f for f in written if f.__class__ is float]
            status[plain, column] = GIVEN
            for row in np.flatnonzero(~plain).tolist():
                if written[row] is not _UNSET:
                    self._odd_figure(figures, status, row, column, number(written[row]))
        for name, key in (
            ("stat_dtypes", "stat_dtype"),
            ("digests", "md5"),
            ("files", "data_name"),
        ):
            _enter(self.sparse[name], rows, _all(leaves, key))
        scalars = _all(leaves, "value")
        if scalars.count(None) < n:
            for row, leaf in zip(rows, leaves, strict=True):
                if leaf.value is not None:
                    spelled = isinstance(leaf.value, str) and (leaf.type or "").startswith(("float", "int"))
                    self.sparse["scalars"][row] = number(leaf.value) if spelled else leaf.value  # "-inf" and the like
        self.blocks.append(
            (
                np.array(self.slot, np.int32),
                np.fromiter(map(self._kinds.__getitem__, pairs), np.int32, n),
                np.fromiter(map(self._shapes.__getitem__, shapes), np.int32, n),
                figures,
                status,
                np.fromiter(map(_GRAD.__getitem__, _all(leaves, "requires_grad")), np.int8, n),
            )
        )
        self.rows += n
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
        slot, kind, shape, figures, status, grad = columns
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
            grad=grad,
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
