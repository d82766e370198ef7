"""``numprobe compare --compat msprobe``: old command lines, and the files that msProbe writes for them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from typer.main import get_command

from cli.shell import INTEROP, Ran, numprobe
from numprobe.cli.app import app
from numprobe.cli.msprobe import compare_arguments
from numprobe.compare.msprobe.files import result_sheets
from numprobe.record.errors import NumprobeError

from .msprobe_tables import Table, csv_table, differences, text, the_csv
from .test_msprobe_rows import STORE

PAIRS = INTEROP / "compare"
MLP, EDGE, RANKS = PAIRS / "mlp", PAIRS / "edge", PAIRS / "ranks"
STEP = "target/step0/rank0/dump.json"
STAMP = re.compile(r"20[0-9]{12}")
CALLS = "Functional.calls.2.forward"


def compare(cwd: Path, target: Path, golden: Path, *options: object) -> Ran:
    """As an old script calls it."""
    return numprobe(cwd, "compare", "-tp", target, "-gp", golden, "-o", "out", *options)


def files(folder: Path) -> list[str]:
    """Names of msProbe's files, without their times."""
    found = (path for path in folder.rglob("*") if path.is_file() and "parts" not in path.parts)
    names = (path.relative_to(folder).as_posix() for path in found if STAMP.search(path.name) or "diff_an" in path.name)
    return sorted(re.sub(r"_[0-9]{14,}", "_T", name) for name in names)


# --- tables ----------------------------------------------------------------------------------------------------------

CASES = {
    "mlp statistics": (
        MLP / "statistics" / STEP,
        MLP / "statistics" / STEP.replace("target", "golden"),
        MLP / "statistics",
    ),
    "mlp md5": (MLP / "md5" / STEP, MLP / "md5" / STEP.replace("target", "golden"), MLP / "md5"),
    "mlp tensor": (MLP / "tensor" / STEP, MLP / "tensor" / STEP.replace("target", "golden"), MLP / "tensor"),
    **{
        f"{where.name} {name}": (where / name / "target/dump.json", where / name / "golden/dump.json", where / name)
        for where, names in (
            (EDGE, ("stats", "md5", "tensor", "complex")),
            (
                STORE,
                ("leaves", "leaves_md5", "pairs", "pairs_md5", "thresholds", "thresholds_tensor"),
            ),
        )
        for name in names
    },
}


@pytest.mark.parametrize("case", CASES)
def test_every_cell_is_what_msprobe_answers(case: str, tmp_path: Path) -> None:
    """But for calls with other numbers on the two sides: there msProbe finds no partner, and passes."""
    target, golden, folder = CASES[case]
    ran = compare(tmp_path, target, golden)
    assert ran.code in (0, 1, 3), ran.err
    assert files(tmp_path / "out") == ["compare_result_T.csv"]
    ours, theirs = csv_table(the_csv(tmp_path / "out")), csv_table(the_csv(folder / "result"))
    more = {o[0]: o[1] for o, t in zip(ours[1], theirs[1], strict=True) if t[1] == "N/A" != o[1]}
    assert all(without_number(name) == without_number(golden) for name, golden in more.items())
    assert [line for line in differences(ours, theirs) if line.split(": ")[0] not in more] == []


def without_number(name: str) -> str:
    return re.sub(r"\.[0-9]+\.(forward|backward)", r".\1", name)


def test_a_call_with_another_number_has_a_partner(tmp_path: Path) -> None:
    """The right value of the cells that differ above."""
    compare(tmp_path, EDGE / "stats/target/dump.json", EDGE / "stats/golden/dump.json")
    lines = [line for line in csv_table(the_csv(tmp_path / "out"))[1] if line[0].startswith(CALLS)]
    assert [line[1] for line in lines] == [f"Functional.calls.1.forward.{slot}.0" for slot in ("input", "output")]


def test_a_debug_json(tmp_path: Path) -> None:
    compare(tmp_path, STORE / "saved/target/debug.json", STORE / "saved/golden/debug.json")
    assert files(tmp_path / "out") == ["debug_compare_result_T.csv"]
    assert differences(csv_table(the_csv(tmp_path / "out")), csv_table(the_csv(STORE / "saved/result"))) == []


def test_ranks_have_files_of_their_own(tmp_path: Path) -> None:
    compare(tmp_path, RANKS / "target/step0", RANKS / "golden/step0", "--xlsx")
    assert files(tmp_path / "out") == ["compare_result_rank0_T.xlsx", "compare_result_rank1_T.xlsx"]
    for rank in (0, 1):
        ours, theirs = (xlsx_table(next(f.glob(f"*rank{rank}_*.xlsx"))) for f in (tmp_path / "out", RANKS / "result"))
        assert [line for line in differences(ours, theirs) if not line.startswith(CALLS)] == []


def xlsx_table(path: Path) -> Table:
    sheet = openpyxl.load_workbook(path).worksheets[0]
    head, *lines = ([text(cell) for cell in row] for row in sheet.iter_rows(values_only=True))
    return head, lines


def test_ranks_pair_by_number(tmp_path: Path) -> None:
    """W-14: msProbe compares them by position, rank 1 with rank 0."""
    for side, ranks in (("target", (1, 2)), ("golden", (0, 1))):
        for rank in ranks:
            shutil.copytree(RANKS / side / "step0" / "rank0", tmp_path / side / f"rank{rank}")
    ran = compare(tmp_path, tmp_path / "target", tmp_path / "golden", "--json")
    assert files(tmp_path / "out") == ["compare_result_rank1_T.csv"]
    assert len(ran.json["not_compared"]) == 2


def test_ranks_that_are_put_together_are_one_result(tmp_path: Path) -> None:
    """Two tensor parallel ranks against one: whole tensors, under the number of the first rank."""
    engines = INTEROP / "engines"
    ran = compare(tmp_path, engines / "megatron_tp2/step0", engines / "megatron/step0")
    assert ran.code in (0, 1), ran.err
    assert files(tmp_path / "out") == ["compare_result_rank0_T.csv"]
    head, lines = csv_table(the_csv(tmp_path / "out"))
    paired = [line for line in lines if line[1] != "N/A" and ".parameters." in line[0]]
    assert len(paired) > 10
    shapes = [head.index(name) for name in ("NPU Tensor Shape", "Bench Tensor Shape")]
    assert all(line[shapes[0]] == line[shapes[1]] for line in paired)
    (tmp_path / "first").mkdir()
    assert (
        compare(tmp_path / "first", engines / "megatron_tp2/step0", engines / "megatron/step0", "-da").code == ran.code
    )


def test_a_process_folder(tmp_path: Path) -> None:
    for side in ("target", "golden"):
        shutil.copytree(RANKS / side / "step0" / "rank0", tmp_path / side / "step0" / f"proc{len(side)}7")
    ran = compare(tmp_path, tmp_path / "target/step0", tmp_path / "golden/step0", "--table", "csv")
    assert files(tmp_path / "out") == ["compare_result_proc67_T.csv"]
    named = next(line for line in ran.out.splitlines() if line.startswith("files "))
    assert STAMP.sub("T", named) == "files   out/compare_result_proc67_T.csv and 1 more"
    assert (tmp_path / named.split()[1]).is_file()


def test_every_step_has_a_folder(tmp_path: Path) -> None:
    for side in ("target", "golden"):
        for step in (0, 3):
            shutil.copytree(RANKS / side / "step0" / "rank1", tmp_path / side / f"step{step}" / "rank1")
    compare(tmp_path, tmp_path / "target", tmp_path / "golden", "-da")
    names = files(tmp_path / "out")
    assert names == ["diff_analyze_T.json", "step0/compare_result_rank1_T.json", "step3/compare_result_rank1_T.json"]
    (tmp_path / "one").mkdir()
    compare(tmp_path / "one", tmp_path / "target", tmp_path / "golden", "--step", "3")
    assert files(tmp_path / "one" / "out") == ["compare_result_rank1_T.csv"]


def test_no_stack_no_column(tmp_path: Path) -> None:
    for side in ("target", "golden"):
        (tmp_path / side).mkdir()
        shutil.copy(MLP / "statistics" / side / "step0/rank0/dump.json", tmp_path / side)
    compare(tmp_path, tmp_path / "target/dump.json", tmp_path / "golden/dump.json")
    assert "NPU_Stack_Info" not in csv_table(the_csv(tmp_path / "out"))[0]


def test_the_mode_can_be_chosen(tmp_path: Path) -> None:
    for by, column in (("statistics", "Max diff"), ("tensor", "Cosine"), ("digest", "Max diff")):
        (tmp_path / by).mkdir()
        compare(tmp_path / by, MLP / "tensor" / STEP, MLP / "tensor" / STEP.replace("target", "golden"), "--by", by)
        assert column in csv_table(the_csv(tmp_path / by / "out"))[0]


# --- a run that is taken up again ------------------------------------------------------------------------------------


def test_the_same_again_writes_nothing_new(tmp_path: Path) -> None:
    compare(tmp_path, RANKS / "target/step0", RANKS / "golden/step0")
    before = {path: path.read_bytes() for path in (tmp_path / "out").glob("compare_result*")}
    (tmp_path / "out" / "parts" / "step0_rank1.msgpack").unlink()  # as if the run had ended before rank 1 was done
    next((tmp_path / "out").glob("compare_result_rank1_*")).write_text("cut short", encoding="utf-8")
    compare(tmp_path, RANKS / "target/step0", RANKS / "golden/step0")
    assert {path: path.read_bytes() for path in (tmp_path / "out").glob("compare_result*")} == before
    manifest = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert {path.name for path in before} < {artifact["name"] for artifact in manifest["artifacts"]}


def test_another_mapping_is_another_run(tmp_path: Path) -> None:
    folder = STORE / "cells"
    compare(tmp_path, folder / "target", folder / "golden", "-cm", folder / "cells.yaml")
    ran = compare(tmp_path, folder / "target", folder / "golden", "-cm")
    assert (ran.code, "E-OUT-001" in ran.err) == (2, True)


# --- the first difference --------------------------------------------------------------------------------------------


def report(folder: Path) -> dict[str, list[dict[str, Any]]]:
    (path,) = folder.glob("diff_analyze_*.json")
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("option", ["-da", "--diff_analyze", "--first-diff"])
def test_the_first_difference_over_ranks(option: str, tmp_path: Path) -> None:
    compare(tmp_path, RANKS / "target/step0", RANKS / "golden/step0", option)
    assert files(tmp_path / "out") == [
        "compare_result_rank0_T.json",
        "compare_result_rank1_T.json",
        "diff_analyze_T.json",
    ]
    found = report(tmp_path / "out")
    first = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))["findings"][0]
    assert {key: [op["op_name"] for op in ops] for key, ops in found.items()} == {
        f"rank_{rank}": [first["op"]] for rank in first["ranks"]
    }
    info = found["rank_0"][0]["data_info"]
    assert list(info) == ["input", "output"]
    assert all({"NPU max", "NPU l2norm"} < set(item) for items in info.values() for item in items.values())


def test_the_first_difference_of_single_files_and_of_processes(tmp_path: Path) -> None:
    """W-1: msProbe writes an ordinary csv for the one and fails on the other."""
    compare(tmp_path, EDGE / "stats/target/dump.json", EDGE / "stats/golden/dump.json", "-da")
    assert files(tmp_path / "out") == ["compare_result_T.json", "diff_analyze_T.json"]
    assert list(report(tmp_path / "out")) == ["rank_0"]
    place = tmp_path / "step0" / "proc12"
    place.parent.mkdir()
    shutil.copytree(EDGE / "stats/target", place)
    (tmp_path / "more").mkdir()
    compare(tmp_path / "more", place.parent, EDGE / "stats/golden", "-da")
    assert files(tmp_path / "more" / "out") == ["compare_result_proc12_T.json", "diff_analyze_T.json"]
    assert list(report(tmp_path / "more" / "out")) == ["proc12"]


@pytest.mark.parametrize("mode", ["md5", "tensor"])
def test_the_first_difference_in_other_modes(mode: str, tmp_path: Path) -> None:
    compare(tmp_path, EDGE / mode / "target/dump.json", EDGE / mode / "golden/dump.json", "-da")
    (op,) = report(tmp_path / "out")["rank_0"]
    shown = {name for items in op["data_info"].values() for item in items.values() for name in item}
    assert ("NPU MD5" if mode == "md5" else "NPU max") in shown


@pytest.mark.parametrize("record", [True, None, {}, [], {"input_args": [], "output": []}])
def test_the_first_difference_is_a_record_without_values(record: object, tmp_path: Path) -> None:
    one = tmp_path / "target" / "step0" / "rank0" / "dump.json"
    shutil.copytree(RANKS / "golden/step0/rank0", one.parent)
    written = json.loads(one.read_text(encoding="utf-8"))
    op = next(name for name in written["data"] if name.startswith("Functional."))
    written["data"][op] = record
    one.write_text(json.dumps(written), encoding="utf-8")
    assert compare(tmp_path, one, RANKS / "golden/step0/rank0/dump.json", "-da").code == 1
    ((first,),) = report(tmp_path / "out").values()
    assert (first["op_name"], first["data_info"]) == (op, {"input": {}, "output": {}})


def test_no_difference_is_no_report(tmp_path: Path) -> None:
    same = RANKS / "golden/step0"
    ran = compare(tmp_path, same, same, "-da")
    assert ran.code == 0
    assert files(tmp_path / "out") == ["compare_result_rank0_T.json", "compare_result_rank1_T.json"]


# --- command lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "ours"),
    [
        (["-tp", "a", "-gp", "b"], ["a", "b", "--compat", "msprobe"]),
        (["--golden_path=b", "--target_path=a", "-o"], ["a", "b", "--compat", "msprobe", "-o", "./output"]),
        (["-m", "auto", "-tp", "a", "-gp", "b", "-fm", "-tensor_log"], ["a", "b", "--compat", "msprobe"]),
        (["a", "b", "--output_path", "x", "-cm", "-lm", "y"], ["a", "b", "--out", "x", "-cm", "default", "-lm", "y"]),
        (["a", "b", "--cell_mapping", "--xlsx"], ["a", "b", "--cell-mapping", "default", "--xlsx"]),
        (["a", "b", "--", "-tp"], ["a", "b", "--", "-tp"]),
        (["a", "b", "--filter=-m"], ["a", "b", "--filter=-m"]),
        (["-h"], ["-h"]),
    ],
)
def test_old_spellings(old: Sequence[str], ours: list[str]) -> None:
    assert compare_arguments(old) == ours


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-m", "atb"], "E-USE-010"),
        (["--mode=torchair"], "E-USE-010"),
        (["-m"], "E-USE-010"),
        (["-fr", "rules.json"], "E-USE-010"),
        (["--input_shape", "x:1"], "E-USE-010"),
        (["-ofs", "True"], "E-USE-010"),
        (["--consistent_check", "--backend", "fsdp"], "E-USE-010"),
        (["-tp"], "E-USE-011"),
        (["-tp", "x"], "E-USE-011"),
        (["-gp", "x"], "E-USE-011"),
        (["--no-such-option"], "E-USE-001"),
        (["--compat", "other"], "E-USE-007"),
    ],
)
def test_what_cannot_be_is_said(arguments: list[str], code: str, tmp_path: Path) -> None:
    ran = numprobe(
        tmp_path, "compare", *arguments, *(["a", "b"] if "-tp" not in arguments and "-gp" not in arguments else [])
    )
    assert (ran.code, ran.out) == (2, "")
    assert code in ran.err
    with pytest.raises(NumprobeError) if code.startswith("E-USE-01") else pytest.raises(AssertionError):
        compare_arguments(arguments)
        raise AssertionError


def test_every_option_of_msprobe_is_known() -> None:
    """As its help lists them (CMP-1)."""
    flags = ["--xlsx", "-fm", "--fuzzy_match", "-da", "--diff_analyze", "-tensor_log", "--is_print_compare_log"]
    valued = ["-o", "--output_path", "-dm", "--data_mapping", "-cm", "--cell_mapping", "-am", "--api_mapping", "-lm"]
    valued += ["--layer_mapping", "--rank", "--step", "-m", "--mode"]
    known = {name for p in get_command(app).commands["compare"].params for name in p.opts}  # type: ignore[attr-defined]
    for option in flags:
        assert set(compare_arguments([option])) <= known, option
    for option in valued:
        words = compare_arguments([option, "auto"])
        assert words == [] or words[0] in known, option


def test_long_results_are_sheets_of_one_length() -> None:
    sheets = list(result_sheets(("a",), ([i] for i in range(1_048_501))))
    assert [name for name, _, _ in sheets] == ["part_0", "part_1"]
    assert all(abs(len(a) - len(b)) <= 1 for (_, _, a), (_, _, b) in pairwise(sheets))  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["compare", "merge"])
def test_every_option_is_documented(command: str) -> None:
    documents = Path(__file__).parents[2] / "docs"
    text = (documents / "compare.md").read_text(encoding="utf-8")
    for parameter in get_command(app).commands[command].params:  # type: ignore[attr-defined]
        if parameter.param_type_name == "option" and "--help" not in parameter.opts:
            assert any(name in text for name in parameter.opts), parameter.opts
