"""JSON for a stream that may be a terminal."""

from __future__ import annotations

import json
import re

from numprobe.report.run_folder import plain
from numprobe.report.terminal import UNPRINTABLE


def json_text(value: object, *, ascii_only: bool = False, indent: int | None = None) -> str:
    """Strict JSON on one line, or indented. What :func:`~numprobe.report.terminal.printable` shows as an escape is an escape
    here too, of JSON's own: a program reads the same text, a terminal is not driven by it."""
    return UNPRINTABLE.sub(_escaped, json.dumps(plain(value), ensure_ascii=ascii_only, indent=indent))


def _escaped(found: re.Match[str]) -> str:
    letter = found.group()
    if letter == "\n":  # between the lines; inside of a text it is an escape already
        return letter
    return json.dumps(letter)[1:-1] if ord(letter) > 0xFFFF else f"\\u{ord(letter):04x}"
