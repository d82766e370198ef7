"""Tools of other MCP servers for the model of a chat: those that the settings allow, and no other."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numprobe.agent.config.model import McpServer
from numprobe.record.errors import NumprobeError

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool

LONGEST = 12_000  # characters of a result that the model is given


@dataclass(frozen=True)
class Allowed:
    """A tool that may be used; ``name`` is the server's and its own."""

    name: str
    description: str
    schema: dict[str, Any]
    server: Connection
    tool: str

    async def use(self, arguments: dict[str, Any]) -> str:
        """Its answer as text; an error is an answer too."""
        return await self.server.call(self.tool, arguments)


@dataclass
class Connection:
    """One server, held by one task of the event loop, which opens it, asks it and closes it."""

    name: str
    settings: McpServer
    tools: list[Allowed] = field(default_factory=list)
    _asked: asyncio.Queue[tuple[str, dict[str, Any], asyncio.Future[str]] | None] = field(default_factory=asyncio.Queue)
    _task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and list the tools.

        Raises:
            NumprobeError: E-LLM-007 it cannot be started or reached in time.
        """
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(ready))
        try:
            listed = await asyncio.wait_for(asyncio.shield(ready), self.settings.timeout_s)
        except Exception as error:  # whatever a foreign server or its transport raises
            self._task.cancel()
            raise NumprobeError(
                "E-LLM-007",
                "the tools of {server} cannot be reached: {reason}",
                do="check [mcp.{server}] in the settings, or set enabled = false",
                server=self.name,
                reason=_reason(error),
            ) from None
        self.tools = [
            Allowed(f"{self.name}_{tool.name}", tool.description or "", dict(tool.input_schema), self, tool.name)
            for tool in listed
            if tool.name in self.settings.allow
        ]

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self._asked.put((tool, arguments, answer))
        try:
            return await asyncio.wait_for(answer, self.settings.timeout_s)
        except asyncio.TimeoutError:
            return f"error: no answer within {self.settings.timeout_s:g} s"

    async def close(self) -> None:
        await self._asked.put(None)
        if self._task is not None:
            await asyncio.wait([self._task], timeout=5)
            self._task.cancel()

    async def _serve(self, ready: asyncio.Future[list[Tool]]) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(await self._client(stack))
                ready.set_result((await client.list_tools()).tools)
                while (asked := await self._asked.get()) is not None:
                    tool, arguments, answer = asked
                    text = await _answer(client, tool, arguments)
                    if not answer.done():
                        answer.set_result(text)
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    async def _client(self, stack: AsyncExitStack) -> Client:
        from mcp import Client, StdioServerParameters, stdio_client

        if self.settings.command:
            program, *arguments = self.settings.command
            given = {name: os.environ[name] for name in ("PATH", "HOME", *self.settings.env) if name in os.environ}
            return Client(stdio_client(StdioServerParameters(command=program, args=arguments, env=given)))
        if not self.settings.token_env:
            return Client(self.settings.url)
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        token = os.environ.get(self.settings.token_env, "")
        http = await stack.enter_async_context(httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}))
        return Client(streamable_http_client(self.settings.url, http_client=http))


async def _answer(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    try:
        found = await client.call_tool(tool, arguments)
    except Exception as error:
        return f"error: {_reason(error)}"
    texts = [text for part in found.content if (text := getattr(part, "text", None))]
    text = "\n".join(texts)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"


def _reason(error: BaseException) -> str:
    while inner := getattr(error, "exceptions", ()):  # of a group, which Python 3.10 has no type for
        error = inner[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(": ")
