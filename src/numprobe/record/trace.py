"""The trace: the one logical schema that every reader produces and every analysis queries.

Four tables, keyed by (side, step, rank_key, op_index): ``ops`` (:class:`Record`), ``values`` (:class:`Value`, one row a
leaf, tensor or not), ``runs`` (:class:`RunInfo`) and ``ranks`` (:class:`RankInfo`). The schema is logical and lazy: a
dump handle scans by projection and fetches single records by byte offset, so no table is ever held whole.

NaN is a value, null is absence: ``max is None`` with ``"max" in present`` means that the file says null, without it that
the file says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from numprobe.record.names import OpName
from numprobe.record.nonfinite import Kinds, Number, kinds_of
from numprobe.record.shapes import numel

INPUT = "input"
OUTPUT = "output"
PARAMETER = "parameter"
PARAMETER_GRAD = "parameter_grad"
DEBUG_VALUE = "debug"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Value:
    """One leaf of a record.

    ``path`` is the place in the record (``input_args.0.1``, ``input_kwargs.group``, ``parameters.weight``); integers keep
    their exact value in ``max`` and ``min`` (2**53 is not enough). ``present`` names the statistics that the file gives,
    null or not. ``scalar`` holds the value of a non-tensor leaf, ``attributes`` what else its record says (group ranks,
    P2POp peer, placements, digest, ...).
    """

    role: str
    path: str
    value_type: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    max: Number = None
    min: Number = None
    mean: Number = None
    norm: Number = None
    present: frozenset[str] = frozenset()
    scalar: object = None
    requires_grad: bool | None = None
    attributes: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_tensor(self) -> bool:
        return bool(self.dtype) or bool(self.present)

    @property
    def numel(self) -> int | None:
        return numel(self.shape)

    @property
    def kinds(self) -> Kinds:
        """Clean, which non-finite kinds, or unknown. A non-tensor leaf is clean, a tensor without elements and figures too."""
        empty = self.shape is not None and 0 in self.shape and self.max is None and self.min is None
        return Kinds.CLEAN if empty or not self.is_tensor else kinds_of(self.max, self.min)


@dataclass(frozen=True, slots=True)
class Record:
    """One operator or module call of one rank. ``offset`` and ``length`` are the bytes of its JSON value in the file."""

    name: OpName
    op_index: int
    values: tuple[Value, ...]
    offset: int = -1
    length: int = 0

    def of(self, *roles: str) -> list[Value]:
        return [v for v in self.values if v.role in roles]

    def kinds(self, *roles: str) -> Kinds:
        """Union over the leaves of these roles."""
        kinds = Kinds.CLEAN
        for v in self.values:
            if v.role in roles:
                kinds |= v.kinds
        return kinds


@dataclass(frozen=True)
class RunInfo:
    """What made a dump: the header of its files.

    ``grad_kind``: what backward records of APIs hold, ``true`` (the call's own gradients) or empty (the last autograd node's).
    """

    framework: str = ""
    task: str = ""
    level: str = ""
    grad_kind: str = ""


@dataclass(frozen=True)
class RankInfo:
    """One rank folder of one step. ``rank`` is None for a process folder (``proc<pid>``).

    ``status``: ok | partial (the file is cut short or damaged: its readable prefix counts) | missing | unreadable.
    """

    key: str
    rank: int | None
    status: str = "ok"
    reason: str = ""
