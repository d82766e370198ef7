"""What a rank tells about its place in the model: its parameters, and the shapes of what its modules were given and returned."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from numprobe.align.naming import NO_LIST, model_of, unwrapped
from numprobe.formats.dump import RankDump
from numprobe.formats.layout import RankFolder
from numprobe.formats.msprobe.values import ValueTable
from numprobe.record.dtypes import float_format
from numprobe.record.names import FORWARD
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

MOST_CALLS = 2000  # whose shapes are taken where no module was recorded
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


class Parameter(msgspec.Struct, frozen=True, array_like=True):
    """``unit`` is the unit roundoff of its dtype."""

    shape: tuple[int, ...]
    high: float
    low: float
    unit: float

    @property
    def constant(self) -> bool:
        """Such as gains of 1 and biases of 0, which all layers have."""
        return self.high == self.low


class Signature(msgspec.Struct):
    """``parameters`` by path and name (``decoder.layers.0.mlp.linear_fc1.weight``), ``shapes`` of the first calls by record and
    slot."""

    parameters: dict[str, Parameter]
    shapes: dict[str, tuple[int, ...]]


def read_signature(place: tuple[RankFolder, Path | None]) -> Signature:
    """Of a rank folder, and the folder of the cache.

    Raises:
        NumprobeError: the dump cannot be read.
    """
    return signature_of(RankDump(*place).values)


def signature_of(values: ValueTable) -> Signature:
    parameters: dict[str, Parameter] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    modules = any(op.kind == "module" for op in values.ops)
    for i, op in enumerate(values.ops):
        if modules and op.kind != "module":
            continue
        if op.direction != FORWARD or (modules and op.call) or (not modules and i >= MOST_CALLS):
            continue
        for row in values.rows(i):
            role, path = values.slots[values.slot[row]]
            shape = values.shapes[values.shape[row]]
            if shape is None:
                continue
            if role == PARAMETER:
                kind = float_format(values.kinds[values.kind[row]][2])
                name = f"{unwrapped(op.path)}.{path.rsplit('.', 1)[-1]}"
                high, low = values.figures[row, :2].tolist()
                parameters[name] = Parameter(shape, high, low, 2.0**-kind.p if kind else 0.0)
            elif role in (INPUT, OUTPUT):
                shapes[f"{op.name} {path}"] = shape
    return Signature(parameters, shapes)


@lru_cache(maxsize=1 << 16)
def pattern(name: str) -> tuple[str, tuple[int, ...]]:
    """A name with its numbers taken out.

    >>> pattern("decoder.layers.3.mlp.linear_fc1.weight")
    ('decoder.layers.#.mlp.linear_fc1.weight', (3,))
    """
    numbers = tuple(int(n) for n in _NUMBER.findall(name))
    return _NUMBER.sub("#", name), numbers


def numbered(shape: str, numbers: Iterable[int]) -> str:
    """The inverse of :func:`pattern`."""
    each = iter(numbers)
    return re.sub("#", lambda _: str(next(each)), shape)


def models_of(one: Signature) -> dict[int, Signature]:
    """The models of a list that was recorded, each with its own names: by its number there, or under :data:`NO_LIST` what is no
    list. Several are one where they have other parameters, as the modules of a ``Sequential``."""
    found: dict[int, Signature] = defaultdict(lambda: Signature({}, {}))
    for name, parameter in one.parameters.items():
        found[model_of(name)].parameters[name.partition(".")[2]] = parameter
    if NO_LIST in found or (len(found) == 1 and 0 not in found):
        return {NO_LIST: one}
    if len(found) > 1 and not set.intersection(*(set(of.parameters) for of in found.values())):
        return {NO_LIST: one}
    for name, shape in one.shapes.items():
        model = model_of(name.partition(".")[2])
        if model in found:
            found[model].shapes[name.replace(f".{model}.", ".", 1)] = shape
    return dict(found)
