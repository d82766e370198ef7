"""The Python door: the same answers as the command line, with nothing on the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import numprobe
from cli.shell import numprobe as command
from numprobe.record.errors import NumprobeError


def test_ask_and_follow(dumps: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sentence = f"loss is NaN: {dumps}/dump/first_step_nan"
    asked = numprobe.ask(sentence, out=tmp_path / "one")
    answer = numprobe.follow(tmp_path / "one", "which ranks are victims")
    zh = numprobe.follow(tmp_path / "one", "which ranks are victims", lang="zh")
    assert capfd.readouterr() == ("", "")
    told = command(tmp_path, "ask", sentence, "--json", "-o", tmp_path / "two").json
    assert asked.answer.to_markdown() == told["answer"]
    assert asked.result == json.loads(json.dumps(told["result"]).replace("/two", "/one"))
    assert (asked.skill, asked.exit_code, asked.missing) == ("nan_overflow", 1, [])
    assert answer.answer.known
    assert "受害" in zh.answer.to_text()


def test_what_is_missing_and_what_is_wrong(tmp_path: Path) -> None:
    assert numprobe.ask("train and rollout disagree").missing == ["train", "rollout"]
    with pytest.raises(NumprobeError, match="E-AGT-002"):
        numprobe.ask("loss is NaN", "/no/where")
    with pytest.raises(NumprobeError):
        numprobe.ask("loss is NaN", ["/no/where"])
    with pytest.raises(NumprobeError):
        numprobe.follow(tmp_path, "why")
