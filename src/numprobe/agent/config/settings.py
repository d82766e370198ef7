"""The settings in force: flags over environment variables over the file over what is built in; and where each comes from."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from numprobe.agent.config.file import plain_document
from numprobe.agent.config.model import (
    ALIAS,
    EXAMPLES,
    LLM,
    NO_LLM,
    OTHER_NAMES,
    PLAIN,
    RESERVED,
    Config,
    Llm,
    McpServer,
)
from numprobe.agent.config.paths import CONFIG, config_file
from numprobe.agent.config.secrets import VARIABLE, looks_like_a_key, names_a_secret, url_holds_a_secret
from numprobe.record.errors import NumprobeError

VARIABLES = {"lang": "NUMPROBE_LANG", "default_llm": "NUMPROBE_LLM"}
LLM_PREFIX = "NUMPROBE_LLM_"
FLAGS = {"lang": "--lang", "default_llm": "--llm"}


@dataclass(frozen=True)
class Value:
    """A value as it was given. ``origin``: flag, environment, file or default; ``where``: the flag, the variable, the file."""

    value: Any
    origin: str
    where: str = ""


@dataclass(frozen=True)
class Settings:
    """``values`` has every key that was given or has a default, ``llm.NAME.model`` among them. ``version`` is that of the file,
    None where there is none."""

    config: Config
    values: Mapping[str, Value]
    file: Path
    version: int | None

    def llm(self, name: str = "") -> tuple[str, Llm] | None:
        """Alias and model of ``--llm NAME``, else the default; None where no LLM is to be asked.

        Raises:
            NumprobeError: E-SET-009 no such alias.
        """
        wanted = self.config.default_llm if name in ("", "auto") else name
        if wanted in ("", NO_LLM):
            return None
        if wanted not in self.config.llm:
            raise _no_alias(wanted, "", self.config.llm)
        return wanted, self.config.llm[wanted]


def load_settings(flags: Mapping[str, str | None] | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read everything. ``flags``: ``lang`` and ``default_llm`` (of ``--llm``), None where not given; ``auto`` is no choice.

    Raises:
        NumprobeError: E-SET-001 to E-SET-009: the file, a variable or a flag is wrong.
    """
    file = config_file(environ)
    document, version = plain_document(file)
    if version is None and environ.get(CONFIG):
        raise NumprobeError(
            "E-SET-001",
            "the file that NUMPROBE_CONFIG names is not there",
            where=str(file),
            do="check the name; numprobe config set makes the file",
        )
    return settings_of(document, version, file, flags or {}, environ)


def settings_of(
    document: Mapping[str, Any],
    version: int | None,
    file: Path,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
) -> Settings:
    """The settings of a document in today's form.

    Raises:
        NumprobeError: E-SET-003 to E-SET-006 and E-SET-009.
    """
    given = dict(_of_file(document, str(file)))
    aliases = list(dict.fromkeys(_alias(key) for key in given if key.startswith("llm.")))
    given.update(_of_environment(environ, aliases, given))
    for key, text in flags.items():
        if text is not None and text != "auto":
            given[key] = Value(text, "flag", FLAGS[key])
    values = {key: checked(key, value) for key, value in given.items()}
    llms: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if key.startswith("llm."):
            llms.setdefault(_alias(key), {})[_field(key)] = value.value
    config = Config(
        lang=values["lang"].value if "lang" in values else "",
        default_llm=values["default_llm"].value if "default_llm" in values else "",
        llm={alias: _llm(alias, fields, values) for alias, fields in llms.items()},
        mcp=_servers(document.get("mcp", {}), str(file)),
    )
    if config.default_llm not in ("", NO_LLM, *config.llm):
        raise _no_alias(config.default_llm, values["default_llm"].where, config.llm)
    return Settings(config, _with_defaults(config, values), file, version)


def configured_language(environ: Mapping[str, str] = os.environ) -> str | None:
    """``zh`` or ``en`` where the environment or the file says so. For commands that need no other setting: a file with faults
    says nothing here; ``numprobe config show`` tells what is wrong.

    Raises:
        NumprobeError: E-SET-004 NUMPROBE_LANG is neither.
    """
    name = environ.get(VARIABLES["lang"], "")
    if name and name != "auto":
        return str(checked("lang", Value(name, "environment", VARIABLES["lang"])).value)
    try:
        found = plain_document(config_file(environ))[0].get("lang")
    except NumprobeError:
        return None
    return found if found in ("zh", "en") else None


def split_key(key: str, where: str) -> tuple[str, ...]:
    """``("lang",)``, ``("llm", NAME)`` or ``("llm", NAME, FIELD)``.

    Raises:
        NumprobeError: E-SET-003 no such setting, E-SET-005 a key of a provider, E-SET-006 no name of an alias.
    """
    if key in PLAIN:
        return (key,)
    first, _, rest = key.partition(".")
    if first == "llm" and rest:
        alias, dot, field = rest.rpartition(".")
        if not dot or (field not in LLM and not names_a_secret(field) and ALIAS.fullmatch(rest) and not _near(field)):
            alias, field = rest, ""
        _check_alias(alias, where)
        if field:
            _check_field(alias, field, where)
        return ("llm", alias, field) if field else ("llm", alias)
    raise _unknown(key, where, [*PLAIN, "llm"])


def _near(field: str) -> bool:
    return bool(difflib.get_close_matches(field, LLM, n=1, cutoff=0.7))


def _of_file(document: Mapping[str, Any], where: str) -> Iterable[tuple[str, Value]]:
    for key, content in document.items():
        if key in ("version", "mcp"):  # the servers of other tools: see _servers
            continue
        if key == "llm":
            yield from _of_tables(content, where)
        elif key in PLAIN:
            yield key, Value(content, "file", where)
        else:
            raise _secret(key, where) if names_a_secret(key) else _unknown(key, where, [*PLAIN, "llm", "mcp"])


def _servers(content: Any, where: str) -> dict[str, McpServer]:
    """The tables ``[mcp.NAME]``.

    Raises:
        NumprobeError: E-SET-004 a table is none, has another key or a value of another type, or names no server.
    """
    try:
        found = msgspec.convert(content, dict[str, McpServer])
    except msgspec.ValidationError as error:
        raise _wrong_server("mcp", str(error), where) from None
    for name, server in found.items():
        _check_alias(name, where)
        if bool(server.command) == bool(server.url):
            raise _wrong_server(f"mcp.{name}", "command or url, one of them", where)
        if server.url:
            _check_url(f"mcp.{name}.url", server.url, where)
        for variable in (*server.env, server.token_env):
            if variable and (looks_like_a_key(variable) or not VARIABLE.fullmatch(variable)):
                raise _secret(f"mcp.{name}", where)
    return found


def _wrong_server(key: str, reason: str, where: str) -> NumprobeError:
    return NumprobeError(
        "E-SET-004",
        "{key} is no server of tools: {reason}",
        where=where,
        do='write [mcp.NAME] with command = ["program", "argument"] or url, allow = ["tool"], enabled = true',
        key=key,
        reason=reason,
    )


def _of_tables(content: Any, where: str) -> Iterable[tuple[str, Value]]:
    if not isinstance(content, Mapping):
        raise wrong("llm", "llm", where)
    for alias, fields in content.items():
        _check_alias(alias, where)
        if not isinstance(fields, Mapping):
            raise wrong(f"llm.{alias}", "llm", where)
        if not fields:
            raise _incomplete(alias, ["provider", "model"], where)
        for field, value in fields.items():
            _check_field(alias, field, where)
            yield f"llm.{alias}.{field}", Value(value, "file", where)


def _of_environment(
    environ: Mapping[str, str], aliases: list[str], given: Mapping[str, Value]
) -> Iterable[tuple[str, Value]]:
    """What variables say; an empty one says nothing. ``NUMPROBE_LLM_<ALIAS>_<FIELD>`` may make an alias of its own."""
    keys = {str(value.value) for key, value in given.items() if key.endswith(".api_key_env")}
    keys |= {value for name, value in environ.items() if name.startswith(LLM_PREFIX) and name.endswith("_API_KEY_ENV")}
    for key, name in VARIABLES.items():
        if environ.get(name) and environ[name] != "auto":
            yield key, Value(environ[name], "environment", name)
    for name in sorted(environ):
        if name.startswith(LLM_PREFIX) and environ[name] and name not in keys:
            yield _llm_key(name, aliases), Value(environ[name], "environment", name)


def _llm_key(name: str, aliases: list[str]) -> str:
    rest = name.removeprefix(LLM_PREFIX)
    for field in sorted(LLM, key=len, reverse=True):
        if not rest.endswith(f"_{field.upper()}") or rest == f"_{field.upper()}":
            continue
        written = rest.removesuffix(f"_{field.upper()}")
        same = [alias for alias in aliases if re.sub(r"[^A-Za-z0-9]", "_", alias).upper() == written]
        if len(same) > 1:
            raise NumprobeError(
                "E-SET-006",
                "{variable} may mean several aliases: {aliases}",
                do="give one of them another name",
                variable=name,
                aliases=", ".join(same),
            )
        alias = same[0] if same else written.lower()
        _check_alias(alias, name)
        return f"llm.{alias}.{field}"
    secret = any(names_a_secret(part) for part in rest.lower().split("_"))
    raise _secret(name, "") if secret else _unknown(name, "", [f"{LLM_PREFIX}ALIAS_{field.upper()}" for field in LLM])


def checked(key: str, given: Value) -> Value:
    """The value as its type says. Text of a variable or a flag is read as what the type wants."""
    field = _field(key) if key.startswith("llm.") else key
    kind = LLM[field].type if key.startswith("llm.") else PLAIN[key]
    value = given.value
    if field == "provider" and isinstance(value, str):
        value = OTHER_NAMES.get(value.strip().lower(), value.strip().lower())
    try:
        value = msgspec.convert(value, kind, strict=given.origin == "file")
    except msgspec.ValidationError as error:
        reason = str(error)
        raise wrong(key, field, given.where, "" if _may_be_secret(given.value) else reason) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong(key, field, given.where)
    if field == "base_url" and value:
        _check_url(key, value, given.where)
    if field == "api_key_env" and value:
        if looks_like_a_key(value):
            raise _secret(key, given.where)
        if not VARIABLE.fullmatch(value):
            raise wrong(key, field, given.where)
    if field == "keyring" and value and not re.fullmatch(r"[^/\s]+/[^/\s]+", value):
        raise _secret(key, given.where) if looks_like_a_key(value) else wrong(key, field, given.where)
    return Value(value, given.origin, given.where)


def _may_be_secret(value: object) -> bool:
    return isinstance(value, str) and looks_like_a_key(value)


def _check_url(key: str, url: str, where: str) -> None:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        secret = url_holds_a_secret(url)
    except ValueError:
        fine, secret = False, "@" in url
    if secret:
        raise _secret(key, where)
    if not fine:
        raise wrong(key, _field(key), where)


def _llm(alias: str, fields: Mapping[str, Any], values: Mapping[str, Value]) -> Llm:
    missing = [name for name, field in LLM.items() if field.required and name not in fields]
    if missing:
        raise _incomplete(alias, missing, next(v.where for k, v in values.items() if _alias(k) == alias))
    if fields.get("api_key_env") and fields.get("keyring"):
        raise NumprobeError(
            "E-SET-006",
            "llm.{alias} has two places for its key: api_key_env and keyring",
            where=values[f"llm.{alias}.keyring"].where,
            do="leave one of them out",
            alias=alias,
        )
    return Llm(**fields)


def _with_defaults(config: Config, values: Mapping[str, Value]) -> dict[str, Value]:
    shown = {key: values.get(key, Value(getattr(config, key), "default")) for key in PLAIN}
    for alias, llm in sorted(config.llm.items()):
        for field in LLM:
            key = f"llm.{alias}.{field}"
            shown[key] = values.get(key, Value(getattr(llm, field), "default"))
    return shown


def _alias(key: str) -> str:
    return key.removeprefix("llm.").rpartition(".")[0]


def _field(key: str) -> str:
    return key.rpartition(".")[2]


def _check_alias(alias: str, where: str) -> None:
    if not ALIAS.fullmatch(alias) or alias in RESERVED or looks_like_a_key(alias):
        raise NumprobeError(
            "E-SET-006",
            "llm.{alias}: no name of an alias",
            where=where,
            do="letters, digits, dots, hyphens and underscores, at most 64, and neither none nor auto",
            alias="***" if looks_like_a_key(alias) else alias,
        )


def _check_field(alias: str, field: str, where: str) -> None:
    if field in LLM:
        return
    key = f"llm.{alias}.{field}"
    raise (_secret(key, where) if names_a_secret(field) else _unknown(key, where, list(LLM), f"llm.{alias}."))


def _unknown(key: str, where: str, known: list[str], before: str = "") -> NumprobeError:
    near = difflib.get_close_matches(key.removeprefix(before), known, n=1, cutoff=0.65)
    return NumprobeError(
        "E-SET-003",
        "there is no setting {key}",
        where=where,
        do="write {known}" if near else "there are {known}",
        key="***" if looks_like_a_key(key) else key,
        known=f"{before}{near[0]}" if near else ", ".join(known),
    )


def wrong(key: str, field: str, where: str, reason: str = "") -> NumprobeError:
    return NumprobeError(
        "E-SET-004",
        "the value of {key} is wrong",
        where=where,
        found="{reason}" if reason else "",
        do="write it like {example}",
        key=key,
        reason=reason,
        example=EXAMPLES[field],
    )


def _secret(key: str, where: str) -> NumprobeError:
    return NumprobeError(
        "E-SET-005",
        "{key} would hold a key, and keys never stand in the settings",
        where=where,
        do="take it out; put the key into an environment variable and its name into api_key_env, or into the keyring",
        key=key,
    )


def _incomplete(alias: str, missing: list[str], where: str) -> NumprobeError:
    return NumprobeError(
        "E-SET-006",
        "llm.{alias} lacks {missing}",
        where=where,
        do="numprobe config set llm.{alias}.provider openai llm.{alias}.model NAME",
        alias=alias,
        missing=", ".join(missing),
    )


def _no_alias(name: str, where: str, known: Iterable[str]) -> NumprobeError:
    return NumprobeError(
        "E-SET-009",
        "there is no LLM alias {name}",
        where=where,
        found="{known}",
        do="numprobe config set llm.{name}.provider openai llm.{name}.model MODEL, or default_llm of another one",
        name="***" if looks_like_a_key(name) else name,
        known=", ".join(known) or NO_LLM,
    )
