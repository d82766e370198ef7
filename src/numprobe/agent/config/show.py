"""The settings on the terminal and as JSON. Keys of providers are ``Set`` or ``Not set``, nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numprobe.agent.config.model import LLM, VERSION
from numprobe.agent.config.secrets import is_set, key_source
from numprobe.agent.config.settings import Settings, Value
from numprobe.report.messages import GENERIC, Catalogue
from numprobe.report.terminal import Style, printable, table, wrap

CATALOGUE = Catalogue((Path(__file__).parent / "messages", *GENERIC.folders))
say = CATALOGUE.say


def settings_object(settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """``config show --json``."""
    keys = {}
    for alias, llm in settings.config.llm.items():
        source = key_source(llm)
        keys[alias] = {"from": source.kind, "where": source.name, "set": is_set(llm, environ)}
    return {
        "file": str(settings.file),
        "version": settings.version,
        "settings": {
            key: {"value": one.value, "from": one.origin, "where": one.where} for key, one in settings.values.items()
        },
        "keys": keys,
    }


def render_settings(settings: Settings, lang: str, style: Style, environ: Mapping[str, str] = os.environ) -> str:
    """A table of every setting, its value and where that comes from; an alias has its key's state last."""
    rows = [_row(key, one, lang) for key, one in settings.values.items() if not key.startswith("llm.")]
    for alias in sorted(settings.config.llm):
        for field in LLM:
            key = f"llm.{alias}.{field}"
            one = settings.values[key]
            if one.origin != "default" or one.value not in ("", None):
                rows.append(_row(key, one, lang))
        rows.append([f"llm.{alias}", *_key(alias, settings, lang, environ)])
    known = settings.version is not None
    head = say(lang, "config.file" if known else "config.no_file", path=str(settings.file), version=settings.version)
    lines = wrap(printable(head), style.width)
    if known and settings.version != VERSION:
        lines += wrap(say(lang, "config.older", known=VERSION), style.width)
    titles = [say(lang, f"config.column.{name}") for name in ("setting", "value", "from")]
    lines += ["", *table(titles, rows, (), style)]
    if not settings.config.llm:
        lines += ["", *wrap(say(lang, "config.no_llm"), style.width)]
    return "\n".join(lines)


def _row(key: str, one: Value, lang: str) -> list[str]:
    value = one.value
    if value in ("", None):
        value = say(lang, f"config.empty.{key}")
    where = one.where if one.origin in ("environment", "flag") else say(lang, f"config.from.{one.origin}")
    return [key, str(value), where]


def _key(alias: str, settings: Settings, lang: str, environ: Mapping[str, str]) -> list[str]:
    llm = settings.config.llm[alias]
    source = key_source(llm)
    if source.kind == "none":
        return [say(lang, "config.key.none"), say(lang, "config.key.own_server")]
    state = say(lang, "config.key.set" if is_set(llm, environ) else "config.key.not_set")
    where = source.name if source.kind == "environment" else say(lang, "config.key.keyring", entry=source.name)
    return [say(lang, "config.key", state=state), where]
