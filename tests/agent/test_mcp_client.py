"""Tools of other servers in a chat: off by default, allowed one by one, over stdio and HTTP."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from agent.scripted import Say, Use, serving
from cli.shell import command, environment
from numprobe.agent.config.model import Llm, McpServer
from numprobe.agent.config.settings import load_settings
from numprobe.agent.llm.brain import Brain, _kept
from numprobe.agent.tools import Toolbox
from numprobe.cli.voice import Terminal
from numprobe.record.errors import NumprobeError

pytest.importorskip("pydantic_ai")
pytest.importorskip("mcp")
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart


def brain(url: str, out: Path, servers: dict[str, McpServer]) -> Brain:
    llm = Llm("openai", "scripted", base_url=url, retries=0, timeout_s=10.0)
    return Brain("test", llm, Toolbox(Terminal("auto", True), out, "en", [out]), servers=servers)


def own_server(dumps: Path, tmp_path: Path, **more: object) -> McpServer:
    """numprobe's own server plays the foreign one."""
    start = tuple(map(str, command("mcp", "--root", dumps, "-o", tmp_path / "foreign")))
    return McpServer(command=start, env=("PYTHONPATH",), **more)  # type: ignore[arg-type]


def test_allowed_tools_are_used_and_no_others_are_seen(dumps: Path, tmp_path: Path) -> None:
    path = str(dumps / "dump" / "first_step_nan")
    with serving([Use("other_probe_path", {"path": path}), Say("It has 16 ranks, and 4321 of mine.")]) as server:
        mind = brain(server.url, tmp_path, {"other": own_server(dumps, tmp_path, allow=("probe_path",), enabled=True)})
        try:
            reply = mind.ask("what is there?")
        finally:
            mind.close()
    assert "other_probe_path" in server.tools_seen()
    assert "other_run_nan" not in server.tools_seen()
    assert json.loads(server.results()[0])["ranks"] == 16
    assert reply.unsupported == ["4321"]


def test_a_server_that_is_off_is_not_started(dumps: Path, tmp_path: Path) -> None:
    with serving([Say("hello")]) as server:
        mind = brain(server.url, tmp_path, {"other": McpServer(command=("no-such-program",), allow=("x",))})
        try:
            assert mind.ask("hello").text == "hello"
        finally:
            mind.close()
    assert not any(name.startswith("other_") for name in server.tools_seen())


@pytest.mark.parametrize(
    "settings",
    [
        McpServer(command=("no-such-program-at-all",), enabled=True, timeout_s=5.0),
        McpServer(command=("cat",), enabled=True, timeout_s=2.0),
        McpServer(url="http://127.0.0.1:9/mcp", enabled=True, timeout_s=5.0),
    ],
    ids=["no program", "says nothing", "no server"],
)
def test_a_server_that_cannot_be_had_is_one_clear_error(tmp_path: Path, settings: McpServer) -> None:
    with serving([]) as server, pytest.raises(NumprobeError) as caught:
        brain(server.url, tmp_path, {"other": settings})
    assert caught.value.code == "E-LLM-007"


def test_over_http_with_a_token(dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_TOKEN", "a-token-for-the-test")
    process = subprocess.Popen(
        command(
            "mcp", "--http", "127.0.0.1:0", "--root", dumps, "-o", tmp_path / "foreign", "--token-env", "OTHER_TOKEN"
        ),
        env=environment(tmp_path, OTHER_TOKEN="a-token-for-the-test"),
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        assert process.stderr is not None
        url = process.stderr.readline().strip()
        settings = McpServer(url=url, token_env="OTHER_TOKEN", allow=("probe_path",), enabled=True)
        with serving([Use("other_probe_path", {"path": "/etc"}), Say("not there")]) as server:
            mind = brain(server.url, tmp_path, {"other": settings})
            try:
                mind.ask("what is there?")
            finally:
                mind.close()
        assert "E-AGT-006" in server.results()[0]
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.mark.parametrize(
    "table",
    [
        "[mcp.a]\nenabled = true\n",
        '[mcp.a]\ncommand = ["x"]\nurl = "http://127.0.0.1:1/mcp"\n',
        '[mcp.a]\ncommand = "x"\n',
        '[mcp.a]\ncommand = ["x"]\nalow = ["y"]\n',
        '[mcp.a]\nurl = "ftp://x"\n',
        '[mcp.a]\nurl = "http://127.0.0.1:1/mcp"\ntoken_env = "sk-1234567890abcdef1234"\n',
        "mcp = 3\n",
    ],
)
def test_wrong_settings_are_one_clear_error(tmp_path: Path, table: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f"version = 1\n{table}" if not table.startswith("mcp") else f"{table}version = 1\n", encoding="utf-8"
    )
    with pytest.raises(NumprobeError) as caught:
        load_settings(environ={"NUMPROBE_CONFIG": str(file)})
    assert caught.value.code.startswith("E-SET-")
    assert "sk-1234567890abcdef1234" not in str(caught.value)


def test_settings_name_servers(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    table = '[mcp.wiki]\ncommand = ["python", "-m", "x"]\nallow = ["search"]\nenabled = true\n'
    file.write_text(f"version = 1\n{table}", encoding="utf-8")
    found = load_settings(environ={"NUMPROBE_CONFIG": str(file)}).config.mcp
    assert found == {"wiki": McpServer(command=("python", "-m", "x"), allow=("search",), enabled=True)}


def test_old_turns_go_where_the_context_ends() -> None:
    messages: list[ModelMessage] = []
    for n in range(10):
        messages.append(ModelRequest(parts=[UserPromptPart(f"question {n} " + "x" * 1000)]))
        messages.append(ModelResponse(parts=[TextPart(f"answer {n}")]))
    kept = _kept(messages, 5000)
    assert 2 <= len(kept) < len(messages)
    assert kept == messages[-len(kept) :]
    assert isinstance(kept[0], ModelRequest)
    assert _kept(messages, 10) == []
    assert _kept(messages, 10**9) == messages
