"""Follow-up questions, in both languages: the figures of an answer are those of the files it cites."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from compare.written import call, tensor, write
from numprobe.agent.answer import Answer, Table, Text
from numprobe.agent.follow.question import read_question
from numprobe.agent.follow.reply import conclusion, reply
from numprobe.agent.runs import FinishedRun, load_run
from numprobe.compare import command as comparing
from numprobe.compare.result import CompareResult
from numprobe.diagnose.nan_overflow import command as nan
from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.diagnose.nan_overflow.skill import NanOptions
from numprobe.diagnose.rl_consistency.result import RlResult
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import digest
from numprobe.synth.nan import simulate


@pytest.fixture(scope="session")
def look_alikes_run(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    out = tmp_path_factory.mktemp("runs") / "look_alikes"
    nan.run_to_folder(dumps / "dump" / "look_alikes", None, out)
    return load_run(out)


def asked(run: FinishedRun, text: str) -> Answer:
    return reply(run, read_question(text))


def result_of(run: FinishedRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "result.json").read_text(encoding="utf-8"))
    return found


def cells(answer: Answer) -> list[list[str]]:
    return [list(row) for block in answer.blocks if isinstance(block, Table) for row in block.rows]


def numbers_in(values: dict[str, Any]) -> set[float]:
    return {float(values[key]) for key in ("Max", "Min", "Mean", "Norm") if isinstance(values.get(key), (int, float))}


def _tensors(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [one for part in value for one in _tensors(part)]
    if isinstance(value, dict):
        return [value] if "Max" in value else [one for part in value.values() for one in _tensors(part)]
    return []


def record(dumps: Path, rank: int, name: str) -> dict[str, Any]:
    file = dumps / "dump" / "first_step_nan" / "step0" / f"rank{rank}" / "dump.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["data"][name]
    return found


QUESTIONS = [  # English, Chinese; what has to be in the answer of the NaN run
    ("show npu_grouped_matmul", "显示 npu_grouped_matmul 的详细数值"),
    ("layer 0 mlp", "第0层 mlp"),
    ("which ranks are victims", "哪些卡是受害卡"),
    ("first op on rank {source}", "{source} 号卡的第一个算子"),
    ("what is the call stack", "调用栈是什么"),
    ("is rank {victim} a source", "{victim} 号卡是源头吗"),
    ("what would confirm it", "怎么确认"),
    ("how sure are you", "置信度是多少"),
    ("how did it spread", "怎么传播的"),
    ("other candidates?", "还有其他候选吗"),
    ("what is the evidence", "证据是什么"),
    ("what happened", "结论是什么"),
]
EXCLUSIONS = [("why is masked_fill excluded", "为什么 masked_fill 被排除"), ("what was excluded", "排除了哪些")]


def numbers_of(run: FinishedRun) -> dict[str, int]:
    ranks = result_of(run)["ranks"]
    return {
        "source": next(r["rank"] for r in ranks if r["role"] == "source"),
        "victim": next(r["rank"] for r in ranks if r["role"] in ("victim", "relay")),
    }


@pytest.mark.parametrize("pair", QUESTIONS, ids=[q[0] for q in QUESTIONS])
def test_every_question_is_answered_in_its_language_with_citations(nan_run: FinishedRun, pair: tuple[str, str]) -> None:
    texts = [text.format(**numbers_of(nan_run)) for text in pair]
    answers = [asked(nan_run, text) for text in texts]
    for answer, lang in zip(answers, ("en", "zh"), strict=True):
        assert answer.known
        assert answer.cites or pair[0] == "what would confirm it"
        said = answer.to_text()
        assert not said or bool(re.search(r"[\u4e00-\u9fff]", said)) == (lang == "zh")
    english, chinese = answers
    assert [c.where for c in english.cites] == [c.where for c in chinese.cites]
    assert [row[1:-1] for row in cells(english)] == [row[1:-1] for row in cells(chinese)] or pair[0].startswith(
        "what was"
    )


def test_the_figures_of_a_record_are_those_of_the_dump(nan_run: FinishedRun, dumps: Path) -> None:
    source = numbers_of(nan_run)["source"]
    first = result_of(nan_run)["sources"][0]["op_name"]
    answer = asked(nan_run, f"show {first}")
    stored = record(dumps, source, first)
    expected = {
        number
        for section in _tensors([stored["input_args"], stored["input_kwargs"], stored["output"]])
        for number in numbers_in(section)
    }
    tensors = [row for row in cells(answer) if row[3] != "int"]
    shown = [cell for row in tensors for cell in row[4:8] if re.fullmatch(r"-?[\d,.e-]+", cell) and cell != "-"]
    assert shown
    for text in shown:
        value = float(text.replace(",", ""))
        assert any(abs(value - x) <= 5e-4 * abs(x) + 1e-30 for x in expected if x == x), text
    assert any(f"rank{source}/dump.json" in cite.where and first in cite.where for cite in answer.cites)


def test_roles_are_those_of_the_artifact(nan_run: FinishedRun) -> None:
    with (nan_run.folder / "5_ranks.csv").open(encoding="utf-8", newline="") as file:
        victims = [row["rank"] for row in csv.DictReader(file) if row["role"] == "victim"]
    said = asked(nan_run, "which ranks are victims").to_text()
    assert f"victim: {len(victims)} rank" in said
    listed = {n for part in re.findall(r"\d+(?:-\d+)?", said.split(": ", 2)[2]) for n in _range(part)}
    assert listed == {int(v) for v in victims}


def _range(text: str) -> range:
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


def test_yes_and_no(nan_run: FinishedRun) -> None:
    who = numbers_of(nan_run)
    assert asked(nan_run, f"is rank {who['source']} a source").to_text().startswith("Yes")
    assert asked(nan_run, f"is rank {who['victim']} a source").to_text().startswith("No")
    assert asked(nan_run, f"{who['source']} 号卡是源头吗").to_text().startswith("是")
    assert asked(nan_run, f"为什么不是 {who['victim']} 号卡").to_text().count("号卡") >= 2
    assert "no rank 999" in asked(nan_run, "is rank 999 a source").to_text()


def test_the_same_record_on_every_rank(nan_run: FinishedRun, dumps: Path) -> None:
    first = result_of(nan_run)["sources"][0]["op_name"]
    answer = asked(nan_run, "group_list on every rank")
    rows = cells(answer)
    assert len(rows) > 1
    for row in rows:
        stored = record(dumps, int(row[1]), first)["input_kwargs"]["group_list"]
        assert [row[4], row[5]] == [f"{stored['Max']:,}", f"{stored['Min']:,}"]


def test_unknown_names_get_the_nearest_ones(
    nan_run: FinishedRun, rl_run: FinishedRun, compare_run: FinishedRun
) -> None:
    for run, wrong, close in (
        (nan_run, "npu_gruoped_matmul", "grouped_matmul"),
        (rl_run, "linear_fc9", "linear_fc"),
        (compare_run, "linear_fc9", "linear_fc"),
    ):
        answer = asked(run, f"show {wrong}")
        assert not answer.known
        bullets = [b for b in answer.blocks if isinstance(b, Text) and b.bullet]
        assert 1 <= len(bullets) <= 5
        assert close in answer.to_text()


def test_what_the_data_cannot_say_is_said(nan_run: FinishedRun, rl_run: FinishedRun, compare_run: FinishedRun) -> None:
    for run in (nan_run, rl_run, compare_run):
        for text in ("what is the weather", "今天天气怎么样", "who wrote this"):
            answer = asked(run, text)
            assert not answer.known
            assert not answer.cites


def test_a_rank_that_was_not_read_is_never_answered_from_another(nan_run: FinishedRun) -> None:
    first = result_of(nan_run)["sources"][0]["op_name"]
    for text in (f"show {first} on rank 600", f"600 号卡的 {first}"):
        answer = asked(nan_run, text)
        assert not answer.known
        assert not cells(answer)
        assert "600" in answer.to_text()


CHOICES = [*([rank] for rank in range(16)), [0, 1, 2], [4, 5, 7], [8, 9, 10, 11], [3, 11]]


@pytest.mark.parametrize("ranks", CHOICES, ids=str)
def test_of_some_ranks_alone_the_first_evidence_is_of_the_record_named(
    ranks: list[int], dumps: Path, tmp_path: Path
) -> None:
    nan.run_to_folder(dumps / "dump" / "first_step_nan", NanOptions(ranks=frozenset(ranks)), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert isinstance(run.result, NanResult)
    named = (run.result.sources or run.result.alternatives)[0]
    claim, place = run.result.evidence[0], run.result.evidence[0].citations[0]
    assert (place.op_name, place.rank, place.op_index) == (named.op_name, named.rank, named.op_index)
    assert claim.message.values["op"] == named.op_name
    answer = conclusion(run, "en")
    assert isinstance(answer.blocks[0], Text)
    assert named.op_name in answer.to_text().splitlines()[0]
    assert answer.blocks[0].cites == ("E1",)
    cited = next(cite for cite in answer.cites if cite.mark == "E1")
    assert f"rank{named.rank}/dump.json #{named.op_index} {named.op_name} " in cited.where
    row = next(row for row in run.result.ranks if row.rank == named.rank)
    assert (row.first_dirty, row.first_dirty_index) == (named.op_name, named.op_index)
    if not run.result.sources:  # it came from what was not read: no rank is called clean of what it got, or the source
        assert "without having received" not in answer.to_text()
        assert "The source is" not in asked(run, f"why not rank {named.rank}").to_text()
    other = next(rank for rank in range(16) if rank not in ranks)
    for text in (f"is rank {other} a source", f"why not rank {other}", f"show {named.op_name} on rank {other}"):
        left_out = asked(run, text)
        assert not left_out.known
        assert f"Rank {other} was left out" in left_out.to_text()


def test_steps_that_there_are_and_that_were_not_looked_at(
    rl_run: FinishedRun, compare_run: FinishedRun, tmp_path: Path
) -> None:
    simulate("two_steps", tmp_path / "dump", seed=0)  # the second one is dirty
    nan.run_to_folder(tmp_path / "dump", None, tmp_path / "run")
    run = load_run(tmp_path / "run")
    for text, said in (
        ("which ranks are victims at step 7", "no step 7; there are steps 0, 1"),
        ("第 7 步呢", "没有第 7 步，只有第 0、1 步"),
        ("what about step 0", "answers for step 1; of step 0"),
        ("第 0 步呢", "只回答第 1 步，没有第 0 步"),
    ):
        answer = asked(run, text)
        assert not answer.known
        assert said in answer.to_text()
    assert asked(run, "what about step 1").to_text() == asked(run, "what happened").to_text()
    for other in (rl_run, compare_run):
        assert "no step 4; there is step 0" in asked(other, "layer 0 mlp at step 4").to_text()
        assert asked(other, "layer 0 mlp at step 0").to_markdown() == asked(other, "layer 0 mlp").to_markdown()


def test_a_dump_that_has_changed_since_is_told(dumps: Path, tmp_path: Path) -> None:
    shutil.copytree(dumps / "dump" / "first_step_nan", tmp_path / "dump")
    nan.run_to_folder(tmp_path / "dump", None, tmp_path / "run")
    first = result_of(load_run(tmp_path / "run"))["sources"][0]
    file = tmp_path / "dump" / "step0" / first["rank_key"] / "dump.json"
    before = file.read_bytes()

    def told() -> bool:
        answer = asked(load_run(tmp_path / "run"), f"show {first['op_name']}")
        assert cells(answer)
        return "changed since this run" in answer.to_text()

    assert not told()
    file.write_bytes(before)  # as a copy of the dump would be
    assert not told()
    file.write_bytes(before.replace(b"NaN", b"1.0"))
    assert told()
    file.write_bytes(before.replace(b"}", b"} ", 1))
    assert told()


TIRED = [  # run, what a tired engineer asks, what has to be in the answer
    ("nan", "what was ruled out", "uled out"),
    ("nan", "which layer", "npu_grouped_matmul"),
    ("nan", "哪一层先坏的", "npu_grouped_matmul"),
    ("nan", "where in my code is that", "experts.py"),
    ("nan", "show inputs of the bad op", "input_args.0"),
    ("nan", "source", "source"),
    ("nan", "what is E3", "[E3]"),
    ("nan", "can i trust this", "onfidence"),
    ("nan", "会不会是数据的问题", "[E1]"),
    ("nan", "what is kernel_fault", "inputs modest"),
    ("rl", "权重是一样的吗", "参数"),
    ("rl", "are the weights the same", "parameters agree"),
    ("rl", "did rollout use silu or gelu", "silu"),
    ("rl", "所有不一致的地方列一下", "layers.0.down"),
    ("rl", "which config should i look at", "Compare the activation"),
    ("rl", "first module that differs", "linear_fc2"),
    ("compare", "show the numbers of the root cause op", "input_args"),
    ("compare", "all differences", "other difference"),
]


@pytest.mark.parametrize(("which", "text", "said"), TIRED, ids=[t[1] for t in TIRED])
def test_what_is_asked_at_three_in_the_morning(
    nan_run: FinishedRun, rl_run: FinishedRun, compare_run: FinishedRun, which: str, text: str, said: str
) -> None:
    answer = asked({"nan": nan_run, "rl": rl_run, "compare": compare_run}[which], text)
    assert answer.known
    assert said in answer.to_markdown()


RL_QUESTIONS = [
    ("show linear_fc2", "显示 linear_fc2 的详细数值"),
    ("layer 0 mlp", "第0层 mlp"),
    ("layer 0 fc2", "第0层 fc2"),
    ("why is q_proj excluded", "为什么 q_proj 被排除"),
    ("why is layers.1.mlp.linear_fc1 not the cause", "为什么不是 layers.1.mlp.linear_fc1"),
    ("compare only attention", "只看注意力"),
    ("what would confirm it", "怎么确认"),
    ("how sure are you", "置信度"),
    ("which modules have no partner", "哪些模块没有对应"),
    ("what does gate_up_proj map to", "gate_up_proj 的映射"),
    ("other differences?", "还有其他差异吗"),
    ("what is the evidence", "依据是什么"),
    ("what was excluded", "排除了哪些"),
    ("what happened", "结论"),
]


@pytest.mark.parametrize("pair", RL_QUESTIONS, ids=[q[0] for q in RL_QUESTIONS])
def test_every_question_on_an_rl_run(rl_run: FinishedRun, pair: tuple[str, str]) -> None:
    english, chinese = (asked(rl_run, text) for text in pair)
    for answer, lang in ((english, "en"), (chinese, "zh")):
        assert answer.known
        assert answer.cites or pair[0] == "what would confirm it"
        assert bool(re.search(r"[\u4e00-\u9fff]", answer.to_markdown())) == (lang == "zh")
    assert [c.where for c in english.cites] == [c.where for c in chinese.cites]
    figures = [[cell for cell in row if re.fullmatch(r"[-\d.,e]+( %)?", cell)] for row in cells(english)]
    assert figures == [[cell for cell in row if re.fullmatch(r"[-\d.,e]+( %)?", cell)] for row in cells(chinese)]


@pytest.mark.parametrize("text", ["why not lm_head", "为什么不是 lm_head"])
def test_what_was_not_compared_is_never_said_to_agree(rl_run: FinishedRun, text: str) -> None:
    with (rl_run.folder / "slots.csv").open(encoding="utf-8", newline="") as file:
        verdicts = {row["slot"]: row["verdict"] for row in csv.DictReader(file) if row["place"] == "head"}
    assert {slot for slot, verdict in verdicts.items() if verdict == "pass"} == {"parameters.weight"}
    assert "output.0" in verdicts
    answer = asked(rl_run, text)
    assert "only parameters.weight was compared" in answer.to_text() or "只比对了 parameters.weight" in answer.to_text()
    assert "output.0" in answer.to_text()
    assert "pass, parameters only" in asked(rl_run, "show lm_head").to_text()
    whole = asked(rl_run, "why not layers.0.mlp.linear_fc1").to_text()
    assert "agrees" in whole
    assert "was compared" not in whole


@pytest.mark.parametrize("verdict", ["incomparable", "unmatched_target"])
def test_a_record_that_was_not_compared_is_no_consequence(
    compare_run: FinishedRun, tmp_path: Path, verdict: str
) -> None:
    import polars as pl

    shutil.copytree(compare_run.folder, tmp_path / "run")
    table = pl.read_parquet(tmp_path / "run" / "compare.parquet")
    name = table.filter(pl.col("verdict") == "pass")["target_op"][-1]
    changed = pl.when(pl.col("target_op") == name).then(pl.lit(verdict)).otherwise(pl.col("verdict").cast(pl.String))
    table.with_columns(changed.alias("verdict")).write_parquet(tmp_path / "run" / "compare.parquet")
    manifest = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    for artifact in manifest["artifacts"]:
        artifact["blake2b"] = digest(tmp_path / "run" / artifact["name"])
    (tmp_path / "run" / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    said = asked(load_run(tmp_path / "run"), f"why does {name} differ").to_text()
    assert "nothing can be said" in said
    assert "because what it was given" not in said


@pytest.mark.parametrize(("words", "step", "factor"), [("", 0, 2), (" in step 1", 1, 3)])
def test_figures_of_one_call_are_of_one_step_and_rank(tmp_path: Path, words: str, step: int, factor: int) -> None:
    """Without a step in the question, of the first that differs; several in one table would look like slots of one call."""
    values = np.random.default_rng(0).standard_normal((4, 8))
    name = "Functional.linear.0.forward"
    for side in ("t", "g"):
        for number, times in ((0, 2), (1, 3)):
            for rank in (0, 1):
                wrong = times if side == "t" and rank == 1 else 1
                made = {name: call([tensor(values)], [tensor(values * wrong)])}
                made |= {"Torch.late.0.forward": call([tensor(values)], [tensor(values)])} if number else {}
                folder = write(tmp_path / "made" / f"{side}{number}{rank}", made) / "rank0"
                shutil.copytree(folder, tmp_path / side / f"step{number}" / f"rank{rank}")
    comparing.run_to_folder(tmp_path / "t", tmp_path / "g", None, tmp_path / "out")
    run = load_run(tmp_path / "out")
    late = next(block for block in asked(run, "show Torch.late").blocks if isinstance(block, Table))
    assert late.title.startswith("Torch.late.0.forward, step 1, rank 0 ")
    answer = asked(run, f"show linear.0{words}")
    [table] = [block for block in answer.blocks if isinstance(block, Table)]
    assert table.title.startswith(f"{name}, step {step}, rank 1 ")
    assert [row[0] for row in table.rows] == ["input_args.0", "", "output.0", ""]
    assert float(str(table.rows[2][2])) == pytest.approx(values.max() * factor, rel=1e-3)


FIRST = re.compile(r"the first (?:call|whose|to differ|that differs)|第一个|最先|最早")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_of_several_findings_one_is_the_first(rl_run: FinishedRun, compare_run: FinishedRun, lang: str) -> None:
    compared, aligned = compare_run.result, rl_run.result
    assert isinstance(compared, CompareResult)
    assert isinstance(aligned, RlResult)
    causes = [("introduced", ""), ("introduced", "digest"), ("introduced", "gradient"), ("nonfinite", "")]
    of_compare = [structs.replace(compared.findings[0], cause=cause, reason=reason) for cause, reason in causes]
    classes = ("implementation_difference", "missing_operator")
    of_rl = [structs.replace(aligned.findings[0], clazz=clazz) for clazz in classes]
    results: list[CompareResult | RlResult] = [
        *(structs.replace(compared, findings=[finding, *of_compare]) for finding in of_compare),
        *(structs.replace(aligned, findings=[finding, *of_rl]) for finding in of_rl),
    ]
    for result in results:
        run = replace(compare_run if isinstance(result, CompareResult) else rl_run, result=result)
        headline, *lines = conclusion(run, lang).to_text().splitlines()
        assert FIRST.search(headline), headline
        others = reply(run, replace(read_question("other differences"), lang=lang)).to_text().splitlines()
        assert len(others) == len(result.findings) - 1
        told = [line for line in lines if not line.startswith(("Both sides still", "两侧在"))]  # of the first one
        assert not [line for line in [*told, *others] if FIRST.search(line)]


def test_either_side_may_be_named(rl_run: FinishedRun) -> None:
    train, rollout = asked(rl_run, "show linear_fc2"), asked(rl_run, "show down_proj")
    assert cells(train) == cells(rollout)
    assert any("linear_fc2" in row[0] or "layers.0.down" in row[0] for row in cells(train))


def test_the_table_of_a_suspect_has_the_figures_of_both_dumps(rl_run: FinishedRun, dumps: Path) -> None:
    file = dumps / "rl" / "rollout" / "step0" / "rank0" / "dump.json"
    data = json.loads(file.read_text(encoding="utf-8"))["data"]
    suspect = result_of(rl_run)["findings"][0]["suspect"]["rollout"]
    stored = data[suspect]["input_args"][0]
    row = next(r for r in cells(asked(rl_run, "show layer 0 fc2")) if r[0].strip() == "rollout")
    for text, key in zip(row[1:5], ("Max", "Min", "Mean", "Norm"), strict=True):
        assert float(text.replace(",", "")) == pytest.approx(stored[key], rel=1e-3)


COMPARE_QUESTIONS = [
    ("show linear_fc2", "显示 linear_fc2"),
    ("layer 1 attention", "第1层注意力"),
    ("why does layers.1.mlp.linear_fc1 differ", "为什么 layers.1.mlp.linear_fc1 不一致"),
    ("other differences?", "其他差异"),
    ("what has no partner", "哪些没有对应"),
    ("what should I do next", "下一步怎么办"),
    ("what happened", "结论"),
]


@pytest.mark.parametrize("pair", COMPARE_QUESTIONS, ids=[q[0] for q in COMPARE_QUESTIONS])
def test_every_question_on_a_comparison(compare_run: FinishedRun, pair: tuple[str, str]) -> None:
    english, chinese = (asked(compare_run, text) for text in pair)
    for answer, lang in ((english, "en"), (chinese, "zh")):
        assert answer.known
        assert bool(re.search(r"[\u4e00-\u9fff]", answer.to_markdown())) == (lang == "zh")
    assert [c.where for c in english.cites] == [c.where for c in chinese.cites]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_conclusions_name_the_operator_and_their_evidence(
    nan_run: FinishedRun, rl_run: FinishedRun, compare_run: FinishedRun, lang: str
) -> None:
    for run, named in (
        (nan_run, result_of(nan_run)["sources"][0]["op_name"]),
        (rl_run, "layers.0.mlp.linear_fc2"),
        (compare_run, result_of(compare_run)["findings"][0]["op"]),
    ):
        answer = conclusion(run, lang)
        first = answer.blocks[0]
        assert isinstance(first, Text)
        assert named in answer.to_text().splitlines()[0]
        assert first.cites
        marks = {cite.mark for cite in answer.cites}
        assert {mark for block in answer.blocks if isinstance(block, Text) for mark in block.cites} <= marks


def test_a_dump_that_is_gone_leaves_the_answers_that_the_run_kept(nan_run: FinishedRun, tmp_path: Path) -> None:
    gone = tmp_path / "run"
    gone.mkdir()
    for file in nan_run.folder.iterdir():
        text = file.read_text(encoding="utf-8")
        if file.name == "run.json":
            text = json.dumps({**json.loads(text), "inputs": {"dump": str(tmp_path / "nothing")}})
        (gone / file.name).write_text(text, encoding="utf-8")
    run = load_run(gone)
    first = result_of(nan_run)["sources"][0]["op_name"]
    kept = asked(run, f"show {first}")
    assert kept.known
    assert any("NaN" in row for row in cells(kept))
    other = asked(run, "show Functional.linear.0.forward")
    assert not other.known
    assert str(tmp_path / "nothing") in other.to_text()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "E-AGT-003"),
        ("{", "E-AGT-005"),
        ('{"skill": 3, "inputs": {}}', "E-AGT-005"),
        ('{"skill": "other", "inputs": {}, "status": "done"}', "E-AGT-003"),
        ('{"skill": "nan", "inputs": {}, "status": "interrupted"}', "E-AGT-004"),
        ('{"skill": "nan", "inputs": {}, "status": "done"}', "E-AGT-004"),
    ],
)
def test_what_is_no_finished_run_is_told(tmp_path: Path, content: str | None, code: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(NumprobeError) as caught:
        load_run(tmp_path)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"verdict": 3}', '{"verdict": "overflow_found", "sources": [1]}', "[" * 5000]
)
def test_a_damaged_result_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text('{"skill": "nan", "inputs": {}, "status": "done"}', encoding="utf-8")
    (tmp_path / "result.json").write_text(content, encoding="utf-8")
    with pytest.raises(NumprobeError) as caught:
        load_run(tmp_path)
    assert caught.value.code == "E-AGT-005"
