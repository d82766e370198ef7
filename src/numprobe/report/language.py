"""Which language to speak."""

from __future__ import annotations

import codecs
from collections.abc import Mapping

LANGUAGES = ("en", "zh")
HTML_LANG = {"en": "en", "zh": "zh-CN"}


def default_language(environ: Mapping[str, str], encoding: str = "utf-8") -> str:
    """zh if the locale says so and the output can show it, else en."""
    locale = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return "zh" if locale.lower().startswith("zh") and can_encode("中文", encoding) else "en"


def can_encode(text: str, encoding: str) -> bool:
    """Whether a stream of this encoding can show the text."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def is_utf8(encoding: str | None) -> bool:
    try:
        return codecs.lookup(encoding or "").name == "utf-8"
    except LookupError:
        return False
