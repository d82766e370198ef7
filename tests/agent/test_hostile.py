"""What a hostile or clumsy user may type or leave lying about: one clear answer or error, soon, and no wrong claim."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cli.shell import command, environment, numprobe
from numprobe.agent import sql
from numprobe.agent.answer import Answer
from numprobe.agent.chat.commands import Shell
from numprobe.agent.chat.conversation import Conversation
from numprobe.agent.chat.sessions import Store, Turn
from numprobe.agent.follow.question import read_question
from numprobe.agent.follow.reply import reply
from numprobe.agent.probe import probe
from numprobe.agent.router import route
from numprobe.agent.runs import FinishedRun, load_run
from numprobe.agent.sentence import LONGEST, read_sentence
from numprobe.cli.voice import Terminal
from numprobe.diagnose.nan_overflow import command as nan
from numprobe.diagnose.nan_overflow import local
from numprobe.record.errors import NumprobeError

# what is repeated up to the longest sentence
PIECES = [
    "“",
    "”",
    "‘",
    "「",
    "《",
    '"',
    "'",
    "`",
    "/",
    ".",
    "\\",
    "~/",
    "a/",
    "中",
    "中/",
    "./a ",
    "“a/b” ",
    "a.b.c.d",
    "第1层 ",
    "rank 1, ",
]
PIECES += ["1、", "5 层", "how many ", "dump ", "training ", "训练 推理 ", "module ", "why not "]
PIECES += ["没有", "no ", "不是 nan ", "1-", "😀", "\u202e", "\ufffc", "nan ", "layer 9", "\n", "9", "é", "x"]


@pytest.mark.parametrize("piece", PIECES)
def test_the_longest_sentence_is_read_soon(piece: str, nan_run: FinishedRun, here: Path) -> None:
    text = (piece * LONGEST)[:LONGEST]
    begun = time.process_time()
    sentence = read_sentence(text)
    route(sentence, [])
    reply(nan_run, read_question(text))
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("arguments", [["ask"], ["follow", "RUN"]])
def test_a_longer_one_is_one_clear_error(arguments: list[str], nan_run: FinishedRun, tmp_path: Path) -> None:
    given = [str(nan_run.folder) if a == "RUN" else a for a in arguments]
    ran = numprobe(tmp_path, *given, "x" * (LONGEST + 1))
    assert ran.code == 2
    assert "E-AGT-011" in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err) < 500  # the sentence is not repeated


NEGATIONS = [
    ("no spike, the loss is NaN: dump/first_step_nan", "nan_overflow"),
    ("没有尖刺，loss 是 NaN，数据在 dump/first_step_nan", "nan_overflow"),
    ("no NaN; what is in dump/first_step_nan?", "inspect"),
    ("没有 NaN，dump/first_step_nan 里有什么", "inspect"),
    ("not an overflow, but the two runs differ: runs/a runs/b", "compare"),
    ("不是溢出，两次运行不一致：runs/a 和 runs/b", "compare"),
    ("有没有 NaN：dump/first_step_nan", "nan_overflow"),
    ("是不是 nan，看 dump/first_step_nan", "nan_overflow"),
    ("有无溢出 dump/first_step_nan", "nan_overflow"),
    ("梯度有没有尖刺 dump/first_step_nan", "spike"),
]


@pytest.mark.parametrize(("text", "intent"), NEGATIONS, ids=[t for t, _ in NEGATIONS])
def test_what_a_sentence_rules_out_is_not_what_it_asks_for(here: Path, text: str, intent: str) -> None:
    sentence = read_sentence(text)
    assert route(sentence, [probe(path) for path in sentence.paths]).intent == intent


@pytest.mark.parametrize("text", ["compare {}", "比对 {}", "compare {} with notes.txt", "compare {} and {run}"])
def test_one_dump_is_not_compared_with_nothing_nor_something_else_run(
    here: Path, nan_run: FinishedRun, text: str
) -> None:
    sentence = read_sentence(text.format("runs/a", run=nan_run.folder))
    found = route(sentence, [probe(path) for path in sentence.paths])
    assert (found.intent, found.missing) == ("compare", ("golden",))


def test_no_digit_of_a_layer_is_lost(nan_run: FinishedRun) -> None:
    for text in ("layer 1234567", "第1234567层", "1234567层"):
        assert read_question(text).layer == 1234567
        found = reply(nan_run, read_question(text))
        assert not found.known
        assert "1234567" in found.to_text()
    assert read_question(f"layer {'9' * 5000}").layer is None  # no number that anything has


def test_all_ranks_of_a_question_are_told_or_counted(nan_run: FinishedRun) -> None:
    found = reply(nan_run, read_question("is rank 0-999 a source?"))
    assert not found.known
    there = len(nan_run.result.ranks)  # type: ignore[union-attr]
    text = found.to_text().lower()
    assert text.count("is a ") == there
    assert text.count("has no rank") == 1
    assert f"{there}-999" in text


@pytest.mark.parametrize(
    "text", ["rank 6 at step 99", "show npu_grouped_matmul of step 99", "第 99 步的 npu_grouped_matmul"]
)
def test_an_answer_is_not_of_another_step_than_asked(nan_run: FinishedRun, text: str) -> None:
    found = reply(nan_run, read_question(text))
    assert not found.known
    assert "99" in found.to_text()
    assert reply(nan_run, read_question(text.replace("99", "0"))).known


def test_a_name_that_is_there_is_not_said_to_be_missing(nan_run: FinishedRun, rl_run: FinishedRun) -> None:
    name = nan_run.result.sources[0].op_name  # type: ignore[union-attr]
    text = reply(nan_run, read_question(f"show nonsense_slot of {name}")).to_text()
    assert "nonsense_slot" in text.splitlines()[0]
    assert name not in text.splitlines()[0]
    first = reply(rl_run, read_question("layer 77 linear_fc2")).to_text().splitlines()[0]
    assert "linear_fc2 + layer 77" in first


def test_a_bare_why_is_a_question(nan_run: FinishedRun, rl_run: FinishedRun) -> None:
    for run in (nan_run, rl_run):
        for text in ("why", "Why?", "why ?", "为什么", "为什么？"):
            assert reply(run, read_question(text)).known


# queries

REFUSED = [
    'from "duckdb_settings"()',
    "from duckdb_settings /* */ ()",
    "select \"current_setting\"('temp_directory')",
    "select 1 where 1 in (from \"query\"('select 1'))",
    "with x as (copy (select 1) to 'x.csv') select * from x",
    "select sleep_ms(100000)",
    "from glob('*')",
    "from 'run.json'",
    "from read_csv('5_ranks.csv')",
    "from sniff_csv('5_ranks.csv')",
    "from enable_logging(storage='file', storage_path='logs')",
    "select 1; select 2",
    "",
    "\0",
    "select '\0",
]
ENDLESS = [  # the limit of seconds or that of memory
    "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t",
    "select sum(i) from generate_series(1, 1000000000000) a(i)",
    "select count(*) from range(1000000) a, range(1000000) b",
    "select levenshtein(repeat('a', 100000), repeat('b', 100000))",
    "select repeat(repeat('x', 1000000), 4000)",
    "select repeat('x', 4000000000)",
    "select array_agg(x) from range(1000000000) t(x)",
]


@pytest.mark.parametrize("text", REFUSED)
def test_a_query_reads_the_tables_of_the_run_only(
    nan_run: FinishedRun, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NumprobeError) as caught:
        sql.query(nan_run, text)
    assert caught.value.code in ("E-SQL-002", "E-SQL-003")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ENDLESS)
def test_no_query_outlives_its_limits(nan_run: FinishedRun, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    with pytest.raises(NumprobeError) as caught:
        sql.query(nan_run, text, seconds=3)
    assert caught.value.code in ("E-SQL-003", "E-SQL-004")
    assert time.monotonic() - begun < 30  # of a machine that others use too
    assert capfd.readouterr() == ("", "")  # stdout may be the wire of a protocol


def test_an_answer_of_any_size_is_cut(nan_run: FinishedRun) -> None:
    found = sql.query(nan_run, "select repeat('x', 1000000) t from range(5)")
    assert len(found.rows[0][0]) < sql.LONGEST_CELL + 100
    assert "1000000 characters" in found.rows[0][0]
    wide = sql.query(nan_run, "select repeat('x', 9000) t from range(1000000)", most=100_000)
    assert wide.more
    assert len(wide.rows) < 200
    endless = sql.query(nan_run, "select * from generate_series(1, 1000000000000)")
    assert (len(endless.rows), endless.more) == (sql.MOST_ROWS, True)


def test_a_query_loads_no_module_of_the_folder(
    nan_run: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("duckdb", "json", "numprobe"):
        (tmp_path / f"{name}.py").write_text("open('OWNED', 'w')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert sql.query(nan_run, "select count(*) from ranks").rows
    assert not (tmp_path / "OWNED").exists()


# runs whose files were damaged, changed or replaced


def other_bytes(file: Path) -> None:
    file.write_bytes(b"PAR1 no table \xff\xfe")


def no_bytes(file: Path) -> None:
    file.write_bytes(b"")


def nested(file: Path) -> None:
    file.write_text('{"a":' * 100_000 + "1" + "}" * 100_000, encoding="utf-8")


def changed(file: Path) -> None:
    """A figure is another: it may be well-formed and wrong."""
    content = file.read_bytes()
    file.write_bytes(content.replace(b"0", b"1", 1) if b"0" in content else content + b" ")


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE = [other_bytes, no_bytes, nested, changed, pipe, endless, folder]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_no_answer_from_a_result_that_the_run_did_not_write(
    nan_run: FinishedRun, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(nan_run.folder, tmp_path / "run")
    damage(tmp_path / "run" / name)
    if damage is changed and name == "run.json":
        return  # the manifest holds no figure of an answer
    ran = numprobe(tmp_path, "follow", tmp_path / "run", "conclusion")
    assert ran.code == 2
    assert "E-AGT-00" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["compare", "rl"])
def test_a_table_that_the_run_did_not_write_is_not_read(
    rl_run: FinishedRun, agreeing_run: FinishedRun, tmp_path: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    run, name, question = (
        (rl_run, "slots.csv", "show layer 0 fc2") if kind == "rl" else (agreeing_run, "compare.parquet", "show q_proj")
    )
    shutil.copytree(run.folder, tmp_path / "run")
    damage(tmp_path / "run" / name)
    ran = numprobe(tmp_path, "follow", tmp_path / "run", question, "--json")
    assert ran.code in (0, 3), ran.err
    assert name not in [cite["where"].split()[0] for cite in ran.json["citations"]]
    if kind == "compare":
        assert name in ran.json["answer"]  # that it is damaged is said
    query = sql.query(load_run(tmp_path / "run"), "select count(*) from information_schema.tables")
    assert query.rows


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "~nosuchuser", "..", ".", "", "/etc", "\ud800"])
def test_what_is_no_run_is_one_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(NumprobeError) as caught:
        load_run(tmp_path / name if name != "~nosuchuser" else name)
    assert caught.value.code in ("E-AGT-003", "E-AGT-005")
    assert len(caught.value.where) < 1000


def test_corrections_of_any_content_are_no_harm(nan_run: FinishedRun, tmp_path: Path) -> None:
    for n, damage in enumerate(DAMAGE):
        run = tmp_path / f"run{n}"
        shutil.copytree(nan_run.folder, run)
        (run / "corrections.json").write_text(json.dumps({"exclude": []}), encoding="utf-8")
        damage(run / "corrections.json")
        ran = numprobe(tmp_path, "follow", run, "exclude NPU.npu_nothing and rerun", "-o", tmp_path / f"out{n}")
        assert ran.code in (0, 1, 3), ran.err
        assert "Traceback" not in ran.err
    other = tmp_path / "precious.txt"
    other.write_text("mine", encoding="utf-8")
    run = tmp_path / "linked"
    shutil.copytree(nan_run.folder, run)
    (run / "corrections.json").symlink_to(other)
    numprobe(tmp_path, "follow", run, "exclude NPU.npu_nothing and rerun", "-o", tmp_path / "out")
    assert other.read_text(encoding="utf-8") == "mine"


# conversations

LINES = [
    "/run " + "9" * 5000,
    "/run a\0b",
    "/run ~nosuchuser/x",
    "/save a\0b",
    "/save " + "x" * 400,
    "/save /proc/nowhere/x",
    "/resume %",
    "/resume " + "x" * 5000,
    "/" + "x" * 5000,
    "/exclude " + " ".join(f"A.b{n}" for n in range(5000)),
    "x" * 1_000_000,
    "why \udcff\udcfe",
    "\0",
]


@pytest.mark.parametrize("line", LINES, ids=[repr(line[:12]) for line in LINES])
def test_no_line_ends_a_conversation(nan_run: FinishedRun, tmp_path: Path, line: str) -> None:
    shutil.copytree(nan_run.folder, tmp_path / "run")  # /exclude keeps what it is given beside the run
    text = f"/run {tmp_path / 'run'}\n{line}\n/sessions\nis rank 6 the source?\n"
    ran = subprocess.run(
        command("chat", "--trace", "t.jsonl"),
        cwd=tmp_path,
        env=environment(tmp_path),
        input=text.encode("utf-8", "surrogateescape"),
        capture_output=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert b"rank 6" in ran.stdout.lower()
    assert b"numprobe failed" not in ran.stderr


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sessions SET run = x'ff00'",
        "UPDATE sessions SET pending = 5",
        "UPDATE turns SET question = x'ff'",
        "UPDATE turns SET answer = 7",
        "UPDATE turns SET run = 'a' || char(0) || 'b'",
        "UPDATE turns SET run = '/etc/passwd'",
        "UPDATE sessions SET run = '/etc'",
        "DELETE FROM sessions",
    ],
)
def test_rows_of_any_content_are_told_or_taken_as_text(tmp_path: Path, change: str) -> None:
    store = Store(tmp_path / "s.sqlite")
    session = store.begin("/here")
    store.add(session, Turn("why", "because", run="/nowhere"), run="/nowhere", pending="")
    with sqlite3.connect(store.file) as base:
        base.execute(change)
    shell = Shell(Conversation(Terminal("auto", True)), "en", store, lambda name: "")
    for line in ("/resume last", "/sessions", "/runs", "/save s.md"):
        found: object = None
        with suppress(NumprobeError):  # E-SES-001
            found = shell.command(line.replace("s.md", str(tmp_path / "s.md")))
        if isinstance(found, Answer):
            assert "about /etc" not in found.to_text()  # it is no run
    assert shell.conversation.run is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_ends_the_conversation_in_a_turn_too(
    dumps: Path, tmp_path: Path, number: signal.Signals
) -> None:
    running = subprocess.Popen(
        command("chat"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert running.stdin is not None
    assert running.stderr is not None
    running.stdin.write(f"loss is NaN, dump in {dumps}/dump/first_step_nan\n".encode() * 50)
    running.stdin.flush()
    running.stderr.readline()  # the first turn has begun; stdin stays open
    running.send_signal(number)
    assert running.wait(60) == 128 + number


def test_a_file_that_goes_while_a_run_reads_it(dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was scanned: the run ends with what it has read. While it is scanned: that rank is unreadable."""
    dump = tmp_path / "dump"
    shutil.copytree(dumps / "dump" / "first_step_nan", dump)
    victim, other = (dump / "step0" / name / "dump.json" for name in ("rank11", "rank12"))
    write, edges = nan.write_artifacts, local.edges_of

    def gone_at_the_end(*arguments: object, **named: object) -> None:
        victim.unlink()
        write(*arguments, **named)  # type: ignore[arg-type]

    def gone_in_between(file: Path) -> str:
        if file == other:
            other.unlink(missing_ok=True)
        return edges(file)

    monkeypatch.setattr(nan, "write_artifacts", gone_at_the_end)
    monkeypatch.setattr(local, "edges_of", gone_in_between)
    ran = numprobe(tmp_path, "nan", dump, "--jobs", "1", "--no-cache", "--json", "-o", tmp_path / "run")
    assert ran.code == 1, ran.err
    assert ran.json["source_ranks"] == [6]
    files = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["input_files"]
    assert [Path(entry["file"]).parent.name for entry in files if "gone" in entry] == ["rank11"]
    rows = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["ranks"]
    assert [row["rank"] for row in rows if row["status"] == "unreadable"] == [12]


def test_a_full_disk_costs_what_is_kept_and_no_answer(dumps: Path, tmp_path: Path) -> None:
    """Files end at 4 kB: sessions, trace and saved pages do not fit, and each is told once."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    questions = [f"what is in {dumps}/runs/a\n"] * 12
    ran = subprocess.run(
        command("chat", "--trace", tmp_path / "trace.jsonl"),
        input="".join([*questions, "/save talk.md\n", "/save talk.md\n"]),
        cwd=tmp_path,
        env=environment(tmp_path, XDG_STATE_HOME=str(tmp_path / "state")),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        preexec_fn=small_files,
    )
    assert ran.returncode == 0
    assert ran.stdout.count("Skills that apply") == len(questions)
    assert ran.stderr.count("E-SES-001") == 1
    assert ran.stderr.count("trace.jsonl") == 1
    assert ran.stderr.count("talk.md") == 2
    assert "the output file exists" not in ran.stderr  # half a page is not left behind
    assert ran.stderr.count("free space") == 4
    assert "Traceback" not in ran.stderr
    assert not [file.name for file in tmp_path.iterdir() if "talk" in file.name]


@pytest.mark.parametrize("same", [True, False], ids=["one session", "two sessions"])
def test_chats_at_once_lose_no_turn(same: bool, tmp_path: Path) -> None:
    file = tmp_path / "sessions.sqlite"
    first = Store(file).begin("here")
    errors: list[Exception] = []

    def talk(who: str, session: str) -> None:
        try:
            for n in range(20):
                Store(file).add(session, Turn(f"{who}{n}", "a"), run=who, pending="")
        except Exception as error:
            errors.append(error)

    sessions = [first, first if same else Store(file).begin("there")]
    chats = [threading.Thread(target=talk, args=(who, s)) for who, s in zip("ab", sessions, strict=True)]
    for chat in chats:
        chat.start()
    for chat in chats:
        chat.join()
    assert not errors
    for who, session in zip("ab", sessions, strict=True):
        kept = [turn.question for turn in Store(file).resume(session)[1]]
        assert [question for question in kept if question[0] == who] == [f"{who}{n}" for n in range(20)]
        assert len(kept) == (40 if same else 20)


def test_a_history_that_cannot_be_kept_costs_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = pytest.importorskip("numprobe.cli.prompt")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "numprobe" / "history").mkdir(parents=True)  # neither read nor written
    history = prompt._history()
    history.append_string("loss is NaN")
    assert history.get_strings() == ["loss is NaN"]
    assert list(history.load_history_strings()) == []
