"""The same dump gives the same bytes, whoever reads it and in whatever order; a rerun reads nothing again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from numprobe.diagnose import nan_overflow
from numprobe.diagnose.nan_overflow import skill
from numprobe.diagnose.nan_overflow.skill import NanOptions, analyse
from numprobe.execution import executor
from numprobe.synth.nan import simulate

from .samples import NAN, SMALL, analysed, call, t, write_rank

ALONE = NanOptions(jobs=1, use_cache=False)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two faults, one rank missing, one cut short, all the noise."""
    folder = tmp_path_factory.mktemp("determinism") / "dump"
    simulate("two_sources", folder, seed=1, size=SMALL, level="mix", risk="ALL", missing=(3,), partial=(14,))
    return folder


def artifacts(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "run.json"}


def test_two_runs_leave_the_same_bytes(dump: Path, tmp_path: Path):
    for name in ("a", "b"):
        nan_overflow.run(dump, tmp_path / name, options=ALONE, compat=True)
    a, b = artifacts(tmp_path / "a"), artifacts(tmp_path / "b")
    assert len(a) == 12
    assert a == b


def test_artifacts_hold_no_path_of_this_machine(dump: Path, tmp_path: Path):
    nan_overflow.run(dump, tmp_path / "out", options=ALONE, compat=True)
    for name, content in artifacts(tmp_path / "out").items():
        assert str(tmp_path).encode() not in content, name
        assert str(dump).encode() not in content, name


def test_languages_differ_in_the_reports_only(dump: Path, tmp_path: Path):
    for lang in ("en", "zh"):
        nan_overflow.run(dump, tmp_path / lang, options=ALONE, lang=lang)
    en, zh = artifacts(tmp_path / "en"), artifacts(tmp_path / "zh")
    assert {n for n in en if en[n] != zh[n]} == {"report.md", "report.html"}


def test_workers_change_nothing(dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two processes, in whatever order they finish. A dump this small is read in one process: the pool is put in here."""
    nan_overflow.run(dump, tmp_path / "one", options=ALONE)
    asked: list[int | None] = []

    def pool(jobs: int | None, items: int, size: int) -> executor.Executor:
        asked.append(jobs)
        return executor.process_pool(jobs or 1)

    monkeypatch.setattr(skill, "choose", pool)
    nan_overflow.run(dump, tmp_path / "two", options=replace(ALONE, jobs=2))
    assert asked == [2]
    assert artifacts(tmp_path / "one") == artifacts(tmp_path / "two")


def test_the_order_in_which_ranks_are_ready_changes_nothing(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def backwards(task, items):  # type: ignore[no-untyped-def]
        for i, item in reversed(list(enumerate(items))):
            yield i, task(item)

    nan_overflow.run(dump, tmp_path / "one", options=ALONE)
    monkeypatch.setattr(skill, "choose", lambda *_: backwards)
    nan_overflow.run(dump, tmp_path / "two", options=ALONE)
    assert artifacts(tmp_path / "one") == artifacts(tmp_path / "two")


# --- reruns ----------------------------------------------------------------------------------------------------------


def test_a_rerun_with_an_exclusion_reads_no_file_again(dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first candidate is ruled out by name, the other source stands first; digests come from the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = analyse(dump, NanOptions(jobs=1)).result
    assert before.first is not None
    first, second = before.sources[0], before.sources[1]
    with monkeypatch.context() as m:
        m.setattr(skill, "digest_rank", forbidden)
        again = analyse(dump, NanOptions(jobs=1)).result
        without = analyse(dump, NanOptions(jobs=1, exclude=(first.op_name,))).result
    assert again == before
    assert without.first is not None
    assert (without.first.op_name, without.source_ranks) == (second.op_name, second.ranks)
    assert without.user_excluded == [first.op_name]
    assert [(e.op, e.reason) for e in without.excluded if e.reason == "user"] == [(first.op_name, "user")]


def forbidden(*_: object) -> None:
    raise AssertionError("a rank was read again")


def test_an_exclusion_may_be_a_prefix(dump: Path):
    every = analysed(dump, exclude=("NPU.npu_grouped_matmul",))
    assert all(not c.op_name.startswith("NPU.npu_grouped_matmul") for c in every.sources)
    assert all(name.startswith("NPU.npu_grouped_matmul") for name in every.user_excluded)
    assert every.user_excluded


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    simulate("clean_masks_only", tmp_path / "dump", seed=1, size=SMALL, level="mix")
    assert analyse(tmp_path / "dump", NanOptions(jobs=1)).result.verdict == "no_overflow"
    file = tmp_path / "dump" / "step0" / "rank6" / "dump.json"
    content = json.loads(file.read_text())
    name = next(n for n in content["data"] if n.startswith("Functional.linear"))
    content["data"][name]["output"][0]["Max"] = float("nan")
    file.write_text(json.dumps(content, indent=1))
    changed = analyse(tmp_path / "dump", NanOptions(jobs=1)).result
    assert changed.first is not None
    assert (changed.source_ranks, changed.first.op_name) == ([6], name)


def test_listing_the_first_nodes(tmp_path: Path):
    """Three operators of one rank make NaN of clean inputs, one hands it on: -k N lists the first N that make it."""
    bad = t(NAN)
    process = write_rank(
        tmp_path / "step0" / "proc7",
        {
            "Torch.log.0.forward": call(t(1.0, -1.0), out=bad),
            "Torch.mul.0.forward": call(bad, t(2.0), out=bad),
            "Torch.sqrt.0.forward": call(t(1.0, -1.0), out=bad),
            "Torch.acos.0.forward": call(t(2.0, 0.0), out=bad),
        },
    )
    names = ["Torch.log.0.forward", "Torch.sqrt.0.forward", "Torch.acos.0.forward"]
    for top in (1, 2, 3, 9):
        assert [c.op_name for c in analysed(process, top=top).sources] == names[:top]
