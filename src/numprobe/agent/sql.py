"""Read-only SQL over the artifacts of a run.

The artifacts are loaded as tables first; then the database can neither reach files nor the network, nor change its settings.
One statement is run, a SELECT by the parser, within limits of rows, time and memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from numprobe.agent.runs import FinishedRun, load_run
from numprobe.record.errors import NumprobeError, rebuilt
from numprobe.report.run_folder import plain

if TYPE_CHECKING:
    import duckdb

MOST_ROWS = 200
SECONDS = 10.0
MEMORY = "512MB"
LONGEST = 10_000  # characters of a statement
LONGEST_CELL = 10_000  # characters of one value
MOST_CHARACTERS = 1 << 20  # of all rows together
ADDRESSES = (
    4 << 30
)  # bytes of the process of a query, all its libraries and what is made inside of one function included
LOADING = 60.0  # seconds beside those of the statement, in which its process starts and reads the artifacts
_LATE = 75  # exit code of that process where nothing else ended the statement
_MAKING_ROWS = {"range", "generate_series", "unnest", "repeat", "json_each", "json_tree"}
_FORBIDDEN = re.compile(
    r"duckdb_\w+|pragma_\w+|current_setting|getenv|getvariable|query|query_table|sleep_ms|write_log"
)
_NAME = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class Rows:
    """The result of a query; ``more``: rows were left out."""

    columns: list[str]
    rows: list[list[Any]]
    more: bool


def query(run: FinishedRun, sql: str, *, most: int = MOST_ROWS, seconds: float = SECONDS) -> Rows:
    """Run one SELECT over the run's artifacts: every csv and parquet file, and every list of ``result.json``, is a table.

    It runs in a process of its own, which no statement outlives and whose memory is limited: the database's own limits do not
    hold inside of one function.

    Raises:
        NumprobeError: E-SQL-001 the SQL extra is not installed, E-SQL-002 it is no single SELECT, E-SQL-003 the statement
            fails, E-SQL-004 it takes too long.
    """
    if find_spec("duckdb") is None:
        raise _not_installed()
    asked = msgspec.json.encode({"run": str(run.folder.resolve()), "sql": sql, "most": most, "seconds": seconds})
    start = (
        "import sys; sys.path[:] = sys.argv[1:]; from numprobe.agent.sql import work; work()"  # no module of the folder
    )
    child = subprocess.Popen(
        [sys.executable, "-c", start, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        answer, _ = child.communicate(asked, timeout=seconds + LOADING)
    except subprocess.TimeoutExpired:
        raise _late(seconds) from None
    finally:
        child.kill()
        child.wait()
    if child.returncode == _LATE:
        raise _late(seconds)
    try:
        found = msgspec.json.decode(answer, type=_Found)
    except msgspec.DecodeError:
        raise NumprobeError("E-SQL-003", "the query fails: {reason}", do="ask for less", reason="memory") from None
    if found.error is not None:
        raise rebuilt(found.error.code, found.error.what, "", found.error.found, found.error.do, found.values)
    return Rows(found.columns, found.rows, found.more)


class _Error(msgspec.Struct):
    code: str
    what: str
    found: str = ""
    do: str = ""


class _Found(msgspec.Struct):
    """What the process of a query says."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    more: bool = False
    error: _Error | None = None
    values: dict[str, Any] = {}


def work() -> None:
    """The process of a query: reads it from stdin, writes the rows or the error to stdout."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = msgspec.json.decode(sys.stdin.buffer.read())
    answer = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing that a library prints comes between
    try:
        rows = _answered(load_run(asked["run"]), asked["sql"], asked["most"], asked["seconds"])
        found = _Found(rows.columns, rows.rows, rows.more)
    except NumprobeError as error:
        found = _Found(error=_Error(error.code, *error.templates), values=dict(error.values))
    with os.fdopen(answer, "wb") as stream:
        stream.write(msgspec.json.encode(found))
    os._exit(0)  # no thread of the database is waited for


def _answered(run: FinishedRun, sql: str, most: int, seconds: float) -> Rows:
    with _opened(run) as base:
        _refuse(base, sql)
        late = threading.Event()

        def stop() -> None:
            late.set()
            base.interrupt()

        def end() -> None:  # inside of one function nothing interrupts
            os._exit(_LATE)

        timers = [threading.Timer(seconds, stop), threading.Timer(seconds + 1, end)]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            found = base.execute(sql)
            columns = [column[0] for column in found.description or []]
            rows: list[list[Any]] = []
            size, more = 0, False
            while row := found.fetchone():
                more = len(rows) == most or size > MOST_CHARACTERS
                if more:
                    break
                rows.append([_value(v) for v in row])
                size += sum(len(v) if isinstance(v, str) else 8 for v in rows[-1])
        except Exception as error:  # every error of the database is about the statement
            if late.is_set():
                raise _late(seconds) from None
            raise _wrong(base, error) from None
        finally:
            for timer in timers:
                timer.cancel()
    return Rows(columns, rows, more)


def _tables(base: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    rows = base.execute("SELECT table_name, column_name FROM information_schema.columns ORDER BY 1, ordinal_position")
    for table, column in rows.fetchall():
        found.setdefault(table, []).append(column)
    return found


@contextmanager
def _opened(run: FinishedRun) -> Iterator[duckdb.DuckDBPyConnection]:
    """The artifacts as tables of a database that is locked."""
    try:
        import duckdb
    except ImportError:
        raise _not_installed() from None
    base = duckdb.connect(":memory:")
    try:
        for setting in (
            f"memory_limit = '{MEMORY}'",
            "threads = 2",
            "temp_directory = ''",
            "autoload_known_extensions = false",
            "autoinstall_known_extensions = false",
            "python_enable_replacements = false",
            "enable_progress_bar = false",
        ):
            base.execute(f"SET {setting}")
        _load(base, run)
        base.execute("SET enable_external_access = false")
        base.execute("SET lock_configuration = true")
        yield base
    finally:
        base.interrupt()  # rows that nobody fetched are not made
        base.close()


def _load(base: duckdb.DuckDBPyConnection, run: FinishedRun) -> None:
    taken: set[str] = set()
    listed = [artifact["name"] for artifact in run.manifest.artifacts if isinstance(artifact.get("name"), str)]
    for name in listed:
        reader = {".csv": "read_csv", ".parquet": "read_parquet"}.get(Path(name).suffix)
        file = run.artifact(name) if reader is not None else None
        if file is None or file.is_symlink():
            continue
        extra = ", all_varchar = false, header = true, null_padding = true" if reader == "read_csv" else ""
        table = _table(file.stem, taken)
        base.execute(f'CREATE TABLE "{table}" AS SELECT * FROM {reader}(?{extra})', [str(file)])
    content = plain(msgspec.to_builtins(run.result, str_keys=True))
    for key, value in content.items():
        if key not in taken and isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            taken.add(key)
            _load_rows(base, key, value)


def _table(name: str, taken: set[str]) -> str:
    """``5_ranks`` -> ``ranks``; a second one of the same name gets a number."""
    plain_name = _NAME.sub("_", name).strip("_").lstrip("0123456789_") or "rows"
    unique, n = plain_name, 2
    while unique in taken:
        unique, n = f"{plain_name}_{n}", n + 1
    taken.add(unique)
    return unique


def _load_rows(base: duckdb.DuckDBPyConnection, table: str, rows: list[dict[str, Any]]) -> None:
    """Objects as rows: figures stay numbers, what is nested is JSON text."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    kinds = []
    for column in columns:
        values = [row[column] for row in rows if row.get(column) is not None]
        number = bool(values) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
        kinds.append(
            "DOUBLE" if number else "BOOLEAN" if values and all(isinstance(v, bool) for v in values) else "VARCHAR"
        )
    typed = ", ".join(f"{_quoted(column)} {kind}" for column, kind in zip(columns, kinds, strict=True))
    base.execute(f'CREATE TABLE "{table}" ({typed})')
    marks = ", ".join("?" * len(columns))
    base.executemany(
        f'INSERT INTO "{table}" VALUES ({marks})', [[_stored(row.get(c)) for c in columns] for row in rows]
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _stored(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, (list, dict)) else value


def _value(value: Any) -> Any:
    """A value as JSON has it; what is long, without its end."""
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 63):
        return plain(value)
    if isinstance(value, (list, dict)):
        text = msgspec.json.encode(value, enc_hook=str).decode()
        if len(text) <= LONGEST_CELL:
            return plain(msgspec.json.decode(text))
    else:
        text = str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]} ... ({len(text)} characters)"


def _refuse(base: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Fail on everything but one SELECT of the tables."""
    import duckdb

    if len(sql) > LONGEST:
        raise _no_select(base, f"{len(sql)} characters")
    try:
        kinds = [statement.type.name for statement in base.extract_statements(sql)]
    except duckdb.Error as error:
        raise _wrong(base, error) from None
    if kinds != ["SELECT"]:
        raise _no_select(base, ", ".join(kinds) or "nothing")
    (parsed,) = base.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0]
    for name in _refused(json.loads(parsed)):
        raise _no_select(base, name)


def _refused(node: Any) -> Iterator[str]:
    """What a parsed statement has that reads no table of the run, however it is spelt."""
    if isinstance(node, list):
        for inner in node:
            yield from _refused(inner)
    elif isinstance(node, dict):
        kind, name = node.get("type"), str(node.get("function_name", "")).lower()
        if node.get("error") is True:  # a statement that the parser itself takes apart into several
            yield str(node.get("error_message"))
        if isinstance(kind, str) and kind.endswith("_QUERY_NODE"):  # COPY, INSERT and such in a WITH
            yield kind
        if kind == "TABLE_FUNCTION":
            called = str((node.get("function") or {}).get("function_name", "")).lower()
            if called not in _MAKING_ROWS:
                yield called
        if _FORBIDDEN.fullmatch(name):
            yield name
        for inner in node.values():
            yield from _refused(inner)


def _not_installed() -> NumprobeError:
    return NumprobeError("E-SQL-001", "queries need DuckDB, which is not installed", do="pip install 'numprobe[agent]'")


def _late(seconds: float) -> NumprobeError:
    return NumprobeError(
        "E-SQL-004",
        "the query takes longer than {seconds} s",
        do="ask for less: a WHERE, a LIMIT, fewer joins",
        seconds=f"{seconds:g}",
    )


def _no_select(base: duckdb.DuckDBPyConnection, found: str) -> NumprobeError:
    return NumprobeError(
        "E-SQL-002",
        "only one SELECT over the run's tables is allowed",
        found="{given}",
        do="tables: {tables}",
        given=found,
        tables=", ".join(_tables(base)),
    )


def _wrong(base: duckdb.DuckDBPyConnection, error: Exception) -> NumprobeError:
    return NumprobeError(
        "E-SQL-003",
        "the query fails: {reason}",
        do="tables: {tables}",
        reason=str(error).split("\n", 1)[0],
        tables=", ".join(f"{name}({', '.join(columns)})" for name, columns in _tables(base).items()),
    )
