"""The page in a real browser: no script error, no overflow, and map and table do what they say."""

from __future__ import annotations

import re

import pytest

from numprobe.compare.page.html import render_html
from report.test_browser import browse, chromium, run  # noqa: F401 the fixture is found by its name

from .page_results import ALL

pytestmark = pytest.mark.browser
every_sample = pytest.mark.parametrize("name", ALL)


def page(name: str, lang: str = "en") -> str:
    found, rows = ALL[name]()
    return render_html(found, lang, artifacts=["compare.parquet", "result.json"], rows=rows)


@every_sample
def test_page_as_written_runs_without_errors(chromium, tmp_path, name):  # noqa: F811
    file = tmp_path / "report.html"
    file.write_text(page(name), encoding="utf-8")
    dom, console = browse(chromium, file, "?theme=dark&lang=zh")
    assert console == []
    assert '<html lang="zh-CN" data-lang="zh" data-theme="dark" class="js">' in dom
    assert "onerror" not in re.sub(r">[^<]*|\"[^\"]*\"", "", dom)


@every_sample
def test_page_does_not_scroll_sideways_on_a_phone(chromium, tmp_path, name):  # noqa: F811
    """In a frame of 390 px: the browser's own window cannot be as narrow."""
    framed = page(name).replace("<body>", '<body style="width:390px;overflow-x:hidden">')
    script = """
    for (const details of document.querySelectorAll('details')) details.open = true;
    const measure = () => Math.max(...[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .sr, .skip'))
      .map(e => e.getBoundingClientRect().right));
    seen.en = measure(); document.querySelector('[data-lang-is=zh]').click(); seen.zh = measure();
    """
    seen = run(chromium, tmp_path, framed, script, width=390)
    assert seen["en"] <= 390
    assert seen["zh"] <= 390


def test_map_starts_at_the_first_finding_and_follows_the_keyboard(chromium, tmp_path):  # noqa: F811
    script = """
    const map = document.querySelector('.map[data-shown]'), cells = [...map.querySelectorAll('.heat b')];
    const readout = document.querySelector('#readout'), box = map.querySelector('.heatbox');
    const press = key => {
      document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
      return cells.indexOf(document.activeElement);
    };
    seen.start = readout.textContent; seen.stops = cells.filter(cell => cell.tabIndex === 0).length;
    const first = cells.findIndex(cell => cell.classList.contains('first'));
    const inner = cells[first].getBoundingClientRect(), outer = box.getBoundingClientRect();
    seen.visible = inner.left >= outer.left && inner.right <= outer.right;
    cells[first].focus();
    seen.right = press('ArrowRight') - first; seen.handed = readout.textContent;
    seen.down = press('ArrowDown') - first; seen.home = press('Home') % 62; seen.outside = readout.textContent;
    seen.left = press('ArrowLeft') % 62; seen.end = press('End') % 62; seen.last = press('ArrowRight') % 62;
    document.querySelector('[data-lang-is=zh]').click(); seen.label = cells[first].getAttribute('aria-label');
    """
    seen = run(chromium, tmp_path, page("sixty_one_layers"), script)
    assert seen["start"] == "layer 17, mlp.product: error \u00b7 ratio 60.1 \u00b7 finding 1"
    assert seen["stops"] == 1
    assert seen["visible"]
    assert seen["handed"] == "layer 18, mlp.product: warning \u00b7 handed on \u00b7 ratio 0.30"
    assert (seen["right"], seen["down"]) == (1, 1 + 62)
    assert (seen["home"], seen["left"], seen["end"], seen["last"]) == (0, 0, 61, 61)
    assert seen["outside"] == "outside of layers, mlp.down_proj: no record"
    assert seen["label"] == "第 17 层，mlp.product：错误 \u00b7 倍数 60.1 \u00b7 发现 1"


def test_one_phase_is_shown_at_a_time(chromium, tmp_path):  # noqa: F811
    script = """
    const shown = () => [...document.querySelectorAll('.map')].filter(map => map.offsetParent).map(map => map.dataset.phase);
    const buttons = [...document.querySelectorAll('#phases button')];
    seen.words = buttons.map(button => button.innerText); seen.start = shown();
    buttons[1].click(); seen.second = shown(); seen.pressed = buttons.map(button => button.getAttribute('aria-pressed'));
    """
    seen = run(chromium, tmp_path, page("sixty_one_layers"), script)
    assert seen["words"] == ["forward", "backward", "gradient of a parameter"]
    assert seen["start"] == ["forward"]
    assert seen["second"] == ["backward"]
    assert seen["pressed"] == ["false", "true", "false"]


def test_rows_are_filtered_sorted_and_paged(chromium, tmp_path):  # noqa: F811
    script = """
    const table = document.querySelector('[data-records]'), tools = table.closest('.scroll').previousElementSibling;
    const count = () => tools.querySelector('[aria-live]').innerText;
    const first = () => table.tBodies[0].rows[0].innerText.split('\\t').slice(0, 2);
    const keep = value => document.querySelector(`#record-keys [data-keep="${value}"]`);
    seen.start = [table.tBodies[0].rows.length, count(), ...first()];
    keep('backward').click(); seen.backward = [count(), ...first()];
    keep('unmatched_golden').click(); seen.none = count();
    keep('backward').click(); seen.unmatched = [count(), ...first()];
    keep('unmatched_golden').click(); seen.all = count();
    const filter = tools.querySelector('input'); filter.value = 'linear.77.'; filter.dispatchEvent(new Event('input'));
    seen.found = [count(), ...first()];
    filter.value = ''; filter.dispatchEvent(new Event('input'));
    const head = [...table.querySelectorAll('th')].find(cell => cell.innerText.includes('#')).querySelector('button');
    head.click(); seen.latest = first(); head.click(); seen.earliest = first();
    """
    seen = run(chromium, tmp_path, page("sixty_one_layers"), script)
    assert seen["start"] == [50, "2,000 / 2,000 shown", "0", "Functional.linear.0.forward"]
    assert seen["backward"] == ["999 / 2,000 shown", "1", "Functional.linear.1.backward"]
    assert seen["none"] == "0 / 2,000 shown"
    assert seen["unmatched"] == ["1 / 2,000 shown", "1999", "Tensor.__mul__.23.forward"]
    assert seen["all"] == "2,000 / 2,000 shown"
    assert seen["found"] == ["1 / 2,000 shown", "77", "Functional.linear.77.backward"]
    assert seen["latest"][0] == "1999"
    assert seen["earliest"][0] == "0"


def test_rows_of_the_script_are_those_of_the_writer(chromium, tmp_path):  # noqa: F811
    """What a reader without script sees of the first rows is what the script draws."""
    script = """
    const cells = rows => [...rows].map(row => [...row.cells].map(cell => cell.textContent.replace(/\\s+/g, ' ').trim()));
    const written = new DOMParser().parseFromString(document.querySelector('#written').textContent, 'text/html');
    seen.written = cells(written.querySelector('tbody').rows);
    seen.drawn = cells(document.querySelector('[data-records]').tBodies[0].rows);
    """
    for name in ("gap", "introduced", "several_ranks", "hostile"):
        text = page(name)
        table = (
            "<table data-records"
            + text.partition('<table class="wide" data-records')[2].partition("</table>")[0]
            + "</table>"
        )
        copy = table.replace("&", "&amp;").replace("<", "&lt;")
        seen = run(
            chromium, tmp_path, text.replace("<footer>", f'<pre id="written" hidden>{copy}</pre><footer>'), script
        )
        assert len(seen["written"]) > 0
        assert seen["drawn"][: len(seen["written"])] == seen["written"], name


def test_columns_of_ones_own_metrics(chromium, tmp_path):  # noqa: F811
    found, rows = next(made for made in (make() for make in ALL.values()) if made[1])
    shown = [row._replace(custom=(1.5, "<b>w")) for row in rows]
    script = """
    const table = document.querySelector('table[data-records]');
    seen.head = [...table.tHead.rows[0].cells].slice(-2).map(cell => cell.textContent.trim());
    seen.cells = [...table.tBodies[0].rows[0].cells].slice(-2).map(cell => cell.textContent.trim());
    """
    seen = run(chromium, tmp_path, render_html(found, "en", rows=shown, custom=["Mean shift", "<i>"]), script)
    assert seen == {"head": ["Mean shift", "<i>"], "cells": ["1.500", "<b>w"]}
