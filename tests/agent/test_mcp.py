"""The MCP server, driven by the official client: in this process, over stdio, over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.test_ask import digests
from cli.shell import command, environment

mcp = pytest.importorskip("mcp")

import httpx2  # noqa: E402
from mcp import Client, StdioServerParameters, stdio_client  # noqa: E402

from numprobe.agent.mcp.server import build  # noqa: E402
from numprobe.agent.tools import Toolbox  # noqa: E402
from numprobe.cli.voice import Terminal  # noqa: E402

TOOLS = {
    "probe_path",
    "run_nan",
    "run_rl_consistency",
    "run_compare",
    "map_modules",
    "ask_run",
    "get_record",
    "explain",
    "list_excluded",
    "query_run",
}


def toolbox(dumps: Path, out: Path) -> Toolbox:
    return Toolbox(Terminal("auto", True), out, "en", [dumps])


def within(server: Any, work: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Client(server) as client:
            await work(client)

    asyncio.run(main())


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    found = await client.call_tool(tool, arguments)
    assert not found.is_error, found.content
    content: dict[str, Any] = found.structured_content or json.loads(found.content[0].text)
    return content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    found = await client.call_tool(tool, arguments)
    assert found.is_error
    text: str = found.content[0].text
    assert "Traceback" not in text
    return text


def test_both_skills_and_the_questions_after_them(dumps: Path, tmp_path: Path) -> None:
    before = digests(dumps)

    async def work(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == TOOLS
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert all(tool.description for tool in tools)
        probe = await call(client, "probe_path", path=str(dumps / "dump" / "first_step_nan"))
        assert (probe["kind"], probe["ranks"]) == ("dump", 16)
        assert "nan_overflow" in probe["skills"]
        told: list[tuple[float, float | None, str | None]] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.append((done, total, message))

        found = await client.call_tool(
            "run_nan", {"path": str(dumps / "dump" / "first_step_nan")}, progress_callback=progress
        )
        nan: dict[str, Any] = found.structured_content
        assert nan["verdict"] == "overflow_found"
        assert "npu_grouped_matmul" in nan["first_anomaly"]["op_name"]
        assert {message[:3] for _, _, message in told if message} == {f"{n}/5" for n in range(1, 6)}
        assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
        rl = await call(
            client, "run_rl_consistency", train=str(dumps / "rl" / "train"), rollout=str(dumps / "rl" / "rollout")
        )
        assert rl["verdict"] == "difference_found"
        compare = await call(client, "run_compare", target=str(dumps / "runs" / "a"), golden=str(dumps / "runs" / "b"))
        assert compare["verdict"] == "pass"
        pairs = await call(client, "map_modules", a=str(dumps / "rl" / "train"), b=str(dumps / "rl" / "rollout"))
        assert "linear_fc2" in json.dumps(pairs["mapping"]["layers.0.down"])
        for run, name, inside in (
            (nan, "npu_grouped_matmul", "NaN"),
            (rl, "linear_fc2", "Norm"),
            (compare, "embed_tokens", "pass"),
        ):
            record = await call(client, "get_record", run_id=run["run_id"], name=name)
            assert record["known"], record
            assert inside in record["answer"]
            assert record["citations"]
        assert (
            "victim"
            in (await call(client, "ask_run", run_id=nan["run_id"], question="which ranks are victims"))["answer"]
        )
        assert (await call(client, "explain", run_id=nan["run_id"]))["citations"]
        assert (await call(client, "list_excluded", run_id=nan["run_id"]))["answer"]
        rows = await call(
            client, "query_run", run_id=nan["run_id"], sql="select count(*) from ranks where role = 'victim'"
        )
        victims = [
            r
            for r in json.loads((tmp_path / nan["run_id"] / "result.json").read_text())["ranks"]
            if r["role"] == "victim"
        ]
        assert rows["rows"] == [[len(victims)]]
        report = await client.read_resource(f"run://{nan['run_id']}/report.md")
        assert report.contents[0].text == (tmp_path / nan["run_id"] / "report.md").read_text(encoding="utf-8")

    within(build(toolbox(dumps, tmp_path)), work)
    assert digests(dumps) == before


def test_what_is_refused_is_one_clear_text(dumps: Path, tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        assert "E-AGT-006" in await refused(client, "probe_path", path="/etc")
        assert "E-AGT-006" in await refused(client, "run_nan", path=str(dumps / ".." / ".."))
        assert "E-AGT-002" in await refused(client, "probe_path", path=str(dumps / "nowhere"))
        assert "E-FMT-002" in await refused(client, "run_nan", path=str(dumps / "notes.txt"))
        for run_id in ("nothing", "../talk", "/etc", ".."):
            assert "E-AGT-003" in await refused(client, "get_record", run_id=run_id, name="x")
        found = await call(client, "run_compare", target=str(dumps / "md5" / "a"), golden=str(dumps / "md5" / "b"))
        for sql in (
            "drop table compare",
            "select * from read_csv('/etc/passwd')",
            "select 1; select 2",
            "copy compare to 'x'",
        ):
            assert "E-SQL" in await refused(client, "query_run", run_id=found["run_id"], sql=sql)
        for artifact in ("compare.parquet", "..%2f..%2fetc%2fpasswd", "nothing.md"):
            with pytest.raises(Exception, match=r"artifact|resource|not found|Unknown|rejected"):
                await client.read_resource(f"run://{found['run_id']}/{artifact}")

    within(build(toolbox(dumps, tmp_path)), work)
    assert {path.parent for path in tmp_path.rglob("run.json")} == set(tmp_path.glob("compare-*"))


def test_long_results_are_shortened_and_say_where_the_rest_is(
    dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numprobe.agent.mcp.server.LONGEST_ANSWER", 2000)

    async def work(client: Client) -> None:
        found = await call(
            client, "run_rl_consistency", train=str(dumps / "rl" / "train"), rollout=str(dumps / "rl" / "rollout")
        )
        assert found["shortened"] == f"run://{found['run_id']}/report.md"
        assert len(json.dumps(found)) < 4000
        assert (await client.read_resource(found["shortened"])).contents[0].text

    within(build(toolbox(dumps, tmp_path)), work)


def test_over_stdio(dumps: Path, tmp_path: Path) -> None:
    program, *arguments = command("mcp", "--root", dumps, "-o", tmp_path / "runs")
    server = StdioServerParameters(command=program, args=arguments, env=environment(tmp_path), cwd=tmp_path)

    async def work(client: Client) -> None:
        found = await call(client, "run_nan", path=str(dumps / "dump" / "first_step_nan"))
        assert found["verdict"] == "overflow_found"
        assert (tmp_path / "runs" / found["run_id"] / "report.html").exists()

    within(stdio_client(server), work)


def test_over_http_with_a_token(dumps: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("mcp", "--http", "127.0.0.1:0", "--root", dumps, "-o", tmp_path / "runs"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        assert process.stderr is not None
        address, _, token = process.stderr.readline().strip().partition("  token ")
        assert len(token) >= 24
        ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        kinds = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        known = {**kinds, "Authorization": f"Bearer {token}"}
        with httpx2.Client() as http:
            assert http.post(address, json=ask, headers=kinds).status_code == 401
            assert http.post(address, json=ask, headers={**kinds, "Authorization": "Bearer wrong"}).status_code == 401
            assert http.post(address, json=ask, headers={**known, "Host": "evil.example"}).status_code == 421
            assert http.post(address, json=ask, headers={**known, "Origin": "http://evil.example"}).status_code == 403

        async def work() -> None:
            from mcp.client.streamable_http import streamable_http_client

            async with (
                httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
                Client(streamable_http_client(address, http_client=http)) as client,
            ):
                sides = {side: str(dumps / "rl" / side) for side in ("train", "rollout")}
                found = await call(client, "run_rl_consistency", **sides)
                assert found["verdict"] == "difference_found"

        port = int(address.rpartition(":")[2].partition("/")[0])
        half = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nContent-Length: 9\r\n\r\n{{"
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(half.encode())
            asyncio.run(work())  # nobody waits for the slow one
            process.terminate()
            process.wait(timeout=20)  # and it keeps nothing alive
    finally:
        process.kill()
        process.wait(timeout=20)


def served(messages: list[dict[str, Any]], seconds: float = 20.0) -> tuple[list[bytes], int, int]:
    """Bodies that the application got of a request in these messages, the status of the answer, and messages not read."""
    from numprobe.agent.mcp.http import WithToken

    got: list[bytes] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.sleep(60)
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(b"authorization", b"Bearer t")]}
    asyncio.run(WithToken(app, "t", seconds)(scope, receive, send))
    return got, sent[0]["status"] if sent else 0, len(messages)


def test_bodies_of_any_size_and_speed() -> None:
    from numprobe.agent.mcp.http import LARGEST

    def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": more}

    assert served([part(b"a"), part(b""), part(b"b", more=False)]) == ([b"ab"], 200, 0)
    assert served([part(b"x" * LARGEST), part(b"", more=False)]) == ([b"x" * LARGEST], 200, 0)
    assert served([part(b"x" * (1 << 20))] * 100) == ([], 413, 100 - 5)  # the rest is not even read
    assert served([part(b"a")], seconds=0.05) == ([], 408, 0)
    assert served([part(b"a"), {"type": "http.disconnect"}]) == ([], 0, 0)


@pytest.mark.parametrize("address", ["0.0.0.0:80", "example.org:80", "127.0.0.1:x", "127.0.0.1:99999", "::1"])
def test_only_this_machine_is_served(tmp_path: Path, address: str) -> None:
    from cli.shell import numprobe

    ran = numprobe(tmp_path, "mcp", "--http", address)
    assert ran.code == 2
    assert "E-AGT-008" in ran.err


def test_a_taken_port_is_one_clear_error(tmp_path: Path) -> None:
    from cli.shell import process

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = process(tmp_path, "mcp", "--http", f"127.0.0.1:{taken.getsockname()[1]}")
    assert ran.code == 2
    assert "E-AGT-008" in ran.err


def test_a_cancelled_run_stops_and_is_marked(dumps: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with Client(build(toolbox(dumps, tmp_path))) as client:
            started = asyncio.Event()

            async def progress(done: float, total: float | None, message: str | None) -> None:
                started.set()

            job = asyncio.ensure_future(
                client.call_tool("run_nan", {"path": str(dumps / "dump" / "look_alikes")}, progress_callback=progress)
            )
            await asyncio.wait_for(started.wait(), 20)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            assert (await call(client, "probe_path", path=str(dumps / "rl" / "train")))["kind"] == "dump"

    asyncio.run(main())
    assert os.listdir(tmp_path)  # noqa: PTH208
    assert sys.version_info
