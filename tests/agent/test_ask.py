"""``numprobe ask`` and ``numprobe follow`` as a user meets them: offline, in the language of the question, nothing changed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from agent.scripted import Fail, Say, Use, serving
from cli.shell import Ran, environment, numprobe, process
from numprobe.agent.runs import FinishedRun


def digests(folder: Path, *left_out: str) -> dict[str, str]:
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in left_out
    }


def no_socket(*arguments: object, **named: object) -> None:
    raise AssertionError("a socket was opened")


def offline(cwd: Path, *arguments: object) -> Ran:
    with mock.patch.object(socket, "socket", no_socket), mock.patch.object(socket, "create_connection", no_socket):
        return numprobe(cwd, *arguments)


HEAVY = {"pydantic_ai", "openai", "anthropic", "google", "mcp", "prompt_toolkit", "duckdb", "httpx", "httpx2", "torch"}
CASES = [
    ("loss is NaN, dump in {0}/dump/first_step_nan", "nan_overflow", "en", 1, "NPU.npu_grouped_matmul"),
    ("loss 为 NaN，数据在 {0}/dump/first_step_nan", "nan_overflow", "zh", 1, "NPU.npu_grouped_matmul"),
    ("train and rollout disagree: {0}/rl/train {0}/rl/rollout", "rl_consistency", "en", 1, "linear_fc2"),
    ("训推不一致：{0}/rl/train 和 {0}/rl/rollout", "rl_consistency", "zh", 1, "linear_fc2"),
    ("compare {0}/runs/a and {0}/runs/b", "compare", "en", 0, "agree"),
    ("比对 {0}/md5/a 和 {0}/md5/b", "compare", "zh", 0, "一致"),
]


@pytest.mark.parametrize(("sentence", "skill", "lang", "code", "said"), CASES, ids=[c[0] for c in CASES])
def test_a_sentence_offline(
    dumps: Path, tmp_path: Path, sentence: str, skill: str, lang: str, code: int, said: str
) -> None:
    before = digests(dumps)
    ran = offline(tmp_path, "ask", sentence.format(dumps), "--json", "-o", tmp_path / "one")
    assert ran.code == code, ran.err
    assert ran.json["skill"] == skill
    assert ran.json["missing"] == []
    assert said in ran.json["answer"]
    assert bool(re.search(r"[\u4e00-\u9fff]", ran.json["answer"].splitlines()[0])) == (lang == "zh")
    assert ran.json["result"]["out"] == (tmp_path / "one").as_posix()
    stages = [line for line in ran.err.splitlines() if re.match(r"\[ok\]|✓", line)]
    assert len(stages) == (3 if skill == "compare" else 5)
    again = offline(tmp_path, "ask", sentence.format(dumps), "--json", "-o", tmp_path / "two")
    assert again.json["answer"] == ran.json["answer"]
    assert digests(tmp_path / "one", "run.json") == digests(tmp_path / "two", "run.json")
    assert digests(dumps) == before


def test_ten_questions_after_it_offline(dumps: Path, tmp_path: Path) -> None:
    for name, sentence, questions in (
        ("nan", f"loss is NaN: {dumps}/dump/first_step_nan", NAN_QUESTIONS),
        ("rl", f"train and rollout disagree: {dumps}/rl", RL_QUESTIONS),
    ):
        offline(tmp_path, "ask", sentence, "-o", tmp_path / name)
        for question in questions:
            ran = offline(tmp_path, "follow", tmp_path / name, question, "--json", "-o", tmp_path / f"again_{name}")
            assert ran.code in ((0, 1, 3) if "rerun" in question else (0,)), (question, ran.err)
            assert ran.json["answer"]
            assert ran.json["citations"] or "confirm" in question


NAN_QUESTIONS = [
    "show npu_grouped_matmul",
    "layer 0 mlp",
    "which ranks are victims",
    "first op on rank 6",
    "what is the call stack",
    "is rank 3 a source",
    "what would confirm it",
    "how sure are you",
    "how did it spread",
    "exclude NPU.npu_grouped_matmul and rerun",
]
RL_QUESTIONS = [
    "show linear_fc2",
    "layer 0 mlp",
    "why is q_proj excluded",
    "compare only attention",
    "what would confirm it",
    "how sure are you",
    "what is the evidence",
    "which modules have no partner",
    "what does gate_up_proj map to",
    "other differences?",
]


def test_rerun_without_an_operator_is_a_new_run_and_kept_as_data(dumps: Path, tmp_path: Path) -> None:
    offline(tmp_path, "ask", f"loss is NaN: {dumps}/dump/first_step_nan", "-o", tmp_path / "nan")
    before = digests(tmp_path / "nan")
    ran = offline(
        tmp_path, "follow", tmp_path / "nan", "排除 npu_grouped_matmul 并重跑", "--json", "-o", tmp_path / "new"
    )
    assert ran.json["run"] == (tmp_path / "new").as_posix()
    assert "npu_grouped_matmul" in ran.json["answer"].splitlines()[0]
    kept = json.loads((tmp_path / "nan" / "corrections.json").read_text(encoding="utf-8"))
    assert kept == {"exclude": ["NPU.npu_grouped_matmul"]}
    manifest = json.loads((tmp_path / "new" / "run.json").read_text(encoding="utf-8"))
    assert manifest["options"]["exclude"] == ["NPU.npu_grouped_matmul"]
    assert {k: v for k, v in digests(tmp_path / "nan").items() if k != "corrections.json"} == before
    more = offline(
        tmp_path, "follow", tmp_path / "nan", "exclude Functional.linear and rerun", "-o", tmp_path / "third"
    )
    assert more.code in (0, 1, 3)
    manifest = json.loads((tmp_path / "third" / "run.json").read_text(encoding="utf-8"))
    assert manifest["options"]["exclude"] == ["NPU.npu_grouped_matmul", "Functional.linear"]


@pytest.mark.parametrize(
    ("sentence", "missing"),
    [
        ("loss is NaN", ["dump"]),
        ("训推不一致", ["train", "rollout"]),
        ("compare two runs", ["target", "golden"]),
        ("what is in it?", ["dump"]),
        ("hello", ["question"]),
    ],
)
def test_what_is_missing_is_named_and_nothing_runs(tmp_path: Path, sentence: str, missing: list[str]) -> None:
    ran = offline(tmp_path, "ask", sentence, "--json")
    assert ran.code == 2
    assert ran.json["missing"] == missing
    assert ran.json["result"] is None
    assert not (tmp_path / "numprobe_out").exists()
    told = offline(tmp_path, "ask", sentence)
    assert told.code == 2
    assert "Traceback" not in told.err


@pytest.mark.parametrize(
    "text", ["loss is NaN", "loss 为 NaN", "loss is NaN: nowhere/step0", "loss 为 NaN：nowhere/step0"]
)
@pytest.mark.parametrize(
    ("flag", "variable", "file", "lang"),
    [
        ("", "", "", ""),  # the question's own
        ("", "", "zh", "zh"),
        ("", "en", "zh", "en"),
        ("zh", "en", "en", "zh"),
    ],
)
def test_the_language_is_that_of_the_question_unless_one_is_chosen(
    tmp_path: Path, text: str, flag: str, variable: str, file: str, lang: str
) -> None:
    (tmp_path / ".config" / "numprobe").mkdir(parents=True)
    if file:
        (tmp_path / ".config" / "numprobe" / "config.toml").write_text(f'version = 1\nlang = "{file}"\n')
    flags = ["--lang", flag] if flag else []
    environ = {"NUMPROBE_LANG": variable} if variable else {}
    wanted = lang or ("zh" if "为" in text else "en")
    for command in (["ask", text], ["follow", "nowhere", text]):
        ran = numprobe(tmp_path, *command, *flags, **environ)
        assert ran.code == 2
        said = (ran.out + ran.err).replace(text, "")  # what is missing, or the error
        assert bool(re.search(r"[\u4e00-\u9fff]", said)) == (wanted == "zh"), said


@pytest.mark.parametrize(
    "sentence",
    ["find the gradient spike in {0}/dump/first_step_nan", "模型输出乱码", "算子差异扫描", "compare result x.csv"],
)
def test_what_numprobe_cannot_do_yet_is_said(dumps: Path, tmp_path: Path, sentence: str) -> None:
    (tmp_path / "x.csv").touch()
    ran = offline(tmp_path, "ask", sentence.format(dumps), "--json")
    assert ran.code == 2
    assert "numprobe" in ran.json["answer"]
    assert ran.json["result"] is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("ask", "loss is NaN, dump/nowhere/step0"), "E-AGT-002"),
        (("ask", "loss is NaN", "nowhere"), "E-AGT-002"),
        (("follow", "nowhere", "why"), "E-AGT-003"),
        (("follow", "last", "why"), "E-AGT-003"),
        (("ask", "loss is NaN", "--lang", "fr"), "E-USE-006"),
        (("ask", "loss is NaN", "--progress", "x"), "E-USE-007"),
        (("ask",), "E-USE-001"),
        (("follow", "x"), "E-USE-001"),
    ],
)
def test_bad_input_is_one_clear_error(tmp_path: Path, arguments: tuple[str, ...], code: str) -> None:
    ran = offline(tmp_path, *arguments)
    assert ran.code == 2
    assert code in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_a_path_that_is_no_dump_gets_the_reader_s_message(dumps: Path, tmp_path: Path) -> None:
    ran = offline(tmp_path, "ask", f"loss is NaN: {dumps}/notes.txt")
    assert ran.code == 2
    assert "E-FMT-002" in ran.err


def test_runs_where_dumps_are_wanted_are_told_with_what_they_read(
    nan_run: FinishedRun, compare_run: FinishedRun, dumps: Path, tmp_path: Path
) -> None:
    runs, dump = (nan_run.folder, compare_run.folder), dumps / "dump" / "first_step_nan"
    for command in (
        ["compare", *runs],
        ["rl", *runs],
        ["nan", runs[0]],
        ["ask", f"compare {runs[0]} {runs[1]}"],
        ["ask", f"compare {dump} with the trusted run {runs[0]}"],
    ):
        ran = offline(tmp_path, *command)
        assert ran.code == 2
        assert "results of a numprobe run" in ran.err
        assert str(dump) in ran.err
    assert not (tmp_path / "numprobe_out").exists()
    assert "npu_grouped_matmul" in offline(tmp_path, "ask", f"what happened in {runs[0]}, {runs[1]}").out


def test_ranks_of_the_sentence_are_answered_and_only_with_only_read_alone(dumps: Path, tmp_path: Path) -> None:
    ran = offline(
        tmp_path,
        "ask",
        f"ranks 3 and 40 have NaN at step 7: {dumps}/dump/first_step_nan",
        "--json",
        "-o",
        tmp_path / "a",
    )
    assert json.loads((tmp_path / "a" / "run.json").read_text(encoding="utf-8"))["options"]["rank"] is None
    assert "Rank 3 is a" in ran.json["answer"]
    assert "no rank 40; it has ranks 0-15" in ran.json["answer"]
    assert "no step 7; there is step 0" in ran.json["answer"]
    offline(tmp_path, "ask", f"only rank 3, NaN: {dumps}/dump/first_step_nan", "--json", "-o", tmp_path / "b")
    assert json.loads((tmp_path / "b" / "run.json").read_text(encoding="utf-8"))["options"]["rank"] == [3]


def test_the_last_run_can_be_asked_by_that_word(dumps: Path, tmp_path: Path) -> None:
    offline(tmp_path, "ask", f"loss is NaN: {dumps}/dump/first_step_nan")
    assert "npu_grouped_matmul" in offline(tmp_path, "follow", "last", "what happened").out


def test_no_library_of_a_language_model_is_loaded(dumps: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['numprobe', 'ask', sys.argv[1]]\n"
        "from numprobe.cli.main import run\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\n"
        f"print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, f"loss is NaN: {dumps}/dump/first_step_nan"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert ran.stderr.splitlines()[-1] == "[]", ran.stderr


def test_progress_as_json_lines(dumps: Path, tmp_path: Path) -> None:
    ran = process(tmp_path, "ask", f"loss is NaN: {dumps}/dump/first_step_nan", "--json", "--progress", "json")
    events = [json.loads(line) for line in ran.err.splitlines()]
    assert {event["stage"] for event in events if "stage" in event} == {1, 2, 3, 4, 5}


@pytest.fixture
def set_up(tmp_path: Path) -> object:
    """Settings with one alias, ``mine``, on a scripted server."""

    def write(url: str, default: str = "") -> None:
        folder = tmp_path / ".config" / "numprobe"
        folder.mkdir(parents=True)
        lines = ["version = 1", *([f'default_llm = "{default}"'] if default else [])]
        lines += ["[llm.mine]", 'provider = "openai"', 'model = "scripted"', f'base_url = "{url}"', "retries = 0"]
        (folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    return write


def test_a_model_puts_it_in_words_and_the_verdict_stays(dumps: Path, tmp_path: Path, set_up) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("pydantic_ai")
    sentence = f"loss is NaN: {dumps}/dump/first_step_nan"
    with serving([Say("It was rank 6, says the tool; 12345 is mine."), Say("It was rank 6.")]) as server:
        set_up(server.url)
        plain = numprobe(tmp_path, "ask", sentence, "--json", "-o", tmp_path / "a")
        ran = numprobe(tmp_path, "ask", sentence, "--llm", "mine", "-o", tmp_path / "b", "--show-sent")
        as_json = numprobe(tmp_path, "ask", sentence, "--llm", "mine", "--json", "-o", tmp_path / "c")
    assert plain.json["words"] is None
    assert ran.code == plain.code == as_json.code == 1
    assert "It was rank 6, says the tool; 12345⚠ is mine." in ran.out
    assert "12345" in ran.out.split("Marked")[1]
    assert "POST 127.0.0.1/v1/chat/completions" in ran.err
    assert as_json.json["words"] == "It was rank 6."
    assert as_json.json["answer"] == plain.json["answer"]
    assert plain.json["answer"].splitlines()[0] in json.dumps(server.requests[0]["messages"], ensure_ascii=False)


def test_a_model_finds_out_what_the_rules_do_not(dumps: Path, tmp_path: Path, set_up) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("pydantic_ai")
    path = f"{dumps}/dump/first_step_nan"
    with serving([Use("run_nan", {"path": path}), Say("Rank 6 made it.")]) as server:
        set_up(server.url, default="mine")
        ran = numprobe(tmp_path, "ask", f"hmm, something is odd, do your thing, there is a spike ({path})", "--json")
    assert ran.code == 1
    assert ran.json["skill"] == "nan_overflow"
    assert ran.json["result"]["source_ranks"] == [6]
    assert "npu_grouped_matmul" in ran.json["answer"]
    assert ran.json["words"] == "Rank 6 made it."


def test_a_model_that_fails_costs_only_its_words(dumps: Path, tmp_path: Path, set_up) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("pydantic_ai")
    sentence = f"loss is NaN: {dumps}/dump/first_step_nan"
    with serving([Fail(500)]) as server:
        set_up(server.url, default="mine")
        ran = numprobe(tmp_path, "ask", sentence, "-o", tmp_path / "a")
    assert ran.code == 1
    assert "npu_grouped_matmul" in ran.out
    assert "E-LLM-002" in ran.err
    follow = numprobe(tmp_path, "follow", tmp_path / "a", "which ranks are victims", "--llm", "none")
    assert follow.code == 0
    assert "E-LLM" not in follow.err
    assert "E-SET-009" in numprobe(tmp_path, "ask", sentence, "--llm", "other").err


def test_an_excluded_source_is_told_before_ranks_that_are_missing(dumps: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(dumps / "dump" / "first_step_nan", dump)
    shutil.rmtree(dump / "step0" / "rank1")
    offline(tmp_path, "ask", f"loss is NaN: {dump}", "-o", tmp_path / "nan")
    ran = offline(
        tmp_path, "follow", tmp_path / "nan", "exclude npu_grouped_matmul and rerun", "-o", tmp_path / "again"
    )
    assert ran.code == 3
    assert "excluded by you" in ran.out
