"""The rows of the table that a page shows: those that do not pass, not more than a reader can use."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from numprobe.compare.table import CUSTOM

MOST_ROWS = 2_000
OWN = ("introduced", "parameter")  # rows that start an event are shown before those that hand it on


class Row(NamedTuple):
    """A pair of leaves. Absent figures are None; ``target_op`` or ``golden_op`` is None on the side that has no record."""

    step: int | None
    rank: int | None
    op_index: int
    target_op: str | None
    golden_op: str | None
    phase: str
    role: str
    path: str
    verdict: str
    status: str
    reason: str | None
    error: float | None
    expected: float | None
    rho: float | None
    custom: tuple[float | str | None, ...] = ()  # by the user's own metrics


def custom_columns(table: Path) -> list[str]:
    """The names of the user's own metrics."""
    import polars as pl

    names = pl.read_parquet_schema(BytesIO(table.read_bytes()))
    return [name.removeprefix(CUSTOM) for name in names if name.startswith(CUSTOM)]


def page_rows(table: Path, most: int = MOST_ROWS) -> list[Row]:
    """The rows of ``compare.parquet`` that do not pass, in the order of execution, ranks side by side.

    Of more than ``most`` rows those that start an event are taken first, then the earliest.
    """
    import polars as pl

    place = pl.int_range(pl.len()).over("step", "rank").alias("place")
    order = ["step", "place", "rank"]
    own, custom = Row._fields[:-1], [f"{CUSTOM}{name}" for name in custom_columns(table)]
    return [
        Row(*values[: len(own)])._replace(custom=values[len(own) :])
        for values in pl.scan_parquet(table.read_bytes())
        .select(*own, *custom, place)
        .filter(pl.col("verdict") != "pass")
        .sort(~pl.col("status").is_in(OWN), *order, maintain_order=True)
        .head(most)
        .sort(*order, maintain_order=True)
        .select(*own, *custom)
        .collect()
        .iter_rows()
    ]
