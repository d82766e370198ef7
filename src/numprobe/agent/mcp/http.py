"""The server over HTTP: on this machine only, for those who know the token."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LARGEST = 4 << 20  # bytes of a request
BODY_S = 30.0  # until one has come whole
ENDING_S = 3  # for open requests, when the server is to end


class WithToken:
    """Answers 401 to a request without ``Authorization: Bearer TOKEN``, 413 to one of more than :data:`LARGEST` bytes and 408 to
    one that has not come whole after ``body_s`` seconds. Foreign Host and Origin are refused behind it."""

    def __init__(self, app: App, token: str, body_s: float = BODY_S) -> None:
        self.app = app
        self.expected = f"Bearer {token}".encode()
        self.body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):
                await _refuse(send, 401, b"the token is missing or wrong\n")
                return
            try:
                body = await asyncio.wait_for(_body(receive), self.body_s)
            except asyncio.TimeoutError:
                await _refuse(send, 408, b"the request did not come whole in time\n")
                return
            if body is None:  # the client has gone
                return
            if len(body) > LARGEST:
                await _refuse(send, 413, b"the request is too large\n")
                return
            receive = _after(body, receive)
        await self.app(scope, receive, send)


async def _body(receive: Receive) -> bytes | None:
    """The body of a request, or the beginning of one that is too large; None where it breaks off."""
    body = b""
    while len(body) <= LARGEST:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body


def _after(body: bytes, receive: Receive) -> Receive:
    """The messages of a request whose body was read."""
    read = [{"type": "http.request", "body": body, "more_body": False}]

    async def following() -> MutableMapping[str, Any]:
        return read.pop() if read else await receive()

    return following


async def _refuse(send: Send, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def application(server: MCPServer, token: str, host: str = "127.0.0.1") -> App:
    """The ASGI application, path ``/mcp``."""
    return WithToken(server.streamable_http_app(host=host), token)


def serve(server: MCPServer, host: str, port: int, token: str, ready: Callable[[int], None]) -> None:
    """Serve until interrupted; ``ready`` is told the port, which matters for port 0.

    Raises:
        OSError: the port is taken.
    """
    config = uvicorn.Config(
        application(server, token, host),
        host=host,
        port=port,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=ENDING_S,
    )
    listening = config.bind_socket()
    listening.listen()
    ready(listening.getsockname()[1])
    uvicorn.Server(config).run(sockets=[listening])
