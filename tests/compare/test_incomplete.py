"""What is not there, not whole, or was not compared as asked is never a pass; rank and file are named in both languages."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli.shell import numprobe
from numprobe.compare import run
from numprobe.compare.command import run_to_folder
from numprobe.compare.messages import CATALOGUE
from numprobe.compare.page import view
from numprobe.compare.rank import RankTask, compare_ranks
from numprobe.compare.result import CompareResult, Problem
from numprobe.compare.run import CompareOptions, compare
from numprobe.record.errors import NumprobeError

from .written import Entry, call, compared, save, tensor, write

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 8)).astype(np.float32)
Y = RANDOM.standard_normal((4, 8)).astype(np.float32)
MODULE = "Module.block.Block.forward.0"
SIDES = ("target", "golden")


def records(count: int = 6, factor: float = 1.0) -> dict[str, Entry]:
    return {f"Torch.f{i}.0.forward": call([tensor(X)], [tensor(factor * (i + 1) * Y)]) for i in range(count)}


def dumps(folder: Path, ranks: int = 3, steps: int = 1) -> tuple[Path, Path]:
    """Two dumps that agree, of several ranks."""
    for name in ("t", "g"):
        first = write(folder / name, records())
        for step in range(steps):
            for rank in range(ranks):
                place = folder / name / f"step{step}" / f"rank{rank}"
                if not place.exists():
                    shutil.copytree(first / "rank0", place)
    return folder / "t", folder / "g"


def said(result: CompareResult, lang: str = "en") -> str:
    """The headline and all that is told beside it."""
    return "\n".join(CATALOGUE.say(lang, s.key, **s.values) for s in (view.headline(result), *view.limits(result)))


# --- ranks that are not there or not whole ---------------------------------------------------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def cut_between_records(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.rindex(b', "Torch.f')])


def garbled(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[-300] = 0
    file.write_bytes(whole)


def empty(file: Path) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), "data": {}}))


def linked_away(file: Path) -> None:
    away = file.parents[3] / "away.json"
    file.rename(away)
    file.symlink_to(away)


def ring(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


SPOILED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "cut": (cut, "cut", "is cut off at byte"),
    "cut between records": (cut_between_records, "cut", "is cut off at byte"),
    "garbled": (garbled, "damaged", "is damaged at byte"),
    "no records": (empty, "empty", "has no values"),
    "no dump.json": (Path.unlink, "missing", "is missing: there is no"),
    "no folder": (lambda file: shutil.rmtree(file.parent), "missing", "is missing: there is no"),
    "zero bytes": (lambda file: file.write_bytes(b""), "unreadable", "is no JSON object"),
    "no json": (lambda file: file.write_bytes(b"no json"), "unreadable", "is no JSON object"),
    "no data": (lambda file: file.write_text("{}"), "unreadable", "has no data in it"),
    "link out": (linked_away, "unreadable", "is a link that leads out of the dump"),
    "ring of links": (ring, "unreadable", "is a link that leads to itself"),
}


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("how", SPOILED)
def test_one_rank_of_many_is_not_whole(tmp_path: Path, how: str, side: int) -> None:
    both = dumps(tmp_path)
    spoil, kind, sentence = SPOILED[how]
    file = both[side] / "step0" / "rank1" / "dump.json"
    spoil(file)
    result = compared(*both)
    assert (result.verdict, result.premise, result.exit_code) == ("inconclusive", "ranks", 3)
    [problem] = result.problems
    assert (problem.kind, problem.side, problem.rank, problem.file) == (kind, SIDES[side], "rank1", str(file))
    text = said(result)
    assert f"rank1 of the {('target', 'golden run')[side]}" in text
    assert f"{file} {sentence}" in text or f"{sentence} {file}" in text
    assert str(file) in said(result, "zh")
    others = compared(*both, ranks=frozenset({0, 2}))  # it is enough to say which ranks are meant
    assert (others.verdict, others.problems) == ("pass", [])


@pytest.mark.parametrize("how", SPOILED)
def test_the_only_rank_is_not_whole(tmp_path: Path, how: str) -> None:
    both = dumps(tmp_path, ranks=1)
    SPOILED[how][0](both[0] / "step0" / "rank0" / "dump.json")
    for lang in ("en", "zh"):
        ran = numprobe(tmp_path, "compare", *both, "-o", f"out_{lang}", "--no-cache", "--lang", lang)
        assert ran.code in (2, 3)
        assert ("rank0" if how != "no folder" else both[0].name) in (ran.out + ran.err).replace("\n", "")


def test_a_difference_elsewhere_is_one_and_what_is_missing_is_told(tmp_path: Path) -> None:
    target, golden = dumps(tmp_path)
    shutil.rmtree(target / "step0" / "rank2")
    shutil.copy(write(tmp_path / "wrong", records(factor=2)) / "rank0" / "dump.json", target / "step0" / "rank0")
    result = compared(target, golden)
    assert (result.verdict, result.premise) == ("fail", "")
    assert "rank2 of the target is missing" in said(result)


def test_a_file_that_is_written_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of a job that goes on may be whole JSON."""
    target, golden = dumps(tmp_path)
    file = golden / "step0" / "rank1" / "dump.json"

    def meanwhile(task: RankTask) -> object:
        found = compare_ranks(task)
        if task.golden.key == "rank1":
            os.utime(file, ns=(time.time_ns(), time.time_ns()))
        return found

    monkeypatch.setattr(run, "compare_ranks", meanwhile)
    result = compared(target, golden)
    assert (result.verdict, result.premise) == ("inconclusive", "ranks")
    assert [(p.kind, p.side, p.rank, p.file) for p in result.problems] == [("growing", "golden", "rank1", str(file))]
    assert "Compare again when the job has ended" in said(result)


def test_many_missing_ranks_are_one_sentence(tmp_path: Path) -> None:
    target, golden = dumps(tmp_path, ranks=8)
    for rank in range(5, 8):
        shutil.rmtree(target / "step0" / f"rank{rank}")
    result = compared(target, golden)
    assert len(result.problems) == 3
    assert "rank5 of the target is missing" in said(result)
    assert "So are 2 more." in said(result)


def test_a_rank_that_neither_side_recorded_is_told(tmp_path: Path) -> None:
    both = dumps(tmp_path, ranks=4)
    for side in both:
        shutil.rmtree(side / "step0" / "rank2")
    result = compared(*both)
    assert (result.verdict, [p.kind for p in result.problems]) == ("pass", ["on_no_side"])


def test_a_named_rank_needs_no_others(tmp_path: Path) -> None:
    target, golden = dumps(tmp_path)
    for pair in ((target / "step0" / "rank1", golden), (target, golden / "step0" / "rank1" / "dump.json")):
        result = compared(*pair)
        assert (result.verdict, result.problems) == ("pass", [])


def test_steps_that_one_side_lacks_are_told(tmp_path: Path) -> None:
    target, golden = dumps(tmp_path, steps=3)
    shutil.rmtree(target / "step1")
    result = compared(target, golden)
    assert result.verdict == "pass"
    assert "Step 1 is in the golden run alone" in said(result)
    assert not compared(target, golden, steps=frozenset({0, 2})).problems


def test_the_same_folder_on_both_sides_is_told(tmp_path: Path) -> None:
    target, _ = dumps(tmp_path)
    assert "Target and golden run are one folder" in said(compared(target, target / "step0" / ".."))


@pytest.mark.parametrize("option", ["noise", "baseline"])
@pytest.mark.parametrize("other", ["target", "golden"])
def test_a_further_run_that_is_one_of_the_two_is_told(tmp_path: Path, option: str, other: str) -> None:
    """A run that is its own measure always agrees."""
    sides = dict(zip(("target", "golden"), dumps(tmp_path), strict=True))
    result = compared(*sides.values(), **{option: sides[other] / "step0" / ".."})
    named = {"target": "target", "golden": "golden run"}[other]
    assert f"The {option} run and the {named} are one folder, {sides[other]}:" in said(result)
    apart = compared(*sides.values(), **{option: dumps(tmp_path / "more")[0]})
    assert not apart.problems


# --- the premise, rank by rank ---------------------------------------------------------------------------------------


def test_one_rank_of_which_too_little_was_compared(tmp_path: Path) -> None:
    """Other ranks do not make up for it."""
    target, golden = dumps(tmp_path, ranks=8)
    other = {f"Torch.g{i}.0.forward": call([tensor(X[:2])], [tensor(Y[:1])]) for i in range(6)}
    file = target / "step0" / "rank6" / "dump.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "data": {**dict(list(content["data"].items())[:1]), **other}}))
    result = compared(target, golden)
    assert (result.verdict, result.premise) == ("inconclusive", "coverage")
    assert [(p.kind, p.rank) for p in result.problems] == [("little", "rank6")]
    assert str(file) in said(result)


def levelled(folder: Path, level: str, calls: int, modules: int, odd: int = 0) -> Path:
    """So many records of calls and of modules; the last ``odd`` modules are others."""
    content: dict[str, Entry] = {
        f"Torch.f{i}.0.forward": call([tensor(X)], [tensor((i + 1) * Y)]) for i in range(calls)
    }
    for i in range(modules):
        name = f"{folder.name}{i}" if i >= modules - odd else f"m{i}"
        shape = X[: 1 + (folder.name == "g")] if i >= modules - odd else X
        content[f"Module.{name}.Block.forward.0"] = call([tensor(shape)], [tensor((i + 1) * shape)])
    return write(folder, content, level=level)


@pytest.mark.parametrize("other", ["mix", "L1"])
def test_levels_that_differ_do_not_switch_the_premise_off(tmp_path: Path, other: str) -> None:
    modules = compared(levelled(tmp_path / "a" / "t", "L0", 0, 6), levelled(tmp_path / "a" / "g", "mix", 40, 6))
    assert (modules.verdict, modules.coverage) == ("pass", 1.0)
    sides = (levelled(tmp_path / "b" / "t", "L0", 0, 6, odd=5), levelled(tmp_path / "b" / "g", other, 40, 6, odd=5))
    few = compared(*sides)
    assert few.verdict == "inconclusive" or few.findings[0].severity == "error"
    assert few.coverage < 0.5
    nothing = compared(levelled(tmp_path / "c" / "t", "L0", 0, 6), levelled(tmp_path / "c" / "g", "L1", 6, 0))
    assert (nothing.verdict, nothing.exit_code) == ("inconclusive", 3)


# --- further runs, and how to compare --------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["noise", "baseline"])
def test_a_further_run_without_a_rank(tmp_path: Path, option: str) -> None:
    target, golden = dumps(tmp_path)
    other = tmp_path / "o"
    shutil.copytree(golden, other)
    shutil.rmtree(other / "step0" / "rank1")
    (other / "step0" / "rank2" / "dump.json").write_bytes(b"no json")
    cut(other / "step0" / "rank0" / "dump.json")
    result = compared(target, golden, **{option: other})
    assert result.verdict == "pass"  # errors of a further run only allow more
    found = {(p.kind, p.side, p.rank) for p in result.problems}
    assert found == {("no_such_rank", option, "rank1"), ("unreadable", option, "rank2"), ("cut", option, "rank0")}
    text = said(result)
    assert f"The {option} run in {other} has no rank1 of that step" in text
    assert str(other / "step0" / "rank2" / "dump.json") in text


@pytest.mark.parametrize("option", ["noise", "baseline"])
def test_a_further_run_of_other_steps_or_ranks_is_refused(tmp_path: Path, option: str) -> None:
    target, golden = dumps(tmp_path, steps=2)
    other = dumps(tmp_path / "more", steps=2)[0]
    for step in (0, 1):
        (other / f"step{step}").rename(other / f"step{step + 5}")
    for lang, words in (("en", f"--{option} has no rank or step that is compared"), ("zh", f"--{option} 中没有")):
        ran = numprobe(tmp_path, "compare", target, golden, f"--{option}", other, "--lang", lang, "--no-cache")
        assert ran.code == 2
        assert words in ran.err
        assert str(other) in ran.err.replace("\n        ", "")


@pytest.mark.parametrize("factor", ["inf", "nan", "0", "-1", "0.5", "1e999"])
def test_a_factor_that_is_none(tmp_path: Path, factor: str) -> None:
    target, golden = dumps(tmp_path, ranks=1)
    ran = numprobe(tmp_path, "compare", target, golden, "--baseline", golden, "--factor", factor)
    assert (ran.code, ran.out) == (2, "")
    assert "--factor" in ran.err
    with pytest.raises(NumprobeError, match="E-USE-012"):
        compare(target, golden, CompareOptions(factor=float(factor)))


BARE = {"Max": None, "Min": None, "Mean": None, "Norm": None}


def by_mode(folder: Path, *, files: int, digests: int, figures: bool = True) -> Path:
    """Six calls, of which the first ones have files or digests."""
    content: dict[str, Entry] = {}
    for i in range(6):
        leaves = []
        for k, values in (("input.0", X), ("output.0", (i + 1) * Y)):
            more: dict[str, object] = {} if figures else dict(BARE)
            if i < files:
                more["data_name"] = save(folder / "step0", f"Torch.f{i}.0.forward.{k}", values)
            if i < digests:
                more["md5"] = f"{i:07x}{k[0] == 'o':x}"
            leaves.append(tensor(values, **more))
        content[f"Torch.f{i}.0.forward"] = call(leaves[:1], leaves[1:])
    if files:  # made the folder
        shutil.move(folder / "step0" / "rank0" / "dump_tensor_data", folder / "kept")
        shutil.rmtree(folder / "step0")
    step = write(folder, content)
    if files:
        shutil.move(folder / "kept", step / "rank0" / "dump_tensor_data")
    return step


@pytest.mark.parametrize(
    ("by", "have", "kind"),
    [
        ("tensor", {"files": 0, "digests": 6}, "no_tensors"),
        ("tensor", {"files": 0, "digests": 0}, "no_tensors"),
        ("tensor", {"files": 3, "digests": 0}, "some_otherwise"),
        ("tensor", {"files": 6, "digests": 6}, ""),
        ("digest", {"files": 6, "digests": 0}, "no_digests"),
        ("digest", {"files": 0, "digests": 2}, "some_otherwise"),
        ("digest", {"files": 0, "digests": 6}, ""),
        ("statistics", {"files": 6, "digests": 6}, ""),
        ("statistics", {"files": 0, "digests": 6, "figures": False}, "little"),
        ("auto", {"files": 2, "digests": 3}, ""),
    ],
)
def test_another_way_to_compare_than_the_one_asked_for(
    tmp_path: Path, by: str, have: dict[str, int], kind: str
) -> None:
    result = compared(*(by_mode(tmp_path / n, **have) for n in ("t", "g")), by=by)
    assert [p.kind for p in result.problems] == [kind] * bool(kind)
    assert result.verdict == ("inconclusive" if kind.startswith(("no_", "little")) else "pass")
    assert result.premise == {"little": "nothing_compared", "some_otherwise": "", "": ""}.get(kind, "mode")
    if kind not in ("", "little"):
        assert f"--by {by}" in said(result)
        assert f"--by {by}" in said(result, "zh")


# --- structure, links --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["construct.json", "stack.json"])
@pytest.mark.parametrize("content", [b"", b"[1]", b"no json", b'{"a": "b", "c', b"\xff\xfe{}", b"[" * 100_000])
def test_damaged_structure_is_told(tmp_path: Path, name: str, content: bytes) -> None:
    target, golden = dumps(tmp_path)
    file = target / "step0" / "rank2" / name
    file.write_bytes(content)
    result = compared(target, golden)
    assert result.verdict == "pass"
    assert [(p.kind, p.side, p.rank, p.file) for p in result.problems] == [
        (name.removesuffix(".json"), "target", "rank2", str(file))
    ]
    assert str(file) in said(result)
    assert "?" not in said(result) + said(result, "zh")


def test_structure_that_is_absent_or_whole_is_not_told(tmp_path: Path) -> None:
    target, golden = dumps(tmp_path)
    (target / "step0" / "rank0" / "construct.json").unlink()
    (target / "step0" / "rank1" / "construct.json").write_text(json.dumps({"a": ["b", 1], "c": [None, 2], "d": 5}))
    (target / "step0" / "rank2" / "stack.json").write_text("{}")
    assert not compared(target, golden).problems


def test_a_folder_of_tensors_behind_a_link_is_read_and_told(tmp_path: Path) -> None:
    """Large ones lie on other disks. What is read there is told; single files still may not lead out."""
    target, golden = (by_mode(tmp_path / n, files=6, digests=0) for n in ("t", "g"))
    folder, disk = target / "rank0" / "dump_tensor_data", tmp_path / "disk"
    folder.rename(disk)
    folder.symlink_to(disk)
    result = compared(target, golden)
    assert (result.verdict, result.mode) == ("pass", "tensor")
    assert [p.kind for p in result.problems] == ["linked"]
    assert f"{folder} leads to {disk}" in said(result)
    secret = tmp_path / "secret.npy"
    first = sorted(disk.iterdir())[0]
    first.rename(secret)
    first.symlink_to(secret)
    assert compared(target, golden).counts["incomparable"] == 1


# --- every text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_names_that_would_be_markup_or_commands_are_only_shown(tmp_path: Path, lang: str) -> None:
    hostile = "x\x1b[31m<b>\n{0}{file}\u202e"
    values: dict[str, str | int | float] = {"offset": 3, "op": hostile}
    problem = Problem("cut", "target", 0, hostile, f"/{hostile}/dump.json", values)
    target, golden = dumps(tmp_path)
    result = compared(target, golden)
    result.problems.append(problem)
    text = CATALOGUE.say(lang, (s := view.limits(result)[0]).key, **s.values)
    assert "\x1b" not in text
    assert "\n" not in text
    assert "\u202e" not in text
    assert "{0}{file}" in text


# --- runs that are taken up ----------------------------------------------------------------------------------------------


def table_time(out: Path) -> int:
    return (out / "parts" / "step0_rank0.parquet").stat().st_mtime_ns


def rewritten(file: Path) -> None:
    state = file.stat()
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000))


CHANGED: dict[str, Callable[[Path, Path], None]] = {
    "dump.json": lambda step, out: rewritten(step / "rank0" / "dump.json"),
    "construct.json": lambda step, out: rewritten(step / "rank0" / "construct.json"),
    "a new stack.json": lambda step, out: (step / "rank0" / "stack.json").write_text("{}") and None,
    "a tensor": lambda step, out: rewritten(sorted((step / "rank0" / "dump_tensor_data").iterdir())[0]),
    "a tensor less": lambda step, out: sorted((step / "rank0" / "dump_tensor_data").iterdir())[0].unlink(),
    "the part is cut": lambda step, out: cut(out / "parts" / "step0_rank0.parquet"),
    "the part is garbled": lambda step, out: garbled(out / "parts" / "step0_rank0.parquet"),
    "the part is empty": lambda step, out: (out / "parts" / "step0_rank0.parquet").write_bytes(b"") and None,
    "the outcome is cut": lambda step, out: cut(out / "parts" / "step0_rank0.msgpack"),
    "the outcome is of bad bytes": lambda step, out: (
        (out / "parts" / "step0_rank0.msgpack").write_bytes(b"\xa2\xff\xff") and None
    ),
}


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("side", ["t", "g"])
def test_parts_of_other_inputs_are_not_taken_up(tmp_path: Path, what: str, side: str) -> None:
    steps = {n: by_mode(tmp_path / n, files=6, digests=0) for n in ("t", "g")}
    out = tmp_path / "out"
    options = CompareOptions(use_cache=False)
    run_to_folder(steps["t"], steps["g"], options, out)
    before = table_time(out)
    run_to_folder(steps["t"], steps["g"], options, out)
    assert table_time(out) == before
    CHANGED[what](steps[side], out)
    again, _ = run_to_folder(steps["t"], steps["g"], options, out)
    assert table_time(out) != before
    assert again.result.verdict == "pass"


@pytest.mark.parametrize(
    "options", [{"by": "statistics"}, {"factor": 3.0}, {"noise": "t"}, {"baseline": "t"}], ids=lambda o: next(iter(o))
)
def test_parts_of_other_options_or_another_version_are_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    steps = [by_mode(tmp_path / n, files=6, digests=0) for n in ("t", "g")]
    parts = tmp_path / "out" / "parts"
    parts.mkdir(parents=True)
    compare(*steps, CompareOptions(use_cache=False), parts=parts)
    before = table_time(tmp_path / "out")
    changed = {k: steps[0] if v == "t" else v for k, v in options.items()}
    compare(*steps, CompareOptions(use_cache=False, **changed), parts=parts)  # type: ignore[arg-type]
    after = table_time(tmp_path / "out")
    assert after != before
    monkeypatch.setattr("numprobe.compare.parts.__version__", "9.9")
    compare(*steps, CompareOptions(use_cache=False, **changed), parts=parts)  # type: ignore[arg-type]
    assert table_time(tmp_path / "out") != after
