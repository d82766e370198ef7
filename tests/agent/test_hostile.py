"""What a hostile or clumsy user may type or leave lying about: one clear answer or error, soon, and no wrong claim."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cli.shell import numprobe
from numprobe.agent.follow.question import read_question
from numprobe.agent.follow.reply import reply
from numprobe.agent.probe import probe
from numprobe.agent.router import route
from numprobe.agent.runs import FinishedRun, load_run
from numprobe.agent.sentence import LONGEST, read_sentence
from numprobe.diagnose.nan_overflow import command as nan
from numprobe.diagnose.rl_consistency import command as rl


@pytest.fixture(scope="session")
def nan_run(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    out = tmp_path_factory.mktemp("hostile") / "nan"
    nan.run_to_folder(dumps / "dump" / "first_step_nan", None, out)
    return load_run(out)


@pytest.fixture(scope="session")
def rl_run(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    out = tmp_path_factory.mktemp("hostile") / "rl"
    rl.run_to_folder(dumps / "rl" / "train", dumps / "rl" / "rollout", None, out)
    return load_run(out)


# what is repeated up to the longest sentence
PIECES = [
    "“",
    "”",
    "‘",
    "「",
    "《",
    '"',
    "'",
    "`",
    "/",
    ".",
    "\\",
    "~/",
    "a/",
    "中",
    "中/",
    "./a ",
    "“a/b” ",
    "a.b.c.d",
    "第1层 ",
    "rank 1, ",
]
PIECES += ["1、", "5 层", "how many ", "dump ", "training ", "训练 推理 ", "module ", "why not "]
PIECES += ["没有", "no ", "不是 nan ", "1-", "😀", "\u202e", "\ufffc", "nan ", "layer 9", "\n", "9", "é", "x"]


@pytest.mark.parametrize("piece", PIECES)
def test_the_longest_sentence_is_read_soon(piece: str, nan_run: FinishedRun, here: Path) -> None:
    text = (piece * LONGEST)[:LONGEST]
    begun = time.process_time()
    sentence = read_sentence(text)
    route(sentence, [])
    reply(nan_run, read_question(text))
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("arguments", [["ask"], ["follow", "RUN"]])
def test_a_longer_one_is_one_clear_error(arguments: list[str], nan_run: FinishedRun, tmp_path: Path) -> None:
    given = [str(nan_run.folder) if a == "RUN" else a for a in arguments]
    ran = numprobe(tmp_path, *given, "x" * (LONGEST + 1))
    assert ran.code == 2
    assert "E-AGT-011" in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err) < 500  # the sentence is not repeated


NEGATIONS = [
    ("no spike, the loss is NaN: dump/first_step_nan", "nan_overflow"),
    ("没有尖刺，loss 是 NaN，数据在 dump/first_step_nan", "nan_overflow"),
    ("no NaN; what is in dump/first_step_nan?", "inspect"),
    ("没有 NaN，dump/first_step_nan 里有什么", "inspect"),
    ("not an overflow, but the two runs differ: runs/a runs/b", "compare"),
    ("不是溢出，两次运行不一致：runs/a 和 runs/b", "compare"),
    ("有没有 NaN：dump/first_step_nan", "nan_overflow"),
    ("是不是 nan，看 dump/first_step_nan", "nan_overflow"),
    ("有无溢出 dump/first_step_nan", "nan_overflow"),
    ("梯度有没有尖刺 dump/first_step_nan", "spike"),
]


@pytest.mark.parametrize(("text", "intent"), NEGATIONS, ids=[t for t, _ in NEGATIONS])
def test_what_a_sentence_rules_out_is_not_what_it_asks_for(here: Path, text: str, intent: str) -> None:
    sentence = read_sentence(text)
    assert route(sentence, [probe(path) for path in sentence.paths]).intent == intent


@pytest.mark.parametrize("text", ["compare {}", "比对 {}", "compare {} with notes.txt", "compare {} and {run}"])
def test_one_dump_is_not_compared_with_nothing_nor_something_else_run(
    here: Path, nan_run: FinishedRun, text: str
) -> None:
    sentence = read_sentence(text.format("runs/a", run=nan_run.folder))
    found = route(sentence, [probe(path) for path in sentence.paths])
    assert (found.intent, found.missing) == ("compare", ("golden",))


def test_no_digit_of_a_layer_is_lost(nan_run: FinishedRun) -> None:
    for text in ("layer 1234567", "第1234567层", "1234567层"):
        assert read_question(text).layer == 1234567
        found = reply(nan_run, read_question(text))
        assert not found.known
        assert "1234567" in found.to_text()
    assert read_question(f"layer {'9' * 5000}").layer is None  # no number that anything has


def test_all_ranks_of_a_question_are_told_or_counted(nan_run: FinishedRun) -> None:
    found = reply(nan_run, read_question("is rank 0-999 a source?"))
    assert not found.known
    there = len(nan_run.result.ranks)  # type: ignore[union-attr]
    text = found.to_text().lower()
    assert text.count("is a ") == there
    assert text.count("has no rank") == 1
    assert f"{there}-999" in text


@pytest.mark.parametrize(
    "text", ["rank 6 at step 99", "show npu_grouped_matmul of step 99", "第 99 步的 npu_grouped_matmul"]
)
def test_an_answer_is_not_of_another_step_than_asked(nan_run: FinishedRun, text: str) -> None:
    found = reply(nan_run, read_question(text))
    assert not found.known
    assert "99" in found.to_text()
    assert reply(nan_run, read_question(text.replace("99", "0"))).known


def test_a_name_that_is_there_is_not_said_to_be_missing(nan_run: FinishedRun, rl_run: FinishedRun) -> None:
    name = nan_run.result.sources[0].op_name  # type: ignore[union-attr]
    text = reply(nan_run, read_question(f"show nonsense_slot of {name}")).to_text()
    assert "nonsense_slot" in text.splitlines()[0]
    assert name not in text.splitlines()[0]
    first = reply(rl_run, read_question("layer 77 linear_fc2")).to_text().splitlines()[0]
    assert "linear_fc2 + layer 77" in first


def test_a_bare_why_is_a_question(nan_run: FinishedRun, rl_run: FinishedRun) -> None:
    for run in (nan_run, rl_run):
        for text in ("why", "Why?", "why ?", "为什么", "为什么？"):
            assert reply(run, read_question(text)).known
