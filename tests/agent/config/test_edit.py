"""``config set``: what it changes, and that it changes nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.shell import command, environment, numprobe
from numprobe.agent.config import file as files
from numprobe.agent.config.edit import set_values
from numprobe.agent.config.file import parse
from numprobe.record.errors import NumprobeError

from .test_settings import QWEN, refused, write

MINE = """\
# my settings

version = 1   # of the form
lang = 'en'

# the one on our own server
[llm.qwen]   # fast
provider = "openai"
model = "qwen3-32b"          # 32 B
base_url = "http://10.0.0.1:8000/v1"

[llm."gpt-4.1"]
provider = 'openai'
model = 'gpt-4.1'
retries = 0x3
# end
"""


def test_the_first_setting_makes_the_file(tmp_path: Path):
    ran = numprobe(tmp_path, "config", "set", "lang", "zh", "--lang", "en")
    file = tmp_path / ".config" / "numprobe" / "config.toml"
    assert (ran.code, ran.out, ran.err) == (0, f"{file} written\n", "")
    assert file.read_text() == 'version = 1\nlang = "zh"\n'
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert oct(file.parent.stat().st_mode & 0o777) == "0o700"
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_everything_else_stays_as_it_is(tmp_path: Path):
    file = write(tmp_path, MINE)
    file.chmod(0o644)
    words = ("llm.qwen.temperature", "0.5", "llm.gpt-4.1.retries", "4", "lang", "zh")
    assert numprobe(tmp_path, "config", "set", *words).code == 0
    expected = MINE.replace("retries = 0x3", "retries = 4").replace("lang = 'en'", 'lang = "zh"')
    line = 'base_url = "http://10.0.0.1:8000/v1"\n'
    assert file.read_text() == expected.replace(line, f"{line}temperature = 0.5\n")
    assert oct(file.stat().st_mode & 0o777) == "0o600"


def test_a_new_alias_leaves_the_others(tmp_path: Path):
    file = write(tmp_path, MINE)
    words = (
        "llm.new.provider",
        "gemini",
        "llm.new.model",
        "flash",
        "default_llm",
        "new",
        "llm.new.context_window",
        "1000000",
    )
    assert numprobe(tmp_path, "config", "set", *words).code == 0
    found = parse(file.read_text(), file)
    assert found["llm"]["new"] == {"provider": "google", "model": "flash", "context_window": 1000000}
    assert found["default_llm"] == "new"
    assert {k: v for k, v in found["llm"].items() if k != "new"} == parse(MINE, file)["llm"]
    assert all(line in file.read_text() for line in MINE.splitlines())


def test_settings_are_taken_back(tmp_path: Path):
    file = write(tmp_path, MINE)
    assert numprobe(tmp_path, "config", "set", "llm.qwen.base_url", "", "lang", "", "llm.gpt-4.1", "").code == 0
    assert parse(file.read_text(), file) == {
        "version": 1,
        "llm": {"qwen": {"provider": "openai", "model": "qwen3-32b"}},
    }
    words = ("llm.qwen.provider", "", "llm.qwen.model", "", "llm.never.model", "")
    assert numprobe(tmp_path, "config", "set", *words).code == 0
    assert parse(file.read_text(), file).get("llm", {}) == {}
    assert "# my settings" in file.read_text()


REFUSED = [
    (("lang", "fr"), "E-SET-004"),
    (("lang",), "E-USE-013"),
    (("lang", "zh", "default_llm"), "E-USE-013"),
    (("langauge", "zh"), "E-SET-003"),
    (("llm", "x"), "E-SET-003"),
    (("version", "2"), "E-SET-003"),
    (("llm.qwen", "x"), "E-SET-004"),
    (("llm.qwen.tempreture", "1"), "E-SET-003"),
    (("llm.qwen.temperature", "hot"), "E-SET-004"),
    (("llm.qwen.retries", "1.5"), "E-SET-004"),
    (("llm.qwen.provider", "azure"), "E-SET-004"),
    (("llm.qwen.model", ""), "E-SET-006"),
    (("llm.new.model", "a"), "E-SET-006"),
    (("llm.none.model", "a"), "E-SET-006"),
    (("llm.a b.model", "a"), "E-SET-006"),
    (("default_llm", "gone"), "E-SET-009"),
    (("lang", "zh", "llm.qwen.retries", "x"), "E-SET-004"),
]


@pytest.mark.parametrize(("words", "code"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_is_refused_changes_nothing(words: tuple[str, ...], code: str, tmp_path: Path):
    file = write(tmp_path, MINE)
    refused(numprobe(tmp_path, "config", "set", *words), code)
    assert file.read_text() == MINE
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_the_default_alias_is_not_taken_away(tmp_path: Path):
    file = write(tmp_path, f'version = 1\ndefault_llm = "qwen"\n{QWEN}')
    refused(numprobe(tmp_path, "config", "set", "llm.qwen", ""), "E-SET-009")
    assert numprobe(tmp_path, "config", "set", "llm.qwen", "", "default_llm", "none").code == 0
    assert parse(file.read_text(), file) == {"version": 1, "default_llm": "none"}


def test_a_damaged_file_is_not_touched(tmp_path: Path):
    file = write(tmp_path, "lang = zh\n")
    refused(numprobe(tmp_path, "config", "set", "lang", "zh"), "E-SET-002")
    assert file.read_text() == "lang = zh\n"


def test_a_wrong_value_can_be_corrected(tmp_path: Path):
    file = write(tmp_path, 'version = 1\nlang = "fr"\n')
    assert numprobe(tmp_path, "config", "set", "lang", "zh").code == 0
    assert file.read_text() == 'version = 1\nlang = "zh"\n'


def test_a_variable_that_wins_is_told(tmp_path: Path):
    ran = numprobe(tmp_path, "config", "set", "lang", "zh", NUMPROBE_LANG="en")
    assert "NUMPROBE_LANG" in ran.out


def test_a_link_stays_a_link(tmp_path: Path):
    real = tmp_path / "dotfiles" / "numprobe.toml"
    real.parent.mkdir()
    real.write_text(MINE)
    link = write(tmp_path, "")
    link.unlink()
    link.symlink_to(real)
    assert numprobe(tmp_path, "config", "set", "lang", "zh").code == 0
    assert link.is_symlink()
    assert 'lang = "zh"' in real.read_text()


def test_numprobe_config_names_the_file(tmp_path: Path):
    own = tmp_path / "deep" / "own.toml"
    assert numprobe(tmp_path, "config", "set", "lang", "zh", NUMPROBE_CONFIG=str(own)).code == 0
    assert own.read_text() == 'version = 1\nlang = "zh"\n'
    assert not (tmp_path / ".config").exists()


def test_where_nothing_can_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("text")
    ran = numprobe(tmp_path, "config", "set", "lang", "zh", NUMPROBE_CONFIG=str(tmp_path / "file" / "config.toml"))
    refused(ran, "E-SET-0")


def test_what_is_no_ordinary_file_is_not_replaced(tmp_path: Path):
    """As /dev/null, which root could put a file in place of."""
    assert numprobe(tmp_path, "config", "show", NUMPROBE_CONFIG=os.devnull).code == 0
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(NumprobeError) as error:
        files.write(pipe, "version = 1")
    assert error.value.code == "E-SET-008"
    assert pipe.is_fifo()


def test_a_full_disk_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = write(tmp_path, MINE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(NumprobeError) as error:
        set_values([("lang", "zh")], {"NUMPROBE_CONFIG": str(file)})
    assert error.value.code == "E-SET-008"
    assert file.read_text() == MINE
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_two_at_once_lose_nothing(tmp_path: Path):
    write(tmp_path, "version = 1\n")
    words = [(f"llm.m{n}.provider", "openai", f"llm.m{n}.model", "a") for n in range(6)]
    running = [subprocess.Popen(command("config", "set", *w), env=environment(tmp_path)) for w in words]
    assert [one.wait(timeout=60) for one in running] == [0] * 6
    file = tmp_path / ".config" / "numprobe" / "config.toml"
    assert sorted(parse(file.read_text(), file)["llm"]) == [f"m{n}" for n in range(6)]


# --- versions --------------------------------------------------------------------------------------------------------


def test_a_newer_file_is_refused_and_untouched(tmp_path: Path):
    text = 'version = 2\nlang = "zh"\nsomething_new = 1\n'
    file = write(tmp_path, text)
    for words in (("show",), ("show", "--json"), ("set", "lang", "en")):
        refused(numprobe(tmp_path, "config", *words), "E-SET-007", "version 2", str(file))
    assert file.read_text() == text
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_a_file_without_a_number_gets_one_and_is_kept(tmp_path: Path):
    text = f'# by hand\nlang = "en"\n{QWEN}'
    file = write(tmp_path, text)
    assert numprobe(tmp_path, "config", "show", "--json").json["version"] == 0
    assert "older" in numprobe(tmp_path, "config", "show").out
    assert file.read_text() == text
    ran = numprobe(tmp_path, "config", "set", "lang", "zh", "--lang", "en")
    backup = file.with_name("config.toml.v0.bak")
    assert backup.name in ran.out
    assert backup.read_text() == text
    assert oct(backup.stat().st_mode & 0o777) == "0o600"
    assert parse(file.read_text(), file)["version"] == 1
    assert "# by hand" in file.read_text()
    assert numprobe(tmp_path, "config", "set", "lang", "en").code == 0
    assert len(list(file.parent.iterdir())) == 2
    file.write_text(text)
    assert numprobe(tmp_path, "config", "set", "lang", "zh").code == 0
    assert file.with_name("config.toml.v0.bak.2").read_text() == text


def test_a_step_to_a_later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a version 2 would bring one that renames a setting: read at once, written with the next change."""

    def renamed(document) -> None:  # type: ignore[no-untyped-def]
        for fields in document.get("llm", {}).values():
            if "wait_s" in fields:
                fields["timeout_s"] = fields.pop("wait_s")

    monkeypatch.setattr(files, "VERSION", 2)
    monkeypatch.setitem(files.STEPS, 1, renamed)
    text = f"version = 1\n{QWEN}wait_s = 7.0  # seconds\n"
    file = write(tmp_path, text)
    found = numprobe(tmp_path, "config", "show", "--json").json
    assert found["settings"]["llm.qwen.timeout_s"]["value"] == 7.0
    assert file.read_text() == text
    assert numprobe(tmp_path, "config", "set", "lang", "zh").code == 0
    written = parse(file.read_text(), file)
    assert (written["version"], written["llm"]["qwen"]["timeout_s"]) == (2, 7.0)
    assert file.with_name("config.toml.v1.bak").read_text() == text


# --- any form that TOML has ------------------------------------------------------------------------------------------

FORMS = [
    'version = 1\n[llm.a]\nprovider = "openai"\nmodel = "m"\n[llm.b]\nprovider = "google"\nmodel = "n"\n',
    'version = 1\n[llm]\na = {provider = "openai", model = "m"}\nb = {provider = "google", model = "n"}\n',
    'version = 1\nllm = {a = {provider = "openai", model = "m"}, b = {provider = "google", model = "n"}}\n',
    'version = 1\nllm.a.provider = "openai"\nllm.a.model = "m"\nllm.b.provider = "google"\nllm.b.model = "n"\n',
    'version = 1\n[llm]\na.provider = "openai"\na.model = "m"\n[llm.b]\nprovider = "google"\nmodel = "n"\n',
    'version = 1\r\n# c\r\n[llm.a]\r\nprovider = "openai"\r\nmodel = "m"\r\n[llm.b]\r\nprovider = "google"\r\nmodel = "n"',
]
CHANGES = st.sampled_from(
    [
        ("lang", "zh", ("lang",), "zh"),
        ("default_llm", "a", ("default_llm",), "a"),
        ("llm.a.retries", "5", ("llm", "a", "retries"), 5),
        ("llm.b.model", 'a "quoted" \\ name', ("llm", "b", "model"), 'a "quoted" \\ name'),
        ("llm.a.temperature", "1", ("llm", "a", "temperature"), 1.0),
        ("llm.a.base_url", "http://h/v1", ("llm", "a", "base_url"), "http://h/v1"),
        ("llm.a.base_url", "", ("llm", "a", "base_url"), None),
    ]
)


@pytest.mark.parametrize("form", FORMS, ids=["tables", "inline", "all inline", "dotted", "mixed", "windows"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(CHANGES, min_size=1, max_size=5))
def test_any_form_of_the_file(form: str, changes: list, tmp_path: Path):  # type: ignore[type-arg]
    file = tmp_path / "config.toml"
    file.write_bytes(form.encode())
    expected = parse(form, file)
    for key, text, place, value in changes:
        set_values([(key, text)], {"NUMPROBE_CONFIG": str(file)})
        here = expected
        for part in place[:-1]:
            here = here[part]
        if value is None:
            here.pop(place[-1], None)
        else:
            here[place[-1]] = value
    written = file.read_bytes().decode()
    assert parse(written, file) == expected
    if "# c\r\n" in form:
        assert "# c\r\n" in written


@pytest.mark.parametrize("form", FORMS, ids=["tables", "inline", "all inline", "dotted", "mixed", "windows"])
def test_a_new_alias_in_any_form(form: str, tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_bytes(form.encode())
    set_values([("llm.c.provider", "openai"), ("llm.c.model", "o"), ("llm.a", "")], {"NUMPROBE_CONFIG": str(file)})
    expected = parse(form, file)
    del expected["llm"]["a"]
    expected["llm"]["c"] = {"provider": "openai", "model": "o"}
    assert parse(file.read_bytes().decode(), file) == expected


@pytest.mark.skipif(os.name == "nt" or sys.platform == "win32", reason="POSIX modes")
def test_the_umask_does_not_open_the_file(tmp_path: Path):
    before = os.umask(0)
    try:
        assert numprobe(tmp_path, "config", "set", "lang", "zh").code == 0
    finally:
        os.umask(before)
    assert oct((tmp_path / ".config" / "numprobe" / "config.toml").stat().st_mode & 0o777) == "0o600"
