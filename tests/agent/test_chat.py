"""``numprobe chat`` over a pipe and on a terminal: turns, commands, sessions that survive, interrupts."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.scripted import Say, serving
from cli.shell import Ran, command, environment
from numprobe.agent.chat.sessions import Store, Turn
from numprobe.record.errors import NumprobeError
from numprobe.synth.nan import CI, simulate


def chat(cwd: Path, lines: list[str], *arguments: str, **environ: str) -> Ran:
    ran = subprocess.run(
        command("chat", "-o", cwd / "runs", *arguments),
        input="\n".join(lines) + "\n",
        cwd=cwd,
        env=environment(cwd, XDG_STATE_HOME=str(cwd / "state"), **environ),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert "Traceback" not in ran.stderr
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def test_a_conversation(dumps: Path, tmp_path: Path) -> None:
    nan = dumps / "dump" / "first_step_nan"
    ran = chat(
        tmp_path,
        [
            "loss is NaN",  # asks for the path
            str(nan),  # and gets it
            "which ranks are victims",
            "40000号卡是源头吗",
            f"训推不一致：{dumps}/rl",
            "show linear_fc2",
            "/run 1",
            "is rank 6 a source",
            "what is in it?",
        ],
    )
    assert ran.code == 0
    for said in (
        "still need the path of a dump",
        "NPU.npu_grouped_matmul.7.forward",
        "victim: ",
        "没有 40000 号卡",
        "layers.0.mlp.linear_fc2",
        "layers.0.down",
        "Questions are about",
        "Yes. Rank 6 is a source",
        "pytorch",
    ):
        assert said in ran.out, said
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 2


def test_a_question_waits_for_its_path_until_there_is_one(dumps: Path, tmp_path: Path) -> None:
    ran = chat(tmp_path, ["loss 为 NaN", "no/such/path", str(dumps / "dump" / "first_step_nan"), "/lang auto", "why?"])
    assert "E-AGT-002" in ran.err
    assert "位置" in ran.err  # in the language of the question that waits
    answer, *_, last = ran.out.split("> ")[3:]
    assert "由 6 号卡产生" in answer
    assert "在未收到脏数据时" not in last
    assert "Only rank 6" in last


def test_commands(dumps: Path, tmp_path: Path) -> None:
    ran = chat(
        tmp_path,
        [
            "/help",
            "/skills",
            "/runs",
            "/model",
            "/open",
            f"loss is NaN: {dumps}/dump/first_step_nan",
            "/runs",
            "/open",
            "/exclude NPU.npu_grouped_matmul",
            "/lang zh",
            "which ranks are victims",
            "/lang xx",
            "/mapping x y",
            "/exclude",
            "/run nowhere",
            "/hlp",
            '/save "my talk.md"',
            '/save "my talk.md"',
            "/sessions",
            "/clear",
            "/runs",
            "/exit",
            "never seen",
        ],
    )
    assert ran.code == 0
    for said in (
        "/exclude",
        "nan-overflow",
        "There is no run yet",
        "overflow_found",
        "file://",
        "受害",
        "会话已存入",
        "never" * 0,
    ):
        assert said in ran.out, said
    for code in ("E-AGT-009", "E-AGT-010", "E-AGT-003", "E-OUT-001"):
        assert code in ran.err, code
    assert "/help" in ran.err.split("/hlp")[1]
    assert "never seen" not in ran.out
    saved = (tmp_path / "my talk.md").read_text(encoding="utf-8")
    assert saved.count("\n## ") >= 3
    assert "npu_grouped_matmul" in saved
    kept = [json.loads(f.read_text()) for f in (tmp_path / "runs").glob("*/corrections.json")]
    assert kept == [{"exclude": ["NPU.npu_grouped_matmul"]}]


def test_a_session_goes_on_after_a_kill(dumps: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("chat", "-o", tmp_path / "runs"),
        cwd=tmp_path,
        env=environment(tmp_path, XDG_STATE_HOME=str(tmp_path / "state")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"loss is NaN: {dumps}/dump/first_step_nan\nwhich ranks are victims\n")
    process.stdin.flush()
    while "victim: " not in process.stdout.readline():
        pass
    time.sleep(0.5)
    process.kill()
    process.wait()
    ran = chat(tmp_path, ["how sure are you", "/sessions"], "--resume", "last")
    assert "2 turns" in ran.out
    assert "The confidence is" in ran.out
    assert "loss is NaN" in ran.out.split("/sessions")[-1]
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name in ran.out


def test_a_missing_path_is_still_known_after_resuming(dumps: Path, tmp_path: Path) -> None:
    chat(tmp_path, ["训推不一致"])
    ran = chat(tmp_path, [f"{dumps}/rl"], "--resume", "last")
    assert "linear_fc2" in ran.out


def test_trace_of_a_session(dumps: Path, tmp_path: Path) -> None:
    chat(
        tmp_path, [f"loss is NaN: {dumps}/dump/first_step_nan", "/help", "loss is NaN: ./nowhere"], "--trace", "t.jsonl"
    )
    events = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "session_started"
    assert kinds[-1] == "session_finished"
    assert kinds.count("stage_started") == kinds.count("stage_finished") == 5
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    written = {Path(event["path"]).name: event["sha256"] for event in events if event["event"] == "artifact_written"}
    assert {"report.html", "result.json"} <= set(written)
    (error,) = [event for event in events if event["event"] == "error"]
    assert error["code"] == "E-AGT-002"
    assert "/help" in [event["text"] for event in events if event["event"] == "command"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--resume", "nothing"], "E-SES-002"),
        (["--trace", "no/folder/t.jsonl"], "E-OUT-002"),
        (["--llm", "other"], "E-SET-009"),
    ],
)
def test_a_wrong_start_is_one_clear_error(tmp_path: Path, arguments: list[str], code: str) -> None:
    ran = chat(tmp_path, ["/help"], *arguments)
    assert ran.code == 2
    assert code in ran.err


@pytest.mark.parametrize("content", [b"not a database", b"", None])
def test_a_damaged_store_is_told_and_left_alone(dumps: Path, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "state" / "numprobe" / "sessions.sqlite"
    file.parent.mkdir(parents=True)
    if content is None:
        with sqlite3.connect(file) as base:
            base.execute("PRAGMA user_version = 99")
        content = file.read_bytes()
    else:
        file.write_bytes(content)
    ran = chat(tmp_path, [f"what is in {dumps}/runs/a", "/sessions"])
    assert ran.code == 0
    assert "Embedding" in ran.out
    if content:
        assert "E-SES-001" in ran.err
        assert file.read_bytes() == content
    plain = chat(tmp_path, [f"what is in {dumps}/runs/a"], "--no-session")
    assert "E-SES" not in plain.err


def test_the_store_keeps_text_as_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    session = store.begin("here")
    for n in range(3):
        store.add(
            session,
            Turn(f"q{n}'; DROP TABLE turns; --", "a\n\x00b", "w", "nan_overflow", f"run{n}"),
            run=f"run{n}",
            pending="p",
        )
    found, turns, run, pending = store.resume(session[:6])
    assert (found, run, pending) == (session, "run2", "p")
    assert [turn.question for turn in turns] == [f"q{n}'; DROP TABLE turns; --" for n in range(3)]
    assert turns[0].answer == "a\n\x00b"
    assert (tmp_path / "s.sqlite").stat().st_mode & 0o077 == 0
    for wrong in ("zzz", "%", "_", ""):
        with pytest.raises(NumprobeError):
            store.resume(wrong)


def _take_terminal() -> None:
    """Ctrl-C on the pseudo-terminal is for this process."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A chat on a pseudo-terminal of 80 columns."""

    def __init__(self, cwd: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        env = environment(cwd, XDG_STATE_HOME=str(cwd / "state"), TERM="xterm", COLUMNS="80", LINES="40")
        self.process = subprocess.Popen(
            command("chat", "-o", cwd / "runs"),
            cwd=cwd,
            env=env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.seen = ""

    def write(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, what: str | Callable[[str], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not (what in self.plain() if isinstance(what, str) else what(self.plain())):
            assert time.monotonic() < end, self.plain()[-2000:]
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    part = os.read(self.master, 65536)
                except OSError:
                    return
                if b"\x1b[6n" in part:  # where is the cursor?
                    self.write("\x1b[1;1R")
                self.seen += part.decode("utf-8", "replace")

    def prompted(self) -> None:
        """Wait until it asks for a line: it reads the terminal key by key then."""
        self.until(lambda seen: not termios.tcgetattr(self.master)[3] & termios.ICANON)

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r", "", self.seen)

    def close(self) -> int:
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        os.close(self.master)
        return self.process.returncode


@pytest.fixture
def terminal(tmp_path: Path) -> object:
    pytest.importorskip("prompt_toolkit")
    found = Terminal(tmp_path)
    found.prompted()
    return found


def test_on_a_terminal(terminal: Terminal, dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "d").symlink_to(dumps / "dump")
    terminal.write("loss is NaN: d/first_step_nan\r")
    terminal.until("Confidence")
    terminal.prompted()
    terminal.write("which ranks are victims\r")
    terminal.until("5_ranks.csv")
    shown = terminal.plain()
    terminal.prompted()
    terminal.write("\x04")
    assert terminal.close() == 0
    answer = shown[shown.index("Rank 6 made") : shown.index("[E1] step0")]
    assert max(len(line.rstrip()) for line in answer.split("\n")) <= 80
    assert "which ranks" in (tmp_path / "state" / "numprobe" / "history").read_text(encoding="utf-8")


def test_ctrl_c_ends_the_run_keeps_it_and_the_talk_goes_on(terminal: Terminal, dumps: Path, tmp_path: Path) -> None:
    simulate("clean", tmp_path / "large", seed=0, size=CI)
    terminal.write("loss is NaN: large\r")
    terminal.until("1/5 discover")
    terminal.write("\x03")
    terminal.until("Interrupted")
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["status"] == "interrupted"
    terminal.write(f"what is in {dumps}/runs/a\r")
    terminal.until("Embedding")
    terminal.prompted()
    terminal.write("\x03")
    terminal.write("/exit\r")
    assert terminal.close() == 0


def test_a_fault_of_our_own_costs_one_turn(dumps: Path, tmp_path: Path) -> None:
    script = (
        "from numprobe.agent.chat import conversation\n"
        "def broken(*_, **__): raise ZeroDivisionError('a fault')\n"
        "conversation.inspected = conversation.follow = broken\n"
        "from numprobe.cli.main import run; run()\n"
    )
    lines = f"loss is NaN: {dumps}/dump/first_step_nan\nwhich ranks are victims\n/help\n"
    ran = subprocess.run(
        [sys.executable, "-c", script, "chat", "-o", str(tmp_path / "runs")],
        input=lines,
        cwd=tmp_path,
        env=environment(tmp_path, XDG_STATE_HOME=str(tmp_path / "state")),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert ran.returncode == 0
    assert "numprobe failed: ZeroDivisionError: a fault" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "/resume" in ran.stdout


def test_a_model_s_table_is_drawn_on_a_terminal(dumps: Path, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai")
    said = "Both agree:\n\n| side | Norm |\n|---|---:|\n| a | 1.25 |\n\nNothing else."
    with serving([Say(said)]) as server:
        (tmp_path / ".config" / "numprobe").mkdir(parents=True)
        (tmp_path / ".config" / "numprobe" / "config.toml").write_text(
            f'version = 1\ndefault_llm = "mine"\n[llm.mine]\nprovider = "openai"\nmodel = "m"\nbase_url = "{server.url}"\n',
            encoding="utf-8",
        )
        terminal = Terminal(tmp_path)
        terminal.prompted()
        terminal.write(f"what is in {dumps}/runs/a\r")
        terminal.until("Nothing else.")
        terminal.prompted()
        terminal.write("\x04")
        assert terminal.close() == 0
    drawn = terminal.plain().split("mine puts it so")[1]
    assert re.search(r"side +Norm", drawn)
    assert "───" in drawn
    assert "|---" not in drawn
