"""Tensors that are multiplied with a matrix before they are compared: what rotated and smoothed weights need.

The file is that of msProbe's ``compare --config``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from numprobe.align.calls import Tensors
from numprobe.align.yaml_file import Node, read_yaml
from numprobe.formats.tensors import TensorFile, open_tensor
from numprobe.formats.tensors.dtypes import SHORT
from numprobe.formats.tensors.tensor import c_strides
from numprobe.metrics.stream import Array, reading
from numprobe.record.errors import NumprobeError

_LIKE = "right_matmul: {target_tensor_map: {rotation.pt: [Functional.linear.0.forward.output.0.pt]}}"
# section -> the maps in it: side, and whether the matrix stands left or right
_MAPS = {
    "right_matmul": {"target_tensor_map": ("target", "right"), "golden_tensor_map": ("golden", "right")},
    "left_matmul": {"target_tensor_map": ("target", "left"), "golden_tensor_map": ("golden", "left")},
    "left_right_matmul": {
        f"{place}_{side}_tensor_map": (side, place) for side in ("target", "golden") for place in ("left", "right")
    },
}

Product = tuple[str, str]  # left or right, and the file of the matrix


@dataclass(frozen=True)
class Processing:
    """By side (target, golden) and ``data_name``: the products in their order."""

    products: Mapping[str, Mapping[str, Sequence[Product]]] = field(default_factory=dict)

    def of(self, side: str, tensors: Tensors) -> Tensors:
        """The tensors of a side as they are to be compared."""
        products = self.products.get(side)
        return _Processed(tensors, products) if products else tensors


NO_PROCESSING = Processing()


def read_processing(path: Path) -> Processing:
    """The configuration in a YAML file. Matrices lie where it says, or beside it.

    Raises:
        NumprobeError: E-CMP-010 to E-CMP-013 the file, E-FMT-010 and others a matrix cannot be read.
    """
    found: dict[str, dict[str, list[Product]]] = {"target": defaultdict(list), "golden": defaultdict(list)}
    sections = dict(read_yaml(path).items(_LIKE))
    for name, section in sections.items():
        if name not in _MAPS:
            section.fail(_LIKE, found=name)
    for name in _MAPS:  # in this order, whatever that of the file
        for key, files in sections[name].items(_LIKE) if name in sections and not sections[name].is_empty else ():
            if key not in _MAPS[name]:
                files.fail(_LIKE, found=key)
            side, place = _MAPS[name][key]
            for matrix, names in _files(files):
                file = str(_matrix_file(path, matrix))
                for one in names:
                    found[side][one].append((place, file))
    return Processing({side: dict(names) for side, names in found.items() if names})


def _files(node: Node) -> list[tuple[str, list[str]]]:
    if node.is_empty:
        return []
    return [(file, [one.text(_LIKE) for one in names.elements(_LIKE)]) for file, names in node.items(_LIKE)]


def _matrix_file(config: Path, name: str) -> Path:
    """Where the matrix lies; it is opened once, so that a wrong path fails at once."""
    file = Path(name) if Path(name).exists() else config.parent / name
    open_tensor(file)
    return file


class _Processed:
    def __init__(self, tensors: Tensors, products: Mapping[str, Sequence[Product]]) -> None:
        self._tensors, self._products = tensors, products

    def open(self, name: str, shape: tuple[int, ...] | None = None) -> TensorFile:
        tensor = self._tensors.open(name, shape)
        products = self._products.get(name)
        return _in_memory(_multiplied(tensor, products, name), tensor.path) if products else tensor


def _in_memory(value: Array, path: Path) -> TensorFile:
    """An array as a tensor file that was read already."""
    shape = value.shape
    return TensorFile(path, SHORT[value.dtype], shape, c_strides(shape), value.dtype, 0, value.tobytes())


def _multiplied(tensor: TensorFile, products: Sequence[Product], name: str) -> Array:
    """The products in float64, in the wider of the dtypes in the end; dimensions of 1 are dropped first."""
    value = _whole(tensor).squeeze()
    kind = _at_least_single(value.dtype)
    for place, file in products:
        matrix = _matrix(file)
        kind = np.promote_types(kind, _at_least_single(matrix.dtype))
        one, other = (value, matrix) if place == "right" else (matrix, value)
        if min(one.ndim, other.ndim) < 1 or one.shape[-1] != other.shape[-2 if other.ndim > 1 else 0]:
            raise NumprobeError(
                "E-CMP-015",
                "a tensor of shape {shape} cannot be multiplied with a matrix of shape {matrix}",
                where=f"{name}, {file}",
                do="check the file of --config",
                shape=str(list(value.shape)),
                matrix=str(list(matrix.shape)),
            )
        value = np.matmul(one.astype(np.float64), other.astype(np.float64))
    return value.astype(kind)


def _at_least_single(kind: np.dtype[np.generic]) -> np.dtype[np.generic]:
    return kind if kind.isbuiltin == 1 and kind.kind == "f" and kind.itemsize >= 4 else np.dtype(np.float32)


@lru_cache(maxsize=16)
def _matrix(file: str) -> Array:
    return _whole(open_tensor(file)).squeeze()


def _whole(tensor: TensorFile) -> Array:
    with reading(tensor) as read:
        count = int(np.prod(tensor.shape, dtype=np.int64))
        return read(0, count).reshape(tensor.shape)
