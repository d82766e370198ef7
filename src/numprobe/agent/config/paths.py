"""Where a user's settings and skills lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CONFIG = "NUMPROBE_CONFIG"


def config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CONFIG_HOME/numprobe``, ``%APPDATA%\\numprobe`` or ``~/.config/numprobe``. A relative XDG_CONFIG_HOME does not
    count, as its specification says."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not Path(base).is_absolute():
        base = environ.get("APPDATA", "") if os.name == "nt" else ""
    if not base:
        try:
            base = str(Path.home() / ".config")
        except RuntimeError:  # no HOME, and a user that the system does not know: there are no settings
            base = os.devnull
    return Path(base) / "numprobe"


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """``config.toml`` in :func:`config_folder`, or the file that NUMPROBE_CONFIG names."""
    named = environ.get(CONFIG, "")
    return Path(named) if named else config_folder(environ) / "config.toml"


def has_config(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a file of settings that can be looked at."""
    try:
        return config_file(environ).is_file()
    except OSError:
        return False


def skills_folder(environ: Mapping[str, str] = os.environ) -> Path:
    return config_folder(environ) / "skills"
