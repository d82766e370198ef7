"""An OpenAI-compatible server on loopback that plays a script: what each request gets is written down beforehand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """Text, streamed in pieces; ``cut`` breaks the connection after that many."""

    text: str | Callable[[Request], str]
    cut: int | None = None


@dataclass(frozen=True)
class Use:
    """A tool call; ``arguments`` a text may be no JSON."""

    tool: str
    arguments: dict[str, Any] | str | Callable[[Request], dict[str, Any]]


@dataclass(frozen=True)
class Fail:
    status: int
    message: str = "no"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Hang:
    seconds: float


Step = Say | Use | Fail | Hang


@dataclass
class Server:
    """``requests`` are the bodies that came, ``keys`` the headers with the key."""

    url: str = ""
    script: list[Step] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def tools_seen(self) -> set[str]:
        return {tool["function"]["name"] for request in self.requests for tool in request.get("tools", [])}

    def results(self) -> list[str]:
        """What tools answered, as the model was told it."""
        return [m["content"] for request in self.requests[-1:] for m in request["messages"] if m["role"] == "tool"]


@contextmanager
def serving(script: Sequence[Step]) -> Iterator[Server]:
    """Inside, the server is up; a request beyond the script gets a 500."""
    server = Server(script=list(script))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append(body)
            server.keys.append(self.headers.get("Authorization", ""))
            step = server.script.pop(0) if server.script else Fail(500, "the script is over")
            with suppress(BrokenPipeError, ConnectionResetError):
                self._play(step, body)

        def _play(self, step: Step, body: Request) -> None:
            if isinstance(step, Hang):
                time.sleep(step.seconds)
                step = Say("too late")
            if isinstance(step, Fail):
                text = json.dumps({"error": {"message": step.message, "type": "x"}}).encode()
                self.send_response(step.status)
                for name, value in step.headers:
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            deltas = list(_deltas(step, body))
            cut = step.cut if isinstance(step, Say) else None
            for delta in deltas if cut is None else deltas[:cut]:
                self._event(delta, None)
            if cut is not None:  # without the last chunk: the connection breaks
                self.close_connection = True
                return
            self._event({}, "tool_calls" if isinstance(step, Use) else "stop", usage=True)
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
            self.close_connection = True

        def _event(self, delta: dict[str, Any], finish: str | None, *, usage: bool = False) -> None:
            chunk: dict[str, Any] = {
                "id": "c1",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "scripted",
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            }
            if usage:
                chunk["usage"] = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
            self._chunk(f"data: {json.dumps(chunk)}\n\n".encode())

        def _chunk(self, content: bytes) -> None:
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
            self.wfile.flush()

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


def _deltas(step: Say | Use, body: Request) -> Iterator[dict[str, Any]]:
    if isinstance(step, Use):
        arguments = step.arguments(body) if callable(step.arguments) else step.arguments
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        function = {"name": step.tool, "arguments": ""}
        call = {"index": 0, "id": f"call_{len(body['messages'])}", "type": "function", "function": function}
        yield {"role": "assistant", "tool_calls": [call]}
        half = len(text) // 2
        for part in (text[:half], text[half:]):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
        return
    text = step.text(body) if callable(step.text) else step.text
    yield {"role": "assistant", "content": ""}
    for start in range(0, len(text), 12):
        yield {"content": text[start : start + 12]}


def last_result(body: Request) -> dict[str, Any]:
    """What the last tool answered."""
    found: dict[str, Any] = json.loads([m for m in body["messages"] if m["role"] == "tool"][-1]["content"])
    return found
