"""The terminal screen and the Markdown report of every kind of result."""

from __future__ import annotations

import json
import re

import pytest

from numprobe.diagnose.nan_overflow.page.markdown import render_markdown
from numprobe.diagnose.nan_overflow.page.screen import render_json_line, render_rank_map, render_terminal
from numprobe.report.terminal import Style, columns

from .nan_results import ALL, HOSTILE, OP, kernel_fault_512, many_ranks, no_overflow, source_outside_view

REPORT = "numprobe_out/nan-20261129T031204Z/report.html"
every_result = pytest.mark.parametrize("name", ALL)
both_languages = pytest.mark.parametrize("lang", ["en", "zh"])


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@every_result
@both_languages
@pytest.mark.parametrize("width", [80, 97, 120])
def test_screen_fits(name, lang, width):
    result = ALL[name]()
    text = render_terminal(result, lang, Style(width=width), REPORT)
    lines = text.splitlines()
    commands = {str(check.values.get("command", "")) for check in result.next_checks}
    wide = [
        line for line in lines if columns(line) > width and line.strip() not in commands and HOSTILE[:9] not in line
    ]
    assert wide == []
    assert len(lines) < 50
    assert lines[-1].endswith(REPORT)
    assert "\x1b" not in text


@every_result
@both_languages
def test_screen_names_the_operator_in_full(name, lang):
    result = ALL[name]()
    text = squeezed(render_terminal(result, lang, Style(width=80), REPORT))
    for candidate in result.sources[:1]:
        assert squeezed(candidate.op_name.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")) in text
    assert "…" not in text


def test_screen_of_the_512_ranks():
    text = render_terminal(kernel_fault_512(), "en", Style(width=80), REPORT)
    assert text.startswith(
        "✗ overflow found. Rank 168 made the NaN: NPU.npu_grouped_matmul.7.forward in\n"
        "  layer 11 turned finite inputs into NaN. All 510 other readable ranks received\n  it.\n"
    )
    assert "  output.0                    NaN      NaN       NaN    NaN  NaN\n" in text
    assert "  PP 1        1    127       0  -            Distributed." in text
    assert "not decided  rank 77 is missing and could come before the candidate" in text
    assert "    numprobe nan first_step_nan --exclude NPU.npu_grouped_matmul.7.forward\n" in text


def test_ascii_screen_is_ascii():
    text = render_terminal(kernel_fault_512(), "en", Style(unicode=False, width=None), REPORT)
    assert text.isascii()
    assert text.startswith("[err] overflow found")


def test_colours_mark_the_finding_only_when_asked():
    text = render_terminal(kernel_fault_512(), "zh", Style(colour=True, width=80), REPORT)
    assert "\x1b[1;35mNaN\x1b[0m" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain == render_terminal(kernel_fault_512(), "zh", Style(width=80), REPORT)


def test_other_verdicts():
    clean = render_terminal(no_overflow(), "en", Style(width=80), REPORT)
    assert clean.startswith("✓ no overflow. No operator made NaN or Inf.")
    assert "limits" in clean
    open_ = render_terminal(source_outside_view(), "zh", Style(width=80), REPORT)
    assert open_.startswith("? 无法判定。")
    assert "嫌疑" in open_
    assert "77" in open_


def test_rank_map_has_a_letter_a_rank():
    text = render_rank_map(kernel_fault_512(), "en", Style(width=80))
    rows = [line for line in text.splitlines()[2:] if line]
    letters = "".join(re.sub(r"^ *(PP \d)? +\d+ ", "", row) for row in rows).replace(" ", "")
    assert len(rows) == 16
    assert len(letters) == 512
    assert letters[168] == "S"
    assert letters[77] == "x"
    assert letters[311] == "p"
    assert letters[0] == "v"
    assert text.isascii()


def test_json_line_has_the_fixed_keys():
    found = json.loads(render_json_line(kernel_fault_512(), "numprobe_out/x"))
    fixed = "verdict step source_ranks rank class confidence first_anomaly partial_ranks missing_ranks out"
    assert list(found)[:10] == fixed.split()
    assert found["first_anomaly"]["op_name"] == OP
    clean = json.loads(render_json_line(no_overflow(), "x"))
    assert (clean["first_anomaly"], clean["rank"], clean["source_ranks"]) == (None, None, [])


@every_result
@both_languages
def test_markdown_tables_are_whole(name, lang):
    text = render_markdown(ALL[name](), lang)
    assert text == render_markdown(ALL[name](), lang)
    assert text.startswith("# numprobe nan: ")
    inside, wide = False, 0
    for line in text.splitlines():
        if re.match(r"\s*```", line):
            inside = not inside
        if inside or not line.startswith("|"):
            wide = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        assert wide in (0, cells), line
        wide = cells
    assert not inside


@both_languages
def test_markdown_escapes_what_the_dump_says(lang):
    text = render_markdown(ALL["hostile"](), lang)
    plain = re.sub(r"\\.", "", text)  # without escaped characters
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", plain, flags=re.DOTALL)
    assert "<" not in outside_code
    assert "onerror" in outside_code
    assert "\x1b" not in text
    assert "\u202e" not in text


@both_languages
def test_markdown_cites_every_record(lang):
    result = kernel_fault_512()
    text = render_markdown(result, lang)
    for evidence in result.evidence:
        assert f"**{evidence.id}**" in text
        for citation in evidence.citations:
            assert f"`{citation.label} {citation.slot}`" in text
    assert "0-76, 78-127" in text


def test_markdown_of_many_ranks_names_them_as_ranges():
    assert len(render_markdown(many_ranks(), "en")) < 15_000
