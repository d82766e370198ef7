"""A self-contained page: no request, no clock, both languages, whatever text the dump holds.

A skill's template extends ``shell.html.j2`` and uses the parts of ``parts.html.j2``. Text is escaped by jinja2 and, in
the data of the script, by :func:`script_data`; the policy of the page lets no other script run than the page's own.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket, FileSystemBytecodeCache
from markupsafe import Markup, escape

from numprobe.report import numbers
from numprobe.report.language import HTML_LANG, LANGUAGES
from numprobe.report.messages import Catalogue, Mark, Message, Piece
from numprobe.report.names import pieces as name_pieces
from numprobe.report.names import telling_part
from numprobe.report.terminal import printable

SHORT = 24  # a slot or value up to here stays on one line
HERE = Path(__file__).parent


def render_page(
    folder: Path,
    template: str,
    catalogue: Catalogue,
    lang: str,
    context: Mapping[str, Any],
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
) -> str:
    """The page of a skill: its template, ``page.css`` and ``page.js`` lie in ``folder``.

    ``styles`` and ``scripts`` are files of this folder that come before them.
    """
    words = Words(catalogue)
    code = [_script(file) for file in (HERE / "base.js", *(HERE / name for name in scripts), folder / "page.js")]
    script = "\n".join(["{", "'use strict';", *code, "}"])
    sheets = (HERE / "base.css", *(HERE / name for name in styles), folder / "page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = (
        _environment(folder)
        .get_template(template)
        .render(
            context,
            t=words.say,
            message=words.message,
            sentences=words.sentences,
            both=words.both,
            op=op,
            path=path,
            stat=figure,
            number=numbers,
            lang=lang,
            html_lang=HTML_LANG[lang],
            style=Markup("".join(map(_style, sheets))),
            script=Markup(script),
            script_digest=digest,
        )
    )
    return re.sub(r"\n\s*\n+", "\n", text)


class Words:
    """Texts of a catalogue in both languages at once, each with its ``lang``; the page shows one."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._labels: dict[str, Markup] = {}  # a page says the same few hundreds of times

    def say(self, key: str, /, **values: object) -> Markup:
        """A text by its key."""
        found = None if values else self._labels.get(key)
        if found is None:
            found = both(*(joined(self.catalogue.pieces(lang, key, values)) for lang in LANGUAGES))
            if not values:
                self._labels[key] = found
        return found

    def message(self, message: Message) -> Markup:
        """A message of the result."""
        return self.say(message.key, **message.values)

    def sentences(self, messages: Sequence[Message]) -> Markup:
        """Several sentences, with a space between them in English."""
        worded = {lang: [joined(self.catalogue.pieces(lang, m.key, m.values)) for m in messages] for lang in LANGUAGES}
        return both(*(Markup(self.catalogue.say(lang, "list.sentence")).join(worded[lang]) for lang in LANGUAGES))

    def both(self, worded: Callable[[str], str]) -> Markup:
        """What a function of the language gives, escaped."""
        return both(*(Markup(escape(printable(worded(lang)))) for lang in LANGUAGES))


def both(en: Markup, zh: Markup) -> Markup:
    """One text for each language, or the text itself where they are equal."""
    return en if en == zh else Markup(f"<span lang=en>{escape(en)}</span><span lang=zh-CN>{escape(zh)}</span>")


def joined(pieces: list[Piece]) -> Markup:
    """A worded message with its operator names, paths, code and values marked up."""
    return Markup("").join(
        _marked(piece) if isinstance(piece, Mark) else Markup(escape(printable(piece))) for piece in pieces
    )


@lru_cache(maxsize=1024)
def op(name: str, bold: bool = True) -> Markup:
    """An operator's name in full: wraps after dots, the telling part bold."""
    if not bold and len(name) <= SHORT:
        return Markup('<code class="nb">{}</code>').format(printable(name))
    start, end = telling_part(name) if bold else (0, 0)
    return Markup('<code class="op">{}</code>').format(_breakable(name, start, end))


def path(text: str) -> Markup:
    """A file path that wraps after slashes."""
    parts = re.split(r"(?<=/)", printable(text))
    return Markup("<wbr>").join(Markup(escape(part)) for part in parts if part)


def figure(value: float | int | bool | None) -> Markup:
    """A statistic; an absent one is an em dash."""
    return Markup("—") if value is None else Markup(escape(numbers.stat(value)))


def script_data(data: object) -> Markup:
    """JSON that can stand inside a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda found: f"\\u{ord(found.group()):04x}", text))


def _marked(piece: Mark) -> Markup:
    if piece.kind == "op":
        return op(piece.text)
    if piece.kind == "path":
        return Markup("<code>{}</code>").format(path(piece.text))
    if piece.kind == "code":
        return op(piece.text, bold=False)
    return Markup("<b class=bad>{}</b>").format(printable(piece.text))


def _breakable(name: str, start: int, end: int) -> Markup:
    out: list[str] = []
    at = 0
    for part in name_pieces(name):
        cut = at + len(part)
        inside = part[max(start - at, 0) : max(end - at, 0)] if start < cut and end > at else ""
        if inside:
            before, after = part[: max(start - at, 0)], part[max(end - at, 0) :]
            out.append(Markup("{}<b>{}</b>{}").format(printable(before), printable(inside), printable(after)))
        else:
            out.append(escape(printable(part)))
        at = cut
        if at < len(name):
            out.append("<wbr>")
    return Markup("".join(out))


class _Compiled(FileSystemBytecodeCache):
    """Compiled templates beside the compiled modules: reading and compiling them takes longer than writing the page."""

    def load_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):  # an installation that may not be written to only costs time
                super().dump_bytecode(bucket)


def _shown(value: object) -> object:
    """Text from a dump may hold characters that turn the writing direction; they are shown instead of obeyed."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@lru_cache(maxsize=8)
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([folder, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
        bytecode_cache=_Compiled(str(HERE / "__pycache__"), "%s.jinja"),
    )


@lru_cache(maxsize=16)
def _style(file: Path) -> str:
    text = re.sub(r"/\*.*?\*/", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"\s*\n\s*", "", text)
    return re.sub(r"(?<=[{;:,])\s+|\s+(?=[{}])", "", text)


@lru_cache(maxsize=16)
def _script(file: Path) -> str:
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
