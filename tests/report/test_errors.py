"""Errors in Chinese: every text that the code raises has one, with the same fields, and none is left over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import NamedTuple

import pytest

import numprobe
from numprobe.formats.layout import find_layout
from numprobe.formats.msprobe.scan import scan_file
from numprobe.record.errors import NumprobeError
from numprobe.report.errors import error_texts, render_error
from numprobe.report.terminal import Style

SOURCE = Path(numprobe.__file__).parent
THE_CLASS = SOURCE / "record" / "errors.py"  # builds errors from the templates of others
CHINESE = error_texts("zh")
WIDE = Style(width=None)


class Template(NamedTuple):
    """A text of an error where it is raised; ``text`` is None where it is no literal, ``given`` names its values."""

    place: str
    text: str | None
    given: frozenset[str]


def constants(module: ast.Module) -> dict[str, ast.expr]:
    """What the names are that a module sets once, at its top."""
    found: dict[str, ast.expr] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return found


def literals(node: ast.expr, names: dict[str, ast.expr]) -> Iterator[str | None]:
    if isinstance(node, ast.IfExp):
        yield from literals(node.body, names)
        yield from literals(node.orelse, names)
    elif isinstance(node, ast.Name) and node.id in names:
        yield from literals(names[node.id], {})
    else:
        yield node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def templates(file: Path) -> Iterator[Template]:
    module = ast.parse(file.read_text(encoding="utf-8"))
    names = constants(module)
    for call in ast.walk(module):
        if (
            not isinstance(call, ast.Call)
            or getattr(call.func, "id", getattr(call.func, "attr", "")) != "NumprobeError"
        ):
            continue
        place = f"{file.relative_to(SOURCE)}:{call.lineno}"
        keywords = {k.arg or "**": k.value for k in call.keywords}
        texts = [*call.args[1:], *(v for k, v in keywords.items() if k in ("what", "found", "do"))]
        given = frozenset(keywords) - {"code", "what", "where", "found", "do"}
        for text in texts:
            yield from (Template(place, one, given) for one in literals(text, names))


RAISED = [t for file in sorted(SOURCE.rglob("*.py")) if file != THE_CLASS for t in templates(file)]


def fields(template: str) -> set[tuple[str, str, str]]:
    """Name, conversion and format of each field."""
    return {(name, by or "", spec or "") for _, name, spec, by in Formatter().parse(template) if name is not None}


def has_words(template: str) -> bool:
    """A template of nothing but fields needs no translation."""
    return any(re.search(r"\w", text) for text, *_ in Formatter().parse(template))


def test_the_errors_are_found():
    assert len({t.place for t in RAISED}) > 35


@pytest.mark.parametrize("raised", RAISED, ids=[f"{t.place} {t.text}" for t in RAISED])
def test_every_text_is_a_literal_with_a_chinese_one(raised: Template):
    assert raised.text is not None, "what, found and do are literals; data goes into fields"
    names = {name for name, _, _ in fields(raised.text)}
    assert names <= raised.given, "a field without a value"
    if has_words(raised.text):
        assert raised.text in CHINESE
        assert fields(CHINESE[raised.text]) == fields(raised.text)


def test_every_value_is_said():
    said: dict[str, set[str]] = {}
    for one in RAISED:
        said.setdefault(one.place, set()).update(name for name, _, _ in fields(one.text or ""))
    assert not {(one.place, name) for one in RAISED for name in one.given - said[one.place]}


def test_no_chinese_text_is_left_over():
    assert CHINESE.keys() - {t.text for t in RAISED} == set()


@pytest.mark.parametrize("text", CHINESE.values())
def test_chinese_is_chinese_and_uses_full_width_marks(text: str):
    plain = re.sub(r"\{[^{}]*\}", "字", text)
    assert not re.search(r"[\u4e00-\u9fff][,;:?!]|[,;:?!][\u4e00-\u9fff]", plain)
    assert not plain.endswith(("。", "."))
    assert "…" not in plain


def test_an_error_without_a_chinese_text_stays_english():
    error = NumprobeError("E-FMT-010", "never heard of {file}", do="check the path", file="a")
    assert render_error(error, "zh", WIDE) == "✗ E-FMT-010  never heard of a\n  处理  检查路径"
    assert render_error(error, "en", WIDE) == "✗ E-FMT-010  never heard of a\n  do  check the path"


def test_names_with_braces(tmp_path: Path):
    """In folders, files and keys: substituted once, in both languages, and never read as fields."""
    folder = tmp_path / "{file}" / "step{0}"
    folder.mkdir(parents=True)
    (folder / "{}{name!r}.json").write_text('{"{size}": 1, "}{": 2}')
    with pytest.raises(NumprobeError) as no_dump:
        find_layout(folder.parent)
    assert render_error(no_dump.value, "zh", WIDE).splitlines()[1:] == [
        f"  位置  {folder.parent}",
        "  发现  step{0}",
        "  处理  指定采集工具写出的目录（dump_path）",
    ]
    with pytest.raises(NumprobeError) as no_data:
        scan_file(folder / "{}{name!r}.json")
    assert render_error(no_data.value, "zh", WIDE).splitlines()[:3] == [
        '✗ E-FMT-012  {}{name!r}.json 不是 dump：没有 "data" 字段',
        f"  位置  {folder}/{{}}{{name!r}}.json",
        "  发现  {size}, }{（22 字节）",
    ]
    assert render_error(no_data.value, "en", WIDE).splitlines()[2] == "  found  {size}, }{ (22 bytes)"
