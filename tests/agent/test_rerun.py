"""A run again with what a user corrects: by a sentence and by a command of the chat, which are one thing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from numprobe.agent.ask import Asked, Silent
from numprobe.agent.chat.conversation import Conversation
from numprobe.agent.follow.answering import CORRECTIONS, follow
from numprobe.agent.follow.question import read_question
from numprobe.agent.follow.reply import example, reply
from numprobe.agent.runs import FinishedRun, load_run
from numprobe.agent.sentence import read_sentence
from numprobe.agent.skills.builtin import BUILTIN
from numprobe.diagnose.nan_overflow import command as nan
from numprobe.diagnose.nan_overflow.skill import NanOptions
from numprobe.diagnose.rl_consistency import command as rl
from numprobe.diagnose.rl_consistency.mapping import mapping_of, write_mapping
from numprobe.diagnose.rl_consistency.skill import RlOptions
from numprobe.record.errors import NumprobeError


def manifest(folder: Path | None) -> dict[str, Any]:
    assert folder is not None
    found: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return found


def by_sentence(run: Path, name: str, folder: Path) -> Asked:
    return follow(run, read_sentence(f"排除 {name} 并重跑"), Silent(), folder=folder)


def by_command(run: Path, name: str, folder: Path) -> Asked:
    conversation = Conversation(Silent(), folder)
    conversation.take_up(run)
    asked = conversation.correct("zh", exclude=(name,))
    assert conversation.run == asked.run
    return asked


@pytest.mark.parametrize("door", [by_sentence, by_command])
def test_a_rerun_keeps_the_options_of_the_run(dumps: Path, tmp_path: Path, door: Any) -> None:
    options = NanOptions(frozenset({0}), frozenset({4, 5, 6, 7}), exclude=("Functional.dropout",), top=3)
    nan.run_to_folder(dumps / "dump" / "first_step_nan", options, tmp_path / "run")
    asked = door(tmp_path / "run", "npu_grouped_matmul", tmp_path / "runs")
    kept = manifest(asked.run)["options"]
    excluded = ["Functional.dropout", "NPU.npu_grouped_matmul"]
    assert kept == {**manifest(tmp_path / "run")["options"], "exclude": excluded, "lang": "zh"}
    assert (kept["step"], kept["rank"], kept["top"]) == ([0], [4, 5, 6, 7], 3)
    assert json.loads((tmp_path / "run" / CORRECTIONS).read_text(encoding="utf-8")) == {"exclude": excluded}
    assert "已排除 NPU.npu_grouped_matmul" in asked.answer.to_text().splitlines()[0]


def test_a_mapping_keeps_the_options_of_the_run(dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = dumps / "rl" / "train", dumps / "rl" / "rollout"
    rl.run_to_folder(*sides, RlOptions(frozenset({0}), as_given=True), tmp_path / "run")
    write_mapping(mapping_of(*sides, None, None), tmp_path / "mine.csv")
    monkeypatch.chdir(tmp_path)
    conversation = Conversation(Silent(), tmp_path / "runs")
    conversation.take_up(tmp_path / "run")
    with pytest.raises(NumprobeError):
        conversation.correct("en", mapping="other.csv")
    assert not (tmp_path / "run" / CORRECTIONS).exists()  # nothing came of it
    asked = conversation.correct("en", mapping="mine.csv")
    kept = manifest(asked.run)["options"]
    assert kept == {**manifest(tmp_path / "run")["options"], "mapping": str(tmp_path / "mine.csv")}
    assert (kept["step"], kept["as_given"]) == ([0], True)
    assert "Run again with the mapping mine.csv" in asked.answer.to_text()
    again = conversation.correct("en", mapping="mine.csv")
    assert manifest(again.run)["options"] == kept


def test_an_exclusion_that_no_record_has_is_told(nan_run: FinishedRun, tmp_path: Path) -> None:
    shutil.copytree(nan_run.folder, tmp_path / "run")
    wanted = read_sentence("exclude Functional.no_such_thing and rerun")
    asked = follow(tmp_path / "run", wanted, Silent(), folder=tmp_path / "runs")
    assert "matched no candidate: Functional.no_such_thing" in asked.answer.to_text()


@pytest.mark.parametrize("which", ["nan_run", "rl_run", "compare_run"])
def test_the_object_of_a_run_is_that_of_its_skill(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run: FinishedRun = request.getfixturevalue(which)
    skill = next(skill for skill in BUILTIN if skill.id == run.skill)
    done = skill.load().run(run.inputs, skill.options(), tmp_path / "again", "en", lambda event: None)
    told = load_run(done.folder).told
    assert told == done.result
    assert (told["verdict"], told["out"]) == (run.result.verdict, (tmp_path / "again").as_posix())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_question_that_is_proposed_has_an_answer(
    nan_run: FinishedRun, rl_run: FinishedRun, compare_run: FinishedRun, tmp_path: Path, lang: str
) -> None:
    """Of runs with a finding, with all of it excluded, of a rank that received it, and of clean ones."""
    shutil.copytree(nan_run.folder, tmp_path / "run")
    asked = follow(tmp_path / "run", read_sentence("exclude npu_grouped_matmul and rerun"), Silent(), folder=tmp_path)
    assert asked.run is not None
    for name, dump, ranks in (
        ("victim", nan_run.inputs["dump"], frozenset({3})),
        ("clean", rl_run.inputs["train"], None),
    ):
        nan.run_to_folder(dump, NanOptions(ranks=ranks), tmp_path / name)
    others = [load_run(folder) for folder in (asked.run, tmp_path / "victim", tmp_path / "clean")]
    for run in (nan_run, rl_run, compare_run, *others):
        answer = reply(run, read_question(example(run, lang)))
        assert answer.known, (run.folder, example(run, lang))
        assert answer.to_markdown()
