"""Format ``parquet``: the values of a dump as a table, one row a leaf, beside dump.json.

The columns are those of the table ``values`` of the trace (record/trace.py). Batches are added as dump.json grows; the file gets
its name at the end of the step, when it can be read. NaN is a value, null is absence; ``*_status`` tells whether dump.json says
null or nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from numprobe.record.errors import NumprobeError
from numprobe.record.trace import Value

NAME = "dump.parquet"
_FIGURES = ("max", "min", "mean", "norm")
_COUNTS = ("nan", "pos_inf", "neg_inf")
_INT64 = range(-(1 << 63), 1 << 63)
_DIGESTS = ((re.compile(r"[0-9a-f]{8}"), "crc32"), (re.compile(r"[0-9a-f]{16}"), "hash64"))
# name and type of every column, in order; the types are pyarrow's names for them
COLUMNS: dict[str, str] = {
    "step": "int32",
    "rank_key": "dictionary",
    "op_index": "int32",
    "name": "dictionary",
    "role": "dictionary",
    "path": "dictionary",
    "value_type": "dictionary",
    "dtype": "dictionary",
    "shape": "list",
    "numel": "int64",
    **dict.fromkeys(_FIGURES, "float64"),
    "max_int": "int64",
    "min_int": "int64",
    **dict.fromkeys((f"{name}_status" for name in _FIGURES), "dictionary"),
    "stat_dtype": "dictionary",
    **dict.fromkeys(_COUNTS, "int64"),
    "digest": "string",
    "digest_kind": "dictionary",
    "scalar": "string",
    "file": "string",
    "requires_grad": "bool_",
    "grad_of": "dictionary",
    "attributes": "string",
}


def require_pyarrow() -> None:
    """Raises NumprobeError, E-CFG-012, where it is not installed."""
    try:
        import_module("pyarrow.parquet")
    except ImportError as error:
        raise NumprobeError(
            "E-CFG-012",
            "format parquet needs pyarrow, which is not installed",
            do="pip install 'numprobe[sql]', or write format json",
        ) from error


class ParquetValues:
    """The table of one rank and step; ``header`` goes into the file's metadata."""

    def __init__(self, folder: Path, step: int, header: dict[str, object]) -> None:
        self.folder = folder
        self._step = step
        self._header = {f"numprobe.{key}": json.dumps(value) for key, value in header.items()}
        self._temporary = f".{NAME}.{os.getpid()}.tmp"
        self._writer: Any = None
        self._schema: Any = None
        self._count = 0  # entries so far

    def add(self, entries: Iterable[tuple[str, object]]) -> None:
        """Append entries (name and value, as dump.json has them).

        Raises:
            OSError: the file cannot be written.
        """
        from numprobe.formats.msprobe.members import record_from

        arrow = import_module("pyarrow")
        rows: dict[str, list[Any]] = {column: [] for column in COLUMNS}
        for name, value in entries:
            record = record_from(name, self._count, msgspec.json.encode(value), -1)
            self._count += 1
            named = value.get("grad_of", []) if isinstance(value, dict) else []
            of_outputs = {f"output.{i}": path for i, path in enumerate(named)}
            for leaf in record.values:
                if not leaf.path.startswith("grad_of."):
                    self._add(rows, record.op_index, name, leaf, of_outputs.get(leaf.path))
        if self._writer is None:
            self._schema = _schema(arrow).with_metadata(self._header)
            parquet = import_module("pyarrow.parquet")
            self._writer = parquet.ParquetWriter(self.folder / self._temporary, self._schema, compression="zstd")
        self._writer.write_table(arrow.table(rows, schema=self._schema))

    def close(self) -> None:
        """The step is over: the file is whole now.

        Raises:
            OSError: it cannot be written.
        """
        if self._writer is None:
            self.add([])
        self._writer.close()
        (self.folder / self._temporary).replace(self.folder / NAME)

    def _add(self, rows: dict[str, list[Any]], op_index: int, name: str, leaf: Value, grad_of: str | None) -> None:
        extra = dict(leaf.attributes)
        digest = extra.pop("md5", None)
        row = {
            "step": self._step,
            "rank_key": self.folder.name,
            "op_index": op_index,
            "name": name,
            "role": leaf.role,
            "path": leaf.path,
            "value_type": leaf.value_type,
            "dtype": leaf.dtype or None,
            "shape": leaf.shape,
            "numel": leaf.numel,
            "max_int": _whole(leaf.max),
            "min_int": _whole(leaf.min),
            "stat_dtype": extra.pop("stat_dtype", None),
            **{count: extra.pop(count, None) for count in _COUNTS},
            "digest": None if digest is None else str(digest),
            "digest_kind": _digest_kind(digest),
            "scalar": None if leaf.scalar is None else _text(leaf.scalar),
            "file": extra.pop("data_name", None),
            "requires_grad": leaf.requires_grad,
            "grad_of": grad_of,
            "attributes": _text(extra) if extra else None,
        }
        for figure in _FIGURES:
            value = getattr(leaf, figure)
            row[figure] = None if value is None else float(value)
            row[f"{figure}_status"] = "value" if value is not None else "null" if figure in leaf.present else "absent"
        for column, values in rows.items():
            values.append(row[column])


def _schema(arrow: Any) -> Any:
    types = {
        "dictionary": arrow.dictionary(arrow.int32(), arrow.string()),
        "list": arrow.list_(arrow.int64()),
    }
    return arrow.schema([(name, types.get(kind) or getattr(arrow, kind)()) for name, kind in COLUMNS.items()])


def _whole(value: object) -> int | None:
    """An integer figure exactly, where int64 holds it: a float64 is exact to 2**53 only."""
    return int(value) if isinstance(value, int) and value in _INT64 else None


def _digest_kind(digest: object) -> str | None:
    if digest is None:
        return None
    return next((kind for form, kind in _DIGESTS if form.fullmatch(str(digest))), "xor")


def _text(value: object) -> str:
    """JSON, with NaN and Infinity as dump.json has them."""
    return json.dumps(value, default=list, ensure_ascii=False)
