"""How an error looks: what, where, what to do; a stable code; never a traceback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from numprobe.record.errors import NumprobeError
from numprobe.report.messages import say
from numprobe.report.terminal import Style, columns, pad, printable, wrap

_TEXTS = Path(__file__).parent / "messages"


def render_error(error: NumprobeError, lang: str, style: Style, symbol: str = "error") -> str:
    """The lines for stderr, without a line break at the end. ``symbol``: ``warning`` where the run goes on."""
    error = error.translated(error_texts(lang))
    head = f"{style.symbol(symbol)} {error.code}  "
    lines = wrap(printable(error.what), style.width, head, " " * columns(head))
    labelled = [(say(lang, f"error.{label}"), printable(text)) for label, text in error.lines()]
    width = max((columns(label) for label, _ in labelled), default=0)
    for label, text in labelled:
        lines += wrap(text, style.width, f"  {pad(label, width)}  ", " " * (width + 4))
    return "\n".join(lines)


def error_object(error: NumprobeError, lang: str) -> dict[str, str]:
    """The error as one of the JSON lines of ``--progress json``."""
    error = error.translated(error_texts(lang))
    return {"kind": "error", "code": error.code, "what": error.what, **dict(error.lines())}


@lru_cache(maxsize=4)
def error_texts(lang: str) -> Mapping[str, str]:
    """The templates of errors in a language, by the English ones that the code raises; English itself needs none."""
    file = _TEXTS / f"errors.{lang}.json"
    texts: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return texts
