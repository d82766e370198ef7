"""``numprobe config show|set``: language and LLMs."""

from __future__ import annotations

import os
import sys

import typer

from numprobe.cli import common


def show_settings(
    as_json: bool = common.Json, lang: str = common.Lang, quiet: bool = common.Quiet, debug: bool = common.Debug
) -> None:
    """Every setting, its value and where that comes from. Keys of providers are Set or Not set."""
    from numprobe.agent.config.settings import load_settings
    from numprobe.agent.config.show import render_settings, settings_object
    from numprobe.report.json_text import json_text
    from numprobe.report.language import is_utf8

    language = common.language(lang)
    settings = load_settings({"lang": lang})
    if as_json:
        print(json_text(settings_object(settings), ascii_only=not is_utf8(sys.stdout.encoding), indent=1))
    else:
        print(render_settings(settings, language, common.style(sys.stdout, quiet=quiet)))


def set_settings(
    pairs: list[str] = typer.Argument(..., help="A setting and its value, or several such pairs.", metavar="KEY VALUE"),
    lang: str = common.Lang,
    debug: bool = common.Debug,
) -> None:
    """Change the settings file, and nothing else in it; an empty VALUE ("") takes a setting back.

    Keys: lang, default_llm, llm.NAME.FIELD with the fields provider, model, base_url, api_key_env, keyring, max_tokens,
    temperature, timeout_s, retries, context_window, input_cost_per_mtok, output_cost_per_mtok; llm.NAME "" removes an alias.
    """
    from numprobe.agent.config.edit import set_values
    from numprobe.agent.config.settings import VARIABLES
    from numprobe.agent.config.show import say
    from numprobe.record.errors import NumprobeError

    language = common.language(lang)
    if len(pairs) % 2:
        raise NumprobeError(
            "E-USE-013",
            "config set: a setting without a value",
            do="write KEY VALUE, as in: numprobe config set lang zh",
        )
    keys = pairs[::2]
    changed = set_values(list(zip(keys, pairs[1::2], strict=True)))
    print(say(language, "config.written", path=str(changed.file)))
    if changed.backup is not None:
        print(say(language, "config.backup", path=str(changed.backup)))
    for key in keys:
        variable = VARIABLES.get(key, "")
        if variable and os.environ.get(variable):
            print(say(language, "config.overridden", variable=variable, key=key))
