"""The settings as types. Every field has its reason in docs/config.md."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

VERSION = 1  # of the file; a step to each later one is in migrate.py
ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NO_LLM = "none"
RESERVED = (NO_LLM, "auto")  # words of --llm
PROVIDERS = ("openai", "anthropic", "google")
OTHER_NAMES = {"gemini": "google"}
KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "google": "GOOGLE_API_KEY"}

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Cost: TypeAlias = Annotated[float, Meta(ge=0, le=1_000_000)]


class Llm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model under an alias. The key is never here: ``api_key_env`` names the variable that holds it, ``keyring`` an entry
    ``service/user`` of the system's keyring.

    ``max_tokens`` 0 leaves the length of an answer to the provider, ``temperature`` 0 repeats itself best. ``context_window`` is
    in tokens, the costs are per million of them; None where they are unknown.
    """

    provider: Literal["openai", "anthropic", "google"]
    model: Annotated[str, Meta(min_length=1)]
    base_url: str = ""
    api_key_env: str = ""
    keyring: str = ""
    max_tokens: Count = 0
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    retries: Annotated[int, Meta(ge=0, le=20)] = 2
    context_window: Count | None = None
    input_cost_per_mtok: Cost | None = None
    output_cost_per_mtok: Cost | None = None


class McpServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server of other tools that the model of a chat may use: a ``command`` to start, or a ``url``.

    Off unless ``enabled``; of its tools those of ``allow`` alone. ``env`` names variables that the command gets,
    ``token_env`` the one whose value goes to the url as bearer token.
    """

    command: tuple[str, ...] = ()
    url: str = ""
    allow: tuple[str, ...] = ()
    enabled: bool = False
    env: tuple[str, ...] = ()
    token_env: str = ""
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings. ``lang`` empty: from the locale. ``default_llm`` empty or ``none``: no LLM is asked."""

    lang: Literal["", "zh", "en"] = ""
    default_llm: str = ""
    llm: dict[str, Llm] = {}
    mcp: dict[str, McpServer] = {}


PLAIN = {"lang": Literal["", "zh", "en"], "default_llm": str}  # keys that are no table, and their types
LLM = {field.name: field for field in msgspec.structs.fields(Llm)}
EXAMPLES = {  # what an error shows of a key
    "version": f"version = {VERSION}",
    "lang": 'lang = "zh"',
    "default_llm": 'default_llm = "my-model"',
    "llm": "[llm.my-model]",
    "provider": 'provider = "openai", "anthropic" or "google"',
    "model": 'model = "gpt-4o-mini"',
    "base_url": 'base_url = "http://127.0.0.1:8000/v1"',
    "url": 'url = "http://127.0.0.1:8123/mcp"',
    "api_key_env": 'api_key_env = "MY_MODEL_KEY", the name of a variable',
    "keyring": 'keyring = "numprobe/my-model", service and user of an entry',
    "max_tokens": "max_tokens = 4096, or 0",
    "temperature": "temperature = 0.0, at most 2.0",
    "timeout_s": "timeout_s = 120, more than 0 and at most 3600",
    "retries": "retries = 2, at most 20",
    "context_window": "context_window = 128000",
    "input_cost_per_mtok": "input_cost_per_mtok = 0.15",
    "output_cost_per_mtok": "output_cost_per_mtok = 0.6",
}
