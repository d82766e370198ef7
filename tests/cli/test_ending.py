"""A run that is ended from outside: by Ctrl-C, a scheduler, or a terminal that is closed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from .shell import H, command, copy_of_h, environment, numprobe
from .test_nan import many_records

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


def large(folder: Path) -> Path:
    """A dump of more than 32 MB, which a pool reads: rank 0 is small, the others take a moment each."""
    dump = copy_of_h(folder / "dump")
    more = many_records(45_000)
    for rank in (1, 2, 3):
        file = dump / "step0" / f"rank{rank}" / "dump.json"
        file.write_bytes(file.read_bytes().replace(b'"data": {', b'"data": {' + more, 1))
    assert sum(f.stat().st_size for f in dump.rglob("dump.json")) > 32_000_000
    return dump


@pytest.mark.parametrize(("number", "code"), SIGNALS, ids=["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_is_ended(number: int, code: int, jobs: int, tmp_path: Path):
    """The run is marked, what was scanned is kept, no process is left that holds stderr, and the user is told."""
    arguments = ("nan", large(tmp_path), "-o", "out", "--progress", "json", "--jobs", jobs)
    with subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, encoding="utf-8"
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            event = json.loads(line)
            if event["stage"] == 2 and event["done"]:
                running.send_signal(number)
                break
        rest = running.stderr.read()  # until the last process has closed it
        assert running.wait(timeout=60) == code
    *_, last, told = [json.loads(line) for line in rest.splitlines()]
    assert (last["kind"], last["state"]) == ("progress", "interrupted")
    assert told["kind"] == "interrupted"
    assert "the same command goes on from there" in told["what"]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"
    assert list((tmp_path / ".cache" / "numprobe" / "digest").glob("*.msgpack"))
    assert not list(tmp_path.rglob("*.part"))
    again = numprobe(tmp_path, *arguments, "--json")
    assert (again.code, again.json["source_ranks"]) == (1, [2])


def test_a_group_of_processes_that_is_ended(tmp_path: Path):
    """As schedulers do it: the signal goes to the workers too, and that is no worker that died."""
    running = subprocess.Popen(
        command("nan", large(tmp_path), "-o", "out", "--progress", "json", "--jobs", 2),
        cwd=tmp_path,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        assert running.stderr is not None
        for line in running.stderr:
            event = json.loads(line)
            if event["stage"] == 2 and event["done"]:
                os.killpg(running.pid, signal.SIGTERM)
                break
        rest = running.stderr.read()
        assert running.wait(timeout=60) == 143
        assert "E-EXE-001" not in rest
        assert "Traceback" not in rest
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


def test_what_nohup_has_ignored_stays_ignored(tmp_path: Path):
    arguments = ("nan", large(tmp_path), "-o", "out", "--progress", "json", "--jobs", 1, "--json")
    with subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command(*arguments)],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if json.loads(line)["stage"] == 2:
                running.send_signal(signal.SIGHUP)
                break
        out, _ = running.communicate(timeout=60)
    assert (running.returncode, json.loads(out)["source_ranks"]) == (1, [2])


def test_a_terminal_that_is_closed(tmp_path: Path):
    """Nothing can be written to it any more; the run is marked all the same."""
    arguments = command("nan", large(tmp_path), "-o", "out", "--jobs", 1)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, arguments, environment(tmp_path))
    seen = b""
    while b"/4" not in seen:
        seen += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(("lang", "says"), [("en", "goes on from there"), ("zh", "即从中断处继续")])
def test_an_interrupt_is_told_to_people(lang: str, says: str, tmp_path: Path):
    with subprocess.Popen(
        command("nan", large(tmp_path), "-o", "out", "--jobs", 1, "--lang", lang),
        cwd=tmp_path,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as running:
        assert running.stderr is not None
        running.stderr.readline()
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
    assert running.returncode == 130
    assert rest.splitlines()[-1].startswith("! ")
    assert says in rest
    assert "Traceback" not in rest


@pytest.mark.parametrize("module", ["typer", "numprobe.cli", "numprobe.diagnose", "numpy", "msgspec", "jinja2"])
def test_an_interrupt_while_modules_are_loaded(module: str, tmp_path: Path):
    """Ctrl-C arrives while this module is imported."""
    code = f"""
import builtins, sys
import numprobe.cli.main as entry
known = builtins.__import__
def load(name, *more):
    if name.startswith({module!r}):
        raise KeyboardInterrupt
    return known(name, *more)
builtins.__import__ = load
entry.run()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, "nan", str(H), "-o", "out"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 130
    assert "Traceback" not in ran.stderr
