"""The page: self-contained, escaped, complete in both languages, in the order that a reader needs, bounded."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from numprobe.cli.app import app
from numprobe.diagnose.rl_consistency.mapping import render_mapping
from numprobe.diagnose.rl_consistency.messages import CATALOGUE
from numprobe.diagnose.rl_consistency.page import view
from numprobe.diagnose.rl_consistency.page.heat import heat_maps
from numprobe.diagnose.rl_consistency.page.html import SCRIPT_WORDS, render_html
from numprobe.diagnose.rl_consistency.page.markdown import render_markdown
from numprobe.diagnose.rl_consistency.page.screen import render_terminal
from numprobe.diagnose.rl_consistency.result import Pair, Probe, Term
from numprobe.report import numbers
from numprobe.report.html.heat import ANCHOR
from numprobe.report.terminal import SOFT, Style, columns
from report.test_nan_page import Page

from .page_results import ALL, ENGINES, HOSTILE, coverage, gelu, same, several, sixty_one_layers, tokens

every_sample = pytest.mark.parametrize("name", ALL)
ARTIFACTS = ("result.json", "mapping.csv", "report.md")
FC1 = "Module.decoder.layers.0.mlp.linear_fc1.ColumnParallelLinear.forward.0"
FC2 = "Module.decoder.layers.0.mlp.linear_fc2.RowParallelLinear.forward.0"
KEY = re.compile(r"^(?:page|head|row|class|kind|screen|next|verdict|headline|side|term)\.[\w.]+")


def text_of(name: str, lang: str = "en") -> str:
    return render_html(ALL[name](), lang, artifacts=ARTIFACTS)


def shown(text: str) -> str:
    """The English text, as one line."""
    return re.sub(r"\s+", " ", "".join(Page(re.sub(r"<span lang=zh-CN>.*?</span>", " ", text)).text))


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
    found = ALL[name]()
    first = ["finding", "next", "confidence"] if found.findings else ["why", "next"]
    others = ["others"] if len(found.findings) > 1 else []
    sections = [a["id"] for tag, a in Page(text_of(name)).elements if tag == "section"]
    assert sections == [*first, *others, "layers", "mapping", "unmatched", "limits", "files"]


@every_sample
def test_nothing_is_requested(name):
    page = Page(text_of(name, "zh"))
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            assert key not in ("src", "srcset", "action", "formaction", "background"), (tag, key)
            assert key != "href" or not re.match(r"\s*(https?:|//|javascript:|data:)", str(value), re.IGNORECASE)


def test_text_of_the_dump_stays_text():
    text = text_of("hostile")
    page = Page(text)
    visible = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b").replace("\ud800", "\\ud800")
    assert visible in "".join(page.text)
    assert "<img" not in text
    assert not {"\u202e", "\x1b", "\ud800"} & set(text)
    assert "49'" not in text  # {{7*7}}
    assert text.count("</script>") == 2
    assert visible in json.loads(page.scripts[0])["rows"]["train"][0]


@every_sample
def test_the_same_bytes_every_time_without_clock(name):
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
        assert not re.search(r"[\u4e00-\u9fff]", "".join(page.spoken["en"]))
        assert [text for text in page.text if KEY.match(text.strip())] == []


def test_anchor_between_and_suspect_stand_side_by_side_with_their_figures():
    text = shown(text_of("gelu"))
    section = text[text.index("Anchor and suspect") :]
    words = (
        "Anchor ",
        FC1,
        "gate_up_proj",
        "Between",
        "SiluAndMul",
        "Suspect : input_args.0",
        FC2,
        "Figures of the anchor",
    )
    places = [section.index(word) for word in words]
    assert places == sorted(places)
    figures = section[section.index("Figures of the suspect") :]
    assert re.search(r"10\.49.*-12\.57.*0\.01028.*84\.29.*8\.6 %.*9\.963.*-12\.32.*0\.009849.*77\.62", figures)
    assert "layers 0-2 of 3" in section


def test_what_lies_between_is_told_by_side():
    between = view.between(gelu().findings[0])
    assert between.train == []
    assert between.rollout == ["Functional.silu.0.forward", "Module.model.layers.0.mlp.act_fn.SiluAndMul.forward.0"]


def test_no_difference_claims_no_more_than_was_compared():
    text, found = shown(text_of("same")), same()
    compared, limit = found.counts["pass"] + found.counts["warning"], numbers.percent(found.detection_limit)
    assert f"{compared} tensors in {len(found.mapping)} places were compared" in text
    assert f"{numbers.percent(found.coverage)} of the recorded tensors were compared ({compared} pairs)" in text
    assert f"scatter over its elements from about {limit} on" in text
    assert "another order of the rows of a fused weight" in text.lower()
    assert "class=e>" not in text_of("same")


@every_sample
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_colours_change_nothing_else(name, lang):
    found = ALL[name]()
    for width in (80, 120, None):
        plain, painted = (render_terminal(found, lang, Style(c, width=width), "report.html") for c in (False, True))
        assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == plain


@pytest.mark.parametrize("width", [None, 80])
def test_names_of_the_map_can_be_copied(width):
    found = same()
    found.unmatched_train = ["Module.model.layers.0.mlp.act_fn.AscendSiluAndMul.forward.1"]
    text = render_mapping(found, "en", Style(width=width), as_json=False)
    assert SOFT not in text
    assert width is not None or found.unmatched_train[0] in text
    assert width is None or all(columns(line) <= width for line in text.splitlines())


def test_an_activation_is_guessed_only_where_figures_tell_both_sides_apart():
    """Measured, equal or unknown fits are no guess; and without an anchor nothing is said to agree."""
    f = gelu().findings[0]

    def told(probe, anchor=f.anchor):
        said = view.sentence(msgspec.structs.replace(f, probe=probe, anchor=anchor))
        return CATALOGUE.say("en", said.key, **said.values)

    apart = "(the figures fit gelu / gelu_tanh in training, silu in rollout)"
    assert apart in told(Probe(False, ["gelu", "gelu_tanh"], ["silu"]))
    for probe in (None, Probe(False, ["silu"], ["silu"]), Probe(False, [], ["silu"])):
        assert "figures fit" not in told(probe)
    assert "the output of layers.0.mlp.linear_fc1 agrees" in told(None)
    assert "agrees" not in told(None, None)


@pytest.mark.parametrize("probe", [None, Probe(False, ["gelu"], ["silu"])])
def test_a_factor_is_named_where_no_activation_explains_it(probe):
    found = gelu()
    found.findings[:] = [msgspec.structs.replace(found.findings[0], ratio=1.091, probe=probe)]
    text = shown(render_html(found, "en"))
    assert ("training is about 1.091 times rollout" in text) == (probe is None)
    assert ("the figures fit gelu in training and silu in rollout" in text) == (probe is not None)


def test_a_broken_premise_blames_nothing_and_shows_where_it_broke():
    text = shown(text_of("tokens"))
    assert "same tokens at the same positions" in text
    assert f"{sum(pair.verdict == 'error' for pair in tokens().mapping)} places differ. The first:" in text
    assert text.index("Why nothing is blamed") < text.index("layers.0.down") < text.index("What comes next")
    assert "Suspect" not in text
    nothing = shown(text_of("nothing_paired"))
    assert "Nothing was paired." in nothing
    assert "there are no layers to show" in nothing


@pytest.mark.parametrize("reason", view.REASONS)
def test_every_broken_premise_has_its_explanation(reason):
    said = view.why(msgspec.structs.replace(tokens(), reason=reason))
    assert said.key == f"page.why.text.{reason}"
    assert said.key in CATALOGUE.templates("en")
    assert view.why(msgspec.structs.replace(tokens(), reason="new")).key == "page.why.text.premise_broken"


def test_an_inconclusive_run_says_what_is_missing():
    text = shown(text_of("coverage"))
    assert "Only 25.0 % of the recorded tensors have a partner; at least half are needed" in text
    assert "None: every record of this side has a partner." in text
    assert "and 200 more" in text
    assert "No detection limit can be given" in text


def test_many_findings_are_bounded_and_say_so():
    text = text_of("several")
    assert text.count('<details class="other">') == 39
    assert "22 more findings in result.json" in shown(text)
    assert "about as sure as the first finding" in shown(text)
    assert re.findall(r'<td class="n bad">([^<]*)</td>', text) == ["inf"]
    assert "the heads of attention in another order" in shown(text)
    assert "training is about 0.1250 times rollout" in shown(text)


def test_the_mapping_is_whole_for_the_script_and_cut_without_it():
    text = text_of("sixty_one_layers")
    rows = json.loads(Page(text).scripts[0])["rows"]
    assert {len(column) for column in rows.values()} == {61 * 15}
    assert text.count("<tr data-verdict=") == 120
    assert "only the first 120 places" in shown(text)
    assert json.loads(Page(text_of("gelu")).scripts[0])["rows"] is None
    assert text_of("gelu").count("<tr data-verdict=") == len(gelu().mapping)


@pytest.mark.parametrize(("name", "limit"), [("gelu", 80_000), ("same", 80_000), ("sixty_one_layers", 420_000)])
def test_small_enough(name, limit):
    assert len(text_of(name).encode()) <= limit


# --- the heat map ----------------------------------------------------------------------------------------------------


def row_of(result, part: str):
    (heat_map,) = heat_maps(result)
    return next(row for row in heat_map.rows if row.part == part)


def test_roles_stand_in_the_order_of_execution():
    (heat_map,) = heat_maps(gelu())
    roles = ["attn_norm", "qkv", "core", "out", "mlp_norm", "gate_up", "act", "down"]
    assert [row.part for row in heat_map.rows] == ["embed", *roles, "final_norm", "head"]
    assert heat_map.layers == (0, 1, 2)


def test_suspect_is_ringed_the_anchor_marked_and_what_lies_behind_is_pale():
    assert row_of(gelu(), "down").marks == (0, 1, 0, 0)
    assert row_of(gelu(), "gate_up").marks == (0, ANCHOR, 0, 0)
    assert [cell.handed_on for cell in row_of(gelu(), "down").cells if cell] == [False] * 3  # each layer starts it anew
    assert [cell.handed_on for cell in row_of(gelu(), "gate_up").cells if cell] == [False, True, True]
    assert [cell.handed_on for cell in row_of(gelu(), "act").cells if cell] == [False] * 3  # nothing to hand on
    assert re.findall(r'<b class="(.*? first)">(.*?)</b>', text_of("gelu")) == [("e first", "1")]


def test_one_layer_that_starts_it_is_bright_and_its_trail_pale():
    row = row_of(sixty_one_layers(), "role_k")
    assert [n for n, cell in enumerate(row.cells) if cell and cell.verdict == "error" and not cell.handed_on] == [
        1 + 17
    ]
    assert row.marks.index(1) == 1 + 17


def test_later_calls_share_the_cell_of_the_first():
    again = Pair("layers.1.down #1", ["a"], ["b"], "warning", 0.1, 5.0)
    found = msgspec.structs.replace(same(), mapping=[*same().mapping, again])
    assert [cell.verdict for cell in row_of(found, "down").cells if cell] == ["pass", "warning", "pass"]


# --- words, terminal, markdown ---------------------------------------------------------------------------------------


def test_the_script_can_fill_its_words():
    for key in SCRIPT_WORDS:
        for lang in ("en", "zh"):
            assert re.fullmatch(r"(?:[^{}\[\]]|\{\w+(:count)?\})*", CATALOGUE.templates(lang)[key]), key


@pytest.mark.parametrize("lang", ["en", "zh"])
@every_sample
def test_every_line_fits_80_columns_and_figures_stay_a_table(name, lang):
    text = render_terminal(ALL[name](), lang, Style(width=80), "out/report.html")
    assert max(map(columns, text.splitlines())) <= 80
    assert text.splitlines()[-1].endswith("  out/report.html")
    assert not re.search(r"^ +Max: ", text, re.MULTILINE)


def test_the_terminal_shows_what_agrees_and_what_does_not():
    lines = render_terminal(gelu(), "en", Style(width=80), "report.html").splitlines()
    table = [
        line.split() for line in lines[next(n for n, line in enumerate(lines) if line.startswith("  -----")) + 1 :]
    ]
    assert table[0] == ["anchor", "output.0", "Max", "4.372", "4.372", "0", "%", "0.0013", "%", "\u2713", "pass"]
    assert table[4][:5] == ["suspect", "input_args.0", "Max", "10.49", "9.963"]
    assert table[4][-2:] == ["\u2717", "error"]
    assert table[7] == ["Norm", "84.29", "77.62"]
    assert len(lines) <= 50


def test_markdown_tells_the_figures_of_anchor_and_suspect_apart():
    text = render_markdown(gelu(), "en")
    assert text.index("**Figures of the anchor**") < text.index("148.7") < text.index("**Figures of the suspect**")
    assert text.index("**Figures of the suspect**") < text.index("84.29")


def test_names_of_headlines_are_short():
    assert view.short(FC1) == "layers.0.mlp.linear_fc1"
    assert (
        view.short("Module.embedding.word_embeddings.VocabParallelEmbedding.forward.0") == "embedding.word_embeddings"
    )
    assert view.short("Functional.silu.0.forward") == "Functional.silu.0.forward"
    assert view.tail(FC1) == "linear_fc1"


@given(st.lists(st.floats(-1, 1), max_size=8), st.floats(0.05, 0.97))
def test_terms_always_add_up_to_the_confidence(values, confidence):
    (first,) = gelu().findings
    found = msgspec.structs.replace(first, terms=[Term("term.base", value) for value in values], confidence=confidence)
    terms = view.terms(found)
    assert abs(sum(term.value for term in terms) - confidence) < 0.005 + 1e-9
    assert [end for _, end in view.steps_of(terms)][:-1] == [start for start, _ in view.steps_of(terms)][1:]


def test_samples_are_what_they_say():
    assert gelu().verdict == "difference_found"
    assert same().verdict == "no_difference"
    assert (tokens().exit_code, coverage().exit_code, several().exit_code) == (3, 3, 1)


@pytest.mark.parametrize(("train", "code"), [("megatron_gelu", 1), ("megatron", 0)])
def test_a_run_writes_the_page_and_names_it_last(tmp_path, train, code):
    out = tmp_path / "run"
    done = CliRunner().invoke(
        app, ["rl", str(ENGINES / train), str(ENGINES / "vllm"), "-o", str(out), "--lang", "en", "--quiet"]
    )
    assert done.exit_code == code
    assert done.stdout.splitlines()[-1] == f"report  {out.as_posix()}/report.html"
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    links = {a["href"] for tag, a in page.elements if tag == "a" and not str(a["href"]).startswith("#")}
    ready = {"config_train.json", "config_rollout.json"} if code else set()
    assert links == {"result.json", "mapping.csv", "slots.csv", "report.md"} | ready
    assert all((out / str(link)).is_file() for link in links)
