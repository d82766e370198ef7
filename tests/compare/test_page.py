"""The page: self-contained, escaped, complete in both languages, in the order that a reader needs, bounded."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import numprobe.compare
from numprobe.compare.messages import CATALOGUE
from numprobe.compare.page.heat import heat_maps
from numprobe.compare.page.html import SCRIPT_WORDS, render_html
from numprobe.compare.result import Cell
from numprobe.record.nonfinite import Number
from numprobe.report import numbers
from numprobe.report.html.heat import MOST_ROWS, ratio
from numprobe.report.messages import fields
from report.test_nan_page import Page

from .page_results import ADD, ALL, HOSTILE, MATMUL, MUL, PARTS, PRODUCT, finding, heat, introduced, result

every_sample = pytest.mark.parametrize("name", ALL)
ARTIFACTS = ("compare.parquet", "result.json", "report.md")
KEY = re.compile(r"^(?:page|head|phase|status|reason|cause|place|screen|next|note|verdict|headline|count|side)\.[\w.]+")


def text_of(name: str, lang: str = "en") -> str:
    found, rows = ALL[name]()
    return render_html(found, lang, artifacts=ARTIFACTS, rows=rows)


def shown(page: Page) -> str:
    """The English text, as one line."""
    return re.sub(r"\s+", " ", "".join(page.text))


@every_sample
def test_well_formed_with_working_anchors(name):
    page = Page(text_of(name))
    assert page.wrong == []
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {str(a["href"])[1:] for tag, a in page.elements if tag == "a" and str(a.get("href")).startswith("#")}
    assert targets <= set(ids)
    assert [tag for tag, _ in page.elements].count("h1") == 1


@every_sample
def test_sections_come_in_the_order_of_need(name):
    found, _ = ALL[name]()
    sections = [a["id"] for tag, a in Page(text_of(name)).elements if tag == "section"]
    more = ["others"] if len(found.findings) > 1 else []
    ranks = ["ranks"] if len(found.ranks) > 1 else []
    assert sections == ["finding", *more, "layers", "records", *ranks, "files"]


@every_sample
def test_nothing_is_requested(name):
    text = text_of(name, "zh")
    page = Page(text)
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            assert key not in ("src", "srcset", "action", "formaction", "background"), (tag, key)
            assert key != "href" or not re.match(r"\s*(https?:|//|javascript:|data:)", str(value), re.IGNORECASE)
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style


def test_only_the_own_script_may_run():
    page = Page(text_of("introduced"))
    policy = next(str(a["content"]) for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_text_of_the_dump_stays_text():
    text = text_of("hostile")
    page = Page(text)
    visible = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
    assert visible in "".join(page.text)
    assert "<img" not in text
    assert not {"\u202e", "\x1b"} & set(text)
    assert "49.forward" not in text  # {{7*7}}
    assert text.count("</script>") == 2
    assert visible in json.loads(page.scripts[0])["rows"]["texts"]


@every_sample
def test_the_same_bytes_every_time_without_clock_or_host(name):
    text = text_of(name)
    assert text == text_of(name)
    assert not re.search(r"20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d", text)


@every_sample
def test_both_languages_and_the_chosen_one_first(name):
    for lang, html_lang in (("en", "en"), ("zh", "zh-CN")):
        page = Page(text_of(name, lang))
        assert page.elements[0] == ("html", {"lang": html_lang, "data-lang": lang, "data-theme": "auto"})
        spans = [a["lang"] for tag, a in page.elements if tag == "span" and "lang" in a]
        assert spans.count("en") == spans.count("zh-CN") > 0
        assert not re.search(r"[\u4e00-\u9fff]", "".join(page.spoken["en"]).replace("层", "").replace("名", ""))
        assert [text for text in page.text if KEY.match(text.strip())] == []


def test_a_plain_finding_shows_both_sides_and_where_to_look():
    text = shown(Page(text_of("introduced")))
    assert (
        f"{PRODUCT} is the first call whose output differs by more than its inputs explain: 22.5 % found, 0.37 % expected."
        in text
    )
    assert re.search(r"1\.023.*-0\.7305.*0\.005880.*7\.772.*0\.8889.*-0\.9082.*0\.01007.*7\.662", text)
    assert "rank0/dump.json62,945-63,578" in text
    assert "rank0/dump.json66,831-67,525" in text
    assert "model/mlp.py:96 forward: return self.down_proj(self.product(x))" in text
    assert "layers.1.mlp < layers.1" in text
    assert f"Compare {PRODUCT} alone" in text


def test_a_gap_lies_between_what_agrees_and_what_differs():
    text = shown(Page(text_of("gap")))
    section = text[text.index("First finding") :]
    places = [
        section.index(word) for word in ("After", MATMUL, "Between", "nothing recorded", MUL, "Before", "2468 %", ADD)
    ]
    assert places == sorted(places)


def test_only_what_is_not_finite_on_one_side_is_marked():
    cells = re.findall(r'<td class="n bad">([^<]*)</td>', text_of("gap"))
    assert cells == ["inf"]
    both = result([finding(leaves=[infinite_on_both()])])
    assert 'class="n bad"' not in render_html(both, "en")


def infinite_on_both():
    (leaf,) = finding().leaves[1:]
    sides = {name: msgspec.structs.replace(getattr(leaf, name), min=float("-inf")) for name in ("target", "golden")}
    return msgspec.structs.replace(leaf, **sides)


def test_lists_of_records_are_bounded_and_say_so():
    text = text_of("every_cause")
    alone = text[text.rindex('<details class="other">') :]
    assert alone.count("Functional.<wbr>") == 1 + 12 + 1 + 1  # sentence, list, place of the golden record, table below
    assert "and 18 more" in alone
    assert "no such record" in alone


def test_findings_beyond_the_bound_are_counted():
    found = result([finding(op=f"Functional.linear.{n}.forward") for n in range(100)])
    text = render_html(found, "en")
    assert text.count('<details class="other">') == 39
    assert "60 more findings; the rows are in compare.parquet." in shown(Page(text))


def test_a_clean_comparison_states_what_was_compared():
    text = shown(Page(text_of("nothing_found")))
    assert "the runs agree" in text
    assert "No finding: 999 pairs of tensors and values were compared in 1 rank." in text
    assert "None: all of the 999 pairs that were compared pass." in text
    assert 'class="e"' not in text_of("nothing_found")


def test_an_inconclusive_comparison_claims_nothing():
    text = shown(Page(text_of("inconclusive")))
    assert "Of what was recorded of rank0 only 12.0 % has a partner" in text
    assert "no proof that there is none" in text
    assert "recorded at level L1, the golden run at level L0" in text
    assert "so there are no layers to show" in text
    assert "9 rows do not pass; they are in compare.parquet." in text


def test_the_table_holds_all_rows_for_the_script_and_the_first_without_it():
    text = text_of("sixty_one_layers")
    page = Page(text)
    assert text[text.index("data-records>") :].partition("</table>")[0].count("<tr>") == 1 + 50
    rows = json.loads(page.scripts[0])["rows"]
    lengths = {len(column) for name, column in rows.items() if column is not None and name != "texts"}
    assert lengths == {2_000}
    assert rows["texts"][rows["op"][-1]] == MUL
    assert rows["error"][-1] == ""
    assert (rows["step"], rows["rank"]) == (None, None)
    assert "2,000 of 11,783 rows that do not pass" in shown(page)
    assert "only the first 50 rows" in shown(page)


def test_columns_that_say_nothing_are_left_out():
    head = re.search(r"data-records>.*?</thead>", text_of("several_ranks"), re.DOTALL)
    assert head is not None
    assert "卡" in head.group()
    assert "步" not in head.group()
    rows = json.loads(Page(text_of("several_ranks")).scripts[0])["rows"]
    assert rows["rank"][:4] == [0, 1, 2, 0]


def test_ranks_that_were_not_compared_are_named():
    text = shown(Page(text_of("several_ranks")))
    assert "4 / 6" in text
    assert "not: rank4, rank9" in text
    assert f"rank3 of the target is not whole: dump/target/rank3/dump.json is cut off at byte 5,000, in {ADD}." in text
    assert "rank4 of the golden run cannot be read: dump/golden/rank4/dump.json has no data in it." in text
    assert "rank4: E-FMT-012 the file cannot be read" in text


def test_of_many_ranks_those_with_errors_are_shown():
    text = text_of("many_ranks")
    table = text[text.index('id="ranks"') :]
    assert table.count("<tr>") == 1 + 512
    assert ">rank577<" in table
    assert "<details>" in table
    assert "512 of 600 pairs" in shown(Page(text))


@pytest.mark.parametrize(("name", "limit"), [("introduced", 60_000), ("sixty_one_layers", 420_000)])
def test_small_enough(name, limit):
    assert len(text_of(name).encode()) <= limit


@pytest.mark.parametrize(
    ("rho", "text"),
    [
        (None, "—"),
        (0.0, "0.00"),
        (0.2499, "0.25"),
        (1.0, "1.0"),
        (831.56, "831.6"),
        (1110.0, "1,110"),
        (float("inf"), "inf"),
    ],
)
def test_ratio(rho, text):
    assert ratio(rho) == text


# --- the heat map ----------------------------------------------------------------------------------------------------


def parts_of(cells: list[Cell]) -> list[str]:
    return [row.part for row in heat_maps(result(heat=cells))[0].rows]


def test_parts_stand_in_the_order_of_execution():
    assert parts_of(heat()) == ["embed_tokens", *PARTS, "norm", "lm_head"]


def test_layers_of_other_kinds_are_merged_in_order():
    dense = [Cell(part, 0, "forward", "pass", "", None) for part in ("norm1", "attn", "norm2", "mlp.up", "mlp")]
    expert = [
        Cell(part, 1, "forward", "pass", "", None)
        for part in ("norm1", "attn", "norm2", "mlp.gate", "mlp.experts.0", "mlp")
    ]
    assert parts_of([*dense, *expert]) == ["norm1", "attn", "norm2", "mlp.gate", "mlp.experts.0", "mlp.up", "mlp"]


def test_backward_keeps_the_order_of_forward():
    backward = [msgspec.structs.replace(cell, phase="backward") for cell in reversed(heat())]
    maps = heat_maps(result(heat=[*heat(), *backward]))
    assert [m.phase for m in maps] == ["forward", "backward"]
    assert [row.part for row in maps[0].rows] == [row.part for row in maps[1].rows]


def test_experts_are_put_together_when_there_are_many():
    cells = [
        Cell(f"mlp.experts.{n}.up_proj", layer, "forward", "error" if (n, layer) == (200, 2) else "pass", "", float(n))
        for layer in range(3)
        for n in range(256)
    ]
    (heat_map,) = heat_maps(
        result([finding("Module.layers.2.mlp.experts.200.up_proj.Linear.forward.0", layer=2)], heat=cells)
    )
    (row,) = heat_map.rows
    assert row.part == "mlp.experts.*.up_proj"
    assert [cell.verdict for cell in row.cells if cell] == ["pass", "pass", "error"]
    assert row.marks == (0, 0, 0, 1)
    few = [cell for cell in cells if ".3." in cell.part or ".4." in cell.part]
    assert parts_of(few) == ["mlp.experts.3.up_proj", "mlp.experts.4.up_proj"]


def test_of_too_many_parts_the_worst_stay():
    cells = [Cell(f"part_{chr(97 + n // 26)}{chr(97 + n % 26)}", 0, "forward", "pass", "", None) for n in range(300)]
    cells[250] = msgspec.structs.replace(cells[250], verdict="error")
    (heat_map,) = heat_maps(result(heat=cells))
    assert len(heat_map.rows) == MOST_ROWS
    assert heat_map.left_out == 300 - MOST_ROWS
    assert cells[250].part in [row.part for row in heat_map.rows]


@every_sample
def test_the_map_shows_every_cell_once(name):
    found, _ = ALL[name]()
    text = text_of(name)
    counted = Counter(cell.phase for cell in found.heat)
    for phase, section in zip(counted, text.split('<div class="map"')[1:], strict=True):
        section = section[: section.index("</div></div>\n</div>")]
        grid = section[section.index('role="img"') :]
        assert len(re.findall(r"<b class=", grid)) == counted[phase]
        legend = section[: section.index('role="img"')]
        assert (
            sum(int(n.replace(",", "")) for n in re.findall(r'<span class="dim">([\d,]+)</span>', legend))
            == counted[phase]
        )


def test_the_first_finding_is_marked_in_its_cell():
    text = text_of("sixty_one_layers")
    assert re.findall(r'<b class="(.*? first)">(.*?)</b>', text) == [("e first", "1")]
    row = next(line for line in text.splitlines() if 'class="e first"' in line)
    assert "mlp.<wbr>product" in row
    cells = row.partition("</span>")[2].removesuffix("</div>").split("</b>")[:-1]
    assert cells.index('<b class="e first">1') == 1 + 17  # the first column is that of parts outside of layers
    assert len(cells) == 1 + 61


def test_what_hands_a_difference_on_is_pale():
    text = text_of("introduced")
    grid = text[text.index('role="img"') : text.index("</div></div>", text.index('role="img"'))]
    found, _ = introduced()
    handed_on = [cell for cell in found.heat if cell.phase == "forward" and cell.status == "propagated"]
    assert grid.count(' h"') == len(handed_on)


# --- words -----------------------------------------------------------------------------------------------------------


def test_page_words_are_the_same_in_both_languages_and_all_said():
    en, zh = CATALOGUE.templates("en"), CATALOGUE.templates("zh")
    own = json.loads((Path(numprobe.compare.__file__).parent / "messages" / "en.json").read_text(encoding="utf-8"))
    folder = Path(numprobe.compare.__file__).parent
    code = "".join(f.read_text(encoding="utf-8") for f in folder.rglob("*") if f.suffix in (".py", ".j2", ".js"))
    for key in (key for key in own if key.startswith("page.")):
        plural_only = {name for name in fields(en[key])[0] if not re.search(rf"\{{{name}(?!:plural)\b", en[key])}
        assert fields(zh[key])[0] <= fields(en[key])[0], key
        assert fields(en[key])[0] - fields(zh[key])[0] <= plural_only, key
        assert fields(en[key])[1] == fields(zh[key])[1], key
        stem = key.rpartition(".")[0]
        assert f'"{key}"' in code or f"'{key}'" in code or f'"{stem}." ~' in code, key
        assert not re.search(r"[\u4e00-\u9fff][,;:?!]|[,;:?!][\u4e00-\u9fff]", re.sub(r"\{[^{}]*\}", "", zh[key])), key


def test_the_script_can_fill_its_words():
    for key in SCRIPT_WORDS:
        for lang in ("en", "zh"):
            assert re.fullmatch(r"(?:[^{}\[\]]|\{\w+(:count)?\})*", CATALOGUE.templates(lang)[key]), key


def test_figures_are_written_as_everywhere():
    figure: Number = 1391.2
    assert numbers.stat(figure) in render_html(result([finding(leaves=[with_norm(figure)])]), "en")


def with_norm(norm: Number):
    (leaf,) = finding().leaves[1:]
    return msgspec.structs.replace(leaf, target=msgspec.structs.replace(leaf.target, norm=norm))


def test_a_model_without_layers_counts_none() -> None:
    cells = [msgspec.structs.replace(cell, layer=None) for cell in heat()]
    pages = [render_html(result(heat=cells), lang) for lang in ("en", "zh")]
    assert all("0 layers" not in page and "0 层" not in page for page in pages)
    assert "0 layers" not in render_html(result(heat=heat()), "en")
