"""What to merge: the YAML (or JSON) configuration of msProbe's ``merge_result``, and named process groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from numprobe.record.errors import NumprobeError


@dataclass(frozen=True)
class Selection:
    """Rows, columns and groups.

    ``apis``: names or their leading dotted parts (``Functional``, ``Functional.linear``, ``Functional.linear.0.forward``), empty
    for every row. ``indices``: columns, empty for all figures of the mode and ``Requires_grad Consistent``. ``groups``: name of a
    process group -> its ranks.
    """

    apis: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def selects(self, name: str) -> bool:
        """Whether a row of this name is wanted."""
        return not self.apis or f"{name}.".startswith(self._starts)

    @cached_property
    def _starts(self) -> tuple[str, ...]:
        return tuple(f"{api.rstrip('.')}." for api in self.apis)


def read_selection(path: Path) -> Selection:
    """The keys ``api``, ``compare_index`` and ``groups`` of a configuration; all may be missing.

    Raises:
        NumprobeError: E-CMP-037 the file cannot be read, is no such configuration, or PyYAML is missing.
    """
    content = _load(path)
    for key in content:
        if key not in ("api", "compare_index", "groups"):
            raise NumprobeError(
                "E-CMP-037",
                "{key} is no key of a merge configuration",
                where=str(path),
                do="write api, compare_index or groups",
                key=str(key),
            )
    groups = content.get("groups") or {}
    if not isinstance(groups, dict) or not all(_ranks(ranks) for ranks in groups.values()):
        raise NumprobeError(
            "E-CMP-037",
            "groups holds something else than names of groups and their ranks",
            where=str(path),
            do="write one group a line below groups, for example tp0: [0, 1]",
        )
    return Selection(
        _names(path, content, "api"),
        _names(path, content, "compare_index"),
        {str(name): tuple(ranks) for name, ranks in groups.items()},
    )


def _names(path: Path, content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = content.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise NumprobeError(
            "E-CMP-037",
            "{key} is no list of names",
            where=str(path),
            do="write one name a line, each behind a dash",
            key=key,
        )
    return tuple(names)


def _ranks(ranks: object) -> bool:
    return isinstance(ranks, list) and bool(ranks) and all(type(rank) is int and rank >= 0 for rank in ranks)


def _load(path: Path) -> dict[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise NumprobeError(
            "E-CMP-037",
            "the configuration cannot be read: {reason}",
            where=str(path),
            do="check the path, and that the file is text in UTF-8",
            reason=getattr(error, "strerror", None) or str(error),
        ) from None
    content = _parse(path, text)
    if not isinstance(content, dict):
        raise NumprobeError(
            "E-CMP-037",
            "the configuration is no object of keys and values",
            where=str(path),
            do="write api, compare_index or groups",
        )
    return content


def _parse(path: Path, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass  # YAML, as a rule
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise NumprobeError(
            "E-CMP-037",
            "reading YAML needs PyYAML, which is not installed",
            where=str(path),
            do="pip install 'numprobe[yaml]', or write the configuration as JSON",
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NumprobeError(
            "E-CMP-037",
            "the configuration cannot be understood: {reason}",
            where=str(path),
            do="check the commas, quotes and brackets there",
            reason=" ".join(str(error).split()) or type(error).__name__,
        ) from None
