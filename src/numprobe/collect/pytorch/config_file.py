"""A configuration file as an object, JSON or YAML."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from numprobe.record.errors import NumprobeError


def read_config(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise NumprobeError(
            "E-CFG-001",
            "the configuration cannot be read: {reason}",
            where=str(file),
            do="check the path, and that the file is text in UTF-8",
            reason=getattr(error, "strerror", None) or str(error),
        ) from error
    value = _parse_yaml(text, file) if file.suffix.lower() in (".yaml", ".yml") else _parse_json(text, file)
    if not isinstance(value, dict):
        raise NumprobeError(
            "E-CFG-002",
            "the configuration is no object of keys and values",
            where=str(file),
            do="write keys and values, such as task, level and dump_path",
        )
    return {str(key): member for key, member in value.items()}


def _parse_json(text: str, file: Path) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_written_right(file, error) from error


def _parse_yaml(text: str, file: Path) -> object:
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        raise NumprobeError(
            "E-CFG-003",
            "reading YAML needs PyYAML, which is not installed",
            where=str(file),
            do="pip install 'numprobe[yaml]', or write the configuration as JSON",
        ) from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _not_written_right(file, error) from error


def _not_written_right(file: Path, error: Exception) -> NumprobeError:
    return NumprobeError(
        "E-CFG-002",
        "the configuration cannot be understood: {reason}",
        where=str(file),
        do="check the commas, quotes and brackets there",
        reason=" ".join(str(error).split()) or type(error).__name__,
    )
