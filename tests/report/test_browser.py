"""The page in a real browser: no script error, and grid, spread, tables, language and theme do what they say."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from numprobe.diagnose.nan_overflow.page.html import render_html

from .nan_results import ALL

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's chromium; installed if it is missing and this may be done."""
    found = shutil.which("chromium")
    if found:
        return found
    if not shutil.which("apt-get") or os.geteuid() != 0:
        pytest.skip("chromium is not installed, and without root and apt-get it cannot be")
    quiet = {"check": False, "capture_output": True, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    subprocess.run(["apt-get", "update"], **quiet)
    subprocess.run(["apt-get", "install", "-y", "chromium"], **quiet)
    found = shutil.which("chromium")
    if not found:
        pytest.skip("apt-get could not install chromium")
    return found


def browse(chromium: str, file: Path, query: str, width: int = 1280) -> tuple[str, list[str]]:
    """The document after its scripts ran, and the messages on the console."""
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--window-size={width},900",
        "--virtual-time-budget=4000",
    ]
    command += [
        f"--user-data-dir={file.parent / 'profile'}",
        "--enable-logging=stderr",
        "--dump-dom",
        f"{file.as_uri()}{query}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def run(chromium: str, folder: Path, page: str, script: str, query: str = "", width: int = 1280) -> dict[str, object]:
    """What ``script`` put into ``seen`` on the page; the policy of this copy lets the test's script run too."""
    page = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page)
    report = "const out = document.createElement('pre'); out.id = 'seen'; out.textContent = JSON.stringify(seen);"
    report += " document.body.append(out);"
    probe = f"<script>{{const seen = {{}}; {script}; {report}}}</script></body>"
    file = folder / "page.html"
    file.write_text(page.replace("</body>", probe), encoding="utf-8")
    dom, console = browse(chromium, file, query, width)
    assert console == []
    return json.loads(html.unescape(dom.partition('<pre id="seen">')[2].partition("</pre>")[0]))


@pytest.mark.parametrize("name", ALL)
def test_page_as_written_runs_without_errors(chromium, tmp_path, name):
    file = tmp_path / "report.html"
    file.write_text(render_html(ALL[name](), "en", dump_href="../dump", artifacts=["1_ranks.csv"]), encoding="utf-8")
    dom, console = browse(chromium, file, "?theme=dark&lang=zh")
    assert console == []
    assert '<html lang="zh-CN" data-lang="zh" data-theme="dark" class="js">' in dom
    assert "onerror" not in re.sub(r">[^<]*|\"[^\"]*\"", "", dom)


def test_grid_by_keyboard_and_panel(chromium, tmp_path):
    script = """
    const cells = [...document.querySelectorAll('#grid .cells b')], panel = document.querySelector('#detail');
    const press = key => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
    seen.stops = cells.filter(cell => cell.tabIndex === 0).length;
    seen.labels = [0, 77, 168, 311].map(n => cells[n].getAttribute('aria-label'));
    cells[168].focus(); seen.source = panel.innerText;
    press('ArrowRight'); seen.right = cells.indexOf(document.activeElement);
    press('ArrowDown'); seen.down = cells.indexOf(document.activeElement);
    press('PageDown'); seen.stage = cells.indexOf(document.activeElement);
    press('Home'); seen.home = cells.indexOf(document.activeElement);
    press('End'); seen.end = cells.indexOf(document.activeElement);
    seen.panel = panel.innerText;
    cells[130].focus(); seen.peers = cells.flatMap((cell, n) => cell.classList.contains('peer') ? [n] : []);
    const go = document.querySelector('#go'); go.value = '77'; go.dispatchEvent(new Event('change'));
    seen.missing = panel.innerText;
    """
    seen = run(chromium, tmp_path, render_html(ALL["kernel_fault_512"](), "en"), script)
    assert seen["stops"] == 1
    assert seen["labels"] == ["0 victim", "77 missing", "168 source", "311 relay"]
    assert "NPU.npu_grouped_matmul.7.forward #1644" in seen["source"]
    assert (seen["right"], seen["down"], seen["stage"], seen["home"], seen["end"]) == (169, 201, 329, 0, 511)
    assert "Rank 511" in seen["panel"]
    assert "isend@383-511#0" in seen["panel"]
    assert seen["peers"] == [128]
    assert "Rank 77" in seen["missing"]


def test_spread_line_shows_the_grid_as_it_was(chromium, tmp_path):
    script = """
    const count = () => Object.fromEntries([...document.querySelectorAll('[data-role]')].map(key =>
      [key.dataset.role, key.querySelector('.dim').textContent]));
    seen.asked = count();
    document.querySelector('[data-wave="1"]').click();
    seen.second = count(); seen.note = document.querySelector('#asof').textContent;
    seen.pressed = [...document.querySelectorAll('[data-wave][aria-pressed=true]')].length;
    document.querySelector('[data-role="relay"]').click();
    seen.dimmed = document.querySelectorAll('#grid b.off').length;
    document.querySelector('[data-role="relay"]').click();
    document.querySelector('[data-wave="6"]').click();
    seen.last = count(); seen.undimmed = document.querySelectorAll('#grid b.off').length;
    """
    seen = run(chromium, tmp_path, render_html(ALL["kernel_fault_512"](), "en"), script, "?wave=2")
    assert seen["asked"] == {
        "source": "1",
        "relay": "95",
        "victim": "0",
        "clean": "414",
        "partial": "1",
        "missing": "1",
    }
    assert seen["second"]["relay"] == "23"
    assert seen["note"] == "Shown: the state after line 2 of Spread."
    assert seen["pressed"] == 1
    assert seen["dimmed"] == 512 - 23
    assert seen["last"] == {
        "source": "1",
        "relay": "255",
        "victim": "255",
        "clean": "0",
        "partial": "1",
        "missing": "1",
    }
    assert seen["undimmed"] == 0


def test_tables_sort_filter_and_page(chromium, tmp_path):
    script = """
    const table = document.querySelector('table[data-ranks]'), tools = table.closest('.scroll').previousElementSibling;
    const first = () => table.tBodies[0].rows[0].cells[0].innerText, shown = () => tools.querySelector('[aria-live]').innerText;
    const head = n => table.querySelectorAll('thead th')[n];
    seen.rows = table.tBodies[0].rows.length; seen.shown = shown();
    head(0).querySelector('button').click(); seen.up = [first(), head(0).getAttribute('aria-sort')];
    head(0).querySelector('button').click(); seen.down = [first(), head(0).getAttribute('aria-sort')];
    head(6).querySelector('button').click(); head(6).querySelector('button').click();
    seen.records = [first(), head(6).getAttribute('aria-sort'), head(0).getAttribute('aria-sort')];
    const filter = tools.querySelector('input');
    filter.value = 'all_reduce.4'; filter.dispatchEvent(new Event('input'));
    seen.filtered = [table.tBodies[0].rows.length, shown()];
    tools.querySelectorAll('button')[1].click(); seen.second = [table.tBodies[0].rows.length, tools.lastChild.innerText];
    filter.value = 'no such thing'; filter.dispatchEvent(new Event('input')); seen.none = table.tBodies[0].rows.length;
    const excluded = document.querySelector('#excluded table');
    const button = [...excluded.querySelectorAll('th button')][1]; button.click(); button.click();
    seen.excluded = excluded.tBodies[0].rows[0].cells[0].innerText;
    """
    seen = run(chromium, tmp_path, render_html(ALL["kernel_fault_512"](), "en"), script)
    assert seen["rows"] == 50
    assert seen["shown"] == "512 / 512 shown"
    assert seen["up"] == ["0", "ascending"]
    assert seen["down"] == ["511", "descending"]
    assert seen["records"] == ["77", "ascending", None]
    assert seen["filtered"] == [50, "72 / 512 shown"]
    assert seen["second"] == [22, "rows 51-72 of 72"]
    assert seen["none"] == 0
    assert seen["excluded"] == "Tensor.__truediv__"


def test_language_theme_and_copy(chromium, tmp_path):
    script = """
    const title = document.querySelector('h1'), style = () => getComputedStyle(document.body).backgroundColor;
    seen.chinese = title.innerText; seen.panel = document.querySelector('#detail h3').innerText;
    document.querySelector('[data-lang-is=en]').click();
    seen.english = title.innerText; seen.after = document.querySelector('#detail h3').innerText;
    seen.lang = document.documentElement.lang;
    document.querySelector('[data-theme-is=dark]').click(); seen.dark = style();
    document.querySelector('[data-theme-is=light]').click(); seen.light = style();
    const box = [...document.querySelectorAll('.cmd')].pop(); box.querySelector('button').click();
    seen.copies = document.querySelectorAll('.cmd button').length;
    """
    seen = run(chromium, tmp_path, render_html(ALL["kernel_fault_512"](), "zh"), script)
    assert seen["chinese"].startswith("NaN 由 168 号卡产生")
    assert "168 号卡" in seen["panel"]
    assert seen["english"].startswith("Rank 168 made the NaN")
    assert "Rank 168" in seen["after"]
    assert seen["lang"] == "en"
    assert (seen["dark"], seen["light"]) == ("rgb(19, 21, 23)", "rgb(252, 252, 250)")
    assert seen["copies"] == 3


@pytest.mark.parametrize("name", ALL)
def test_page_does_not_scroll_sideways_on_a_phone(chromium, tmp_path, name):
    script = """
    const measure = () => [document.documentElement.clientWidth, document.documentElement.scrollWidth];
    seen.en = measure(); document.querySelector('[data-lang-is=zh]').click(); seen.zh = measure();
    """
    seen = run(chromium, tmp_path, render_html(ALL[name](), "en"), script, width=390)
    for view, width in seen.values():
        assert view <= 500
        assert width <= view


def test_groups_of_ranks_open_on_demand(chromium, tmp_path):
    script = """
    const cells = [...document.querySelectorAll('#grid .cells b')], panel = document.querySelector('#detail');
    seen.cells = cells.length; seen.label = cells[42].getAttribute('aria-label');
    cells[42].click(); seen.panel = panel.innerText;
    """
    seen = run(chromium, tmp_path, render_html(ALL["many_ranks"](), "en"), script)
    assert seen["cells"] == 1024
    assert seen["label"] == "168-171 source"
    assert "169, 170, 171" in seen["panel"]
