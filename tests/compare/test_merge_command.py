"""``numprobe merge``: msProbe's result files and numprobe's runs, groups, ranks that disagree, exit codes."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

from cli.shell import INTEROP, Ran, numprobe

from .test_msprobe_merge import RANKS, stored_sheets
from .test_msprobe_rows import STORE

GLOO = INTEROP / "pytorch" / "h_distributed_4rank_nan" / "dump" / "step0"
GROUPS = "groups: {first: [0, 1], second: [2, 3]}\n"


def dumps(folder: Path) -> tuple[Path, Path]:
    """The dump of four gloo ranks twice, under one rank of which all_reduce gave something else."""
    golden, target = folder / "golden" / "step0", folder / "target" / "step0"
    shutil.copytree(GLOO, golden)
    shutil.copytree(GLOO, target)
    place = target / "rank2" / "dump.json"
    content = json.loads(place.read_text(encoding="utf-8"))
    content["data"]["Distributed.all_reduce.0.forward"]["output"][0]["Norm"] = 11.0
    place.write_text(json.dumps(content), encoding="utf-8")
    return target, golden


def compared(folder: Path, *options: object, step: str = "") -> Path:
    """A run of compare on them."""
    target, golden = dumps(folder)
    ran = numprobe(folder, "compare", target, golden, "-o", "run", "--no-cache", *options)
    assert ran.code in (0, 1, 3), ran.err
    return folder / "run"


def merge(cwd: Path, *arguments: object) -> Ran:
    return numprobe(cwd, "merge", *arguments, "-o", "merged")


def the_book(folder: Path) -> Path:
    (path,) = folder.glob("multi_ranks_compare_merge_*.xlsx")
    return path


# --- msProbe's results -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["merge"], ["merge_result", "-i"]])
@pytest.mark.parametrize("config", ["--config", "-config"])
def test_the_sheets_are_those_of_msprobe(command: list[str], config: str, tmp_path: Path) -> None:
    ran = numprobe(tmp_path, *command, RANKS / "result", config, RANKS / "merge.yaml", "-o", "merged")
    assert (ran.code, ran.err) == (1, "")
    names = ("L2norm diff", "NormRelativeErr")
    theirs = stored_sheets(next((RANKS / "merged").glob("*.xlsx")), names)
    book = openpyxl.load_workbook(the_book(tmp_path / "merged"))
    assert book.sheetnames == list(names)
    for name in names:
        ours = [list(line) for line in book[name].iter_rows(values_only=True)]
        assert ours[0] == theirs[name][0]
        assert sorted(map(str, ours[1:])) == sorted(
            map(str, theirs[name][1:])
        )  # there by name, here in execution order


@pytest.mark.parametrize("kind", ["result", "result_xlsx"])
def test_csv_and_xlsx_give_one_table(kind: str, tmp_path: Path) -> None:
    ran = merge(tmp_path, STORE / "two_ranks" / kind, "--json")
    assert ran.code == 1  # bfloat16 against float32: the results' own verdicts
    assert [rank["rank"] for rank in ran.json["ranks"]] == [0, 1]
    frame = pl.read_parquet(tmp_path / "merged" / "merge.parquet")
    assert frame.columns[:2] == ["name", "rank"]
    assert frame.schema["Max diff"] == frame.schema["NormRelativeErr"] == pl.Float64
    assert frame.schema["Requires_grad Consistent"] == pl.Boolean
    assert ran.json["rows"] <= frame.height <= 2 * ran.json["rows"]


def test_percentages_are_ratios_and_texts_remarks(tmp_path: Path) -> None:
    merge(tmp_path, RANKS / "result")
    frame = pl.read_parquet(tmp_path / "merged" / "merge.parquet")
    of = {row["name"]: row for row in frame.filter(pl.col("rank") == 0).iter_rows(named=True)}
    assert of["Functional.baddiff.0.forward.output.0"]["NormRelativeErr"] == pytest.approx(2.0, rel=1e-6)
    assert of["Functional.benchzero.0.forward.output.0"]["NormRelativeErr"] == math.inf
    unmatched = of["Functional.onlytarget.0.forward.input.0"]
    assert unmatched["NormRelativeErr"] is None
    assert unmatched["remark"].startswith("NPU:")


def test_one_csv_a_sheet(tmp_path: Path) -> None:
    (tmp_path / "groups.yaml").write_text("compare_index: [Max diff]\ngroups: {both: [0, 1]}\n", encoding="utf-8")
    merge(tmp_path, RANKS / "result", "--config", "groups.yaml", "--csv")
    names = sorted(path.name.split("_", 5)[-1] for path in (tmp_path / "merged").glob("*.csv"))
    assert names == ["Max_diff.csv", "groups.csv"]
    with next((tmp_path / "merged").glob("*Max_diff.csv")).open(encoding="utf-8") as file:
        assert next(csv.reader(file)) == ["NPU Name", "rank0", "rank1"]


def test_the_same_again_leaves_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        merge(tmp_path, RANKS / "result")
    assert the_book(tmp_path / "merged")
    ran = numprobe(tmp_path, "merge", RANKS / "result", "--csv", "-o", "merged")
    assert (ran.code, "E-OUT-001" in ran.err) == (2, True)


# --- runs of numprobe ------------------------------------------------------------------------------------------------


def test_a_run_is_merged_by_its_rank_column(tmp_path: Path) -> None:
    run = compared(tmp_path)
    (tmp_path / "groups.yaml").write_text(GROUPS, encoding="utf-8")
    ran = merge(tmp_path, run, "--config", "groups.yaml", "--json")
    assert ran.code == 1
    found = ran.json
    assert [(r["rank"], r["error"] > 0) for r in found["ranks"]] == [(0, False), (1, False), (2, True), (3, False)]
    assert found["columns"] == ["verdict", "rho", "error", "expected"]
    (wrong,) = found["disagreements"]
    assert (wrong["op"], wrong["ranks"]) == ("Distributed.all_reduce.0.forward.output.0", [2])
    assert wrong["golden_agrees"] is True
    book = openpyxl.load_workbook(the_book(tmp_path / "merged"))
    assert book.sheetnames == [*found["columns"], "groups", "disagreement"]
    groups = {(line[0], line[1]): line for line in book["groups"].iter_rows(values_only=True)}
    assert groups["Distributed.all_reduce.0.forward.output.0", "second"][2:5] == ("2 3", "error", 2)
    assert groups["Distributed.all_reduce.0.forward.output.0", "first"][3:4] == ("pass",)


def test_the_screen_names_the_ranks(tmp_path: Path) -> None:
    run = compared(tmp_path)
    for lang, words in (("en", "2 differ from the other ranks"), ("zh", "2 号卡与组")):
        ran = numprobe(tmp_path, "merge", run, "--lang", lang, "-o", lang)
        assert ran.code == 1
        assert words in ran.out
        assert "merge.parquet" in ran.out
        assert "[" not in ran.out.replace("[0", "")  # no field was left open


def test_columns_of_the_table_and_of_msprobe_can_be_chosen(tmp_path: Path) -> None:
    run = compared(tmp_path)
    text = "api: [Distributed.all_reduce]\ncompare_index: [L2norm diff, NormRelativeErr, target_norm]\n"
    (tmp_path / "merge.yaml").write_text(text, encoding="utf-8")
    merge(tmp_path, run, "--config", "merge.yaml")
    book = openpyxl.load_workbook(the_book(tmp_path / "merged"))
    rows = {line[0]: line[1:] for line in book["L2norm diff"].iter_rows(values_only=True)}
    values = json.loads((GLOO / "rank2" / "dump.json").read_text(encoding="utf-8"))["data"]
    was = values["Distributed.all_reduce.0.forward"]["output"][0]["Norm"]
    assert float(rows["Distributed.all_reduce.0.forward.output.0"][2]) == pytest.approx(11.0 - was)  # a text, as there
    assert all(name.startswith(("NPU Name", "Distributed.all_reduce")) for name in rows)


def test_compatible_files_of_a_run_come_first(tmp_path: Path) -> None:
    run = compared(tmp_path, "--compat", "msprobe")
    ran = merge(tmp_path, run, "--json")
    assert "Max diff" in ran.json["columns"]
    assert [one["ranks"] for one in ran.json["disagreements"]] == [[2]]


def test_a_dump_that_is_gone_leaves_the_table(tmp_path: Path) -> None:
    """Groups are then not known; nothing is said of ranks that disagree."""
    run = compared(tmp_path)
    shutil.rmtree(tmp_path / "target")
    ran = merge(tmp_path, run, "--json")
    assert (ran.code, ran.json["disagreements"]) == (1, [])


def test_nothing_wrong(tmp_path: Path) -> None:
    ran = numprobe(tmp_path, "compare", GLOO, GLOO, "-o", "run", "--no-cache")
    assert ran.code == 0
    ran = merge(tmp_path, "run", "--json")
    assert (ran.code, ran.json["verdict"]) == (0, "pass")


def test_one_of_several_steps(tmp_path: Path) -> None:
    for side in ("a", "b"):
        for step in (0, 4):
            shutil.copytree(GLOO, tmp_path / side / f"step{step}")
    numprobe(tmp_path, "compare", "a", "b", "-o", "run", "--no-cache")
    ran = merge(tmp_path, "run")
    assert (ran.code, "E-CMP-038" in ran.err, "0, 4" in ran.err) == (2, True, True)
    assert numprobe(tmp_path, "merge", "run", "--step", "4", "-o", "four").code == 0
    assert "E-CMP-038" in numprobe(tmp_path, "merge", "run", "--step", "5", "-o", "five").err


# --- bad input -------------------------------------------------------------------------------------------------------


def broken(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    if isinstance(content, pl.DataFrame):
        content.write_parquet(path)
    else:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("compare.parquet", b"PAR1", "E-CMP-032"),
        ("compare.parquet", b"", "E-CMP-032"),
        ("compare.parquet", pl.DataFrame({"a": [1]}), "E-CMP-033"),
        ("compare_result_rank0_20260101000000.csv", b"a,b\n1,2\n", "E-CMP-033"),
        ("compare_result_rank0_20260101000000.xlsx", b"PK", "E-CMP-032"),
        ("result.csv", b"", "E-CMP-031"),
        ("notes.txt", b"", "E-CMP-031"),
    ],
)
def test_files_that_cannot_be_used(name: str, content: Any, code: str, tmp_path: Path) -> None:
    ran = merge(tmp_path, broken(tmp_path, name, content))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("E-CMP") == 1
    assert code in ran.err
    assert not (tmp_path / "merged").exists()


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "E-CMP-035" in merge(tmp_path, "empty").err
    assert "E-CMP-032" in merge(tmp_path, "compare_result_rank0_20260101000000.csv").err
    assert "E-CMP-032" in merge(tmp_path, "nowhere.parquet").err
    assert "E-CMP-010" in merge(tmp_path, RANKS / "result", "--config", "nowhere.yaml").err
    assert merge(tmp_path).code == 2


def test_a_run_and_files_of_msprobe_do_not_mix(tmp_path: Path) -> None:
    run = compared(tmp_path)
    ran = merge(tmp_path, run, next((RANKS / "result").glob("*rank0*")))
    assert (ran.code, "E-CMP-034" in ran.err) == (2, True)


def test_an_index_that_is_not_there(tmp_path: Path) -> None:
    run = compared(tmp_path)
    (tmp_path / "merge.yaml").write_text("compare_index: [cosine]\n", encoding="utf-8")
    ran = merge(tmp_path, run, "--config", "merge.yaml")
    assert (ran.code, "E-CMP-036" in ran.err) == (2, True)
