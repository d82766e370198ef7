"""The rows of the table that a page shows: those that do not pass, not more than a reader can use."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

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


def page_rows(table: Path, most: int = MOST_ROWS) -> list[Row]:
    """The rows of ``compare.parquet`` that do not pass, in the order of execution, ranks side by side.

    Of more than ``most`` rows those that start an event are taken first, then the earliest.
    """
    import polars as pl

    place = pl.int_range(pl.len()).over("step", "rank").alias("place")
    order = ["step", "place", "rank"]
    return [
        Row(*values)
        for values in pl.scan_parquet(table.read_bytes())
        .select(*Row._fields, place)
        .filter(pl.col("verdict") != "pass")
        .sort(~pl.col("status").is_in(OWN), *order, maintain_order=True)
        .head(most)
        .sort(*order, maintain_order=True)
        .select(Row._fields)
        .collect()
        .iter_rows()
    ]
