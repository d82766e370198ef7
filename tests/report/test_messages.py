"""The catalogue is complete, the same in both languages, and holds nothing that nobody says."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import numprobe
from numprobe.agent.config.show import CATALOGUE as CONFIG
from numprobe.agent.messages import CATALOGUE as AGENT
from numprobe.agent.skills.registry import CATALOGUE as SKILLS
from numprobe.compare.messages import CATALOGUE as COMPARE
from numprobe.diagnose.nan_overflow.messages import CATALOGUE
from numprobe.diagnose.nan_overflow.result import NanResult, Params
from numprobe.diagnose.overview import CATALOGUE as OVERVIEW
from numprobe.diagnose.rl_consistency.messages import CATALOGUE as RL
from numprobe.report.language import default_language
from numprobe.report.messages import GENERIC, Catalogue, Mark, fields, say

from .nan_results import ALL

SOURCE = Path(numprobe.__file__).parent
CHECK = Catalogue((SOURCE / "collect" / "selfcheck" / "messages", *GENERIC.folders))
FORMATS = {"count", "stat", "limit", "percent", "size", "signed", "duration", "ranks", "op", "path", "code", "bad", ""}
FROM_THE_ANALYSIS = re.compile(
    r"(headline|evidence|term|limit|check|reason|note|row|class|bound|edge|grade|state|join|lineage|nan\.stage)\."
)


@pytest.mark.parametrize(
    "catalogue",
    [GENERIC, CATALOGUE, COMPARE, RL, CHECK, SKILLS, CONFIG, AGENT],
    ids=["generic", "nan", "compare", "rl", "check", "skills", "config", "agent"],
)
def test_both_languages_have_the_same_keys_and_fields(catalogue):
    en, zh = catalogue.templates("en"), catalogue.templates("zh")
    assert en.keys() == zh.keys()
    for key in en:
        needed, optional = fields(en[key])
        needed_zh, optional_zh = fields(zh[key])
        plural_only = {name for name in needed | optional if not re.search(rf"\{{{name}(?!:plural)\b", en[key])}
        assert needed_zh <= needed, key
        assert needed - needed_zh <= plural_only, key
        assert optional_zh <= optional, key
        assert optional - optional_zh <= plural_only, key


@pytest.mark.parametrize("catalogue", [CATALOGUE, COMPARE, RL, AGENT], ids=["nan", "compare", "rl", "agent"])
def test_the_words_of_verdicts_and_of_the_heads_above_them_are_said_in_one_place(catalogue):
    own = Catalogue(catalogue.folders[:1])
    shared = {key for key in GENERIC.templates("en") if key.startswith(("verdict.", "head."))}
    assert len(shared) > 20
    assert not shared & set(own.templates("en"))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_templates_are_well_formed(lang):
    for key, template in CATALOGUE.templates(lang).items():
        rest = re.sub(r"\{\w+(:[^{}]*)?\}", "", template).replace("[[", "").replace("]]", "")
        assert not set("{}[]") & set(rest), key
        assert template.count("[[") == template.count("]]"), key
        for name, spec in re.findall(r"\{(\w+):?([^{}]*)\}", template):
            known = spec in FORMATS or re.fullmatch(r"plural [^|]+\|[^|]+", spec)
            prefix = spec[2:] + "." if spec.startswith("t.") else ""
            assert known or any(other.startswith(prefix) for other in CATALOGUE.templates(lang) if prefix), (
                key,
                name,
                spec,
            )


def test_chinese_is_chinese_and_uses_full_width_marks():
    for key, template in CATALOGUE.templates("zh").items():
        text = re.sub(r"\{[^{}]*\}", "", template)
        assert not re.search(r"[\u4e00-\u9fff][,;:?!]|[,;:?!][\u4e00-\u9fff]", text), key
        assert "…" not in text, key


def mentioned() -> str:
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.j2"), *SOURCE.rglob("*.js")]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def test_every_text_is_said_somewhere():
    code = mentioned() + "".join(CATALOGUE.templates("en").values())
    for key in CATALOGUE.templates("en"):
        if FROM_THE_ANALYSIS.match(key):
            continue
        prefix = key.removesuffix(".text").rpartition(".")[0]
        dynamic = (f'"{prefix}." ~', f"'{prefix}.{{", f'"{prefix}.{{', f"'{prefix}.' +", f":t.{prefix}}}")
        said = any(f"{quote}{key}{quote}" in code for quote in "\"'")
        assert said or any(form in code for form in dynamic), key


def test_every_literal_key_in_the_code_exists():
    code = mentioned()
    keys = re.findall(
        r"""(?:\bsay\((?:self\.)?lang(?:uage)?, |_text\(lang, |\bt\(|\bsay\(|both\()["']([a-z_]+(?:\.[a-z_0-9]+)+)["']""",
        code,
    )
    assert len(keys) > 80
    catalogues = (CATALOGUE, OVERVIEW, COMPARE, RL, CHECK, SKILLS, CONFIG, AGENT)
    known = {key for catalogue in catalogues for key in catalogue.templates("en")}
    missing = {key for key in keys if key not in known and not key.endswith(".")}
    assert not missing


def params_in(value: object) -> list[Params]:
    if isinstance(value, Params):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in params_in(item)]
    if hasattr(value, "__struct_fields__"):
        return [found for name in value.__struct_fields__ for found in params_in(getattr(value, name))]
    return []


@pytest.mark.parametrize("name", ALL)
def test_messages_of_the_results_have_their_values(name):
    result: NanResult = ALL[name]()
    messages = params_in(result)
    assert messages
    for message in messages:
        values = {key: value for key, value in message.values.items() if key != "command"}
        assert CATALOGUE.problems(SimpleNamespace(key=message.key, values=values)) == []


def test_short_form_for_every_term():
    keys = [key for key in CATALOGUE.templates("en") if key.startswith("term.") and not key.endswith(".short")]
    assert len(keys) >= 12
    for key in keys:
        assert f"{key}.short" in CATALOGUE.templates("en"), key


def test_optional_parts_plurals_and_marks():
    words = CATALOGUE
    one = words.say("en", "headline.introduced", ranks=[3], op="Torch.log.0.forward", kinds="NaN")
    assert one == "Rank 3 made the NaN: Torch.log.0.forward turned finite inputs into NaN."
    two = words.say("en", "headline.introduced", ranks=[2, 3], op="a.b", kinds="inf", layer=7)
    assert two == "Ranks 2, 3 made the inf: a.b in layer 7 turned finite inputs into inf."
    assert Mark("op", "a.b") in words.pieces("zh", "headline.introduced", {"ranks": [1], "op": "a.b", "kinds": "inf"})


def test_a_list_of_ranks_has_the_comma_of_its_language():
    values = {"ranks": [77, 311, 8, 9, 10]}
    assert "8-10, 77, 311" in CATALOGUE.say("en", "check.read_missing", **values)
    assert "8-10、77、311 号卡" in CATALOGUE.say("zh", "check.read_missing", **values)


def test_what_is_missing_does_not_break_the_page():
    assert say("en", "no.such.key", a=1) == "no.such.key (a=1)"
    assert "?" in CATALOGUE.say("en", "headline.introduced", ranks=[1], kinds="NaN")
    assert CATALOGUE.problems(Params("headline.introduced", {"ranks": [1], "kinds": "NaN", "x": 1})) == [
        "headline.introduced: no value for op",
        "headline.introduced: unknown value x",
    ]


@pytest.mark.parametrize(
    ("environ", "encoding", "lang"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "utf-8", "zh"),
        ({"LC_ALL": "en_US.UTF-8", "LANG": "zh_CN.UTF-8"}, "utf-8", "en"),
        ({"LC_MESSAGES": "zh_TW", "LANG": "C"}, "utf-8", "zh"),
        ({"LC_ALL": "", "LANG": "zh_CN"}, "utf-8", "zh"),
        ({"LANG": "zh_CN.UTF-8"}, "ascii", "en"),
        ({"LANG": "zh_CN"}, "gb18030", "zh"),
        ({}, "utf-8", "en"),
    ],
)
def test_language_from_the_locale(environ, encoding, lang):
    assert default_language(environ, encoding) == lang


def test_names_are_listed_with_the_comma_of_the_language():
    values = {"names": ["a.b", "c.d", "e"]}
    assert AGENT.say("en", "compare.inside", **values) == "Inside a.b, c.d, e."
    assert AGENT.say("zh", "compare.inside", **values) == "位于 a.b、c.d、e 之内。"
