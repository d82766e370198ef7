"""What is in force, where it comes from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.shell import CLEAN, H, Ran, numprobe, process
from numprobe.agent.config.model import LLM, Llm
from numprobe.agent.config.settings import load_settings
from numprobe.record.errors import NumprobeError

QWEN = '[llm.qwen]\nprovider = "openai"\nmodel = "qwen3"\n'
B = '[llm.b]\nprovider = "google"\nmodel = "m"\n'


def write(cwd: Path, text: str) -> Path:
    file = cwd / ".config" / "numprobe" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def shown(cwd: Path, *words: str, **environ: str) -> dict[str, Any]:
    ran = numprobe(cwd, "config", "show", "--json", *words, **environ)
    assert (ran.code, ran.err) == (0, "")
    return ran.json


def refused(ran: Ran, code: str, *said: str) -> None:
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("✗ E-") == 1, ran.err
    assert code in ran.err
    for text in said:
        assert text in ran.err


def test_without_a_file(tmp_path: Path):
    found = shown(tmp_path)
    assert found["file"] == str(tmp_path / ".config" / "numprobe" / "config.toml")
    assert found["version"] is None
    assert {key: (one["value"], one["from"]) for key, one in found["settings"].items()} == {
        "lang": ("", "default"),
        "default_llm": ("", "default"),
    }
    assert not (tmp_path / ".config").exists()


def test_the_defaults_of_an_alias(tmp_path: Path):
    write(tmp_path, QWEN)
    found = shown(tmp_path)["settings"]
    assert {key.removeprefix("llm.qwen."): one["value"] for key, one in found.items() if "qwen" in key} == {
        "provider": "openai",
        "model": "qwen3",
        "base_url": "",
        "api_key_env": "",
        "keyring": "",
        "max_tokens": 0,
        "temperature": 0.0,
        "timeout_s": 120.0,
        "retries": 2,
        "context_window": None,
        "input_cost_per_mtok": None,
        "output_cost_per_mtok": None,
    }


def test_flags_over_environment_over_file(tmp_path: Path):
    file = write(
        tmp_path,
        f'lang = "zh"\ndefault_llm = "qwen"\n{QWEN}temperature = 0.25\n[llm.b]\nprovider = "google"\nmodel = "m"\n',
    )
    assert shown(tmp_path)["settings"]["lang"] == {"value": "zh", "from": "file", "where": str(file)}
    environ = {"NUMPROBE_LANG": "en", "NUMPROBE_LLM": "b", "NUMPROBE_LLM_QWEN_TEMPERATURE": "0.5"}
    found = shown(tmp_path, **environ)["settings"]
    assert found["lang"] == {"value": "en", "from": "environment", "where": "NUMPROBE_LANG"}
    assert found["default_llm"]["value"] == "b"
    assert found["llm.qwen.temperature"] == {
        "value": 0.5,
        "from": "environment",
        "where": "NUMPROBE_LLM_QWEN_TEMPERATURE",
    }
    assert found["llm.qwen.model"]["from"] == "file"
    assert shown(tmp_path, "--lang", "zh", **environ)["settings"]["lang"] == {
        "value": "zh",
        "from": "flag",
        "where": "--lang",
    }
    assert shown(tmp_path, NUMPROBE_LANG="", NUMPROBE_LLM="auto")["settings"]["lang"]["value"] == "zh"


def test_which_llm_is_asked(tmp_path: Path):
    environ = {
        "NUMPROBE_CONFIG": str(
            write(tmp_path, f'default_llm = "qwen"\n{QWEN}[llm.b]\nprovider = "google"\nmodel = "m"\n')
        )
    }

    def chosen(flag: str | None, **more: str) -> str:
        found = load_settings({"default_llm": flag}, {**environ, **more}).llm()
        return found[0] if found else ""

    assert chosen(None) == "qwen"
    assert chosen("auto") == "qwen"
    assert chosen("b") == "b"
    assert chosen("none") == ""
    assert chosen(None, NUMPROBE_LLM="b") == "b"
    assert chosen("qwen", NUMPROBE_LLM="none") == "qwen"
    assert chosen(None, NUMPROBE_LLM="none") == ""
    with pytest.raises(NumprobeError) as error:
        chosen("c")
    assert (error.value.code, error.value.where, error.value.found) == ("E-SET-009", "--llm", "qwen, b")
    settings = load_settings({}, environ)
    assert settings.llm("b") == ("b", Llm(provider="google", model="m"))
    assert settings.llm("none") is None
    with pytest.raises(NumprobeError):
        settings.llm("c")


def test_an_alias_of_the_environment_alone(tmp_path: Path):
    environ = {
        "NUMPROBE_LLM": "ci",
        "NUMPROBE_LLM_CI_PROVIDER": "Gemini",
        "NUMPROBE_LLM_CI_MODEL": "flash",
        "NUMPROBE_LLM_CI_MAX_TOKENS": "512",
        "NUMPROBE_LLM_CI_OUTPUT_COST_PER_MTOK": "0.5",
    }
    found = load_settings({}, {**environ, "NUMPROBE_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path)})
    assert found.llm() == ("ci", Llm("google", "flash", max_tokens=512, output_cost_per_mtok=0.5))
    with pytest.raises(NumprobeError) as error:
        load_settings({}, {"NUMPROBE_LLM_CI_MODEL": "flash", "XDG_CONFIG_HOME": str(tmp_path)})
    assert (error.value.code, error.value.where) == ("E-SET-006", "NUMPROBE_LLM_CI_MODEL")


def test_names_of_aliases_in_variables(tmp_path: Path):
    write(tmp_path, '[llm."gpt-4.1"]\nprovider = "openai"\nmodel = "a"\n')
    assert shown(tmp_path, NUMPROBE_LLM_GPT_4_1_MODEL="b")["settings"]["llm.gpt-4.1.model"]["value"] == "b"
    write(tmp_path, '[llm.a-b]\nprovider = "openai"\nmodel = "a"\n[llm.a_b]\nprovider = "openai"\nmodel = "a"\n')
    refused(numprobe(tmp_path, "config", "show", NUMPROBE_LLM_A_B_MODEL="b"), "E-SET-006", "a-b, a_b")


@pytest.mark.parametrize("name", ["gemini", "Gemini", "GOOGLE", "google"])
def test_gemini_is_google(name: str, tmp_path: Path):
    write(tmp_path, QWEN.replace("openai", name))
    assert shown(tmp_path)["settings"]["llm.qwen.provider"]["value"] == "google"


def test_where_the_file_is(tmp_path: Path):
    own = tmp_path / "own.toml"
    own.write_text('lang = "zh"\n')
    found = shown(tmp_path, NUMPROBE_CONFIG=str(own))
    assert (found["file"], found["settings"]["lang"]["value"]) == (str(own), "zh")
    refused(numprobe(tmp_path, "config", "show", NUMPROBE_CONFIG="gone.toml"), "E-SET-001", "gone.toml")
    home = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": ""}
    assert shown(tmp_path, **home)["file"] == str(tmp_path / "home" / ".config" / "numprobe" / "config.toml")
    home["XDG_CONFIG_HOME"] = "relative"
    assert shown(tmp_path, **home)["file"] == str(tmp_path / "home" / ".config" / "numprobe" / "config.toml")


UNKNOWN = [
    ('langauge = "zh"', "langauge", "lang"),
    ("nonsense = 1", "nonsense", "lang, default_llm, llm"),
    ('[lmm.qwen]\nmodel = "a"', "lmm", "llm"),
    (f"{QWEN}temprature = 1", "llm.qwen.temprature", "llm.qwen.temperature"),
    (f'{QWEN}alias = "a"', "llm.qwen.alias", "provider"),
]


@pytest.mark.parametrize(("text", "key", "suggestion"), UNKNOWN, ids=[key for _, key, _ in UNKNOWN])
def test_an_unknown_key_is_told_with_the_nearest(text: str, key: str, suggestion: str, tmp_path: Path):
    file = write(tmp_path, text)
    for lang in ("en", "zh"):
        refused(numprobe(tmp_path, "config", "show", "--lang", lang), "E-SET-003", key, str(file), suggestion)


WRONG = [
    ("lang = 1", "lang"),
    ('lang = "fr"', "lang"),
    ("default_llm = true", "default_llm"),
    ("llm = 1", "llm"),
    ("llm.qwen = 1", "llm.qwen"),
    ("[[llm]]\n", "llm"),
    ("version = true", "version"),
    ('version = "1"', "version"),
    ("version = -1", "version"),
    (f"{QWEN}max_tokens = -1", "llm.qwen.max_tokens"),
    (f"{QWEN}max_tokens = 1.5", "llm.qwen.max_tokens"),
    (f"{QWEN}max_tokens = true", "llm.qwen.max_tokens"),
    (f'{QWEN}max_tokens = "512"', "llm.qwen.max_tokens"),
    (f"{QWEN}temperature = 2.5", "llm.qwen.temperature"),
    (f"{QWEN}temperature = nan", "llm.qwen.temperature"),
    (f"{QWEN}timeout_s = 0", "llm.qwen.timeout_s"),
    (f"{QWEN}timeout_s = inf", "llm.qwen.timeout_s"),
    (f"{QWEN}retries = [1]", "llm.qwen.retries"),
    (f"{QWEN}context_window = 2026-01-01", "llm.qwen.context_window"),
    (f"{QWEN}input_cost_per_mtok = -0.1", "llm.qwen.input_cost_per_mtok"),
    (QWEN.replace("openai", "azure"), "llm.qwen.provider"),
    (QWEN.replace("qwen3", ""), "llm.qwen.model"),
    (f'{QWEN}base_url = "127.0.0.1:8000"', "llm.qwen.base_url"),
    (f'{QWEN}base_url = "ftp://host/v1"', "llm.qwen.base_url"),
    (f'{QWEN}base_url = "http://"', "llm.qwen.base_url"),
    (f'{QWEN}base_url = "http://host:port/"', "llm.qwen.base_url"),
    (f'{QWEN}base_url = "http://[::1"', "llm.qwen.base_url"),
    (f'{QWEN}api_key_env = "MY KEY"', "llm.qwen.api_key_env"),
    (f'{QWEN}keyring = "numprobe"', "llm.qwen.keyring"),
    ('[mcp.wiki]\nurl = "ftp://host/mcp"', 'url = "http://127.0.0.1:8123/mcp"'),
]


@pytest.mark.parametrize(("text", "key"), WRONG, ids=[text[-40:] for text, _ in WRONG])
def test_a_wrong_value_is_told_with_a_right_one(text: str, key: str, tmp_path: Path):
    file = write(tmp_path, text)
    refused(
        numprobe(tmp_path, "config", "show"),
        "E-SET-004",
        key,
        str(file),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[llm.qwen]\n", "provider, model"),
        ('[llm.qwen]\nmodel = "a"\n', "provider"),
        ('[llm.qwen]\nprovider = "openai"\n', "model"),
        (f'{QWEN}api_key_env = "A"\nkeyring = "a/b"\n', "keyring"),
        (QWEN.replace("llm.qwen", "llm.none"), "llm.none"),
        (QWEN.replace("llm.qwen", "llm.auto"), "llm.auto"),
        (QWEN.replace("llm.qwen", 'llm."a b"'), "a b"),
        (QWEN.replace("llm.qwen", 'llm.""'), "llm."),
    ],
)
def test_an_alias_that_is_none(text: str, said: str, tmp_path: Path):
    write(tmp_path, text)
    refused(numprobe(tmp_path, "config", "show"), "E-SET-006", said)


@pytest.mark.parametrize(("key", "near"), [("mpc", "mcp"), ("lnag", "lang"), ("llms", "llm")])
def test_a_wrong_name_of_a_setting_is_told_with_the_one_like_it(key: str, near: str, tmp_path: Path):
    write(tmp_path, f"[{key}.x]\n")
    refused(numprobe(tmp_path, "config", "show"), "E-SET-003", f"write {near}")


@pytest.mark.parametrize("text", ["lang = zh", "lang", "[llm", 'lang = "a', "a = 1\na = 2", "a = " + "[" * 5000])
def test_what_is_no_toml(text: str, tmp_path: Path):
    file = write(tmp_path, text)
    refused(numprobe(tmp_path, "config", "show"), "E-SET-002", str(file))


def test_files_that_cannot_be_read(tmp_path: Path):
    file = write(tmp_path, "")
    file.write_bytes(b"\xff\xfe\x00")
    refused(numprobe(tmp_path, "config", "show"), "E-SET-001", str(file))
    file.write_bytes(b"#" * ((1 << 20) + 1))
    refused(numprobe(tmp_path, "config", "show"), "E-SET-001")
    file.unlink()
    file.mkdir()
    refused(numprobe(tmp_path, "config", "show"), "E-SET-001")


def test_what_editors_write_is_read(tmp_path: Path):
    write(tmp_path, "").write_bytes(
        ('\ufeff# ein Kommentar: ü\r\nlang = "zh"\r\n' + QWEN.replace("\n", "\r\n")).encode()
    )
    assert shown(tmp_path)["settings"]["llm.qwen.model"]["value"] == "qwen3"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("NUMPROBE_LANG", "fr", "E-SET-004"),
        ("NUMPROBE_LLM", "gone", "E-SET-009"),
        ("NUMPROBE_LLM_QWEN_TEMPERATURE", "hot", "E-SET-004"),
        ("NUMPROBE_LLM_QWEN_MAX_TOKENS", "-1", "E-SET-004"),
        ("NUMPROBE_LLM_QWEN_TEMP", "1", "E-SET-003"),
        ("NUMPROBE_LLM_MODEL", "a", "E-SET-003"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, code: str, tmp_path: Path):
    write(tmp_path, QWEN)
    refused(numprobe(tmp_path, "config", "show", **{name: value}), code, name)


# --- the language of every command -----------------------------------------------------------------------------------


def chinese(text: str) -> bool:
    return any("\u4e00" <= c <= "\u9fff" for c in text)


def test_the_language_holds_for_every_command(tmp_path: Path):
    assert not chinese(numprobe(tmp_path, "inspect", H).out)
    assert chinese(numprobe(tmp_path, "inspect", H, NUMPROBE_LANG="zh").out)
    write(tmp_path, 'lang = "zh"\n')
    for words in (("inspect", H), ("nan", CLEAN, "--quiet"), ("skills", "list"), ("config", "show")):
        assert chinese(numprobe(tmp_path, *words).out), words
        assert not chinese(numprobe(tmp_path, *words, "--lang", "en").out), words
        assert not chinese(numprobe(tmp_path, *words, NUMPROBE_LANG="en").out), words
    assert chinese(numprobe(tmp_path, "inspect", H, NUMPROBE_LANG="auto").out)  # what the file says
    assert chinese(numprobe(tmp_path, "inspect", "nowhere").err)


@pytest.mark.parametrize(
    "text", ["lang = 1", "lang = zh", 'lang = "fr"', "version = 9", "[llm.x]\napi_key = 'a'", "\x00"]
)
def test_wrong_settings_stop_no_analysis(text: str, tmp_path: Path):
    write(tmp_path, text)
    ran = numprobe(tmp_path, "inspect", H)
    assert (ran.code, ran.err) == (0, "")
    assert not chinese(ran.out)


def test_a_wrong_language_variable_is_one_error_everywhere(tmp_path: Path):
    for words in (("inspect", H), ("nan", "nowhere"), ("config", "set", "lang", "zh")):
        refused(numprobe(tmp_path, *words, NUMPROBE_LANG="fr"), "E-SET-004", "NUMPROBE_LANG")


def test_a_user_without_a_home(tmp_path: Path):
    """As containers run programs: no HOME, and a number that /etc/passwd does not know."""
    code = "import os, sys; os.setgid(54321); os.setuid(54321); from numprobe.cli.main import run; run()"
    import os
    import subprocess
    import sys

    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    environ = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    ran = subprocess.run([sys.executable, "-c", code, "inspect", str(H)], env=environ, capture_output=True, text=True)
    if "Permission denied" in ran.stderr or "ModuleNotFoundError" in ran.stderr:
        pytest.skip("the checkout is not readable for others")
    assert ran.returncode == 0, ran.stderr


def test_show_loads_no_library_that_need_not_be_there(tmp_path: Path):
    write(tmp_path, QWEN)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in ("tomlkit", "keyring", "yaml"):
        (hidden / f"{name}.py").write_text("raise ImportError('not installed')")
    assert process(tmp_path, "config", "show", PYTHONPATH=str(hidden)).code == 0
    refused(process(tmp_path, "config", "set", "lang", "zh", PYTHONPATH=str(hidden)), "E-SET-013", "numprobe[agent]")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_fits_80_columns(lang: str, tmp_path: Path):
    from numprobe.agent.config.show import render_settings
    from numprobe.report.terminal import Style, columns

    file = write(
        tmp_path,
        f'default_llm = "qwen"\n{QWEN}base_url = "https://a-long-name.example.com/with/a/path/v1"\napi_key_env = "A"\n',
    )
    page = render_settings(load_settings({}, {"NUMPROBE_CONFIG": str(file)}), lang, Style(width=80), {"A": "x"})
    assert max(map(columns, page.splitlines())) <= 80
    assert ("key: Set" if lang == "en" else "密钥：已设置") in page


def test_every_field_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "config.md").read_text(encoding="utf-8")
    for field in LLM:
        assert f"`{field}`" in text
