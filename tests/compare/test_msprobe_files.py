"""Result files: msProbe's names and bytes, nothing overwritten, nothing half-written, no formula run."""

from __future__ import annotations

import math
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.compare.msprobe import files
from numprobe.compare.msprobe.columns import STACK, Mode, header
from numprobe.compare.msprobe.files import (
    is_formula,
    new_text,
    result_name,
    result_sheets,
    timestamp,
    write_csv,
    write_xlsx,
)
from numprobe.compare.msprobe.rows import cells
from numprobe.compare.msprobe.workbook import BadWorkbook, Cell, read_rows
from numprobe.record.errors import NumprobeError

from .msprobe_tables import csv_table, our_rows, the_csv
from .test_msprobe_rows import INTEROP, STORE


@pytest.mark.parametrize(
    ("folder", "mode"),
    [
        (INTEROP / "mlp" / "statistics", Mode.STATISTICS),
        (INTEROP / "mlp" / "md5", Mode.MD5),
        (INTEROP / "edge" / "stats", Mode.STATISTICS),
        (INTEROP / "edge" / "md5", Mode.MD5),
    ],
    ids=lambda x: x.name if isinstance(x, Path) else "",
)
def test_the_file_is_byte_for_byte_that_of_msprobe(folder: Path, mode: Mode, tmp_path: Path) -> None:
    stored = the_csv(folder / "result")
    stack = STACK in csv_table(stored)[0]
    lines = (cells(row, mode, stack=stack) for row in our_rows(folder / "target", folder / "golden", mode))
    (written,) = write_csv(tmp_path, stored.stem, header(mode, stack=stack), lines)
    assert written.name == stored.name
    assert written.read_bytes() == stored.read_bytes()


def test_names() -> None:
    assert len(timestamp()) == 14
    assert timestamp().isdecimal()
    assert result_name("20260101000000") == "compare_result_20260101000000"
    assert result_name("20260101000000", rank="rank3") == "compare_result_rank3_20260101000000"
    assert result_name("20260101000000", rank="proc77", debug=True) == "debug_compare_result_proc77_20260101000000"


@pytest.mark.parametrize(("rows", "parts"), [(0, 1), (2, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_a_long_csv_is_split(rows: int, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CSV_ROWS", 3)
    written = write_csv(tmp_path, "result", ["a", "b"], ([i, "x"] for i in range(rows)))
    names = ["result.csv"] if parts == 1 else [f"result_part_{i}.csv" for i in range(1, parts + 1)]
    assert [path.name for path in written] == names
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    tables = [csv_table(path) for path in written]
    assert all(head == ["a", "b"] for head, _ in tables)
    assert [line[0] for _, lines in tables for line in lines] == [str(i) for i in range(rows)]


def test_a_formula_in_a_dump_is_text(tmp_path: Path) -> None:
    """msProbe refuses the whole table where one cell starts like a formula."""
    texts = ["=1+1", "+a", "-a", "@x", "%d", "＝1", ";=1", "-inf", "-1.5", "+3", "plain", "", "; a"]
    (path,) = write_csv(tmp_path, "result", ["text"], [[text] for text in texts])
    shown = [line[0] for line in csv_table(path)[1]]
    assert shown == ["'=1+1", "'+a", "'-a", "'@x", "'%d", "'＝1", "';=1", "-inf", "-1.5", "+3", "plain", "", "; a"]
    book = write_xlsx(tmp_path / "result.xlsx", [("Sheet1", ["text"], [[text] for text in texts])])
    sheet = openpyxl.load_workbook(book).active
    assert sheet is not None
    assert [cell.data_type for (cell,) in sheet.iter_rows(min_row=2, max_row=4)] == ["s", "s", "s"]
    assert [cell.value for (cell,) in sheet.iter_rows(min_row=2, max_row=4)] == texts[:3]


def test_infinities_have_a_blank_in_csv_only(tmp_path: Path) -> None:
    line = [math.inf, -math.inf, "inf", 1.5, True, ["a", "b"]]
    (path,) = write_csv(tmp_path, "result", list("abcdef"), [line])
    assert csv_table(path)[1] == [[" inf", " -inf", "inf", "1.5", "True", "['a', 'b']"]]
    book = write_xlsx(tmp_path / "result.xlsx", [("Sheet1", list("abcdef"), [line])])
    assert list(read_rows(book))[1] == ["inf", "-inf", "inf", 1.5, True, "['a', 'b']"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    for write in (
        lambda: write_csv(tmp_path, "result", ["a"], [[1]]),
        lambda: write_xlsx(tmp_path / "result.xlsx", [("Sheet1", ["a"], [[1]])]),
        lambda: text_file(tmp_path / "result.json"),
    ):
        write()
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(NumprobeError) as error:
            write()
        assert error.value.code == "E-CMP-030"
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def text_file(path: Path) -> None:
    with new_text(path) as file:
        file.write("{}")


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    def lines() -> Iterator[list[str]]:
        yield ["1"]
        (tmp_path / "result.csv").write_text("mine", encoding="utf-8")
        yield ["2"]

    with pytest.raises(NumprobeError) as error:
        write_csv(tmp_path, "result", ["a"], lines())
    assert error.value.code == "E-CMP-030"
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [("result.csv", "mine")]


def test_an_interrupted_table_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CSV_ROWS", 1)

    def lines() -> Iterator[list[str]]:
        yield ["1"]
        yield ["2"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_csv(tmp_path, "result", ["a"], lines())
    with pytest.raises(KeyboardInterrupt), new_text(tmp_path / "result.json"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for write in (
        lambda: write_csv(tmp_path / "file", "result", ["a"], []),
        lambda: write_xlsx(tmp_path / "file" / "result.xlsx", [("Sheet1", ["a"], [])]),
    ):
        with pytest.raises(NumprobeError) as error:
            write()
        assert error.value.code == "E-OUT-002"


def test_equal_results_are_equal_workbooks(tmp_path: Path) -> None:
    sheets = [("Sheet1", ["name", "figure"], [["a", 0.1], ["b", None]])]
    one, other = (write_xlsx(tmp_path / f"{name}.xlsx", sheets) for name in "ab")
    assert one.read_bytes() == other.read_bytes()


def test_numbers_that_a_spreadsheet_would_round_and_texts_that_it_would_drop(tmp_path: Path) -> None:
    line = [2**53 + 1, 2**53, -(10**400), sys.float_info.max, "x" * 40_000, "\udc80"]
    book = write_xlsx(tmp_path / "result.xlsx", [("Sheet1", list("abcdef"), [line])])
    largest = "1.7976931348623157e+308"
    assert list(read_rows(book))[1] == [str(2**53 + 1), 2**53, str(-(10**400)), largest, "x" * 32_767, "\\x80"]


@pytest.mark.parametrize(
    ("rows", "sheets"), [(3, ["Sheet1"]), (4, ["part_0", "part_1"]), (8, ["part_0", "part_1", "part_2"])]
)
def test_a_long_sheet_is_cut_into_equal_slices(rows: int, sheets: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "XLSX_ROWS", 3)
    made = list(result_sheets(["a"], [[i] for i in range(rows)]))
    assert [name for name, _, _ in made] == sheets
    assert [line[0] for _, _, lines in made for line in lines] == list(range(rows))
    assert max(len(lines) for _, _, lines in made) - min(len(lines) for _, _, lines in made) <= 1


CELLS = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(-files.LARGEST, files.LARGEST).map(lambda x: float(f"{x:.16G}")),
    st.text(min_size=1, max_size=20),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(CELLS, max_size=4), max_size=4))
def test_workbooks_are_read_back_as_written(tmp_path_factory: pytest.TempPathFactory, lines: list[list[Cell]]) -> None:
    folder = tmp_path_factory.mktemp("book")
    book = write_xlsx(folder / "book.xlsx", [("Sheet1", ["head"], lines)])
    assert list(read_rows(book)) == [["head"], *(line for line in lines if line)]


@pytest.mark.parametrize(
    "stored", sorted(STORE.rglob("*.xlsx")) + sorted(INTEROP.rglob("*.xlsx")), ids=lambda p: p.name
)
def test_the_reader_agrees_with_openpyxl(stored: Path) -> None:
    theirs = [list(row) for sheet in openpyxl.load_workbook(stored) for row in sheet.iter_rows(values_only=True)]
    assert list(read_rows(stored)) == theirs


def test_shared_texts_and_several_sheets(tmp_path: Path) -> None:
    """As Excel and openpyxl save them."""
    book = openpyxl.Workbook()
    first = book.active
    assert first is not None
    first.append(["name", "a_x0041_b"])
    first.append([1.5, None])
    second = book.create_sheet("second")
    second.append([None, "late"])
    book.save(tmp_path / "book.xlsx")
    assert list(read_rows(tmp_path / "book.xlsx")) == [["name", "aAb"], [1.5], [None, "late"]]


def damaged(book: Path, kind: str) -> bytes:
    if kind == "cut":
        return book.read_bytes()[:-200]
    if kind == "no zip":
        return b"PK\x03\x04 not really"
    whole = zipfile.ZipFile(book)
    path = book.with_name("changed.xlsx")
    with zipfile.ZipFile(path, "w") as changed:
        for name in whole.namelist():
            text = whole.read(name)
            if name.endswith("sheet1.xml"):
                if kind == "no sheet":
                    continue
                text = {
                    "entities": b'<!DOCTYPE a [<!ENTITY b "bb">]>' + text,
                    "no xml": text[:-30],
                    "no number": text.replace(b"<v>1.5</v>", b"<v>one</v>"),
                    "far column": text.replace(b'r="A2"', b'r="ZZZ2"'),
                }[kind]
            changed.writestr(name, text)
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["cut", "no zip", "entities", "no xml", "no sheet", "no number", "far column"])
def test_a_damaged_workbook_is_told(kind: str, tmp_path: Path) -> None:
    book = write_xlsx(tmp_path / "book.xlsx", [("Sheet1", ["a"], [[1.5]])])
    (tmp_path / "bad.xlsx").write_bytes(damaged(book, kind))
    with pytest.raises(BadWorkbook):
        list(read_rows(tmp_path / "bad.xlsx"))


def test_what_is_a_formula() -> None:
    assert is_formula("=SUM(A1)")
    assert is_formula("-x")
    assert not is_formula("-1e5")
    assert not is_formula("a=b")
