"""Which skill a sentence asks for, and on which paths: a table of sentences, then properties."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numprobe.agent.probe import probe
from numprobe.agent.router import Route, route
from numprobe.agent.sentence import read_sentence

NAN = "dump/first_step_nan"
TRAIN, ROLLOUT = "rl/train", "rl/rollout"
A, B = "runs/a", "runs/b"

# sentence, intent, inputs in the order of the skill; a missing one is None
TABLE: list[tuple[str, str, tuple[str | None, ...]]] = [
    # NaN, English
    ("loss is NaN on the first step of 512 ranks, dump in dump/first_step_nan", "nan_overflow", (NAN,)),
    ("loss is nan: dump/first_step_nan", "nan_overflow", (NAN,)),
    ("Find the NaN source card and the root operator in this dump dump/first_step_nan", "nan_overflow", (NAN,)),
    ("which rank made the NaN in dump/first_step_nan?", "nan_overflow", (NAN,)),
    ("dump/first_step_nan overflows, why?", "nan_overflow", (NAN,)),
    ("where does the inf come from (dump/first_step_nan)", "nan_overflow", (NAN,)),
    ("grad norm is nan since step 0, see ./dump/first_step_nan", "nan_overflow", ("./dump/first_step_nan",)),
    ("look at dump/first_step_nan", "nan_overflow", (NAN,)),
    ("please analyse dump/first_step_nan", "nan_overflow", (NAN,)),
    ("what is wrong with dump/first_step_nan", "nan_overflow", (NAN,)),
    ("there are non-finite values in dump/first_step_nan/step0", "nan_overflow", ("dump/first_step_nan/step0",)),
    ("NaN/Inf in dump/first_step_nan", "nan_overflow", (NAN,)),
    ("RL training got a NaN loss, dump/first_step_nan", "nan_overflow", (NAN,)),
    ("loss scale keeps dropping and the loss is NaN: dump/first_step_nan", "nan_overflow", (NAN,)),
    ("source rank of the overflow in 'dump/first_step_nan'", "nan_overflow", (NAN,)),
    ("the loss blows up to inf, `dump/first_step_nan`", "nan_overflow", (NAN,)),
    ("first bad operator in dump/first_step_nan/step0/rank3", "nan_overflow", ("dump/first_step_nan/step0/rank3",)),
    ("NaN after the all_reduce of tp/pp groups in dump/first_step_nan", "nan_overflow", (NAN,)),
    ("loss is nan", "nan_overflow", (None,)),
    ("my gradients overflow", "nan_overflow", (None,)),
    ("which rank produced the first NaN?", "nan_overflow", (None,)),
    # NaN, Chinese
    ("512 卡训练首步 loss 为 NaN，数据在 dump/first_step_nan", "nan_overflow", (NAN,)),
    ("512卡训练loss为nan,dump在dump/first_step_nan里", "nan_overflow", (NAN,)),
    ("帮我定位 dump/first_step_nan 的 NaN 源卡和根因算子", "nan_overflow", (NAN,)),
    ("溢出了，数据：dump/first_step_nan", "nan_overflow", (NAN,)),
    ("dump/first_step_nan 里哪张卡先出现 inf", "nan_overflow", (NAN,)),
    ("梯度范数为 NaN，请看“dump/first_step_nan”", "nan_overflow", (NAN,)),
    ("看看dump/first_step_nan有没有问题", "nan_overflow", (NAN,)),
    ("分析一下 数据/首步", "nan_overflow", ("数据/首步",)),
    ("数据在数据/首步，loss 是 nan", "nan_overflow", ("数据/首步",)),
    ("首步出现非有限值（dump/first_step_nan）", "nan_overflow", (NAN,)),
    ("强化学习训练 loss 变成 NaN，dump 在 dump/first_step_nan", "nan_overflow", (NAN,)),
    ("loss 为 nan 怎么查", "nan_overflow", (None,)),
    ("训练溢出了", "nan_overflow", (None,)),
    ("哪张卡是源卡？", "nan_overflow", (None,)),
    ("40 号卡 loss 为 NaN，数据在 dump/first_step_nan", "nan_overflow", (NAN,)),
    # RL, English
    ("train and rollout disagree: rl/train rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("train and rollout disagree: rl/rollout rl/train", "rl_consistency", (TRAIN, ROLLOUT)),
    (
        "analyse train/rollout difference from these two dumps: rl/train and rl/rollout",
        "rl_consistency",
        (TRAIN, ROLLOUT),
    ),
    ("logprob mismatch between rl/train and rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("rollout rl/rollout does not match training rl/train", "rl_consistency", (TRAIN, ROLLOUT)),
    ('train-inference mismatch, "rl/train" vs "rl/rollout"', "rl_consistency", (TRAIN, ROLLOUT)),
    ("rl/train rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("compare rl/train and rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("why do megatron (rl/train) and vllm (rl/rollout) differ", "rl_consistency", (TRAIN, ROLLOUT)),
    ("GRPO importance ratio drifts, dumps below rl", "rl_consistency", (TRAIN, ROLLOUT)),
    ("RL consistency of rl", "rl_consistency", (TRAIN, ROLLOUT)),
    (
        "verl: training and rollout do not agree, rl/train/step0 rl/rollout/step0",
        "rl_consistency",
        ("rl/train/step0", "rl/rollout/step0"),
    ),
    ("training vs rollout of nan_free/train_side and rl/rollout", "rl_consistency", ("nan_free/train_side", ROLLOUT)),
    ("train vs inference differ", "rl_consistency", (None, None)),
    ("rollout logprobs do not match", "rl_consistency", (None, None)),
    ("train and rollout disagree, the training dump is rl/train", "rl_consistency", (TRAIN, None)),
    ("train and rollout disagree, I have rl/rollout", "rl_consistency", (None, ROLLOUT)),
    ("trainer and engine disagree on the same tokens: rl/train rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("importance ratios drift, nan_free/train_side rl/train", "rl_consistency", ("nan_free/train_side", TRAIN)),
    (
        "logits differ between trainer and engine: rl/train nan_free/train_side",
        "rl_consistency",
        (TRAIN, "nan_free/train_side"),
    ),
    # RL, Chinese
    ("训推不一致，训练在 rl/train，推理在 rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("训推不一致，推理在 rl/rollout，训练在 rl/train", "rl_consistency", (TRAIN, ROLLOUT)),
    ("分析这两份数据的训推差异：rl/train 和 rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("训推对不齐：rl", "rl_consistency", (TRAIN, ROLLOUT)),
    ("训练和推理结果对不上，rl/train、rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("推理侧rl/rollout和训练侧rl/train输出不一致", "rl_consistency", (TRAIN, ROLLOUT)),
    ("强化学习 rollout 与训练 logprob 有差异：rl/train rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("看看rl/train和rl/rollout为什么不一样", "rl_consistency", (TRAIN, ROLLOUT)),
    ("比对 rl/train 和 rl/rollout", "rl_consistency", (TRAIN, ROLLOUT)),
    ("verl 训推一致性分析", "rl_consistency", (None, None)),
    ("训推不一致怎么办", "rl_consistency", (None, None)),
    ("训推不一致，训练数据在 rl/train", "rl_consistency", (TRAIN, None)),
    ("训推不一致，推理数据 rl/rollout", "rl_consistency", (None, ROLLOUT)),
    # compare, English
    ("compare runs/a with runs/b", "compare", (A, B)),
    ("compare runs/b with runs/a", "compare", (B, A)),
    ("two runs with determinism enabled differ, compare the md5 dumps md5/a and md5/b", "compare", ("md5/a", "md5/b")),
    ("runs/a and the golden run runs/b do not match", "compare", (A, B)),
    ("the golden run is runs/b, compare runs/a", "compare", (A, B)),
    ("golden runs/a, target runs/b", "compare", (B, A)),
    ("loss differs between npu and gpu: runs/npu_run runs/golden_gpu", "compare", ("runs/npu_run", "runs/golden_gpu")),
    ("diff runs/golden_gpu against runs/npu_run", "compare", ("runs/npu_run", "runs/golden_gpu")),
    ("runs/a runs/b", "compare", (A, B)),
    ("is it reproducible? md5/a md5/b", "compare", ("md5/a", "md5/b")),
    ("baseline: runs/a. suspect: runs/b. Where do they part?", "compare", (B, A)),
    ("compare fp32/bf16 runs runs/a and runs/b", "compare", (A, B)),
    ("compare 'with space/my dump' and runs/b", "compare", ("with space/my dump", B)),
    ("compare two runs", "compare", (None, None)),
    ("non-deterministic training, two runs differ", "compare", (None, None)),
    ("checksums of two runs differ", "compare", (None, None)),
    # compare, Chinese
    ("比对 runs/a 和 runs/b", "compare", (A, B)),
    ("runs/a 与标杆 runs/b 不一致", "compare", (A, B)),
    ("标杆是 runs/b，比对 runs/a", "compare", (A, B)),
    ("开了确定性，两次结果不一致，md5/a、md5/b", "compare", ("md5/a", "md5/b")),
    ("NPU 和 GPU 的 loss 对不齐：runs/npu_run runs/golden_gpu", "compare", ("runs/npu_run", "runs/golden_gpu")),
    ("两次训练结果不同，数据是runs/a和runs/b", "compare", (A, B)),
    ("比较“runs/a”和“runs/b”", "compare", (A, B)),
    ("确定性问题，md5 对不上", "compare", (None, None)),
    ("比对两份数据", "compare", (None, None)),
    ("掉精度了 runs/a", "compare", (A, None)),
    ("loss not decreasing, runs/a", "compare", (A, None)),
    # inspect
    ("what is in dump/first_step_nan", "inspect", (NAN,)),
    ("what's inside runs/a?", "inspect", (A,)),
    ("inspect rl/train", "inspect", (TRAIN,)),
    ("give me an overview of dump/first_step_nan", "inspect", (NAN,)),
    ("how many ranks are in dump/first_step_nan", "inspect", (NAN,)),
    ("dump/first_step_nan 里有什么", "inspect", (NAN,)),
    ("runs/a里面有哪些数据", "inspect", (A,)),
    ("看一下 runs/a 的概况", "inspect", (A,)),
    ("看看 runs/a 里面都存了啥", "inspect", (A,)),
    ("what is in it?", "inspect", (None,)),
    # map
    ("module mapping of rl/train and rl/rollout", "map", (TRAIN, ROLLOUT)),
    ("align module names of rl/rollout and rl/train", "map", (TRAIN, ROLLOUT)),
    ("rl/train 和 rl/rollout 的模块映射", "map", (TRAIN, ROLLOUT)),
    ("rl/train 与 rl/rollout 的名称对应关系", "map", (TRAIN, ROLLOUT)),
    # traps: a word of another skill in a path, in a pair, or with no path
    ("compare nan_free/train_side with rl/train", "compare", ("nan_free/train_side", TRAIN)),
    ("what is in nan_free/train_side", "inspect", ("nan_free/train_side",)),
    ("比对 nan_free/train_side 和 rl/train", "compare", ("nan_free/train_side", TRAIN)),
    ("find the gradient spike in dump/first_step_nan", "spike", ()),
    ("dump/first_step_nan 有梯度尖刺", "spike", ()),
    ("there is a loss spike and then NaN in dump/first_step_nan", "spike", ()),
    ("my model outputs garbage", "infer_debug", ()),
    ("模型输出乱码", "infer_debug", ()),
    ("推理时一直复读", "infer_debug", ()),
    ("scan operator differences of this RL script", "op_diff", ()),
    ("算子差异扫描", "op_diff", ()),
    ("analyse this compare result compare_result_1.csv", "compare_table", ()),
    ("分析比对结果 compare_result_1.csv", "compare_table", ()),
    ("what can you do", "help", ()),
    ("help", "help", ()),
    ("你能做什么？", "help", ()),
    ("怎么用", "help", ()),
    ("hello", "", ()),
    ("你好", "", ()),
    ("it is slow", "", ()),
]


def routed(text: str, *paths: str) -> Route:
    sentence = read_sentence(text, paths)
    return route(sentence, [probe(path) for path in sentence.paths])


def test_the_table_is_large_and_holds_no_sentence_twice() -> None:
    assert len(TABLE) >= 120
    assert len({row[0] for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize(("text", "intent", "inputs"), TABLE, ids=[row[0] for row in TABLE])
def test_sentence(here: Path, text: str, intent: str, inputs: tuple[str | None, ...]) -> None:
    found = routed(text)
    assert found.intent == intent, found.scores
    if intent not in ("help", "", "spike", "op_diff", "infer_debug", "compare_table"):
        names = [*found.inputs, *found.missing]
        assert len(names) == len(inputs)
        order = {"nan_overflow": ["dump"], "inspect": ["dump"], "compare": ["target", "golden"]}.get(
            intent, ["train", "rollout"]
        )
        assert [found.inputs.get(name) for name in order] == list(inputs)
        assert set(found.missing) == {name for name, value in zip(order, inputs, strict=True) if value is None}


def test_absolute_paths_and_paths_as_arguments(here: Path) -> None:
    absolute = str(here / NAN)
    assert routed(f"loss is NaN: {absolute}").inputs == {"dump": absolute}
    assert routed(f"看看{absolute}里的NaN").inputs == {"dump": absolute}
    assert routed("loss is NaN", NAN).inputs == {"dump": NAN}
    assert routed("训推不一致", ROLLOUT, TRAIN).inputs == {"train": TRAIN, "rollout": ROLLOUT}
    assert routed("they differ", A, B).inputs == {"target": A, "golden": B}


def test_a_run_folder_makes_it_a_question_on_that_run(here: Path, tmp_path: Path) -> None:
    run = tmp_path / "nan-1"
    run.mkdir()
    (run / "run.json").write_text('{"skill": "nan", "inputs": {}, "status": "done"}', encoding="utf-8")
    (run / "report.html").touch()
    for text in (f"why not rank 40? {run}", f"{run}/report.html 里为什么不是 40 号卡", f"show linear {run}/run.json"):
        assert routed(text).intent == "follow_up"
        assert routed(text).inputs == {"run": str(run)}


def test_two_likely_intents_are_told(here: Path) -> None:
    found = routed("runs/a runs/b train vs rollout compare")
    assert {found.intent, found.other} <= {"rl_consistency", "compare", ""}


def test_paths_that_are_not_there_are_seen_as_paths(here: Path) -> None:
    for text, path in (
        ("loss is NaN, dump/other_step", "dump/other_step"),
        ("loss is NaN, see ./nowhere.", "./nowhere"),
        ("看看/data/nowhere/step0里的NaN", "/data/nowhere/step0"),
        ("compare C:\\dumps\\a with runs/b", "C:\\dumps\\a"),
        ("what is in missing.json?", "missing.json"),
    ):
        assert path in read_sentence(text).paths, text


@pytest.mark.parametrize(
    "text",
    [
        "train/rollout mismatch",
        "NaN/Inf somewhere",
        "forward/backward differ",
        "fp32/bf16 comparison",
        "is it tp/pp/dp or ep?",
        "训练/推理不一致",
        "loss=nan, lr=1e-4, 3/4 of the steps",
        "see https://example.org/a/b",
        "step 0. Then it fails.",
        "version 2.13.0",
    ],
)
def test_words_that_are_no_paths(here: Path, text: str) -> None:
    assert read_sentence(text).paths == ()


@pytest.mark.parametrize(
    "text", ["train and rollout disagree", "compare a and b", "look into dump", "训练 train 推理 rollout"]
)
def test_words_that_name_folders_are_words_where_paths_are_given(
    dumps: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for folder in ("rl", "runs", "."):
        monkeypatch.chdir(dumps / folder)
        given = (str(dumps / "rl" / "train"), str(dumps / "rl" / "rollout"))
        found = read_sentence(text, given)
        assert (found.paths, found.rest) == (given, text)


@pytest.mark.parametrize(
    ("text", "ranks", "steps"),
    [
        ("only rank 3 of step 2", "3", "2"),
        ("ranks 3,8-15 and steps 0-2", "3,8-15", "0-2"),
        ("只看 3 号卡第 2 步", "3", "2"),
        ("8到15号卡", "8-15", ""),
        ("512 卡训练", "", ""),
        ("512卡任务首步", "", ""),
        ("a job of 512 ranks", "", ""),
        ("8 卡 loss nan", "", ""),
        ("64 卡跑出 nan", "", ""),
        ("用 4 卡复现", "", ""),
        ("168 卡的第一个算子", "168", ""),
        ("only rank 168 and 167", "168,167", ""),
        ("只看 3 和 5 号卡", "3,5", ""),
        ("rank3", "3", ""),
        ("rank 40", "40", ""),
    ],
)
def test_ranks_and_steps(text: str, ranks: str, steps: str) -> None:
    found = read_sentence(text)
    assert (found.ranks, found.steps) == (ranks, steps)


@pytest.mark.parametrize(
    ("text", "lang"),
    [("loss is NaN", "en"), ("loss 为 NaN", "zh"), ("look at 数据/首步", "en"), ("看 dump", "zh"), ("", "en")],
)
def test_language_is_that_of_the_words_not_of_the_paths(here: Path, text: str, lang: str) -> None:
    assert read_sentence(text).lang == lang


@given(st.text(max_size=80))
def test_any_text_is_taken_apart(text: str) -> None:
    sentence = read_sentence(text)
    assert sentence.rest.count("\ufffc") >= len(sentence.places)
    for path in sentence.paths:
        assert path in text


@given(st.lists(st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=8), min_size=2, max_size=4))
def test_a_quoted_path_is_found_whole(parts: list[str]) -> None:
    path = "./" + "/".join(parts)
    for text in (f'loss is NaN in "{path}", why?', f"数据在“{path}”里", f"see `{path}`"):
        assert read_sentence(text).paths == (path,)


@pytest.mark.parametrize(
    ("dump", "engine", "side"),
    [
        ("interop/engines/megatron", "megatron", "train"),
        ("interop/engines/megatron_gelu", "megatron", "train"),
        ("gloo/sequence_parallel", "engine", "train"),  # it has a backward pass
        ("interop/pytorch/a_statistics_mix_2steps", "huggingface", "train"),
    ],
)
def test_which_side_a_dump_is_of(dump: str, engine: str, side: str) -> None:
    found = probe(str(Path(__file__).parents[1] / "data" / dump))
    assert (found.engine, found.side) == (engine, side)
