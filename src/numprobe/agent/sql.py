"""Read-only SQL over the artifacts of a run.

The artifacts are loaded as tables first; then the database can neither reach files nor the network, nor change its settings.
One statement is run, a SELECT by the parser, within limits of rows, time and memory.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from numprobe.agent.runs import FinishedRun
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import plain

if TYPE_CHECKING:
    import duckdb

MOST_ROWS = 200
SECONDS = 10.0
MEMORY = "512MB"
LONGEST = 10_000  # characters of a statement
_INSIDE = re.compile(
    r"\b(?:duckdb_\w+|pragma_\w+|current_setting|getenv|getvariable|query|query_table)\s*\(", re.IGNORECASE
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

    Raises:
        NumprobeError: E-SQL-001 the SQL extra is not installed, E-SQL-002 it is no single SELECT, E-SQL-003 the statement
            fails, E-SQL-004 it takes too long.
    """
    with _opened(run) as base:
        _refuse(base, sql)
        late = threading.Event()

        def stop() -> None:
            late.set()
            base.interrupt()

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            found = base.execute(sql)
            columns = [column[0] for column in found.description or []]
            rows = found.fetchmany(most + 1)
        except Exception as error:  # every error of the database is about the statement
            if late.is_set():
                raise NumprobeError(
                    "E-SQL-004",
                    "the query takes longer than {seconds} s",
                    do="ask for less: a WHERE, a LIMIT, fewer joins",
                    seconds=f"{seconds:g}",
                ) from None
            raise _wrong(base, error) from None
        finally:
            timer.cancel()
    return Rows(columns, [[plain(_value(v)) for v in row] for row in rows[:most]], len(rows) > most)


def tables(run: FinishedRun) -> dict[str, list[str]]:
    """The tables that a query may name, with their columns."""
    with _opened(run) as base:
        return _tables(base)


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
        raise NumprobeError(
            "E-SQL-001", "queries need DuckDB, which is not installed", do="pip install 'numprobe[agent]'"
        ) from None
    base = duckdb.connect(":memory:")
    try:
        for setting in (
            f"memory_limit = '{MEMORY}'",
            "threads = 2",
            "temp_directory = ''",
            "autoload_known_extensions = false",
            "autoinstall_known_extensions = false",
            "python_enable_replacements = false",
        ):
            base.execute(f"SET {setting}")
        _load(base, run)
        base.execute("SET enable_external_access = false")
        base.execute("SET lock_configuration = true")
        yield base
    finally:
        base.close()


def _load(base: duckdb.DuckDBPyConnection, run: FinishedRun) -> None:
    taken: set[str] = set()
    listed = [artifact["name"] for artifact in run.manifest.artifacts if isinstance(artifact.get("name"), str)]
    for name in listed:
        file = run.folder / name
        reader = {".csv": "read_csv", ".parquet": "read_parquet"}.get(file.suffix)
        if reader is None or Path(name).name != name or file.is_symlink() or not file.is_file():
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
    quoted = [column.replace('"', '""') for column in columns]
    base.execute(f'CREATE TABLE "{table}" ({", ".join(f"{_q(c)} {k}" for c, k in zip(quoted, kinds, strict=True))})')
    marks = ", ".join("?" * len(columns))
    base.executemany(
        f'INSERT INTO "{table}" VALUES ({marks})', [[_stored(row.get(c)) for c in columns] for row in rows]
    )


def _q(name: str) -> str:
    return f'"{name}"'


def _stored(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, (list, dict)) else value


def _value(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, list, dict)) or value is None else str(value)


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
    inside = _INSIDE.search(sql)
    if inside:
        raise _no_select(base, inside.group().rstrip("( "))


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
