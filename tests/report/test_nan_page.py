"""The page: self-contained, escaped, complete in both languages, the same bytes every time, small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

import numprobe.report.html
from numprobe.diagnose.nan_overflow.messages import CATALOGUE
from numprobe.diagnose.nan_overflow.page.html import SCRIPT_WORDS, render_html
from numprobe.report.html import _Compiled, script_data

from .nan_results import ALL, HOSTILE, OP, hostile, kernel_fault_512, many_ranks, no_overflow

every_result = pytest.mark.parametrize("name", ALL)
VOID = {"meta", "input", "br", "wbr", "link", "img"}


class Page(HTMLParser):
    """Elements with their attributes, text by element, and whether the nesting is right."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.text: list[str] = []
        self.spoken: dict[str, list[str]] = {"en": [], "zh-CN": []}
        self.scripts: list[str] = []
        self.langs: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.langs.append(dict(attrs).get("lang") or (self.langs[-1] if len(self.langs) > 1 else None))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)
        self.langs.pop()

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts.append(data)
        elif inside != "style":
            self.text.append(data)
            lang = self.langs[-1] if self.langs else None
            if inside in ("span", "g", "text") and lang in self.spoken:
                self.spoken[lang].append(data)


def pages(name: str, **more: object) -> Page:
    return Page(render_html(ALL[name](), "en", **more))


@every_result
def test_well_formed_with_working_anchors(name):
    page = pages(name, dump_href="../dump", artifacts=["1_ranks.csv"])
    assert page.wrong == []
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {str(a["href"])[1:] for tag, a in page.elements if tag == "a" and str(a.get("href")).startswith("#")}
    assert targets <= set(ids)
    assert [tag for tag, _ in page.elements].count("h1") == 1
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(headings))


@every_result
def test_nothing_is_requested(name):
    text = render_html(ALL[name](), "zh")
    page = Page(text)
    assert not {"img", "link", "iframe", "object", "embed", "video", "audio", "base", "form"} & {
        tag for tag, _ in page.elements
    }
    for tag, attributes in page.elements:
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            assert key not in ("src", "srcset", "action", "formaction", "poster", "background"), (tag, key)
            if key in ("href", "xlink:href"):
                assert not re.match(r"\s*(https?:|//|javascript:|data:)", str(value), re.IGNORECASE)
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style


@every_result
def test_only_the_own_script_may_run(name):
    text = render_html(ALL[name](), "en")
    page = Page(text)
    policy = next(str(a["content"]) for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    script = page.scripts[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe-inline" not in policy.replace("style-src 'unsafe-inline'", "")
    assert json.loads(page.scripts[0])["ranks"]


def test_text_of_the_dump_stays_text():
    text = render_html(hostile(), "en", dump_href="../d")
    page = Page(text)
    shown = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
    assert shown in "".join(page.text)
    assert "<img" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "49.forward" not in text
    assert text.count("</script>") == 2
    assert shown in json.loads(page.scripts[0])["ops"]


def test_script_data_cannot_leave_its_element():
    data = script_data({"a": "</script><!--<script>\u2028&"})
    assert not set("<>&\u2028") & set(data)
    assert json.loads(data) == {"a": "</script><!--<script>\u2028&"}


@every_result
def test_the_same_bytes_every_time_without_clock_or_host(name):
    text = render_html(ALL[name](), "en", dump_href="../d")
    assert text == render_html(ALL[name](), "en", dump_href="../d")
    assert not re.search(r"20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d", text)


def test_the_script_can_fill_its_words():
    for key in SCRIPT_WORDS:
        for lang in ("en", "zh"):
            assert re.fullmatch(r"(?:[^{}\[\]]|\{\w+(:count)?\})*", CATALOGUE.templates(lang)[key]), key


def test_small_enough():
    size = len(
        render_html(kernel_fault_512(), "en", dump_href="../../dump", artifacts=["1_ranks.csv", "report.md"]).encode()
    )
    assert size <= 120_000
    assert len(render_html(many_ranks(), "en").encode()) <= 200_000


@every_result
def test_both_languages_and_the_chosen_one_first(name):
    for lang, html_lang in (("en", "en"), ("zh", "zh-CN")):
        page = Page(render_html(ALL[name](), lang))
        assert page.elements[0] == ("html", {"lang": html_lang, "data-lang": lang, "data-theme": "auto"})
        en, zh = "".join(page.spoken["en"]), "".join(page.spoken["zh-CN"])
        assert "Evidence" in en
        assert "证据" in zh
        assert not re.search(r"[\u4e00-\u9fff]", en.replace("层", "").replace("名", ""))
        spans = [a["lang"] for tag, a in page.elements if tag == "span" and "lang" in a]
        assert spans.count("en") == spans.count("zh-CN")


@every_result
def test_operator_names_are_whole(name):
    result = ALL[name]()
    text = "".join(Page(render_html(result, "en")).text)
    for candidate in (*result.sources, *result.alternatives):
        for wanted in (candidate.op_name, *(link.name for link in candidate.chain), candidate.gap_after or ""):
            assert wanted.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b") in text


def test_page_is_complete_without_script():
    page = pages("kernel_fault_512")
    cells = [
        a.get("class")
        for tag, a in page.elements
        if tag == "b" and a.get("class") in {"s", "r", "v", "c", "p", "m", "r h"}
    ]
    legend = 6
    assert len(cells) == 512 + legend
    assert cells.count("s") == 2
    assert "r h" in cells
    text = "".join(page.text)
    assert "0-76, 78-127" in text
    assert "256-383" in text
    hidden = [tag for tag, a in page.elements if "hidden" in a]
    assert hidden == ["span", "span", "div"]  # language, theme, and the table that the script draws


def test_only_slots_with_non_finite_values_are_marked():
    text = render_html(kernel_fault_512(), "en")
    rows = re.findall(r'<tr( class="hot")?><td><code class="nb">((?:input|output)[\w.]*)</code>', text)
    assert [name for hot, name in rows if hot] == ["output.0"]
    assert len(rows) == 5


def test_every_claim_leads_to_its_record():
    result = kernel_fault_512()
    text = render_html(result, "en", dump_href="../../first_step_nan")
    for evidence in result.evidence:
        assert f'id="{evidence.id}"' in text
        for citation in evidence.citations:
            assert re.search(rf'<a class="cite nb" href="#c\d+">{citation.label} {re.escape(citation.slot)}</a>', text)
    assert '<a href="../../first_step_nan/step0/rank168/dump.json">' in text
    assert "18,221,904" in text


def test_confidence_bars_add_up():
    text = render_html(kernel_fault_512(), "en")
    bars = re.findall(r'<i(?: class="(\w+)")? style="left:([\d.]+)%?;width:([\d.]+)%"></i></div></td><td>', text)
    assert len(bars) == 7
    at = 0.0
    for kind, left, width in bars[:-1]:
        if kind == "neg":
            at -= float(width)
        assert float(left) == pytest.approx(at, abs=0.01)
        if kind != "neg":
            at += float(width)
    assert bars[-1] == ("sum", "0", "80")
    assert at == pytest.approx(80)


def test_no_overflow_states_its_coverage():
    text = "".join(Page(render_html(no_overflow(), "en")).text)
    assert "no overflow" in text
    assert "9,600" in text
    assert "does not show" in text
    assert OP not in text
    assert 'id="confidence"' not in render_html(no_overflow(), "en")


def test_compiled_templates_are_kept_where_that_is_allowed(tmp_path, monkeypatch):
    def render(folder: Path) -> str:
        cache = _Compiled(str(folder), "%s.jinja")
        return (
            Environment(loader=DictLoader({"a": "{{ 1 + 1 }}"}), autoescape=True, bytecode_cache=cache)
            .get_template("a")
            .render()
        )

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert render(tmp_path) == "2"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert render(tmp_path / "missing") == "2"
    assert render(tmp_path) == "2"
    (kept,) = tmp_path.iterdir()
    monkeypatch.setattr(Environment, "_generate", None)  # from here on nothing can be compiled
    assert render(tmp_path) == "2"
    monkeypatch.undo()
    kept.write_bytes(b"damaged")
    assert render(tmp_path) == "2"


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(theme):
    css = (Path(numprobe.report.html.__file__).parent / "base.css").read_text(encoding="utf-8")
    block = re.findall(r"--bg:.*?\n\s*--t-pass[^}]*", css, re.DOTALL)[theme]
    tokens = dict(re.findall(r"--([\w-]+): (#[0-9A-F]{6})", block))
    texts = {name: value for name, value in tokens.items() if name.startswith("t-") or name in ("ink", "ink2", "link")}
    assert len(texts) == 13
    for name, value in texts.items():
        for ground in ("bg", "raised"):
            assert contrast(value, tokens[ground]) >= (7 if name == "ink" else 4.5), name
