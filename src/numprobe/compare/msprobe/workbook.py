"""Cells of an xlsx file, with the standard library alone: text, numbers and truth values, no formulas, no styles."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from xml.parsers import expat

Cell = str | int | float | bool | None

_BLOCK = 1 << 18
_MAX_BYTES = 4 << 30  # of one sheet, unpacked
_MAX_COLUMNS = 16_384
_COLUMN = re.compile(r"([A-Z]{1,3})[0-9]*")
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
_SHEETS = "xl/worksheets/"
_SHARED = "xl/sharedStrings.xml"


class BadWorkbook(ValueError):
    """No xlsx file, a damaged one, or one with what a table of results never has."""


def read_rows(path: Path) -> Iterator[list[Cell]]:
    """The rows of all sheets, in the order of the sheets; cells that are missing are None.

    Raises:
        BadWorkbook: as the class says.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            shared = _shared_texts(archive)
            for name in _sheets(archive):
                with archive.open(name) as file:
                    yield from _Sheet(shared).rows(file)
    except (zipfile.BadZipFile, expat.ExpatError, KeyError, NotImplementedError, EOFError, UnicodeDecodeError) as error:
        raise BadWorkbook(str(error)) from None


def _sheets(archive: zipfile.ZipFile) -> list[str]:
    """Names of the sheets' files in the order of the workbook."""
    targets: dict[str, str] = {}
    order: list[str] = []

    def relation(tag: str, attributes: dict[str, str]) -> None:
        if tag.endswith("Relationship"):
            targets[attributes.get("Id", "")] = attributes.get("Target", "")

    def sheet(tag: str, attributes: dict[str, str]) -> None:
        if tag.rpartition(":")[2] == "sheet":
            order.extend(value for key, value in attributes.items() if key.rpartition(":")[2] == "id")

    _scan(archive, "xl/_rels/workbook.xml.rels", relation)
    _scan(archive, "xl/workbook.xml", sheet)
    files = [f"xl/{targets[key].removeprefix('/').removeprefix('xl/')}" for key in order if key in targets]
    return [name for name in files if name.startswith(_SHEETS)]


def _scan(archive: zipfile.ZipFile, name: str, start: Callable[[str, dict[str, str]], None]) -> None:
    parser = _parser()
    parser.StartElementHandler = start
    with archive.open(name) as file:
        _feed(parser, file)


def _shared_texts(archive: zipfile.ZipFile) -> list[str]:
    if _SHARED not in archive.namelist():
        return []
    texts: list[str] = []
    parts: list[str] = []
    inside = [False]

    def start(tag: str, _: object) -> None:
        if tag == "si":
            parts.clear()
        inside[0] = tag == "t"

    def end(tag: str) -> None:
        inside[0] = False
        if tag == "si":
            texts.append(_unescaped("".join(parts)))

    parser = _parser()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = lambda text: parts.append(text) if inside[0] else None
    with archive.open(_SHARED) as file:
        _feed(parser, file)
    return texts


def _parser() -> expat.XMLParserType:
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _no_doctype
    return parser


def _no_doctype(*_: object) -> None:
    raise BadWorkbook("it declares a document type")


def _feed(parser: expat.XMLParserType, file: IO[bytes]) -> None:
    for _ in _blocks(parser, file):
        pass


def _blocks(parser: expat.XMLParserType, file: IO[bytes]) -> Iterator[None]:
    """Parse a file block by block, with a pause after each."""
    size = 0
    while block := file.read(_BLOCK):
        size += len(block)
        if size > _MAX_BYTES:
            raise BadWorkbook("it is too large")
        parser.Parse(block, False)
        yield
    parser.Parse(b"", True)
    yield


class _Sheet:
    """The state of reading one sheet."""

    def __init__(self, shared: list[str]) -> None:
        self.shared = shared
        self.done: list[list[Cell]] = []
        self.row: list[Cell] = []
        self.kind = ""
        self.column = 0
        self.parts: list[str] = []
        self.inside = False

    def rows(self, file: IO[bytes]) -> Iterator[list[Cell]]:
        parser = _parser()
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text
        for _ in _blocks(parser, file):
            yield from self.done
            self.done.clear()

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "row":
            self.row = []
        elif tag == "c":
            self.kind = attributes.get("t", "n")
            place = _COLUMN.fullmatch(attributes.get("r", ""))
            self.column = _number_of(place[1]) if place else len(self.row)
            self.parts = []
        self.inside = tag in ("v", "t")

    def _text(self, text: str) -> None:
        if self.inside:
            self.parts.append(text)

    def _end(self, tag: str) -> None:
        self.inside = False
        if tag == "c":
            if self.column >= _MAX_COLUMNS:
                raise BadWorkbook("it has too many columns")
            self.row += [None] * (self.column + 1 - len(self.row))
            self.row[self.column] = self._cell("".join(self.parts))
        elif tag == "row":
            self.done.append(self.row)

    def _cell(self, text: str) -> Cell:
        if self.kind in ("inlineStr", "str", "e"):
            return _unescaped(text)
        if not text:
            return None
        try:
            if self.kind == "s":
                return self.shared[int(text)]
            if self.kind == "b":
                return text == "1"
            return int(text) if text.lstrip("-").isdecimal() else float(text)
        except (ValueError, IndexError):
            raise BadWorkbook(f"a cell holds {text[:40]!r}") from None


def _unescaped(text: str) -> str:
    """``_x000D_`` is how a spreadsheet writes a character that XML cannot hold."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _number_of(letters: str) -> int:
    """``A`` -> 0, ``Z`` -> 25, ``AA`` -> 26."""
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - 64
    return number - 1
