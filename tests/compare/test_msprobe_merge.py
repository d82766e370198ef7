"""Results of many ranks side by side, in msProbe's sheets, and who disagrees with whom."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from numprobe.compare.msprobe.agreement import disagreements
from numprobe.compare.msprobe.columns import Mode, header
from numprobe.compare.msprobe.files import result_name, result_sheets, write_csv, write_xlsx
from numprobe.compare.msprobe.inputs import read_results
from numprobe.compare.msprobe.merge import Merged, by_group, interleave, merge, write_merged
from numprobe.compare.msprobe.results import RankResult
from numprobe.compare.msprobe.rows import cells
from numprobe.compare.msprobe.selection import Selection, read_selection
from numprobe.compare.msprobe.workbook import Cell, read_rows
from numprobe.record.errors import NumprobeError

from .msprobe_tables import csv_table, our_rows, same
from .test_msprobe_rows import DATA, INTEROP, STORE

STAMP = "20260101000000"
RANKS = INTEROP / "ranks"
GLOO = DATA / "interop" / "pytorch" / "h_distributed_4rank_nan" / "dump" / "step0"


ALL = Selection()
DISTRIBUTED = Selection(("Distributed",), ("Max diff",))


def merged_of(results: Path, selection: Selection) -> Merged:
    return merge(read_results([results], selection), selection)


def the_rank(folder: Path, rank: int) -> Path:
    (path,) = folder.glob(f"*rank{rank}*")
    return path


def stored_sheets(book: Path, names: Sequence[str]) -> dict[str, list[list[Cell]]]:
    """The sheets of a merged workbook; each begins with its header."""
    sheets: list[list[list[Cell]]] = []
    for line in read_rows(book):
        if line[0] == "NPU Name":
            sheets.append([])
        sheets[-1].append(line)
    return dict(zip(names, sheets, strict=True))


@pytest.mark.parametrize(
    ("results", "config", "merged"),
    [
        (RANKS / "result", RANKS / "merge.yaml", RANKS / "merged"),
        (STORE / "two_ranks" / "result_xlsx", STORE / "two_ranks" / "merge.yaml", STORE / "two_ranks" / "merged"),
    ],
    ids=["edge", "two ranks"],
)
def test_every_cell_is_the_stored_one(results: Path, config: Path, merged: Path) -> None:
    ours = merged_of(results, read_selection(config))
    (book,) = merged.glob("*.xlsx")
    assert book.stem.startswith("multi_ranks_compare_merge_")
    for index, (head, *lines) in stored_sheets(book, list(ours.tables)).items():
        assert head == ["NPU Name", "rank0", "rank1"]
        theirs = {str(name): list(found) for name, *found in lines}
        assert set(theirs) == set(ours.names)
        for name, found in zip(ours.names, ours.tables[index], strict=True):
            assert all(same(str(a), str(b)) for a, b in zip(found, theirs[name], strict=True)), (index, name)


def test_rows_are_in_execution_order() -> None:
    """msProbe sorts them by name."""
    results = STORE / "two_ranks" / "result"
    names = list(merged_of(results, Selection()).names)
    assert names == [line[0] for line in csv_table(the_rank(results, 0))[1]]
    assert names != sorted(names)


def test_a_csv_merges_like_an_xlsx() -> None:
    folder = STORE / "two_ranks"
    selection = read_selection(folder / "merge.yaml")
    one, other = (merged_of(folder / kind, selection) for kind in ("result", "result_xlsx"))
    assert one.names == other.names
    for index, table in one.tables.items():
        for ours, theirs in zip(table, other.tables[index], strict=True):
            assert [type(cell) for cell in ours] == [type(cell) for cell in theirs]
            assert all(same(_short(a), _short(b)) for a, b in zip(ours, theirs, strict=True))


def _short(cell: Cell) -> str:
    """A spreadsheet keeps 16 digits, also inside of the texts made from it."""
    return str(cell)[:20] if str(cell).startswith("NPU:") else str(cell)


def test_what_is_written_is_what_was_merged(tmp_path: Path) -> None:
    merged = merged_of(RANKS / "result", read_selection(RANKS / "merge.yaml"))
    (book,) = write_merged(tmp_path, STAMP, merged)
    assert book.name == f"multi_ranks_compare_merge_{STAMP}.xlsx"
    sheets = stored_sheets(book, list(merged.tables))
    assert [line[0] for line in sheets["L2norm diff"][1:]] == list(merged.names)
    tables = write_merged(tmp_path, STAMP, merged, xlsx=False)
    assert [path.name for path in tables] == [
        f"multi_ranks_compare_merge_{STAMP}_L2norm_diff.csv",
        f"multi_ranks_compare_merge_{STAMP}_NormRelativeErr.csv",
    ]


@pytest.mark.parametrize(
    ("apis", "number"),
    [
        (["Functional.zero"], 2),
        (["Functional.zero.0.forward.output.0"], 1),
        (["Functional.zero."], 2),
        (["Functional.scalararg.0.forward", "Functional.zero"], 6),
        (["Distributed"], 2),
        ([], 61),
    ],
)
def test_apis_are_leading_parts_of_a_name(apis: list[str], number: int) -> None:
    """``zero`` is no part of ``benchzero``, as a search for its letters has it."""
    assert len(merged_of(RANKS / "result", Selection(tuple(apis))).names) == number


def test_a_row_that_only_a_later_rank_has_stands_at_its_place() -> None:
    orders = [[(name, 0) for name in text] for text in ("acf", "abcef", "xaf", "abdcg")]
    assert "".join(name for name, _ in interleave(orders)) == "xabdcgef"


def test_ranks_that_lack_a_row_have_an_empty_cell(results: Path) -> None:
    rows = csv_table(the_rank(results, 1))
    shorter = [line for line in rows[1] if not line[0].startswith("Torch.topk")]
    write_csv(results, f"compare_result_rank7_{STAMP}", rows[0], shorter)
    merged = merged_of(results, Selection(("Torch.topk.0.forward", "Functional.gelu"), ("Result",)))
    assert merged.ranks == (0, 1, 7)
    cells_of = dict(zip(merged.names, merged.tables["Result"], strict=True))
    assert cells_of["Torch.topk.0.forward.input.0"][2] is None
    assert None not in cells_of["Functional.gelu.0.forward.input.0"]


def test_checksums_can_be_merged(tmp_path: Path) -> None:
    """msProbe refuses them."""
    rows = list(our_rows(INTEROP / "edge" / "md5" / "target", INTEROP / "edge" / "md5" / "golden", Mode.MD5))
    for rank in ("rank0", "rank1"):
        lines = [cells(row, Mode.MD5, stack=False) for row in rows]
        write_csv(tmp_path, result_name(STAMP, rank=rank), header(Mode.MD5, stack=False), lines)
    merged = merged_of(tmp_path, Selection(("Functional.baddiff",)))
    assert merged.tables == {
        "Result": [["pass", "pass"], ["error", "error"]],
        "Requires_grad Consistent": [[True, True], [True, True]],
    }


def test_groups_show_their_worst_rank(tmp_path: Path) -> None:
    tables = {
        "Cosine": [[1.0, 0.5, 0.9, "unsupported"], [None, None, 1.0, 1.0]],
        "MaxRelativeErr": [["1.0%", "20.0%", "NPU:Nan  Bench:1.0", "3.0%"], [None, None, "0", "0"]],
        "Requires_grad Consistent": [[True, True, False, True], [None, None, True, True]],
    }
    merged = Merged((0, 1, 2, 5), ("a.output.0", "b.output.0"), tables)
    head, lines = by_group(merged, {"tp0": (0, 1), "tp1": (2, 5, 9), "elsewhere": (8,)})
    assert head[:5] == ["NPU Name", "group", "ranks", "Cosine", "Cosine: rank"]
    assert lines == [
        ["a.output.0", "tp0", "0 1", 0.5, 1, "20.0%", 1, True, 0],
        ["a.output.0", "tp1", "2 5", 0.9, 2, "NPU:Nan  Bench:1.0", 2, False, 2],
        ["b.output.0", "tp0", "0 1", None, None, None, None, None, None],
        ["b.output.0", "tp1", "2 5", 1.0, 2, "0", 2, True, 2],
    ]
    (book,) = write_merged(tmp_path, STAMP, merged, groups={"tp0": (0, 1)})
    assert [line[1] for line in read_rows(book)][-2:] == ["tp0", "tp0"]


# --- ranks that should agree ---------------------------------------------------------------------------------------------


def gloo_results(
    folder: Path, change: Callable[[int, dict[str, Any]], None] = lambda _rank, _data: None
) -> list[RankResult]:
    """Results of the four gloo ranks against themselves, after ``change`` of the target."""
    for rank in range(4):
        target = folder / "target" / f"rank{rank}"
        shutil.copytree(GLOO / f"rank{rank}", target)
        content = json.loads((target / "dump.json").read_text(encoding="utf-8"))
        change(rank, content["data"])
        (target / "dump.json").write_text(json.dumps(content), encoding="utf-8")
        rows = our_rows(target, GLOO / f"rank{rank}", Mode.STATISTICS)
        lines = [cells(row, Mode.STATISTICS, stack=False) for row in rows]
        name = result_name(STAMP, rank=f"rank{rank}")
        write_xlsx(folder / "result" / f"{name}.xlsx", result_sheets(header(Mode.STATISTICS, stack=False), lines))
    return read_results([folder / "result"], DISTRIBUTED)


def test_collectives_of_a_real_run_agree(tmp_path: Path) -> None:
    """Their NaN too; send and recv are not asked to."""
    assert disagreements(gloo_results(tmp_path)) == []


def test_the_rank_with_another_output_is_named(tmp_path: Path) -> None:
    def change(rank: int, data: dict[str, Any]) -> None:
        if rank == 2:
            data["Distributed.all_reduce.0.forward"]["output"][0]["Norm"] = 11.0
        if rank in (0, 3):
            data["Distributed.broadcast.0.forward"]["output"][0]["Max"] = 7.5

    results = gloo_results(tmp_path, change)
    first, second = disagreements(results, {"world": (3, 2, 1, 0)})
    assert (first.name, first.group, first.what) == ("Distributed.all_reduce.0.forward.output.0", "world", "values")
    assert first.others == [2]
    assert first.values[2][3] == 11.0
    assert first.golden_agrees is True
    assert (second.name, second.others) == ("Distributed.broadcast.0.forward.output.0", [1, 2])
    merged = merge(results, DISTRIBUTED)
    (book,) = write_merged(tmp_path, STAMP, merged, disagreements=[first, second])
    line = list(read_rows(book))[-2]
    assert line[:4] == ["Distributed.all_reduce.0.forward.output.0", "world", "values", "0 1 3"]
    assert line[5] == "2"


def test_calls_of_a_group_are_counted_within_it(tmp_path: Path) -> None:
    """all_reduce.0 of rank 2 is all_reduce.1 of ranks 0 and 1: the groups {0, 1} and {2, 3} do not wait for each other."""

    def change(rank: int, data: dict[str, Any]) -> None:
        for name in [n for n in data if n.startswith("Distributed")]:
            del data[name]
        members = [0, 1] if rank < 2 else [2, 3]
        values = [1.0, 2.0, 3.0] if rank < 2 else [2.0, 3.0, 1.0]
        if rank == 3:
            values[1] = 4.0
        for i, value in enumerate(values):
            group = {"type": "torch.ProcessGroup", "group_ranks": members, "group_id": "x"}
            leaf = {
                "type": "torch.Tensor",
                "dtype": "torch.float32",
                "shape": [1],
                "Max": value,
                "Min": 0,
                "Mean": 0,
                "Norm": 1,
            }
            data[f"Distributed.all_reduce.{i}.forward"] = {
                "input_args": [leaf],
                "input_kwargs": {"group": group},
                "output": [leaf],
            }

    (found,) = disagreements(gloo_results(tmp_path, change))
    assert (found.name, found.group, found.what) == ("Distributed.all_reduce.1.forward.output.0", "2 3", "values")
    assert {rank: value[0] for rank, value in found.values.items()} == {2: 3.0, 3: 4.0}


def test_members_that_did_not_call_equally_often_are_not_put_together(tmp_path: Path) -> None:
    def change(rank: int, data: dict[str, Any]) -> None:
        if rank == 1:
            del data["Distributed.all_reduce.3.forward"]

    (found,) = disagreements(gloo_results(tmp_path, change))
    assert (found.what, found.others, found.values[1], found.values[0]) == ("calls", [1], (12,), (13,))
    assert found.golden_agrees is None


# --- bad input -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path: Path) -> Path:
    shutil.copytree(STORE / "two_ranks" / "result", tmp_path / "result")
    return tmp_path / "result"


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(NumprobeError) as error:
        call()
    assert "Error" not in error.value.what  # a sentence, not an exception's name
    return error.value.code


def test_one_rank_is_nothing_to_merge(results: Path) -> None:
    the_rank(results, 1).unlink()
    assert code_of(lambda: read_results([results], ALL)) == "E-CMP-035"
    assert code_of(lambda: read_results([results.parent], ALL)) == "E-CMP-035"


def test_a_file_that_is_no_result(results: Path) -> None:
    other = results / "result.csv"
    other.write_text("", encoding="utf-8")
    assert [r.rank for r in read_results([results], ALL)] == [0, 1]  # a folder may hold other files
    assert code_of(lambda: read_results([other], ALL)) == "E-CMP-031"
    assert code_of(lambda: read_results([results / "compare_result_rank1_20260101000000.txt"], ALL)) == "E-CMP-031"


def test_two_results_of_one_rank(results: Path) -> None:
    shutil.copy(the_rank(results, 1), results / f"compare_result_rank1_{STAMP}.csv")
    assert code_of(lambda: read_results([results], ALL)) == "E-CMP-034"
    (results / f"compare_result_rank1_{STAMP}.csv").rename(results / f"compare_result_rank1_{STAMP}_part_2.csv")
    assert code_of(lambda: read_results([results], ALL)) == "E-CMP-034"


def test_results_of_two_modes(results: Path) -> None:
    (md5,) = (INTEROP / "edge" / "md5" / "result").glob("*.csv")
    shutil.copy(md5, results / f"compare_result_rank2_{STAMP}.csv")
    assert code_of(lambda: read_results([results], ALL)) == "E-CMP-034"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "E-CMP-033"),
        (b"a,b\n1,2\n", "E-CMP-033"),
        (b"\xff\xfe\x00", "E-CMP-032"),
        (b'NPU Name,"', "E-CMP-033"),
    ],
)
def test_a_damaged_result(content: bytes, code: str, results: Path) -> None:
    the_rank(results, 1).write_bytes(content)
    assert code_of(lambda: read_results([results], ALL)) == code


def test_a_damaged_or_missing_workbook(results: Path) -> None:
    book = results / f"compare_result_rank2_{STAMP}.xlsx"
    assert code_of(lambda: read_results([results, book], ALL)) == "E-CMP-032"
    book.write_bytes(b"PK\x03\x04")
    assert code_of(lambda: read_results([results], ALL)) == "E-CMP-032"


def test_a_split_result_is_read_as_one(results: Path) -> None:
    whole = the_rank(results, 1)
    before = read_results([results], ALL)[1]
    lines = list(csv.reader(whole.open(encoding="utf-8", newline="")))
    for part, chosen in ((1, lines[:50]), (2, [lines[0], *lines[50:]])):
        with whole.with_name(f"{whole.stem}_part_{part}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(chosen)
    whole.unlink()
    after = read_results([results], ALL)[1]
    assert (after.keys, after.cells, after.communication) == (before.keys, before.cells, before.communication)
    assert len(after.files) == 2


def test_an_index_or_an_api_that_is_not_there(results: Path) -> None:
    assert code_of(lambda: merged_of(results, Selection((), ("Cosine",)))) == "E-CMP-036"
    assert code_of(lambda: merged_of(results, Selection(("Functional.nothing",)))) == "E-CMP-036"


@pytest.mark.parametrize(
    ("content", "selection"),
    [
        ("", None),
        ("api: [", None),
        ("[1]", None),
        ("api: Functional.linear", None),
        ("apis: [a]", None),
        ("compare_index: [[a]]", None),
        ("groups: [0, 1]", None),
        ("groups: {tp: []}", None),
        ("groups: {tp: [a]}", None),
        ("groups: {tp: [-1]}", None),
        ("!!python/object/apply:os.system ['true']", None),
        ("api:\n- a\n", Selection(("a",))),
        ('{"api": ["a"], "compare_index": ["b"]}', Selection(("a",), ("b",))),
        ("groups: {tp0: [0, 1], 3: [2]}", Selection((), (), {"tp0": (0, 1), "3": (2,)})),
        ("api:\ncompare_index:\n- b\n", Selection((), ("b",))),
    ],
)
def test_configurations(content: str, selection: Selection | None, tmp_path: Path) -> None:
    file = tmp_path / "merge.yaml"
    file.write_text(content, encoding="utf-8")
    if selection is None:
        assert code_of(lambda: read_selection(file)) == ("E-CMP-011" if content == "api: [" else "E-CMP-012")
    else:
        assert read_selection(file) == selection


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    assert code_of(lambda: read_selection(tmp_path / "none.yaml")) == "E-CMP-010"
    assert code_of(lambda: read_selection(tmp_path)) == "E-CMP-010"
