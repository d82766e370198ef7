"""Sessions on disk: what was asked and answered, and which runs it was about. The evidence itself lies in the runs' folders."""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numprobe.record.errors import NumprobeError
from numprobe.report import markdown
from numprobe.report.run_folder import NO_ROOM

VERSION = 1
WAIT_S = 5.0  # for another process that writes
_TABLES = (
    """CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, begun TEXT NOT NULL, cwd TEXT NOT NULL, run TEXT NOT NULL DEFAULT '', pending TEXT NOT NULL DEFAULT ''
)""",
    """CREATE TABLE IF NOT EXISTS turns (
    session TEXT NOT NULL REFERENCES sessions(id), n INTEGER NOT NULL, at TEXT NOT NULL, question TEXT NOT NULL,
    answer TEXT NOT NULL, words TEXT NOT NULL DEFAULT '', skill TEXT NOT NULL DEFAULT '', run TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (session, n)
)""",
)


@dataclass(frozen=True)
class Turn:
    """One question and its answer in Markdown; ``words`` is what a model added, ``run`` the folder that it is about."""

    question: str
    answer: str
    words: str = ""
    skill: str = ""
    run: str = ""
    at: str = ""


@dataclass(frozen=True)
class Listed:
    """A session in a list: its first question stands for it."""

    id: str
    begun: str
    turns: int
    first: str
    cwd: str


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_STATE_HOME/numprobe``, else ``~/.local/state/numprobe``."""
    base = environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state") / "numprobe"


@dataclass(frozen=True)
class Store:
    """All sessions of a user, in one file that only they may read."""

    file: Path

    def begin(self, cwd: str) -> str:
        """A new session; its id.

        Raises:
            NumprobeError: E-SES-001 the file cannot be written or is damaged.
        """
        session = uuid.uuid4().hex[:12]
        with self._open(write=True) as base:
            base.execute("INSERT INTO sessions (id, begun, cwd) VALUES (?, ?, ?)", (session, _now(), cwd))
        return session

    def add(self, session: str, turn: Turn, *, run: str, pending: str) -> None:
        """Append a turn, and what the conversation is about now.

        Raises:
            NumprobeError: E-SES-001.
        """
        with self._open(write=True) as base:
            (n,) = base.execute("SELECT COALESCE(MAX(n), 0) + 1 FROM turns WHERE session = ?", (session,)).fetchone()
            row = (session, n, _now(), turn.question, turn.answer, turn.words, turn.skill, turn.run)
            base.execute("INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [*map(_storable, row)])
            base.execute(
                "UPDATE sessions SET run = ?, pending = ? WHERE id = ?", [*map(_storable, (run, pending, session))]
            )

    def listed(self, most: int = 20) -> list[Listed]:
        """The last sessions with at least one turn, newest first.

        Raises:
            NumprobeError: E-SES-001.
        """
        query = (
            "SELECT s.id, s.begun, COUNT(t.n), (SELECT question FROM turns WHERE session = s.id AND n = 1), s.cwd"
            " FROM sessions s JOIN turns t ON t.session = s.id GROUP BY s.id ORDER BY MAX(t.at) DESC, s.rowid DESC LIMIT ?"
        )
        with self._open() as base:
            return [Listed(*_text(row, but=2)) for row in base.execute(query, (most,))]

    def resume(self, session: str) -> tuple[str, list[Turn], str, str]:
        """Id, turns, run and pending sentence of a session; a start of its id, or ``last``, will do.

        Raises:
            NumprobeError: E-SES-001, E-SES-002 no such session, or several.
        """
        with self._open() as base:
            if session == "last":
                rows = base.execute("SELECT session FROM turns ORDER BY at DESC, rowid DESC LIMIT 1").fetchall()
            else:
                start = session.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_") + "%"
                rows = base.execute(r"SELECT id FROM sessions WHERE id LIKE ? ESCAPE '\'", (start,)).fetchall()
            if len(rows) != 1 or not session:
                raise NumprobeError(
                    "E-SES-002",
                    "no session {session}" if not rows else "several sessions begin with {session}",
                    do="/sessions lists them",
                    session=session or "''",
                )
            (found,) = rows[0]
            turns = base.execute(
                "SELECT question, answer, words, skill, run, at FROM turns WHERE session = ? ORDER BY n", (found,)
            )
            kept = [Turn(*_text(row)) for row in turns]
            run, pending = _text(
                base.execute("SELECT run, pending FROM sessions WHERE id = ?", (found,)).fetchone() or (0,)
            )
        return found, kept, run, pending

    @contextmanager
    def _open(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Inside is one transaction; of those that write, of any process, one at a time."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if not self.file.exists():
                self.file.touch(mode=0o600)
            with closing(sqlite3.connect(self.file, timeout=WAIT_S, isolation_level=None)) as base:
                (version,) = base.execute("PRAGMA user_version").fetchone()
                if version > VERSION:
                    raise sqlite3.DatabaseError(f"written by a newer numprobe (version {version})")
                base.execute("BEGIN IMMEDIATE" if write or version < VERSION else "BEGIN")
                if version < VERSION:
                    for table in _TABLES:
                        base.execute(table)
                    base.execute(f"PRAGMA user_version = {VERSION}")
                yield base
                base.execute("COMMIT")  # what fails before is rolled back where the connection is closed
        except (OSError, sqlite3.Error) as error:
            raise NumprobeError(
                "E-SES-001",
                "the sessions cannot be read or written: {reason}",
                where=str(self.file),
                do="free space there; or chat without it: --no-session"
                if _no_room(error)
                else "move the file away: a new one is made; or chat without it: --no-session",
                reason=str(error),
            ) from None


def _no_room(error: Exception) -> bool:
    """Is the disk full, or the quota of a user, or the largest size of a file reached?"""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return str(error) in ("database or disk is full", "disk I/O error")


def _storable(value: object) -> object:
    """Text that UTF-8 has: what the terminal gave as stray bytes is escaped."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _text(row: tuple[Any, ...], but: int = -1) -> tuple[Any, ...]:
    """The row, if it holds text as it should; ``but``: the column of a number."""
    if not all(isinstance(value, str) for n, value in enumerate(row) if n != but):
        raise sqlite3.DatabaseError("a row is damaged")
    return row


def as_markdown(session: str, turns: list[Turn]) -> str:
    """A session as a document. A model's words are shown as they came: an image in them would call whom it names when it is
    opened."""
    parts = [f"# numprobe {session}", ""]
    for turn in turns:
        parts += [
            f"## {markdown.escape(' '.join(turn.question.split()))}",
            "",
            *([f"{turn.at}  {markdown.code(turn.run)}", ""] if turn.run else []),
        ]
        parts += [turn.answer, ""]
        if turn.words:
            parts += ["---", "", *markdown.block(turn.words), ""]
    return "\n".join(parts)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
