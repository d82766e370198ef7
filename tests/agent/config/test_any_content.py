"""Whatever stands in a SKILL.md or a config.toml: it is read, or refused with one error of ours."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numprobe.agent.config.edit import set_values
from numprobe.agent.config.settings import configured_language, load_settings, split_key
from numprobe.agent.skills.front_matter import SkillFile, read_skill_file
from numprobe.record.errors import NumprobeError

MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
YAML = st.text("ab: -\n\"'[]{}&*!|>#%@,?\\\t~<\x00\x1b中", max_size=60)
SKILLS = st.one_of(
    st.binary(max_size=80),
    st.builds(lambda front, body: f"---\n{front}\n---\n{body}".encode(), YAML, YAML),
    st.builds(lambda more: f"---\nname: a\ndescription: b\n{more}\n---\n".encode(), YAML),
)
SCALARS = [
    "1",
    "-1",
    "0.5",
    "nan",
    "inf",
    "true",
    '"x"',
    '""',
    "[]",
    "[1]",
    "{}",
    "{a = 1}",
    "2026-01-01",
    '"openai"',
    '"zh"',
]
KEYS = [
    "version",
    "lang",
    "default_llm",
    "llm",
    "llm.a",
    "llm.a.model",
    "llm.a.provider",
    "llm.a.retries",
    "llm.a.base_url",
]
LINES = st.one_of(
    st.builds(
        lambda key, value: f"{key} = {value}", st.sampled_from([*KEYS, "other", "api_key"]), st.sampled_from(SCALARS)
    ),
    st.sampled_from(["[llm]", "[llm.a]", "[llm.b]", "[[llm]]", "[[llm.a]]", '[llm."a.b"]', "# text", "", "[", "="]),
)
TOML = st.one_of(st.binary(max_size=60), st.lists(LINES, max_size=8).map(lambda lines: "\n".join(lines).encode()))


@MANY
@given(content=SKILLS)
def test_a_skill_file(content: bytes, tmp_path: Path):
    folder = tmp_path / "a"
    folder.mkdir(exist_ok=True)
    (folder / "SKILL.md").write_bytes(content)
    with suppress(NumprobeError):
        file = read_skill_file(folder)
        assert isinstance(file, SkillFile)
        assert (file.name, bool(file.description)) == ("a", True)


@MANY
@given(
    content=TOML,
    key=st.sampled_from(["lang", "llm.a.retries", "llm.a", "llm.c.model", "default_llm"]),
    value=st.sampled_from(["", "1", "zh", "a"]),
)
def test_a_settings_file(content: bytes, key: str, value: str, tmp_path: Path):
    """A change gives a file that can be read and has the value, or changes nothing."""
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    environ = {"NUMPROBE_CONFIG": str(file)}
    assert configured_language(environ) in (None, "zh", "en")
    with suppress(NumprobeError):
        load_settings({}, environ)
    try:
        set_values([(key, value)], environ)
    except NumprobeError:
        assert file.read_bytes() == content
        return
    found = load_settings({}, environ)
    assert found.version == 1
    if value and key in found.values:
        assert str(found.values[key].value) == value


@MANY
@given(key=st.text("abl.mo_-= kNUEP1", max_size=30))
def test_a_key(key: str):
    with suppress(NumprobeError):
        assert 1 <= len(split_key(key, "")) <= 3
