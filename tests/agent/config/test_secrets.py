"""Keys: where they come from, and that they are neither written nor shown."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.shell import numprobe
from numprobe.agent.config.model import Llm
from numprobe.agent.config.secrets import KeySource, api_key, is_set, key_source, looks_like_a_key
from numprobe.record.errors import NumprobeError

from .test_settings import QWEN, refused, write

KEYS = [
    "sk-proj-0123456789abcdefABCDEF",
    "sk-ant-api03-abcdefghijklmnop",
    "AIzaSyA1234567890abcdefghijklmnopqrstu",
    "gsk_abcdefgh12345678",
    "0123456789abcdef0123456789abcdef",
    "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA",
    "AKIAIOSFODNN7EXAMPLE",
]
NO_KEYS = [
    "OPENAI_API_KEY",
    "MY_TEAM2_OPENAI_API_KEY_PROD",
    "qwen3-32b",
    "gpt-4o-mini-2026-07-18",
    "meta-llama/Llama-3.3-70B-Instruct",
    "claude-sonnet-4-5-20250929",
    "numprobe/my-model",
    "none",
    "",
]


@pytest.mark.parametrize("text", KEYS)
def test_what_looks_like_a_key(text: str):
    assert looks_like_a_key(text)


@pytest.mark.parametrize("text", NO_KEYS)
def test_what_does_not(text: str):
    assert not looks_like_a_key(text)


@pytest.mark.parametrize("field", ["api_key", "apikey", "key", "token", "secret", "password", "auth_header", "API_KEY"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_key_in_the_file_is_refused_and_not_shown(field: str, lang: str, tmp_path: Path):
    file = write(tmp_path, f'{QWEN}{field} = "{KEYS[0]}"\n')
    for words in (("show",), ("show", "--json"), ("set", "lang", "zh")):
        ran = numprobe(tmp_path, "config", *words, "--lang", lang)
        refused(ran, "E-SET-005", f"llm.qwen.{field}", str(file), "api_key_env")
        assert KEYS[0] not in ran.err
    write(tmp_path, f'{field} = "{KEYS[0]}"\n')
    ran = numprobe(tmp_path, "config", "show", "--lang", lang)
    refused(ran, "E-SET-005")
    assert KEYS[0] not in ran.err


PLACES = ["api_key_env", "api_key", "token", "keyring", "provider", "base_url", "model_key"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("field", PLACES)
def test_a_key_in_a_wrong_place_is_never_echoed(field: str, key: str, tmp_path: Path):
    value = f"https://user:{key}@host/v1" if field == "base_url" else key
    ran = numprobe(tmp_path, "config", "set", f"llm.qwen.{field}", value, "llm.qwen.model", "m")
    assert (ran.code, ran.out) == (2, "")
    assert key not in ran.err
    write(tmp_path, f'[llm.qwen]\nmodel = "m"\n{field} = "{value}"\n')
    ran = numprobe(tmp_path, "config", "show")
    assert (ran.code, ran.out) == (2, "")
    assert key not in ran.err


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("place", ["default_llm", "alias", "lang", "setting"])
def test_nor_as_a_name(place: str, key: str, tmp_path: Path):
    words = {
        "default_llm": ("default_llm", key),
        "alias": (f"llm.{key}.model", "m"),
        "lang": ("lang", key),
        "setting": (key, "1"),
    }[place]
    ran = numprobe(tmp_path, "config", "set", *words)
    assert (ran.code, ran.out) == (2, "")
    assert key not in ran.err


@pytest.mark.parametrize("url", ["https://host/v1?api_key=x", "https://host/v1?token=abc", "https://u:p@host/v1"])
def test_urls_with_a_key(url: str, tmp_path: Path):
    write(tmp_path, f'{QWEN}base_url = "{url}"\n')
    ran = numprobe(tmp_path, "config", "show")
    refused(ran, "E-SET-005", "llm.qwen.base_url")
    assert url not in ran.err


def test_urls_with_other_parameters(tmp_path: Path):
    write(tmp_path, f'{QWEN}base_url = "https://host/v1?api-version=2026-01-01"\n')
    assert numprobe(tmp_path, "config", "show").code == 0


@pytest.mark.parametrize("as_json", [True, False])
def test_show_says_set_or_not_set(as_json: bool, tmp_path: Path):
    write(tmp_path, f'{QWEN}api_key_env = "MY_KEY"\n[llm.other]\nprovider = "anthropic"\nmodel = "m"\n')
    ran = numprobe(tmp_path, "config", "show", *(["--json"] if as_json else []), MY_KEY=KEYS[0], ANTHROPIC_API_KEY="")
    assert KEYS[0] not in ran.out + ran.err
    if as_json:
        assert ran.json["keys"] == {
            "qwen": {"from": "environment", "where": "MY_KEY", "set": True},
            "other": {"from": "environment", "where": "ANTHROPIC_API_KEY", "set": False},
        }
    else:
        assert "key: Set" in ran.out
        assert "key: Not set" in ran.out


def test_a_key_variable_may_have_the_prefix_of_settings(tmp_path: Path):
    write(tmp_path, f'{QWEN}api_key_env = "NUMPROBE_LLM_QWEN_API_KEY"\n')
    ran = numprobe(tmp_path, "config", "show", "--json", NUMPROBE_LLM_QWEN_API_KEY=KEYS[0])
    assert ran.json["keys"]["qwen"]["set"] is True
    write(tmp_path, QWEN)
    ran = numprobe(tmp_path, "config", "show", NUMPROBE_LLM_QWEN_API_KEY=KEYS[0])
    refused(ran, "E-SET-005", "NUMPROBE_LLM_QWEN_API_KEY")
    assert KEYS[0] not in ran.err


def test_no_key_goes_to_a_server_that_is_not_the_providers():
    """The provider's variable counts for the provider's address alone."""
    environ = {"OPENAI_API_KEY": "k", "MY": "m"}
    assert key_source(Llm("openai", "a")) == KeySource("environment", "OPENAI_API_KEY")
    assert api_key("x", Llm("openai", "a"), environ) == "k"
    assert key_source(Llm("openai", "a", base_url="http://h/v1")) == KeySource("none")
    assert api_key("x", Llm("openai", "a", base_url="http://h/v1"), environ) is None
    assert api_key("x", Llm("openai", "a", base_url="http://h/v1", api_key_env="MY"), environ) == "m"
    assert key_source(Llm("google", "a")).name == "GOOGLE_API_KEY"


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_variable_that_is_not_set(value: str | None):
    environ = {} if value is None else {"MY": value}
    with pytest.raises(NumprobeError) as error:
        api_key("x", Llm("openai", "a", api_key_env="MY"), environ)
    assert (error.value.code, "MY" in error.value.what) == ("E-SET-010", True)


class Locked(Exception):
    """What a backend of keyring raises."""


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (SimpleNamespace(get_password=lambda service, user: f"{service}+{user}"), "numprobe+me"),
        (SimpleNamespace(get_password=lambda service, user: None), "E-SET-011"),
        (SimpleNamespace(get_password=lambda service, user: 1 / 0), "E-SET-011"),
        (None, "E-SET-012"),
    ],
)
def test_the_keyring(module: object, expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "keyring", module)
    llm = Llm("openai", "a", keyring="numprobe/me")
    if expected.startswith("E-"):
        with pytest.raises(NumprobeError) as error:
            api_key("x", llm, {})
        assert error.value.code == expected
        assert not is_set(llm, {})
    else:
        assert api_key("x", llm, {}) == expected
        assert is_set(llm, {})
