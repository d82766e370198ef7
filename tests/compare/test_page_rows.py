"""The rows of a page, and the page of a whole run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.compare.command import run_to_folder
from numprobe.compare.page.rows import Row, page_rows
from numprobe.compare.result import VERDICTS
from report.test_nan_page import Page

from .models import dump
from .page_results import row

SCHEMA = {
    **dict.fromkeys(("step", "rank", "op_index"), pl.Int64),
    **dict.fromkeys(("target_op", "golden_op", "phase", "role", "path", "verdict", "status", "reason"), pl.String),
    **dict.fromkeys(("error", "expected", "rho"), pl.Float64),
}


def table(folder: Path, rows: list[Row]) -> Path:
    pl.DataFrame([r._asdict() for r in rows], schema=SCHEMA).write_parquet(folder / "compare.parquet")
    return folder / "compare.parquet"


def test_figures_come_through_as_they_are(tmp_path):
    rows = [
        row(1, rho=math.inf, error=None),
        row(2, target_op=None, verdict="unmatched_golden", reason="shape", status=""),
        row(3, step=None, rank=None),
    ]
    found = page_rows(table(tmp_path, rows))
    assert sorted(found, key=lambda r: r.op_index) == rows


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, 3),
            st.sampled_from(VERDICTS),
            st.sampled_from(["", "propagated", "introduced"]),
        ),
        max_size=60,
    ),
    most=st.integers(1, 20),
)
def test_kept_are_the_starts_of_events_and_then_the_earliest(tmp_path_factory, rows, most):
    blocks = sorted(rows, key=lambda r: r[:2])  # a table holds one rank after the other
    made = [
        row(n, step=step, rank=rank, verdict=verdict, status=status)
        for n, (step, rank, verdict, status) in enumerate(blocks)
    ]
    found = page_rows(table(tmp_path_factory.mktemp("rows"), made), most)
    seen: dict[tuple[int, int], int] = {}
    places = {}
    for r in made:
        places[r.op_index] = (r.step, seen.setdefault((r.step, r.rank), 0), r.rank)
        seen[r.step, r.rank] += 1
    wanted = [r for r in made if r.verdict != "pass"]
    by_worth = sorted(wanted, key=lambda r: (r.status != "introduced", places[r.op_index]))
    assert found == sorted(by_worth[:most], key=lambda r: places[r.op_index])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a run in which layer 1's up projection has a weight that is 3 % too large."""
    folder = tmp_path_factory.mktemp("run")
    target = dump(folder / "target", "dense", torch.bfloat16, 0, "weight_scale")
    golden = dump(folder / "golden", "dense", torch.float32, 0)
    run_to_folder(target, golden, out=folder / "out")
    return folder / "out"


def test_the_page_of_a_run_holds_what_its_table_holds(run):
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    rows = json.loads(page.scripts[0])["rows"]
    frame = pl.read_parquet(run / "compare.parquet").filter(pl.col("verdict") != "pass")
    assert len(frame) > 20
    assert [rows["texts"][n] for n in rows["op"]] == frame["target_op"].to_list()
    assert [rows["texts"][n] for n in rows["verdict"]] == frame["verdict"].to_list()
    assert rows["index"] == frame["op_index"].to_list()
    text = "".join(page.text)
    assert "layers.1.mlp.up_proj.weight" in text
    first = frame.filter(pl.col("status") == "parameter").row(0, named=True)
    assert f"{100 * first['error']:.1f} %" in text


def test_the_finding_points_at_its_record_in_the_file(run):
    first = json.loads((run / "result.json").read_text(encoding="utf-8"))["findings"][0]
    page = "".join(Page((run / "report.html").read_text(encoding="utf-8")).text)
    for side in ("target", "golden"):
        place = first[f"{side}_place"]
        end = place["offset"] + place["length"]
        assert f"{place['file']}{place['offset']:,}-{end:,}" in page
        content = (run.parent / side / "step0" / place["file"]).read_bytes()[place["offset"] : end]
        leaf = next(leaf for leaf in first["leaves"] if leaf["path"] == first["slot"])
        given = json.loads(content)["input_args"][int(first["slot"].rpartition(".")[2])]
        assert given["Norm"] == leaf[side]["norm"]
