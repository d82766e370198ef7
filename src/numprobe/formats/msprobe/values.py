"""The ``values`` table of one rank as columns: every leaf of every record, without an object a leaf.

What :func:`~numprobe.formats.msprobe.members.flatten` gives as objects, in the same order, at a fifth of its cost: records of
the usual form are decoded many at a time into typed structs; any other goes through ``flatten`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from numprobe.formats.msprobe.members import UndecodableMember, decode_member, flatten, quoted, section_role
from numprobe.record.dtypes import short_dtype
from numprobe.record.names import DEBUG, PARAMETERS_GRAD, OpName, parse_name
from numprobe.record.nonfinite import Number, number
from numprobe.record.shapes import clean_shape, numel
from numprobe.record.trace import Value

if TYPE_CHECKING:
    from numprobe.formats.dump import RankDump

TOGETHER = 1000  # records decoded at once
FIGURES = ("max", "min", "mean", "norm")
ABSENT, NULL, GIVEN = 0, 1, 2  # status of a figure

_Figure = float | int | bool | str | None


class _Leaf(msgspec.Struct, forbid_unknown_fields=True):
    type: str | None = None
    dtype: str | None = None
    shape: list[int] | None = None
    Max: _Figure | msgspec.UnsetType = msgspec.UNSET
    Min: _Figure | msgspec.UnsetType = msgspec.UNSET
    Mean: _Figure | msgspec.UnsetType = msgspec.UNSET
    Norm: _Figure | msgspec.UnsetType = msgspec.UNSET
    requires_grad: bool | None = None
    stat_dtype: str | None = None
    md5: str | None = None
    data_name: str | None = None
    value: Any = msgspec.UNSET


_Leaves = list[_Leaf | None]


class _Member(msgspec.Struct, forbid_unknown_fields=True):
    input_args: _Leaves | None = None
    input_kwargs: dict[str, _Leaf | None] | None = None
    input: _Leaves | None = None
    output: _Leaves | None = None
    parameters: dict[str, _Leaf | None] | None = None
    grad_of: list[str] | None = None


_MEMBERS = msgspec.json.Decoder(list[_Member])
_MEMBER = msgspec.json.Decoder(_Member)


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
    outputs are.
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
        raws = [raw for _, _, raw in rank.raw(positions)]
        bodies = _decode_together(raws)
        for i, raw, body in zip(positions, raws, bodies, strict=True):
            build.record(names[i], raw, body)
    return build.table(names)


def _decode_together(raws: Sequence[bytes]) -> Iterator[_Member | None]:
    try:
        yield from _MEMBERS.decode(quoted(b"[" + b",".join(raws) + b"]"))
        return
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    for raw in raws:
        try:
            yield _MEMBER.decode(quoted(raw))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield None


class _Builder:
    def __init__(self) -> None:
        self.ops: list[OpName] = []
        self.first = [0]
        self.slots, self.kinds, self.shapes = Texts(), Texts(), Texts()
        self.slot: list[int] = []
        self.kind: list[int] = []
        self.shape: list[int] = []
        self.figures: list[float] = []
        self.status: list[int] = []
        self.sparse: dict[str, dict[int, Any]] = {
            name: {} for name in ("exact", "scalars", "digests", "files", "grad", "stat_dtypes", "grad_of")
        }
        self._paths: dict[tuple[str, str, object], int] = {}
        self._types: dict[tuple[str | None, str | None], int] = {}
        self._sizes: dict[tuple[int, ...], int] = {}

    def record(self, name: str, raw: bytes, body: _Member | None) -> None:
        op = parse_name(name)
        if body is None or op.kind in (PARAMETERS_GRAD, DEBUG):
            self._slowly(op, raw)
        else:
            for section in ("input_args", "input_kwargs", "input", "output", "parameters"):
                content = getattr(body, section)
                if content:
                    pairs = content.items() if isinstance(content, dict) else enumerate(content)
                    for key, leaf in pairs:
                        self._leaf(section, key, leaf)
            if body.grad_of is not None:
                self.sparse["grad_of"][len(self.ops)] = body.grad_of
        self.ops.append(op)
        self.first.append(len(self.slot))

    def _leaf(self, section: str, key: object, leaf: _Leaf | None) -> None:
        row = len(self.slot)
        place = (section, "", key)
        slot = self._paths.get(place)
        if slot is None:
            role = section_role(parse_name("Torch.x.0.forward"), section)
            slot = self._paths[place] = self.slots.number((role, f"{section}.{key}"))
        self.slot.append(slot)
        if leaf is None:
            self._plain_row(("null", ""), None)
            return
        kind = self._types.get((leaf.type, leaf.dtype))
        if kind is None:
            kind = self._types[leaf.type, leaf.dtype] = self.kinds.number(_kind(leaf.type or "", leaf.dtype or ""))
        self.kind.append(kind)
        self.shape.append(self._shape(leaf.shape))
        if (
            leaf.Max.__class__ is float
            and leaf.Min.__class__ is float
            and leaf.Mean.__class__ is float
            and leaf.Norm.__class__ is float
        ):
            self.figures += (leaf.Max, leaf.Min, leaf.Mean, leaf.Norm)
            self.status += _ALL_GIVEN
        else:
            written = (leaf.Max, leaf.Min, leaf.Mean, leaf.Norm)
            self._figures(row, [(ABSENT, None) if f is msgspec.UNSET else _status(number(f)) for f in written])
        sparse = self.sparse
        if leaf.requires_grad is not None:
            sparse["grad"][row] = leaf.requires_grad
        if leaf.stat_dtype is not None:
            sparse["stat_dtypes"][row] = leaf.stat_dtype
        if leaf.md5 is not None:
            sparse["digests"][row] = leaf.md5
        if leaf.data_name is not None:
            sparse["files"][row] = leaf.data_name
        if leaf.value is not msgspec.UNSET:
            sparse["scalars"][row] = leaf.value

    def _slowly(self, op: OpName, raw: bytes) -> None:
        try:
            body = decode_member(raw)
        except UndecodableMember:
            return
        if isinstance(body, dict) and isinstance(body.get("grad_of"), list):
            self.sparse["grad_of"][len(self.ops)] = [str(p) for p in body.pop("grad_of")]
        for value in flatten(op, body):
            self._value(value)

    def _value(self, value: Value) -> None:
        row = len(self.slot)
        self.slot.append(self.slots.number((value.role, value.path)))
        if not value.is_tensor:
            self._plain_row((value.value_type, ""), value.scalar)
            return
        self.kind.append(self.kinds.number(_kind(value.value_type, value.dtype)))
        self.shape.append(self._shape(value.shape))
        self._figures(row, [_status(getattr(value, f)) if f in value.present else (ABSENT, None) for f in FIGURES])
        for key, name in (("md5", "digests"), ("data_name", "files"), ("stat_dtype", "stat_dtypes")):
            if isinstance(value.attributes.get(key), str):
                self.sparse[name][row] = value.attributes[key]
        if value.requires_grad is not None:
            self.sparse["grad"][row] = value.requires_grad

    def _plain_row(self, kind: tuple[str, str], scalar: object) -> None:
        if scalar is not None:
            self.sparse["scalars"][len(self.kind)] = scalar
        self.kind.append(self.kinds.number((*kind, "")))
        self.shape.append(self._shape(None))
        self.figures += _NO_FIGURES
        self.status += _ALL_ABSENT

    def _figures(self, row: int, figures: list[tuple[int, Number]]) -> None:
        self.figures += [np.nan if f is None else float(f) for _, f in figures]
        self.status += [s for s, _ in figures]
        if any(isinstance(f, int) for _, f in figures):
            self.sparse["exact"][row] = tuple(f for _, f in figures)

    def _shape(self, shape: Sequence[int] | None) -> int:
        key: Any = tuple(shape) if shape is not None else None
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = self.shapes.number(clean_shape(shape))
        return found

    def table(self, names: list[str]) -> ValueTable:
        shape = np.array(self.shape, np.int32)
        sizes = np.array([-1 if (n := numel(s)) is None else n for s in self.shapes.all], np.int64)
        return ValueTable(
            names,
            self.ops,
            np.array(self.first, np.int64),
            self.slots.all,
            self.kinds.all,
            self.shapes.all,
            np.array(self.slot, np.int32),
            np.array(self.kind, np.int32),
            shape,
            sizes[shape] if len(shape) else np.zeros(0, np.int64),
            np.array(self.figures, np.float64).reshape(-1, 4),
            np.array(self.status, np.uint8).reshape(-1, 4),
            **self.sparse,
        )


def _kind(type_: str, dtype: str) -> tuple[str, str, str]:
    return type_, dtype, short_dtype(dtype)


def _status(figure: Number) -> tuple[int, Number]:
    return (NULL, None) if figure is None else (GIVEN, figure)


_NO_FIGURES = (np.nan,) * 4
_ALL_GIVEN = (GIVEN,) * 4
_ALL_ABSENT = (ABSENT,) * 4
