"""Kernels of static graphs, which have no dump.json, and trees that hold a part as a graph and a part as PyNative."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cli.shell import INTEROP, numprobe
from numprobe.compare.command import Output, run_to_folder
from numprobe.compare.kernels.read import find_kernels, read_kernels
from numprobe.compare.result import CompareResult
from numprobe.compare.run import CompareOptions
from numprobe.record.errors import NumprobeError

from .kernel_pairs import HEAD, TABLES, X, put, table, tables, tensors
from .test_msprobe_rows import STORE

REAL = INTEROP / "mindspore" / "graph_kernel_dump"
MIX = INTEROP / "mindspore" / "mix_statistics"


def run(target: Path, golden: Path, out: Path, output: Output | None = None, **options: object) -> CompareResult:
    chosen = CompareOptions(use_cache=False, jobs=1, **options)  # type: ignore[arg-type]
    comparison, folder = run_to_folder(target, golden, chosen, out, output)
    assert folder.manifest["status"] == "done"
    return comparison.result


def edited(folder: Path, part: str, factor: float) -> Path:
    """A copy of the real dump, with the tensors of one name multiplied, and every time later."""
    shutil.copytree(REAL, folder)
    for file in folder.rglob("*.npy"):
        values = np.load(file)
        fields = file.name.split(".")
        fields[4] = str(int(fields[4]) + 777)
        file.unlink()
        np.save(file.with_name(".".join(fields)), values * factor if part in file.name else values)
    return folder


# --- kernels ---------------------------------------------------------------------------------------------------------


def test_a_real_dump_agrees_with_itself_later(tmp_path: Path) -> None:
    result = run(edited(tmp_path / "t", "nothing", 1), REAL, tmp_path / "out")
    assert (result.verdict, result.mode, result.coverage) == ("pass", "tensor", 1.0)
    assert (result.counts["pass"], sum(result.counts.values())) == (14, 14)
    assert (result.target, result.golden) == (str(tmp_path / "t"), str(REAL))
    assert result.problems == []
    assert [p.kind for p in run(REAL, REAL, tmp_path / "same").problems] == ["same"]


def test_the_kernel_that_brings_a_difference_in_is_named(tmp_path: Path) -> None:
    target = edited(tmp_path / "t", "BiasAdd-op0.0.0.1795951888361994.output", 1.02)
    result = run(target, REAL, tmp_path / "out")
    [finding] = [f for f in result.findings if f.severity == "error"]
    assert (finding.op, finding.cause) == ("Cell.Default_fc-Dense_BiasAdd-op0.BiasAdd.forward.0", "introduced")
    assert finding.error == pytest.approx(0.02, rel=1e-3)


def number(cell: str) -> object:
    try:
        return float(cell.strip().removesuffix("%"))
    except ValueError:
        return cell


@pytest.mark.parametrize("case", ["tensors_0_0", "tensors_0_1", "tensors_1_0", "tables_0_0"])
def test_every_cell_is_what_msprobe_answers(tmp_path: Path, case: str) -> None:
    kind, rank, step = case.split("_")
    sides = (tensors if kind == "tensors" else tables)(tmp_path)
    run(*sides, tmp_path / "out", Output(compat=True), ranks=frozenset({int(rank)}), steps=frozenset({int(step)}))
    [ours] = (tmp_path / "out").glob("compare_result_*")
    assert ours.name.startswith(f"compare_result_{rank}_{step}_")
    with ours.open(newline="") as one, (STORE / "kernels" / f"{case}.csv").open(newline="") as other:
        for row, theirs in zip(csv.reader(one), csv.reader(other), strict=True):
            cells = [cell.rsplit("/", 1)[-1] if cell.startswith("/") else cell for cell in row]
            for cell, wanted in zip(cells, theirs, strict=True):
                near = number(wanted)
                assert number(cell) == (
                    pytest.approx(near, rel=1e-6, nan_ok=True) if isinstance(near, float) else near
                ), row[0]


def test_names_may_have_dots(tmp_path: Path) -> None:
    [kernel] = read_kernels([put(tmp_path, "a.name.with.0.dots", X).parent])
    assert (kernel.name, kernel.task, kernel.time, kernel.slot) == ("a.name.with.0.dots", 3, 1, 0)


def test_as_xlsx(tmp_path: Path) -> None:
    run(*tables(tmp_path), tmp_path / "out", Output(compat=True, xlsx=True))
    assert [path.suffix for path in (tmp_path / "out").glob("compare_result_0_0_*")] == [".xlsx"]


def test_a_rank_or_step_on_one_side_alone_leaves_no_pass(tmp_path: Path) -> None:
    for rank in (0, 1):
        put(tmp_path / "t", "a", X, rank=rank)
    put(tmp_path / "g", "a", X)
    result = run(tmp_path / "t", tmp_path / "g", tmp_path / "out")
    assert (result.verdict, result.premise) == ("inconclusive", "ranks")


@pytest.mark.parametrize("damage", ["cut", "code", "empty"])
def test_a_tensor_that_cannot_be_read(tmp_path: Path, damage: str) -> None:
    for side in "tg":
        put(tmp_path / side, "a", X)
        file = put(tmp_path / side, "b", X, time=2)
    content = file.read_bytes()
    file.write_bytes({"cut": content[:-3], "code": b"\x80\x04.", "empty": b""}[damage])
    result = run(tmp_path / "t", tmp_path / "g", tmp_path / "out", Output(compat=True))
    assert (result.counts["pass"], result.counts["incomparable"]) == (1, 1)
    [cells] = (tmp_path / "out").glob("compare_result_*")
    assert "Dump file is not ndarray." in cells.read_text()


def test_tensors_without_elements(tmp_path: Path) -> None:
    """msProbe ends with an error there."""
    for side in "tg":
        put(tmp_path / side, "a", X[:0])
    result = run(tmp_path / "t", tmp_path / "g", tmp_path / "out", Output(compat=True))
    assert result.counts["pass"] == 1


def test_long_names_are_in_a_table_beside_them(tmp_path: Path) -> None:
    file = put(tmp_path, "very_long", X)
    file.rename(file.with_name("0123456789.npy"))
    (file.parent / "mapping.csv").write_text(f"0123456789.npy,{file.name}\n")
    [folders] = find_kernels(tmp_path).values()
    assert [kernel.key for kernel in read_kernels(folders)] == ["very_long.3.output.0"]


def test_places_name_rank_and_step(tmp_path: Path) -> None:
    for folder in ("3/Net/0/7", "rank_4/Net/1/8", "rank_4/Net/2/8", "x/rank5/y/z/w/9"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "statistic.csv").write_text(HEAD)
    assert {place: len(folders) for place, folders in find_kernels(tmp_path).items()} == {
        (3, 7): 1,
        (4, 8): 2,
        (5, 9): 1,
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("Op Type,Op Name", 1),
        ("\n".join([HEAD, TABLES[0][0].replace("1.5", "x")]), 2),
        ("\n".join([HEAD, "", TABLES[0][0], "MatMul,a,0"]), 4),
        ("\n".join([HEAD, TABLES[0][0].replace("input", "inout")]), 2),
    ],
)
def test_a_table_that_is_none(tmp_path: Path, text: str, line: int) -> None:
    target, golden = tables(tmp_path)
    table(target, [], text)
    with pytest.raises(NumprobeError, match=f"E-CMP-020  statistic.csv .* line {line}"):
        run(target, golden, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_against_something_else(tmp_path: Path) -> None:
    put(tmp_path / "t", "a", X)
    with pytest.raises(NumprobeError):
        run(tmp_path / "t", MIX, tmp_path / "out")
    with pytest.raises(NumprobeError, match="E-OUT-003"):
        run(tmp_path / "t", tmp_path / "t", tmp_path / "t" / "out")


# --- graph and pynative ------------------------------------------------------------------------------------------------


def mixed(folder: Path, *kinds: str) -> Path:
    for kind in kinds:
        shutil.copytree(REAL if kind == "kernels" else MIX, folder / kind.replace("kernels", "graph"))
    return folder


def test_each_kind_is_compared_into_its_own_folder(tmp_path: Path) -> None:
    """As msProbe does: ``out/graph/step0/compare_result_proc100_<time>.csv``."""
    sides = [mixed(tmp_path / name, "graph", "pynative") for name in "tg"]
    ran = numprobe(tmp_path, "compare", "-tp", sides[0], "-gp", sides[1], "-o", "out", "--json", "--no-cache")
    assert (ran.code, ran.json["verdict"], sorted(ran.json["parts"])) == (0, "pass", ["graph", "pynative"])
    for kind in ("graph", "pynative"):
        assert len(list((tmp_path / "out" / kind / "step0").glob("compare_result_proc100_*.csv"))) == 1
        assert (tmp_path / "out" / kind / "report.html").exists()


def test_the_worst_verdict_of_the_kinds_is_that_of_all(tmp_path: Path) -> None:
    sides = [mixed(tmp_path / name, "kernels", "pynative") for name in "tg"]
    file = next(sides[0].rglob("*ReLU*output*.npy"))
    np.save(file, 2 * np.load(file))
    ran = numprobe(tmp_path, "compare", *sides, "--no-cache")
    assert ran.code == 1
    assert "graph\n✗" in ran.out
    assert "pynative\n✓" in ran.out


def test_a_kind_on_one_side_alone_leaves_no_pass(tmp_path: Path) -> None:
    sides = mixed(tmp_path / "t", "graph", "pynative"), mixed(tmp_path / "g", "pynative")
    ran = numprobe(tmp_path, "compare", *sides, "--no-cache", "--json", "--progress", "json")
    assert (ran.code, ran.json["verdict"], ran.json["not_compared"]) == (3, "inconclusive", ["graph"])
    assert "E-CMP-021" in [json.loads(line).get("code") for line in ran.err.splitlines()]
    shutil.rmtree(sides[0] / "pynative")
    ran = numprobe(tmp_path, "compare", *sides, "--no-cache")
    assert ran.code == 2
    assert "the target has graph alone, the golden run pynative" in ran.err
