"""Every item of bad input, through the command: one line with code, place and remedy, and the exit code of the documents.

``H`` has four ranks; rank 2 is at fault. Rank 1 is spoiled below, so the conclusion stays possible, labelled partial.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .shell import H, Ran, copy_of_h, numprobe

# --- nothing to read -------------------------------------------------------------------------------------------------


def refused(ran: Ran, code: str) -> str:
    """Exit 2, nothing on stdout, the error's lines on stderr: what, and what to do."""
    assert (ran.code, ran.out) == (2, "")
    lines = [line for line in ran.err.splitlines() if not line.startswith("✓")]
    assert lines[0].startswith(f"✗ {code}  ")
    assert any(line.startswith("  do") for line in lines)
    assert len(lines) <= 8
    return " ".join(" ".join(lines).split())


def test_a_missing_folder(tmp_path: Path):
    for name in ("nan", "inspect"):
        assert "no such file or folder where gone do check the path" in refused(
            numprobe(tmp_path, name, "gone"), "E-FMT-001"
        )
    assert not (tmp_path / "numprobe_out").exists()


def test_an_empty_folder(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for name in ("nan", "inspect"):
        text = refused(numprobe(tmp_path, name, "empty"), "E-FMT-002")
        assert "where empty found nothing do give the folder that the collector wrote" in text


def test_no_rank(tmp_path: Path):
    (tmp_path / "dump" / "step0").mkdir(parents=True)
    assert "no rank here" in refused(numprobe(tmp_path, "nan", "dump"), "E-FMT-002")


def test_folders_of_two_jobs(tmp_path: Path):
    """Ranks and processes mixed, or one rank twice: reported, never merged."""
    dump = copy_of_h(tmp_path / "dump")
    shutil.copytree(dump / "step0" / "rank0", dump / "step0" / "proc4711")
    text = refused(numprobe(tmp_path, "nan", dump), "E-FMT-003")
    assert "proc4711" in text
    shutil.rmtree(dump / "step0" / "proc4711")
    shutil.copytree(dump / "step0" / "rank0", dump / "step0" / "rank_0")
    assert "rank_0" in refused(numprobe(tmp_path, "nan", dump), "E-FMT-003")


def test_every_rank_unreadable(tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    for file in dump.rglob("dump.json"):
        file.write_text("[1, 2]")
    text = refused(numprobe(tmp_path, "nan", dump), "E-FMT-014")
    assert "rank0: E-FMT-011 dump.json is no JSON object: it begins with '['" in text


@pytest.mark.parametrize("command", ["nan", "inspect"])
@pytest.mark.parametrize("named", ["", "dump.json"])
def test_the_only_file_cannot_be_read(command: str, named: str, tmp_path: Path):
    """Then its own error is told, with its path, and not that of a step."""
    rank = copy_of_h(tmp_path / "dump") / "step0" / "rank2"
    (rank / "dump.json").write_text('{"a": 1}')
    text = refused(numprobe(tmp_path, command, rank / named), "E-FMT-012")
    assert f"where {rank}/dump.json found a (8 bytes) do " in text
    chosen = refused(numprobe(tmp_path, command, tmp_path / "dump", "--rank", "2"), "E-FMT-012")
    assert f"where {rank}/dump.json" in chosen


@pytest.mark.parametrize("command", ["nan", "inspect"])
def test_an_empty_path_is_not_the_current_folder(command: str, tmp_path: Path):
    text = refused(numprobe(copy_of_h(tmp_path / "dump"), command, ""), "E-FMT-001")
    assert "where '' do check the path" in text


def test_a_file_that_is_no_dump(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("x")
    assert "notes.txt is no dump" in refused(numprobe(tmp_path, "nan", "notes.txt"), "E-FMT-002")
    assert "stack.json is no dump" in refused(
        numprobe(tmp_path, "nan", H / "step0" / "rank0" / "stack.json"), "E-FMT-002"
    )


# --- one rank of four ------------------------------------------------------------------------------------------------


def gone(folder: Path) -> None:
    shutil.rmtree(folder)


def without_dump(folder: Path) -> None:
    (folder / "dump.json").unlink()


def truncated(folder: Path) -> None:
    os.truncate(folder / "dump.json", 60_000)


def holding(content: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "dump.json").write_text(content)

    return spoil


def linked_folder(folder: Path) -> None:
    shutil.move(folder, folder.parent.parent.parent / "elsewhere")
    folder.symlink_to(folder.parent.parent.parent / "elsewhere")


def linked_file(folder: Path) -> None:
    target = folder.parent.parent.parent / "elsewhere.json"
    shutil.move(folder / "dump.json", target)
    (folder / "dump.json").symlink_to(target)


NESTED = '{"data": {"Torch.abs.0.forward": {"input_args": ' + "[" * 100_000

SPOILED: dict[str, tuple[Callable[[Path], None], str, str]] = {  # how, status, what stderr says
    "no folder": (gone, "missing", "E-FMT-020  rank1/dump.json: not read: rank1 does not exist"),
    "no dump.json": (without_dump, "missing", "E-FMT-020  rank1/dump.json: not read: rank1 has no dump.json"),
    "truncated": (
        truncated,
        "partial",
        "E-FMT-021  rank1/dump.json: 88 records; the file ends inside #88, byte 60,000",
    ),
    "empty file": (holding(""), "unreadable", "rank1/dump.json: not read: E-FMT-011"),
    "not JSON": (holding("not json"), "unreadable", "E-FMT-011  dump.json is no JSON object: it begins with 'n'"),
    "wrong top level": (holding("[1, 2]"), "unreadable", "E-FMT-011  dump.json is no JSON object: it begins with '['"),
    "no data": (holding('{"task": "statistics"}'), "unreadable", "E-FMT-012"),
    "data is no object": (holding('{"data": [1]}'), "unreadable", "E-FMT-012"),
    "nested deeply": (holding(NESTED), "partial", "E-FMT-021  rank1/dump.json: 0 records"),
    "folder is a link out": (linked_folder, "unreadable", "E-FMT-015  a link that leads out of the dump folder"),
    "file is a link out": (linked_file, "unreadable", "E-FMT-015  a link that leads out of the dump folder"),
}


@pytest.mark.parametrize(("spoil", "status", "says"), SPOILED.values(), ids=SPOILED)
def test_one_rank_cannot_be_read(spoil: Callable[[Path], None], status: str, says: str, tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    spoil(dump / "step0" / "rank1")
    ran = numprobe(tmp_path, "nan", dump, "-o", "out", "--json", "--lang", "en")
    found = ran.json
    assert (ran.code, found["verdict"], found["source_ranks"]) == (1, "overflow_found", [2])
    assert found["first_anomaly"]["op_name"] == "Torch.log.0.forward"
    assert (found["partial_ranks"], found["missing_ranks"]) == (([1], []) if status == "partial" else ([], [1]))
    assert found["confidence"] < 0.9  # the whole dump's
    warnings = [line for line in ran.err.splitlines() if line.startswith("! ")]
    assert len(warnings) == 1
    assert says in warnings[0]
    remedies = {"missing": "copy the folder next to the others", "partial": "copy the file again"}
    assert "Read rank 1 " in ran.err
    assert remedies.get(status, "check permissions") in ran.err
    rows = json.loads((tmp_path / "out" / "result.json").read_text())["ranks"]
    assert [r["status"] for r in rows] == ["ok", status, "ok", "ok"]
    assert f"| 1 | {status} |" in (tmp_path / "out" / "report.md").read_text()
    shown = numprobe(tmp_path, "inspect", dump, "--json")
    assert shown.code == 0
    (step,) = shown.json["steps"]
    assert (step["partial"], step["missing"]) == (([1], []) if status == "partial" else ([], [1]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    (dump / "step0" / "rank1" / "dump.json").chmod(0)
    ran = numprobe(tmp_path, "nan", dump, "-o", "out", "--json", "--lang", "en")
    assert (ran.code, ran.json["source_ranks"], ran.json["missing_ranks"]) == (1, [2], [1])
    assert "E-FMT-010  dump.json cannot be read: Permission denied" in ran.err


def test_the_guilty_rank_cannot_be_read(tmp_path: Path):
    """Then nothing is claimed, and rank 2 is named as the one to look at."""
    dump = copy_of_h(tmp_path / "dump")
    os.truncate(dump / "step0" / "rank2" / "dump.json", 2_000)
    ran = numprobe(tmp_path, "nan", dump, "-o", "out", "--json")
    found = ran.json
    assert (ran.code, found["verdict"], found["class"]) == (3, "inconclusive", "source_outside_view")
    assert (found["source_ranks"], found["rank"], found["partial_ranks"]) == ([], None, [2])
    assert found["first_anomaly"]["op_name"] == "Distributed.all_reduce.1.forward"
    assert found["suspect_ranks"] == [2]


def test_many_unread_ranks_are_summed_up(tmp_path: Path):
    """Twenty ranks, of which eighteen are damaged: eight lines, and how many more there are."""
    step = tmp_path / "dump" / "step0"
    for rank in range(20):
        shutil.copytree(H / "step0" / ("rank2" if rank == 2 else "rank0"), step / f"rank{rank}")
        if rank not in (0, 2):
            (step / f"rank{rank}" / "dump.json").write_text("")
    ran = numprobe(tmp_path, "nan", "dump", "-o", "out", "--lang", "en")
    warnings = [line for line in ran.err.splitlines() if line.startswith("! ")]
    assert len(warnings) == 9
    assert warnings[-1] == "! +10: report.md"


# --- files beside dump.json ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "", "not json", "[1]", '{"a": '])
@pytest.mark.parametrize("name", ["construct.json", "stack.json"])
def test_stack_and_construct_are_not_needed(name: str, content: str | None, tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    for file in dump.rglob(name):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
    ran = numprobe(tmp_path, "nan", dump, "-o", "out", "--json")
    assert (ran.code, ran.json["source_ranks"], ran.json["first_anomaly"]["op_name"]) == (1, [2], "Torch.log.0.forward")
    limits = [p["key"] for p in json.loads((tmp_path / "out" / "result.json").read_text())["limits"]]
    word = "construct" if name == "construct.json" else "stack"
    assert (f"limit.no_{word}" if content is None else f"limit.{word}_unreadable") in limits


# --- odd content -----------------------------------------------------------------------------------------------------


def rewritten(dump: Path, rank: int, change: Callable[[str], str]) -> None:
    file = dump / "step0" / f"rank{rank}" / "dump.json"
    text = file.read_text()
    assert change(text) != text
    file.write_text(change(text))


ABSURD = json.dumps(
    {
        "input_args": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [10**30, -1], "Max": 1, "Min": 0}],
        "input_kwargs": {},
        "output": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": "wide", "Max": 1, "Min": 0}],
    }
)
ODD: dict[str, Callable[[str], str]] = {
    "1e400 is infinity": lambda t: t.replace('"Norm": NaN', '"Norm": 1e400'),
    "quoted": lambda t: t.replace(": NaN", ': "nan"'),
    "another spelling": lambda t: t.replace(": NaN", ': "NaN"'),
    "a key twice": lambda t: t.replace('"dtype":', '"dtype": "torch.float64", "dtype":', 5),
    "absurd shapes": lambda t: t.replace('"data": {', f'"data": {{"Torch.abs.0.forward": {ABSURD},', 1),
    "names in any script": lambda t: t.replace("blocks.1.mlp", "块.层📦.1.mlp"),
    "on one line": lambda t: json.dumps(json.loads(t)),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_odd_content_on_every_rank_changes_no_conclusion(change: Callable[[str], str], tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    for rank in range(4):
        rewritten(dump, rank, change)
    ran = numprobe(tmp_path, "nan", dump, "-o", "out", "--json")
    found = ran.json
    assert (ran.code, found["source_ranks"], found["class"]) == (1, [2], "domain_error")
    assert found["first_anomaly"]["op_name"] == "Torch.log.0.forward"
    assert (found["partial_ranks"], found["missing_ranks"]) == ([], [])


CONTROL = ["\x1b[31m", "\u202e", "\n", "\t", "\r", "\u2028", "\u2029", "\x85"]


@pytest.mark.parametrize("letter", CONTROL, ids=ascii)
def test_control_characters_do_not_reach_the_terminal(letter: str, tmp_path: Path):
    """A record's name with an escape sequence, or a line break is data, shown as an escape."""
    dump = copy_of_h(tmp_path / "dump")
    rewritten(dump, 2, lambda t: t.replace("Torch.log.0", f"Torch.log{json.dumps(letter)[1:-1]}.0"))
    ran = numprobe(tmp_path, "nan", dump, "-o", "out", "--lang", "en")
    harmless = copy_of_h(tmp_path / "harmless")
    rewritten(harmless, 2, lambda t: t.replace("Torch.log.0", "Torch.logx.0"))
    plain = numprobe(tmp_path, "nan", harmless, "-o", "plain", "--lang", "en")
    assert (ran.code, "Torch.log\\" in ran.out) == (1, True)
    assert len(ran.out.splitlines()) == len(plain.out.splitlines())
    assert len(ran.err.splitlines()) == len(plain.err.splitlines())
    assert letter == "\n" or letter not in ran.out + ran.err
    again = numprobe(tmp_path, "nan", dump, "-o", "out", "--lang", "en", "--json", "--progress", "json")
    assert "Torch.log" in again.json["first_anomaly"]["op_name"]
    json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))


def test_a_very_long_name_is_cut_on_the_terminal_only(tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    long = "Torch." + "log" * 4_000
    rewritten(dump, 2, lambda t: t.replace("Torch.log.0", f"{long}.0"))
    ran = numprobe(tmp_path, "nan", dump, "-o", "out", "--lang", "en")
    assert "Torch.loglog" in ran.out
    assert len(ran.out) < 6_000
    assert long in (tmp_path / "out" / "report.md").read_text()
    assert long in (tmp_path / "out" / "result.json").read_text()


@pytest.mark.parametrize("begin", ["=", "+", "-", "@"])
def test_tables_hold_no_formulas(begin: str, tmp_path: Path):
    """A name from a dump is text to a spreadsheet."""
    dump = copy_of_h(tmp_path / "dump")
    rewritten(dump, 2, lambda t: t.replace("Torch.log.0", f"{begin}cmd|x\\u001b!A1.0"))
    assert numprobe(tmp_path, "nan", dump, "-o", "out", "--compat", "msprobe").code in (1, 3)
    seen = []
    for file in (tmp_path / "out").glob("*.csv"):
        with file.open(newline="", encoding="utf-8") as rows:
            cells = [cell for row in csv.reader(rows) for cell in row]
        seen += [cell for cell in cells if "cmd|x" in cell]
        assert not [c for c in cells if "\x1b" in c or (c.startswith(("=", "+", "-", "@")) and c != "-inf")]
    assert seen
    assert all(cell.startswith(f"'{begin}cmd|x\\x1b!A1") for cell in seen)


def test_markup_in_names_stays_text(tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    rewritten(dump, 2, lambda t: t.replace("Torch.log.0", "Torch.<script>alert(1)</script>.0"))
    assert numprobe(tmp_path, "nan", dump, "-o", "out").code == 1
    assert "<script>alert(1)" not in (tmp_path / "out" / "report.html").read_text()


def test_a_dump_that_is_being_written(tmp_path: Path):
    """The collector rewrites a file after every thousand records: one that was just emptied is no wreck."""
    dump = copy_of_h(tmp_path / "dump")
    os.truncate(dump / "step0" / "rank1" / "dump.json", 0)
    ran = numprobe(tmp_path, "nan", dump, "-o", "out", "--json")
    assert (ran.code, ran.json["source_ranks"]) == (1, [2])
    assert 1 in ran.json["missing_ranks"] + ran.json["partial_ranks"]


# --- usage -----------------------------------------------------------------------------------------------------------

USAGE: list[tuple[tuple[str, ...], str, str]] = [
    (("nan",), "E-USE-001", "Missing argument 'dump' do numprobe nan -h lists what it takes"),
    (("nan", "d", "--bogus"), "E-USE-001", "No such option: --bogus"),
    (("nan", "d", "--jobs", "0"), "E-USE-001", "Invalid value for '--jobs'"),
    (("nan", "d", "-k", "x"), "E-USE-001", "Invalid value for '-k'"),
    (("nope",), "E-USE-001", "No such command 'nope'"),
    (("nan", "d", "--rank", "3-1"), "E-USE-004", "the range ends before it starts do write 1-3"),
    (("nan", "d", "--step", "x"), "E-USE-004", "'x' is no number or range"),
    (("nan", "d", "--rank", "99"), "E-USE-005", "--rank leaves no rank"),
    (("nan", "d", "--step", "7"), "E-USE-005", "--step leaves no step"),
    (("nan", "d", "--lang", "fr"), "E-USE-006", "do write zh or en"),
    (("nan", "d", "--compat", "x"), "E-USE-007", "do write msprobe"),
    (("nan", "d", "--progress", "x"), "E-USE-007", "do write auto or json"),
    (("nan", "d", "--exclude", ""), "E-USE-007", "an empty name do write the name of a record"),
    (("nan", "d", "--exclude", "Torch.log", "--exclude", " "), "E-USE-007", "an empty name"),
    (("nan", "d", "--executor", "ray"), "E-USE-007", "do write local"),
    (("inspect", "d", "--rank", "99"), "E-USE-005", "--rank leaves no rank"),
    (("synth", "nan"), "E-USE-008", "no output folder do add -o DIR"),
    (("synth", "nan", "-o", "x", "--scenario", "zzz"), "E-USE-008", "do choose one of grouped_matmul_nan"),
    (("synth", "nan", "-o", "x", "--size", "3q"), "E-USE-008", "RANKSxMB"),
    (("demo", "overflow"), "E-USE-009", "do write numprobe demo nan or rl"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), USAGE, ids=[" ".join(a) for a, _, _ in USAGE])
def test_bad_usage(arguments: tuple[str, ...], code: str, says: str, tmp_path: Path):
    copy_of_h(tmp_path / "d")
    ran = numprobe(tmp_path, *arguments)
    text = refused(ran, code)
    assert says in text


IN_CHINESE: list[tuple[tuple[str, ...], str, str]] = [
    (("nan", "gone", "--lang", "zh"), "E-FMT-001", "文件或目录不存在 位置 gone 处理 检查路径"),
    (("inspect", "gone", "--lang=zh"), "E-FMT-001", "文件或目录不存在 位置 gone 处理 检查路径"),
    (
        ("nan", "d", "--rank", "99", "--lang", "zh"),
        "E-USE-005",
        "--rank 选不出任何 rank 发现 rank 0 至 3 处理 从中选择",
    ),
    (("nan", "d", "--rank", "3-1", "--lang", "zh"), "E-USE-004", "--rank 3-1：范围的终点小于起点 处理 写成 1-3；"),
    (("nan", "d", "--lang", "zh", "-o", "d/out"), "E-OUT-003", "位置 d/out 处理 用 -o 选择 dump 之外的目录"),
    (("nan", "--lang", "zh"), "E-USE-001", "Missing argument 'dump' 处理 用 numprobe nan -h 查看用法"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), IN_CHINESE, ids=[" ".join(a) for a, _, _ in IN_CHINESE])
def test_errors_in_chinese(arguments: tuple[str, ...], code: str, says: str, tmp_path: Path):
    copy_of_h(tmp_path / "d")
    ran = numprobe(tmp_path, *arguments)
    assert (ran.code, ran.out) == (2, "")
    lines = [line for line in ran.err.splitlines() if line.startswith(("✗", " "))]
    assert lines[0].startswith(f"✗ {code}  ")
    assert says in " ".join(" ".join(lines).split())


def test_errors_follow_a_chinese_locale(tmp_path: Path):
    assert "文件或目录不存在" in numprobe(tmp_path, "nan", "gone", LANG="zh_CN.UTF-8").err
    assert "no such file or folder" in numprobe(tmp_path, "nan", "gone", "--lang", "en", LANG="zh_CN.UTF-8").err


def test_without_arguments_the_help_is_shown(tmp_path: Path):
    ran = numprobe(tmp_path)
    assert ran.code == 2
    assert {"nan", "inspect", "demo", "synth"} <= {line.split()[0] for line in ran.err.splitlines() if line.strip()}
