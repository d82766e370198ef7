"""``config set``: changes to the file that keep everything else in it, comments too."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from numprobe.agent.config.file import bring_up_to_date, locked, parse, read_text, write
from numprobe.agent.config.model import PLAIN
from numprobe.agent.config.paths import config_file
from numprobe.agent.config.settings import Value, checked, settings_of, split_key, wrong
from numprobe.record.errors import NumprobeError

SET = "config set"
Change: TypeAlias = tuple[tuple[str, ...], str, str]  # where it is, the key as it was written, the value


@dataclass(frozen=True)
class Changed:
    """The file that was written; ``backup``: the older file where its version was raised."""

    file: Path
    backup: Path | None


def set_values(pairs: Sequence[tuple[str, str]], environ: Mapping[str, str] = os.environ) -> Changed:
    """Set each key to its value, an empty one takes the setting back; all of them or none.

    Raises:
        NumprobeError: E-SET-001 to E-SET-009, E-SET-013 tomlkit is not installed. The file is as it was.
    """
    try:
        tomlkit = import_module("tomlkit")
    except ImportError:
        raise NumprobeError(
            "E-SET-013",
            "changing the settings needs tomlkit, which is not installed",
            where=str(config_file(environ)),
            do="pip install 'numprobe[agent]', or edit the file yourself",
        ) from None
    file = config_file(environ)
    changes = [(split_key(key, SET), key, text) for key, text in pairs]
    with locked(file):
        before = read_text(file)
        wanted = parse(before or "", file)
        version = bring_up_to_date(wanted, file)
        for place, key, text in changes:
            _change(wanted, place, key, text, lambda table: {})
        settings_of(wanted, wanted["version"], file, {}, {})
        after = _edited(tomlkit, before or "", changes, wanted, file)
        raised = before is not None and version != wanted["version"]
        backup = write(file, after, backup_of=version if raised else None)
    return Changed(file, backup)


def _edited(tomlkit: Any, before: str, changes: Sequence[Change], wanted: Mapping[str, Any], file: Path) -> str:
    """The text with the changes in it. Aliases in a form that tomlkit cannot add to (one inline table, dotted keys) are written
    anew, as tables; what stands around them stays."""
    document = _document(tomlkit, before, file)
    bring_up_to_date(document, file)
    try:
        for place, key, text in changes:
            _change(document, place, key, text, lambda table: tomlkit.table(is_super_table=table == "llm"))
        after = str(tomlkit.dumps(document))
        if _same(parse(after, file), wanted):
            return after
    except (ValueError, KeyError, TypeError, NumprobeError):
        pass
    document = _document(tomlkit, before, file)
    bring_up_to_date(document, file)
    document.pop("llm", None)
    for key in PLAIN:
        if key in wanted:
            document[key] = wanted[key]
        else:
            document.pop(key, None)
    text = tomlkit.dumps(document).rstrip("\n")
    return f"{text}\n\n{tomlkit.dumps({'llm': wanted['llm']})}" if wanted.get("llm") else f"{text}\n"


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """An empty table of aliases is none."""
    return {**one, "llm": one.get("llm", {})} == {**other, "llm": other.get("llm", {})}


def _document(tomlkit: Any, text: str, file: Path) -> Any:
    try:
        return tomlkit.parse(text)
    except ValueError as error:  # what tomllib reads and tomlkit does not
        raise NumprobeError(
            "E-SET-002",
            "the settings are no TOML",
            where=str(file),
            found="{reason}",
            do="check quotes, brackets and equals signs there",
            reason=str(error),
        ) from None


def _change(document: Any, place: tuple[str, ...], key: str, text: str, make: Callable[[str], Any]) -> None:
    *tables, name = place
    here = document
    for table in tables:
        if table not in here:
            if not text:
                return
            here[table] = make(table)
        here = here[table]
        if not isinstance(here, Mapping):
            raise wrong(".".join(tables), "llm", SET)
    if not text:
        here.pop(name, None)
        if len(place) == 3 and not here:  # the last field of an alias
            document["llm"].pop(place[1])
    elif len(place) == 2:  # an alias alone
        raise wrong(key, "llm", SET)
    else:
        here[name] = checked(key, Value(text, SET, SET)).value
