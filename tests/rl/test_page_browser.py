"""The page in a real browser: no script error, no overflow, and map and table do what they say."""

from __future__ import annotations

import re

import pytest

from numprobe.diagnose.rl_consistency.page.html import render_html
from report.test_browser import browse, chromium, run  # noqa: F401 the fixture is found by its name

from .page_results import ALL

pytestmark = pytest.mark.browser
every_sample = pytest.mark.parametrize("name", ALL)


def page(name: str) -> str:
    return render_html(ALL[name](), "en", artifacts=["result.json", "mapping.csv"])


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


def test_map_starts_at_the_suspect_and_tells_the_anchor(chromium, tmp_path):  # noqa: F811
    script = """
    const cells = [...document.querySelectorAll('.heat b')], readout = document.querySelector('#readout');
    const press = key => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
    seen.start = readout.textContent;
    cells.find(cell => cell.classList.contains('first')).focus();
    press('ArrowUp'); press('ArrowUp'); seen.anchor = readout.textContent;
    press('ArrowRight'); seen.behind = readout.textContent;
    document.querySelector('[data-lang-is=zh]').click(); seen.label = document.activeElement.getAttribute('aria-label');
    """
    seen = run(chromium, tmp_path, page("gelu"), script)
    assert seen["start"].startswith("layer 0, down: error \u00b7 ratio ")
    assert seen["start"].endswith("finding 1")
    assert re.fullmatch("layer 0, gate_up: pass \u00b7 ratio [0-9.]+ \u00b7 anchor", seen["anchor"])
    assert seen["behind"].startswith("layer 1, gate_up: error \u00b7 handed on")
    assert seen["label"].startswith("第 1 层，gate_up：错误")


@pytest.mark.parametrize("name", ["gelu", "sixty_one_layers"])
def test_the_mapping_is_filtered_and_sorted(chromium, tmp_path, name):  # noqa: F811
    """Of rows that stand in the page, and of rows that the script draws."""
    mapping = ALL[name]().mapping
    total, errors = len(mapping), sum(pair.verdict == "error" for pair in mapping)
    script = """
    const table = document.querySelector('[data-records]'), tools = table.closest('.scroll').previousElementSibling;
    const count = () => tools.querySelector('[aria-live]').innerText, input = tools.querySelector('input');
    seen.start = count();
    document.querySelector('#record-keys [data-keep=error]').click(); seen.errors = count();
    document.querySelector('#record-keys [data-keep=error]').click(); seen.all = count();
    input.value = 'layers.2.'; input.dispatchEvent(new Event('input')); seen.place = table.tBodies[0].rows[0].cells[0].innerText;
    input.value = ''; input.dispatchEvent(new Event('input'));
    const head = [...table.querySelectorAll('th button')].pop();
    head.click(); seen.worst = table.tBodies[0].rows[0].dataset.verdict ?? table.tBodies[0].rows[0].verdict;
    """
    seen = run(chromium, tmp_path, page(name), script)
    assert seen["start"] == seen["all"] == f"{total} / {total} shown"
    assert seen["errors"] == f"{errors} / {total} shown"
    assert seen["place"].startswith("layers.2.")
    assert seen["worst"] == "error"
