"""Widths, wrapping, styles, errors and progress on terminals and pipes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numprobe.diagnose.nan_overflow.messages import CATALOGUE
from numprobe.execution.progress import Progress
from numprobe.record.errors import NumprobeError
from numprobe.report.errors import render_error
from numprobe.report.json_text import json_text
from numprobe.report.messages import Mark
from numprobe.report.progress import JsonProgress, LineProgress, LiveProgress, progress_display
from numprobe.report.terminal import (
    SOFT,
    UNPRINTABLE,
    Cell,
    Style,
    columns,
    encodable,
    joined,
    pad,
    printable,
    soft,
    style_of,
    table,
    unbroken,
    wrap,
)

STAGES = ["nan.stage.discover", "nan.stage.scan", "nan.stage.join", "nan.stage.rank", "nan.stage.trace"]
TEXT = st.text(alphabet=st.sampled_from("ab c.卡号，。（）x1_ " + SOFT), max_size=80)


def test_han_takes_two_columns():
    assert columns("168 号卡") == 8
    assert columns("e\u0301") == 1
    assert columns("\x1b[1;31mNaN\x1b[0m") == 3
    assert columns(pad("卡", 5)) == 5


@given(TEXT, st.integers(8, 40))
def test_lines_fit_and_nothing_is_lost(text, width):
    lines = wrap(text, width, "> ", "  ")
    assert all(columns(line) <= width for line in lines)
    kept = "".join(line[2:] for line in lines)
    assert re.sub(r"[ ]", "", kept) == re.sub(rf"[ {SOFT}]", "", text)


@given(TEXT, st.integers(12, 40))
def test_lines_do_not_start_with_closing_marks(text, width):
    for line in wrap(text, width)[1:]:
        assert not line.startswith(("，", "。", "）")) or columns(max(re.split("[^，。）]", text), key=len)) > 1


def test_names_break_after_dots_and_are_never_cut():
    name = "Module.module.module.decoder.layers.3.mlp.experts.GroupedMLP.forward.0"
    lines = wrap(f"see {soft(name)} for it", 30)
    assert "".join(lines).replace(" ", "") == f"see{name}forit"
    assert all(line.endswith((".", "0 for it", "it", "see")) for line in lines)
    long = "a_very_long_name_without_any_dot_in_it_that_is_wider_than_the_line"
    assert "".join(wrap(soft(long), 20)) == long
    assert wrap(unbroken("[E1] r168 #1644") + " " + unbroken("[E2] r172 #1644"), 20) == [
        "[E1] r168 #1644",
        "[E2] r172 #1644",
    ]


def test_no_limit_on_a_pipe():
    assert wrap("word " * 60 + soft("a.b"), None) == ["word " * 60 + "a.b"]


def test_control_characters_are_shown():
    assert printable("a\x1b[2Jb\u202ec\r") == "a\\x1b[2Jb\\u202ec\\r"
    assert printable("a\nb\tc\u2028d\x85") == "a\\nb\\tc\\u2028d\\x85"
    assert printable("层 ok") == "层 ok"


def test_what_nobody_sees_is_shown():
    tags = "".join(chr(0xE0000 + ord(letter)) for letter in "ok")
    text = f"a\u200bb\ufeffc\u00add\u2060e{tags}f\ufe0fg\u3164h"
    shown = printable(text)
    assert shown == r"a\u200bb\ufeffc\xadd\u2060e\U000e006f\U000e006bf\ufe0fg\u3164h"
    assert printable(shown) == shown
    assert r"a\u200bb" in "".join(wrap(soft("x.a\u200bb"), 80))
    drawn = "\n".join(table(["name"], [[soft("a.\u2060b.c")]], (), Style(width=80)))
    assert r"a.\u2060b.c" in drawn


def test_json_drives_no_terminal():
    text = "a\x1b\x9b2J\x7f\u202e\u200b\U000e0041\n层"
    for ascii_only in (False, True):
        for indent in (None, 1):
            shown = json_text({text: [text, 1.5]}, ascii_only=ascii_only, indent=indent)
            assert json.loads(shown) == {text: [text, 1.5]}
            assert not UNPRINTABLE.search(shown.replace("\n", ""))
            assert ("层" in shown) != ascii_only


def test_bytes_that_are_no_text_are_shown():
    name = os.fsdecode(b"b\xff\xfe")
    assert printable(name) == encodable(name) == r"b\xff\xfe"
    assert encodable("\ud800\n层") == "\\ud800\n层"


def test_only_very_long_names_are_cut():
    just, over = "a" * 300, "b" * 200 + "c" * 11 + "d" * 90
    assert soft(just) == just
    assert soft(over).replace(SOFT, "") == "b" * 200 + "..." + "d" * 90
    assert joined([Mark("path", over)]) == over  # to be copied


def test_table_fits_and_keeps_every_cell():
    name = "Distributed.all_to_all_single.7.forward"
    rows = [["PP 0", "1", Cell(soft(name), "source")], ["PP 10", "1,234", Cell("号卡")]]
    wide = table(["stage", "n", "through"], rows, [1], Style(width=120))
    assert wide[0] == "  stage      n  through"
    assert name in wide[2]
    narrow = table(["stage", "n", "through"] * 3, [row * 3 for row in rows], [1], Style(width=80))
    assert all(columns(line) <= 80 for line in narrow)
    lines = table(["stage", "n", "through"], rows, [1], Style(width=40))
    assert lines[0] == "  stage: PP 0"
    assert all(columns(line) <= 40 for line in lines)


def test_table_breaks_texts_and_never_figures():
    figures = ["-0.005490", "3.457e-5", "61.96", "1,234.5", "0.0015 %", "-12.57", "1.018e-34"]
    head = ["slot", "", *(f"f{n}" for n in range(len(figures))), "verdict"]
    rows = [[soft("input_args.0"), "golden run", *figures, "error"], ["", "target", *figures, ""]]
    right = range(2, 2 + len(figures))
    for width in range(80, 121):
        lines = table(head, rows, right, Style(width=width))
        assert all(columns(line) <= width for line in lines)
        assert [line for line in lines if line.rstrip().endswith(":")] == []  # no name without a value
        for figure in figures:
            assert sum(figure in line for line in lines) == 2, (width, figure)


class Screen(io.StringIO):
    encoding = "utf-8"

    def __init__(self, tty: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self.tty, self.encoding = tty, encoding

    def isatty(self) -> bool:
        return self.tty


@pytest.mark.parametrize(
    ("tty", "environ", "quiet", "colour", "live"),
    [
        (True, {"TERM": "xterm"}, False, True, True),
        (True, {"TERM": "xterm"}, True, False, False),
        (True, {"TERM": "dumb"}, False, False, False),
        (True, {"NO_COLOR": "1"}, False, False, False),
        (False, {}, False, False, False),
        (False, {"FORCE_COLOR": "1"}, False, True, False),
        (False, {"FORCE_COLOR": "0"}, False, False, False),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False, False),
    ],
)
def test_styles(tty, environ, quiet, colour, live, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    style = style_of(Screen(tty), environ, quiet=quiet)
    assert (style.colour, style.live) == (colour, live)
    assert (style.width is None) == (not tty or quiet or environ.get("TERM") == "dumb")
    assert style.unicode
    assert not style_of(Screen(tty, "ascii"), environ).unicode


def test_a_narrow_terminal_is_not_rewritten(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert style_of(Screen(True), {}) == Style(colour=True, live=False, width=80)
    monkeypatch.setenv("COLUMNS", "400")
    assert style_of(Screen(True), {}) == Style(colour=True, live=True, width=120)


def test_error_wraps_under_its_label():
    error = NumprobeError(
        "E-FMT-012",
        'dump.json is not a dump: no member "data"',
        where="dump/train/step0/rank3/dump.json",
        found="task, level, framework (1,204 bytes)",
        do="the job may still be writing: wait and run again, or leave the rank out with --rank 0-2,4-7",
    )
    assert render_error(error, "en", Style(width=80)) == (
        '✗ E-FMT-012  dump.json is not a dump: no member "data"\n'
        "  where  dump/train/step0/rank3/dump.json\n"
        "  found  task, level, framework (1,204 bytes)\n"
        "  do     the job may still be writing: wait and run again, or leave the rank out\n"
        "         with --rank 0-2,4-7"
    )
    chinese = render_error(error, "zh", Style(width=80, unicode=False))
    assert chinese.startswith("[err] E-FMT-012")
    assert "\n  位置  dump/train" in chinese


def event(stage: int, state: str = "running", **more: object) -> Progress:
    return Progress(stage=stage, of=5, name=STAGES[stage - 1], state=state, **more)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_pipe_gets_few_lines():
    out, clock = io.StringIO(), Clock()
    show = LineProgress(out, CATALOGUE, "en", Style(unicode=False, width=None), clock=clock)
    show(event(1, "done", note="512 ranks listed, 510 ok", elapsed_s=0.4))
    for second in range(40):
        clock.now = second + 1.0
        show(event(2, done=second + 1, total=511))
    show(event(2, "done", note="511 files, 7.3 GB", elapsed_s=103))
    assert out.getvalue().splitlines() == [
        "[ok] 1/5 discover: 512 ranks listed, 510 ok (0.4 s)",
        "[..] 2/5 scan ranks: 10/511",
        "[..] 2/5 scan ranks: 20/511",
        "[..] 2/5 scan ranks: 30/511",
        "[..] 2/5 scan ranks: 40/511",
        "[ok] 2/5 scan ranks: 511 files, 7.3 GB (103 s)",
    ]


def test_quiet_tells_only_what_went_wrong():
    out = io.StringIO()
    show = progress_display("auto", out, STAGES, CATALOGUE, "en", Style(live=True), quiet=True)
    show(event(1, "done"))
    show(event(2, done=4, total=9))
    show(event(2, "interrupted", note="4 of 9 kept", elapsed_s=2))
    assert out.getvalue() == "! 2/5 scan ranks: 4 of 9 kept (2.0 s)\n"


def screen_after(text: str) -> list[str]:
    """What a terminal shows after this output: cursor up, erase line and erase below are obeyed."""
    lines: list[str] = []
    row = 0
    for part in re.findall(r"\x1b\[\d*[AKJ]|[^\x1b\n]+|\n", text):
        up = re.fullmatch(r"\x1b\[(\d+)A", part)
        if up:
            row -= int(up.group(1))
        elif part == "\x1b[J":
            del lines[row:]
        elif part == "\n":
            row += 1
        else:
            lines += [""] * (row + 1 - len(lines))
            lines[row] = "" if part == "\x1b[2K" else lines[row] + part
    return lines


def test_live_lines_are_rewritten():
    out, clock = io.StringIO(), Clock()
    show = LiveProgress(out, CATALOGUE, "en", Style(live=True, width=80), STAGES, clock)
    show(event(1, "done", note="512 ranks listed: 510 ok, 1 partial, 1 missing", elapsed_s=0.4))
    for n in range(1, 312):
        clock.now += 0.02
        show(event(2, done=n, total=511, note="4.4 of 7.3 GB", eta_s=41, elapsed_s=62))
    show.close()
    assert out.getvalue().count("\x1b[J") < 80
    assert screen_after(out.getvalue()) == [
        "✓ 1/5 discover          512 ranks listed: 510 ok, 1 partial, 1 missing     0.4 s",
        "▸ 2/5 scan ranks        311/511  4.4 of 7.3 GB, about 41 s left             62 s",
        "∙ 3/5 join collectives",
        "∙ 4/5 rank the sources",
        "∙ 5/5 trace and report",
    ]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_live_lines_fit(lang, width):
    out = io.StringIO()
    show = LiveProgress(out, CATALOGUE, lang, Style(live=True, width=width), STAGES)
    show(event(1, "done", note="a note that is long enough to need more than a line " * 3, elapsed_s=1))
    show(
        event(
            2,
            done=311,
            total=511,
            note="4.4 of 7.3 GB and a note that does not fit beside the rest of it",
            eta_s=41,
            elapsed_s=9,
        )
    )
    lines = screen_after(out.getvalue())
    assert all(columns(line) <= width for line in lines)
    assert any("311/511" in line for line in lines)
    assert ("[####" in out.getvalue()) == (width >= 100)


def test_json_lines():
    out, clock = io.StringIO(), Clock()
    show = JsonProgress(out, clock)
    for n in range(50):
        clock.now += 0.01
        show(event(2, done=n, total=50))
    show(event(2, "done", done=50, total=50))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert 4 <= len(events) <= 7
    assert events[-1]["state"] == "done"
    assert set(events[0]) >= {"stage", "of", "name", "done", "total", "eta_s"}


def test_terminal_parts_import_neither_rich_nor_jinja2():
    code = (
        "import sys, numprobe.report.progress, numprobe.report.errors, numprobe.diagnose.nan_overflow.page.screen;"
        "print(sorted({'rich', 'jinja2', 'markupsafe', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
