"""The result as one table: a row a leaf, typed columns. Parquet to keep, csv and xlsx to look at."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from numprobe.align.shards.spread import CASES
from numprobe.compare.measure import REASONS
from numprobe.compare.sharded import cases_by_row
from numprobe.compare.tensors import columns as tensor_columns

if TYPE_CHECKING:
    import polars as pl

    from numprobe.compare.rank import Compared

CUSTOM = "metric."  # before the names of the user's own metrics
BY = ("nothing", "value", "integer", "figures", "digest")


def table_of(compared: Compared) -> pl.DataFrame:
    """The rows of one pair of ranks, in the order of execution."""
    import polars as pl

    leaves, records, m, j = compared.leaves, compared.records, compared.measures, compared.judgement
    t_op, g_op = (np.array(side, np.int64)[leaves.pair] for side in (records.target, records.golden))
    n = len(leaves)
    task = compared.task
    t, g = compared.target.values, compared.golden.values
    first_op = np.where(t_op >= 0, t_op, g_op)
    phases = _texts([*compared.target.phase, *compared.golden.phase], np.where(t_op >= 0, t_op, len(t.ops) + g_op))
    slots = [*t.slots, *g.slots]
    slot = np.where(leaves.target >= 0, _take(t.slot, leaves.target), len(t.slots) + _take(g.slot, leaves.golden))
    columns: dict[str, object] = {
        "step": pl.Series([task.step] * n, dtype=pl.Int64) if n else pl.Series([], dtype=pl.Int64),
        "rank": pl.Series([task.target.rank] * n, dtype=pl.Int64) if n else pl.Series([], dtype=pl.Int64),
        "op_index": first_op,
        "target_op": _texts(t.names, t_op),
        "golden_op": _texts(g.names, g_op),
        "phase": phases,
        "role": _texts([role for role, _ in slots], slot),
        "path": _texts([path for _, path in slots], slot),
        "verdict": pl.Series(_verdicts(j.verdict, leaves.target), dtype=pl.String),
        "status": pl.Series(j.status, dtype=pl.String),
        "brought_in_by": _texts([_op_of(compared, f.pair) for f in j.findings], np.array(j.cause, np.int64)),
        "reason": _texts(REASONS[1:], m.reason.astype(np.int64) - 1),
        "compared_by": _texts([*BY, "tensor"], np.where(m.from_tensors, len(BY), m.by)),
        "rho": _floats(np.array(j.rho)),
        "error": _floats(compared.errors),
        "expected": _floats(np.array(j.expected)),
        "d_norm": _floats(m.d_norm),
        "d_mean": _floats(m.d_mean),
        "d_extreme": _floats(m.d_extreme),
        "max_error_rms": _floats(m.local),
        "nonfinite_differs": m.nonfinite,
    }
    cases = cases_by_row(leaves, compared.target, compared.golden)
    if cases is not None:
        columns["spread"] = _texts(CASES, cases)
    if m.details:
        columns.update({name: _floats(values) for name, values in tensor_columns(m)})
    if compared.custom is not None and compared.custom.rows:
        for name, found in compared.custom.columns(n):
            text = any(isinstance(value, str) for value in found)
            columns[CUSTOM + name] = pl.Series(found, dtype=pl.String if text else pl.Float64)
    if m.problems:
        columns["problem"] = pl.Series([m.problems.get(row) for row in range(n)], dtype=pl.String)
    unknown = pl.Series([None], dtype=pl.Float64)
    for side, values, rows in (("target", t, leaves.target), ("golden", g, leaves.golden)):
        columns[f"{side}_dtype"] = _texts([short or kind for kind, _, short in values.kinds], _take(values.kind, rows))
        columns[f"{side}_shape"] = _texts([_shape(s) for s in values.shapes], _take(values.shape, rows))
        given = values.status == 2
        for k, name in enumerate(("max", "min", "mean", "norm")):
            inside = (rows >= 0) & _take(given[:, k], rows, 0).astype(bool)
            column = pl.Series(_take(values.figures[:, k], rows, np.nan))
            columns[f"{side}_{name}"] = column.zip_with(pl.Series(inside), unknown) if n else column
    return pl.DataFrame(columns)


def _op_of(compared: Compared, pair: int) -> str:
    t, g = compared.records.target[pair], compared.records.golden[pair]
    return compared.target.values.names[t] if t >= 0 else compared.golden.values.names[g]


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """One file, whole or not at all; the same rows give the same bytes."""
    content = io.BytesIO()  # polars has errors of its own for a full disk, and no paths of other bytes than UTF-8
    frame.write_parquet(content, compression="zstd", compression_level=1, statistics=True)
    write_whole(path, content.getbuffer())


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """One file, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def read_parquet(path: Path) -> pl.DataFrame:
    """The table that :func:`write_parquet` wrote."""
    import polars as pl

    return pl.read_parquet(path.read_bytes())


def _take(values: NDArray[np.generic], rows: NDArray[np.int64], absent: float = -1) -> NDArray[np.generic]:
    """Values by row; ``absent`` where there is none."""
    if not len(values):
        return np.full(len(rows), absent)
    return np.where(rows >= 0, values[rows], absent)


def _texts(texts: Sequence[str | None], numbers: NDArray[Any]) -> pl.Series:
    """Texts by number; null where the number is negative."""
    import polars as pl

    words = pl.Series([*texts, None], dtype=pl.String)
    return words.gather(np.where(numbers < 0, len(texts), numbers).astype(np.uint32))


def _floats(values: NDArray[np.float64]) -> pl.Series:
    """NaN here means not known: null."""
    import polars as pl

    return pl.Series(values, nan_to_null=True)


def _verdicts(verdicts: Sequence[str], target: NDArray[np.int64]) -> list[str]:
    return [
        f"unmatched_{'golden' if row < 0 else 'target'}" if verdict == "unmatched" else verdict
        for verdict, row in zip(verdicts, target.tolist(), strict=True)
    ]


def _shape(shape: tuple[int, ...] | None) -> str | None:
    return None if shape is None else "x".join(map(str, shape)) or "scalar"
