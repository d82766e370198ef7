"""Values of a command line that need no conversion are the same as typer would give them, without pydantic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from numprobe.cli.plain import PlainApp

COMMANDS = (
    "a",
    "a --out there",
    "a --number 7 --share 0.5",
    "a --number x",
    "a --number 0",
    "a --number 10",
    "a --number 010",
    "a --number 1_0",
    "a --number 99999999999999999999",
    "a --share 1e3 --kind csv --kind xlsx",
    "a --flag --share nan",
    "a b",
    "",
    "a --out",
    "'' --out ''",
    "-h",
)


def app(plain: bool, seen: list[dict[str, Any]]) -> typer.Typer:
    made = (PlainApp if plain else typer.Typer)(rich_markup_mode=None)

    def command(
        place: str = typer.Argument(...),
        out: Path = typer.Option(None, "--out"),
        number: int = typer.Option(5, "--number", min=1, max=9),
        share: float = typer.Option(2.0, "--share"),
        kind: list[str] = typer.Option([], "--kind"),
        flag: bool = typer.Option(False, "--flag"),
    ) -> None:
        seen.append(locals() | {"seen": None})

    made.callback()(lambda: None)
    made.command("run")(command)
    return made


@pytest.mark.parametrize("line", COMMANDS)
def test_values_and_errors_are_those_of_typer(line: str) -> None:
    told = []
    for plain in (True, False):
        seen: list[dict[str, Any]] = []
        result = CliRunner().invoke(app(plain, seen), f"run {line}")
        told.append((repr(seen), result.exit_code, result.output))
    assert told[0] == told[1]


@pytest.mark.parametrize("line", ["compare a b -o c --table csv --jobs 2", "nan a -k 3", "rl a b", "inspect a"])
def test_commands_start_without_pydantic(tmp_path: Path, line: str) -> None:
    code = (
        "import sys\nfrom numprobe.cli.main import run\n"
        f"sys.argv = ['numprobe', *{line.split()!r}, '--quiet']\n"
        "try:\n    run()\nfinally:\n    print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "False"
    assert "E-FMT-001" in done.stderr
