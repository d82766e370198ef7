"""A language model over the wire: a scripted OpenAI-compatible server plays every part, good and bad."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.scripted import Fail, Hang, Say, Server, Step, Use, last_result, serving
from numprobe.agent.config.model import Llm
from numprobe.agent.llm.brain import Brain, Listening
from numprobe.agent.llm.grounding import check
from numprobe.agent.tools import Toolbox
from numprobe.cli.voice import Terminal
from numprobe.record.errors import NumprobeError

pytest.importorskip("pydantic_ai")
TOOLS = {
    "probe_path",
    "run_nan",
    "run_rl_consistency",
    "run_compare",
    "ask_run",
    "get_record",
    "explain",
    "list_excluded",
    "query_run",
}


class Talk:
    """A brain on a script."""

    def __init__(self, server: Server, dumps: Path, out: Path, **options: object) -> None:
        self.server = server
        self.sent: list[str] = []
        settings = {"timeout_s": 5.0, "retries": 0, "input_cost_per_mtok": 2.0, "output_cost_per_mtok": 10.0, **options}
        llm = Llm("openai", "scripted", base_url=server.url, **settings)  # type: ignore[arg-type]
        self.brain = Brain(
            "test", llm, Toolbox(Terminal("auto", True), out, "en", [dumps]), self.sent.append, mark="(?)"
        )


@pytest.fixture
def talks(dumps: Path, tmp_path: Path) -> Iterator[object]:
    open_ones: list[tuple[Brain, object]] = []

    def start(*script: Step, **options: object) -> Talk:
        manager = serving(script)
        talk = Talk(manager.__enter__(), dumps, tmp_path, **options)
        open_ones.append((talk.brain, manager))
        return talk

    yield start
    for brain, manager in open_ones:
        brain.close()
        manager.__exit__(None, None, None)  # type: ignore[attr-defined]


def test_tools_streaming_and_the_answer(talks, dumps: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = str(dumps / "dump" / "first_step_nan")

    talk = talks(
        Use("probe_path", {"path": path}),
        Use("run_nan", {"path": path}),
        Use("get_record", lambda body: {"run_id": last_result(body)["run_id"], "name": "npu_grouped_matmul"}),
        Say("Rank 6 made it: `NPU.npu_grouped_matmul.7.forward`, Max 0.07080."),
    )
    pieces: list[str] = []
    tools: list[str] = []
    reply = talk.brain.ask(f"loss is NaN: {path}", on=Listening(pieces.append, lambda name, _: tools.append(name)))
    assert tools == ["probe_path", "run_nan", "get_record"]
    assert "".join(pieces) == reply.text
    assert len(pieces) > 3
    assert reply.unsupported == []
    assert len(reply.runs) == 1
    assert (tmp_path / reply.runs[0] / "report.html").exists()
    assert (reply.input_tokens, reply.output_tokens, reply.requests) == (4000, 400, 4)
    assert reply.cost == pytest.approx(4000 * 2e-6 + 400 * 10e-6)
    assert talk.server.tools_seen() == TOOLS


def test_what_is_sent_is_shown_and_holds_no_tensor_and_no_key(
    talks, dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TEST_KEY", "sk-secret-1234567890")
    path = str(dumps / "dump" / "first_step_nan")
    talk = talks(Use("run_nan", {"path": path}), Say("done"), api_key_env="TEST_KEY")
    talk.brain.ask(f"loss is NaN: {path}")
    assert talk.server.keys == ["Bearer sk-secret-1234567890"] * 2
    assert len(talk.sent) == len(talk.server.requests) == 2
    for shown, body in zip(talk.sent, talk.server.requests, strict=True):
        head, _, text = shown.partition("\n")
        assert head == "POST 127.0.0.1/v1/chat/completions"
        assert json.loads(text) == body
        assert "sk-secret" not in shown
    dump = (Path(path) / "step0" / "rank0" / "dump.json").read_bytes()
    assert len(talk.sent[-1]) < 60_000 < len(dump)


def test_numbers_and_names_that_no_tool_gave_are_marked(talks, dumps: Path) -> None:  # type: ignore[no-untyped-def]
    path = str(dumps / "dump" / "first_step_nan")
    talk = talks(
        Use("run_nan", {"path": path}),
        Say("Rank 6 made it, not rank 977; the norm is 123.4 and `Functional.made_up.9.forward` is to blame."),
    )
    reply = talk.brain.ask(f"loss is NaN: {path}")
    assert reply.unsupported == ["977", "123.4", "Functional.made_up.9.forward"]
    assert "rank 977(?)" in reply.text
    assert "rank 6 " in reply.text.lower()


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (Fail(429, "slow down"), "E-LLM-003"),
        (Fail(500), "E-LLM-002"),
        (Fail(401, "bad key"), "E-LLM-005"),
        (Fail(404, "no such model"), "E-LLM-002"),
        (Hang(3.0), "E-LLM-004"),
        (Say(""), "E-LLM-006"),
        (Say("half of", cut=0), "E-LLM-002"),
    ],
    ids=["429", "500", "401", "404", "timeout", "empty", "cut before any text"],
)
def test_a_provider_that_fails_is_one_clear_error(talks, step: Step, code: str) -> None:  # type: ignore[no-untyped-def]
    talk = talks(step, step, step, timeout_s=0.5)
    with pytest.raises(NumprobeError) as caught:
        talk.brain.ask("hello")
    assert caught.value.code == code, caught.value
    assert caught.value.do


def test_429_is_tried_again(talks) -> None:  # type: ignore[no-untyped-def]
    talk = talks(Fail(429, headers=(("Retry-After", "0"),)), Say("here I am"), retries=2)
    assert talk.brain.ask("hello").text == "here I am"
    assert len(talk.server.requests) == 2


def test_half_a_stream_keeps_what_came(talks) -> None:  # type: ignore[no-untyped-def]
    talk = talks(Say("The data does not say which rank it was.", cut=3))
    pieces: list[str] = []
    reply = talk.brain.ask("hello", on=Listening(pieces.append))
    assert reply.text
    assert "The data does not say which rank it was.".startswith(reply.text)
    assert reply.cut
    assert "".join(pieces) == reply.text


@pytest.mark.parametrize(
    "wrong",
    [
        Use("run_nan", "{not json"),
        Use("run_nan", {"path": 3, "rank": []}),
        Use("run_nan", {"other": "x"}),
        Use("delete_everything", {"path": "/"}),
    ],
    ids=["no JSON", "wrong types", "unknown argument", "unknown tool"],
)
def test_malformed_calls_get_another_try_then_end_clearly(talks, wrong: Use) -> None:  # type: ignore[no-untyped-def]
    talk = talks(wrong, Say("I could not look it up."))
    assert talk.brain.ask("hello").text == "I could not look it up."
    stubborn = talks(*[wrong] * 6)
    with pytest.raises(NumprobeError) as caught:
        stubborn.brain.ask("hello")
    assert caught.value.code == "E-LLM-006"


def test_errors_of_tools_are_told_to_the_model(talks, dumps: Path) -> None:  # type: ignore[no-untyped-def]
    talk = talks(
        Use("run_nan", {"path": str(dumps / "nowhere")}),
        Use("probe_path", {"path": "/etc"}),
        Use("get_record", {"run_id": "../..", "name": "x"}),
        Say("That path is not there."),
    )
    assert talk.brain.ask("loss is NaN").text == "That path is not there."
    told = talk.server.results()
    assert ["E-FMT-001" in told[0], "E-AGT-006" in told[1], "E-AGT-003" in told[2]] == [True] * 3


def test_a_refusal_is_an_answer(talks) -> None:  # type: ignore[no-untyped-def]
    talk = talks(Say("I cannot help with that."))
    assert talk.brain.ask("hello").text == "I cannot help with that."


def test_a_model_that_never_ends_is_stopped(talks, dumps: Path) -> None:  # type: ignore[no-untyped-def]
    talk = talks(*[Use("probe_path", {"path": str(dumps / "rl" / "train")})] * 40)
    with pytest.raises(NumprobeError) as caught:
        talk.brain.ask("hello")
    assert caught.value.code == "E-LLM-006"
    assert len(talk.server.requests) <= 12


def test_the_history_is_kept(talks) -> None:  # type: ignore[no-untyped-def]
    talk = talks(Say("first answer"), Say("second answer"))
    talk.brain.ask("first question")
    talk.brain.ask("second question")
    texts = [m["content"] for m in talk.server.requests[-1]["messages"] if m["role"] != "system"]
    assert texts == ["first question", "first answer", "second question"]


def test_facts_count_as_given(talks) -> None:  # type: ignore[no-untyped-def]
    talk = talks(Say("It is 0.78, on rank 168; 42 is my own."))
    reply = talk.brain.ask("how sure?", facts=["Rank 168 made the NaN. Confidence 0.78."])
    assert reply.unsupported == ["42"]


def test_cancelling_ends_the_wait(talks) -> None:  # type: ignore[no-untyped-def]
    talk = talks(Hang(4.0), timeout_s=10.0)
    begun = time.monotonic()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        talk.brain.ask("hello")
    assert time.monotonic() - begun < 3.0


SOURCES = [
    "Norm 47.13, Max 3.39e38, share 0.0979, 5,886 records on 511 ranks",
    "NPU.npu_grouped_matmul.3.forward, moe/experts.py:247",
]


@pytest.mark.parametrize(
    ("text", "unsupported"),
    [
        ("Norm is 47.13", []),
        ("Norm is 47.1", []),
        ("Norm is about 47", []),
        ("Norm is 47.2", ["47.2"]),
        ("3.39e38 is the end", []),
        ("9.8 % apart", []),
        ("9.9 % apart", ["9.9"]),
        ("5886 look-alikes", []),
        ("5,886 look-alikes", []),
        ("5,887 look-alikes", ["5,887"]),
        ("two of 2 sides, 1 rank, 0 left", []),
        ("1. first\n2. second\n10. tenth", []),
        ("see [E1] and [R12]", []),
        ("`NPU.npu_grouped_matmul.3.forward`", []),
        ("`NPU.npu_grouped_matmul.4.forward`", ["NPU.npu_grouped_matmul.4.forward"]),
        ("`moe/experts.py:247`", []),
        ("`numprobe nan`", []),
        ("-47.13", ["-47.13"]),
        ("", []),
    ],
)
def test_grounding(text: str, unsupported: list[str]) -> None:
    checked = check(text, SOURCES, "⚠")
    assert checked.unsupported == unsupported
    assert checked.text.replace("⚠", "") == text
    assert checked.text.count("⚠") == len(unsupported)


def test_what_a_model_was_given_is_kept_as_long_as_it_remembers() -> None:
    from numprobe.agent.llm.brain import _latest

    assert _latest([], 5) == []
    assert _latest(["long enough"], 5) == ["long enough"]
    assert _latest(["a" * 4, "b" * 3, "c" * 2], 5) == ["b" * 3, "c" * 2]
    assert _latest(["a" * 4, "b" * 30, "c" * 2], 5) == ["c" * 2]
