"""``numprobe mcp``: the skills and the answers for other programs."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import typer

from numprobe.cli import common
from numprobe.record.errors import NumprobeError


def mcp(
    http: str = typer.Option(None, "--http", help="Serve on 127.0.0.1:PORT instead of stdio.", metavar="HOST:PORT"),
    root: list[Path] = typer.Option(
        [], "--root", help="Folders below which dumps may be read; default the current one.", metavar="DIR"
    ),
    out: Path = typer.Option(Path("numprobe_out"), "-o", "--out", help="Folder of the runs.", metavar="DIR"),
    token_env: str = typer.Option(
        "NUMPROBE_MCP_TOKEN", "--token-env", help="Environment variable with the token of --http; else one is made."
    ),
    lang: str = common.Lang,
    debug: bool = common.Debug,
) -> None:
    """Serve the skills over MCP. stdio: for a client that starts this command; --http: for one that connects with a token."""
    language = common.language(lang)
    roots = [path.expanduser() for path in root] or [Path.cwd()]
    for path in roots:
        if not path.is_dir():
            raise NumprobeError("E-AGT-002", "no such file or folder", where=str(path), do="check --root")
    address = _address(http) if http is not None else None
    try:
        from numprobe.agent.mcp.server import build
        from numprobe.agent.tools import Toolbox
    except ImportError as error:
        raise NumprobeError(
            "E-AGT-007",
            "the MCP server needs {package}, which is not installed",
            do="pip install 'numprobe[mcp]'",
            package=str(error.name or "mcp"),
        ) from None
    from numprobe.cli.voice import Terminal

    server = build(Toolbox(Terminal("auto", True), out, language, roots))
    if address is None:
        server.run()
        return
    from numprobe.agent.mcp.http import serve

    host, port = address
    token = os.environ.get(token_env) or secrets.token_urlsafe(24)
    shown = "" if os.environ.get(token_env) else f"  token {token}"

    def ready(actual: int) -> None:
        print(f"http://{host}:{actual}/mcp{shown}", file=sys.stderr, flush=True)

    try:
        serve(server, host, port, token, ready)
    except (OSError, SystemExit) as error:  # uvicorn ends with an exit where the port is taken
        if isinstance(error, SystemExit) and not error.code:
            raise
        raise NumprobeError(
            "E-AGT-008", "the address {address} cannot be used", do="choose another port", address=f"{host}:{port}"
        ) from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host or "127.0.0.1"
    if host not in ("127.0.0.1", "localhost") or not port.isdecimal() or int(port) > 65_535:
        raise NumprobeError(
            "E-AGT-008",
            "--http {address}: not an address of this machine",
            do="write --http 127.0.0.1:8765; from elsewhere, reach it through ssh -L",
            address=text,
        )
    return host, int(port)
