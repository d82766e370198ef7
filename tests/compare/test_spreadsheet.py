"""``compare --table``: typed, readable tables that no spreadsheet misreads."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import openpyxl
import polars as pl
import pytest

from cli.shell import INTEROP, numprobe
from numprobe.compare import spreadsheet
from numprobe.compare.spreadsheet import COLOURS, write_table
from numprobe.record.errors import NumprobeError

EDGE = INTEROP / "compare" / "edge"

FRAME = pl.DataFrame(
    {
        "target_op": ["=1+2", "+1", "-x", "@a", "%d", ";=b", "-1.5", "Torch.add.0.forward"],
        "verdict": ["error", "warning", "pass", "incomparable", "unmatched_target", "unmatched_golden", "pass", None],
        "rho": [1.5, math.inf, -math.inf, math.nan, None, 1e-30, 1e300, 0.1],
        "op_index": [0, 1, 2**53 + 1, -(2**60), None, 5, 6, 7],
        "nonfinite_differs": [True, False, None, True, True, True, True, True],
        "path": ["x" * 40_000, "a\nb", "\x01", "\ud7ff", "https://example.org", "", "'", "input_args.0"],
    }
)


def book(path: Path) -> list[list[object]]:
    sheet = openpyxl.load_workbook(path).worksheets[0]
    return [list(row) for row in sheet.iter_rows(values_only=True)]


def test_cells_of_a_workbook(tmp_path: Path) -> None:
    write_table(FRAME, tmp_path / "a.xlsx")
    head, *rows = book(tmp_path / "a.xlsx")
    assert head == FRAME.columns
    columns = dict(zip(FRAME.columns, zip(*rows, strict=True), strict=True))
    assert list(columns["target_op"]) == FRAME["target_op"].to_list()  # text, no formula
    sheet = openpyxl.load_workbook(tmp_path / "a.xlsx").worksheets[0]
    assert {cell.data_type for cell in sheet["A"][1:]} == {"s"}
    assert columns["rho"] == (1.5, "inf", "-inf", "nan", None, 1e-30, 1e300, 0.1)
    assert columns["op_index"] == (0, 1, str(2**53 + 1), str(-(2**60)), None, 5, 6, 7)
    assert columns["nonfinite_differs"][:3] == (True, False, None)
    assert len(columns["path"][0]) == 32_767
    assert not sheet["F6"].hyperlink


def test_cells_of_a_csv(tmp_path: Path) -> None:
    write_table(FRAME, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["target_op"] for row in rows] == [
        *("'=1+2", "+1", "'-x", "'@a", "'%d", "';=b"),  # +1 is a number
        *("-1.5", "Torch.add.0.forward"),
    ]
    assert [row["rho"] for row in rows][:5] == ["1.5", "inf", "-inf", "NaN", ""]
    assert rows[2]["op_index"] == str(2**53 + 1)
    assert rows[1]["path"] == "a\nb"


def test_a_workbook_is_made_to_be_read(tmp_path: Path) -> None:
    write_table(FRAME.drop("path"), tmp_path / "a.xlsx")
    sheet = openpyxl.load_workbook(tmp_path / "a.xlsx").worksheets[0]
    assert sheet.title == "compare"
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref == "A1:E9"
    assert sheet.column_dimensions["A"].width == pytest.approx(len("Torch.add.0.forward") + 2, abs=1)
    rules = [rule for found in sheet.conditional_formatting for rule in found.rules]
    assert [rule.formula[0] for rule in rules] == [f'LEFT($B2,{len(v)})="{v}"' for v in COLOURS]
    assert {str(found.sqref) for found in sheet.conditional_formatting} == {"A2:E9"}


def test_the_same_table_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.xlsx", "b.xlsx"):
        write_table(FRAME, tmp_path / name)
    assert (tmp_path / "a.xlsx").read_bytes() == (tmp_path / "b.xlsx").read_bytes()


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_table_without_rows(suffix: str, tmp_path: Path) -> None:
    write_table(FRAME.clear(), tmp_path / f"a{suffix}")
    if suffix == ".xlsx":
        assert book(tmp_path / "a.xlsx") == [FRAME.columns]
    else:
        assert (tmp_path / "a.csv").read_text(encoding="utf-8").strip() == ",".join(FRAME.columns)


def test_more_rows_than_a_sheet_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreadsheet, "XLSX_ROWS", 3)
    write_table(FRAME, tmp_path / "a.xlsx")
    sheets = openpyxl.load_workbook(tmp_path / "a.xlsx").worksheets
    assert [(s.title, s.max_row) for s in sheets] == [("part_0", 4), ("part_1", 4), ("part_2", 3)]
    assert all(s.freeze_panes == "A2" for s in sheets)


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_an_older_table_is_replaced_whole(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text("old", encoding="utf-8")
    write_table(FRAME, path)
    assert path.stat().st_size > 100
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_folder_in_the_way_is_an_error(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"a{suffix}" / "x").mkdir(parents=True)
    with pytest.raises(NumprobeError) as error:
        write_table(FRAME, tmp_path / f"a{suffix}")
    assert error.value.code == "E-OUT-002"


def test_the_command_writes_both(tmp_path: Path) -> None:
    dumps = [EDGE / "tensor" / side / "dump.json" for side in ("target", "golden")]
    numprobe(tmp_path, "compare", *dumps, "--table", "csv", "--table", "xlsx", "--table", "csv", "-o", "out")
    frame = pl.read_parquet(tmp_path / "out" / "compare.parquet")
    head, *rows = book(tmp_path / "out" / "compare.xlsx")
    assert (head, len(rows)) == (frame.columns, frame.height)
    back = pl.read_csv(tmp_path / "out" / "compare.csv", schema_overrides=frame.schema)
    assert back.columns == frame.columns
    assert back.height == frame.height


def test_rows_can_be_chosen(tmp_path: Path) -> None:
    dumps = [EDGE / "stats" / side / "dump.json" for side in ("target", "golden")]
    options = ("--table", "csv", "--only-fail", "--filter", "Functional.zero")
    numprobe(tmp_path, "compare", *dumps, *options, "-o", "out")
    shown = pl.read_csv(tmp_path / "out" / "compare.csv")
    assert set(shown["verdict"]) <= {"error", "warning", "unmatched_target", "unmatched_golden"}
    assert all("Functional.zero" in (op or "") for op in shown["target_op"])
    assert pl.read_parquet(tmp_path / "out" / "compare.parquet").height > shown.height > 0
