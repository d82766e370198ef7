"""The server over HTTP: on this machine only, for those who know the token."""

from __future__ import annotations

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


class WithToken:
    """Answers 401 to a request without ``Authorization: Bearer TOKEN``. Foreign Host and Origin are refused behind it."""

    def __init__(self, app: App, token: str) -> None:
        self.app = app
        self.expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):
                await send(
                    {"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]}
                )
                await send({"type": "http.response.body", "body": b"the token is missing or wrong\n"})
                return
        await self.app(scope, receive, send)


def application(server: MCPServer, token: str, host: str = "127.0.0.1") -> App:
    """The ASGI application, path ``/mcp``."""
    return WithToken(server.streamable_http_app(host=host), token)


def serve(server: MCPServer, host: str, port: int, token: str, ready: Callable[[int], None]) -> None:
    """Serve until interrupted; ``ready`` is told the port, which matters for port 0.

    Raises:
        OSError: the port is taken.
    """
    config = uvicorn.Config(application(server, token, host), host=host, port=port, log_level="error", lifespan="on")
    listening = config.bind_socket()
    listening.listen()
    ready(listening.getsockname()[1])
    uvicorn.Server(config).run(sockets=[listening])
