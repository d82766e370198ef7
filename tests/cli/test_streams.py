"""Streams that cannot show every text, names that are no text, streams that are closed, disks that are full."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from .shell import H, command, copy_of_h, environment

# --- encodings -------------------------------------------------------------------------------------------------------


def raw(cwd: Path, *arguments: object, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment(cwd, **environ), capture_output=True, timeout=120
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk", "utf-8"])
def test_any_text_on_any_stream(encoding: str, tmp_path: Path):
    """Chinese, an emoji and a letter with an accent, in names, paths and messages."""
    dump = copy_of_h(tmp_path / "é数据📦" / "dump")
    file = dump / "step0" / "rank2" / "dump.json"
    file.write_text(file.read_text().replace("Torch.log.0", "Torch.é层📦log.0"))
    for lang in ("zh", "en"):
        out = f"é输出📦_{lang}"
        for arguments in (("nan", dump, "-o", out), ("inspect", dump)):
            ran = raw(tmp_path, *arguments, "--lang", lang, PYTHONIOENCODING=encoding)
            assert ran.returncode == (1 if arguments[0] == "nan" else 0), ran.stderr
            assert ran.stdout.decode(encoding)
            assert b"Error" not in ran.stderr
        ran = raw(tmp_path, "nan", dump, "-o", out, "--lang", lang, "--json", PYTHONIOENCODING=encoding)
        found = json.loads(ran.stdout.decode("utf-8"))
        assert (found["out"], found["first_anomaly"]["op_name"]) == (out, "Torch.é层📦log.0.forward")
    gone = raw(tmp_path, "nan", "没有📦", "--lang", "zh", PYTHONIOENCODING=encoding)
    assert (gone.returncode, b"E-FMT-001" in gone.stderr) == (2, True)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take no such names")
def test_names_that_are_no_text(tmp_path: Path):
    """Bytes that are no UTF-8 in the names of the dump and of the output: shown as escapes, everywhere."""
    dump = tmp_path / os.fsdecode(b"b\xff\xfe") / os.fsdecode(b"d\xff")
    copy_of_h(dump)
    out = Path(os.fsdecode(b"o\xff\xfe"))
    for arguments in (
        ("nan", dump, "-o", out),
        ("nan", dump / "step0" / "rank2", "-o", out / "one"),
        ("inspect", dump),
    ):
        text, as_json = raw(tmp_path, *arguments), raw(tmp_path, *arguments, "--json")
        assert text.returncode == as_json.returncode == (1 if arguments[0] == "nan" else 0), text.stderr
        found = json.loads(as_json.stdout.decode("utf-8"))
        if arguments[0] == "nan":
            assert found["out"].startswith(r"o\xff\xfe")
            assert rb"o\xff\xfe" in text.stdout
    for file in (tmp_path / out).iterdir():
        if file.is_file():
            content = file.read_text(encoding="utf-8")
            assert json.loads(content) if file.suffix == ".json" else content
    manifest = json.loads((tmp_path / out / "run.json").read_text())
    assert manifest["inputs"]["dump"].endswith(r"b\xff\xfe/d\xff")
    gone = raw(tmp_path, "nan", dump / "gone", "--progress", "json")
    assert json.loads(gone.stderr.decode("utf-8"))["where"].endswith(r"d\xff/gone")
    made = raw(tmp_path, "synth", "nan", "-o", os.fsdecode(b"s\xff"), "--size", "2x0.1")
    assert (made.returncode, made.stdout[:5]) == (0, rb"s\xff")


# --- closed and full streams -----------------------------------------------------------------------------------------

CLOSED = ["1>&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-", "0<&-"]


@pytest.mark.parametrize("closed", CLOSED)
def test_closed_streams_are_as_the_null_device(closed: str, tmp_path: Path):
    for arguments, code in [
        (("nan", H, "-o", "out"), 1),
        (("nan", H, "-o", "out", "--json"), 1),
        (("inspect", H), 0),
        (("--help",), 0),
        (("nan", "gone"), 2),
        (("nan",), 2),
    ]:
        ran = subprocess.run(
            ["sh", "-c", f'"$@" {closed}', "sh", *command(*arguments)],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            timeout=60,
        )
        assert ran.returncode == code, ran.stderr
        assert b"Traceback" not in ran.stderr
        assert b"NoneType" not in ran.stderr
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [("nan", H, "-o", "out"), ("inspect", H), ("--help",)], ids=lambda a: a[0])
def test_an_output_that_is_full(arguments: tuple[object, ...], tmp_path: Path):
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            command(*arguments),
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
    assert ran.returncode == 2
    assert "E-OUT-002  the output cannot be written: No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


# --- a disk that is full ---------------------------------------------------------------------------------------------

FULL = [
    (("nan", H, "-o", "out"), 20_000),
    (("nan", H, "-o", "out"), 100),
    (("nan", H, "-o", "out", "--compat", "msprobe", "--progress", "json"), 4_000),
    (("synth", "nan", "-o", "out"), 10_000),
    (("demo", "nan", "-o", "out"), 10_000),
]


@pytest.mark.parametrize(("arguments", "room"), FULL, ids=[f"{a[0]} {room}" for a, room in FULL])
def test_a_disk_that_is_full(arguments: tuple[object, ...], room: int, tmp_path: Path):
    """Files of at most so many bytes can be written: E-OUT-002 with place and remedy, and nothing half written."""
    ran = subprocess.run(
        command(*arguments),
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        encoding="utf-8",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        timeout=120,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    if "json" in arguments:
        error = json.loads(ran.stderr.splitlines()[-1])
        assert (error["code"], error["where"]) == ("E-OUT-002", "out")
    else:
        text = " ".join(ran.stderr.split())
        assert "E-OUT-002 the output folder cannot be written: File too large where out do free space there" in text
    assert not list(tmp_path.rglob("*.part"))
