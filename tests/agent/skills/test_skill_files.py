"""The SKILL.md of the built-in skills keep to the Agent Skills rules, and what they say is so."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
import yaml

from cli.shell import CLEAN, NO_FIGURES, H, numprobe
from numprobe.agent.skills.builtin import BUILTIN
from numprobe.agent.skills.front_matter import read_skill_file
from numprobe.agent.skills.registry import builtin_folder
from numprobe.agent.skills.schema import schema_of
from numprobe.agent.skills.skill import Skill
from numprobe.cli.app import app

NAMES = [skill.name for skill in BUILTIN]
MARKS = re.compile(r"`([^`\n]+)`")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training and a rollout dump that differ, and a copy of a run of which an output is ten times as large."""
    folder = tmp_path_factory.mktemp("pair")
    assert numprobe(folder, "synth", "rl", "-o", "rl").code == 0
    shutil.copytree(CLEAN / "dump", folder / "rl" / "other")
    file = folder / "rl" / "other" / "step0" / "proc1000" / "dump.json"
    dump = json.loads(file.read_text(encoding="utf-8"))
    name = next(name for name in dump["data"] if name.endswith(".forward") and "linear" in name.lower())
    for figure in ("Max", "Min", "Mean", "Norm"):
        dump["data"][name]["output"][0][figure] *= 10
    file.write_text(json.dumps(dump), encoding="utf-8")
    return folder / "rl"


def inputs_of(skill: Skill, pair: Path) -> dict[str, str]:
    places = {
        "dump": H,
        "train": pair / "train" / "step0",
        "rollout": pair / "rollout" / "step0",
        "target": pair / "other",
        "golden": CLEAN,
    }
    return {one.name: str(places[one.name]) for one in skill.inputs}


@pytest.mark.parametrize("skill", BUILTIN, ids=NAMES)
def test_front_matter_by_the_rules(skill: Skill):
    """Read here by another way than that of the code."""
    folder = builtin_folder(skill.name)
    _, front, body = (folder / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["name"] == folder.name == skill.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert len(fields["name"]) <= 64
    assert 1 <= len(fields["description"]) <= 1024
    assert "\n" not in fields["description"]
    assert "Use when" in fields["description"]
    assert re.search(r"[\u4e00-\u9fff].*时使用", fields["description"])
    assert not set("<>") & set(fields["description"])
    assert 1 <= len(fields["compatibility"]) <= 500
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert fields["metadata"] == {"version": str(skill.version)}
    assert len(body.splitlines()) < 500
    file = read_skill_file(folder)
    assert (file.name, file.description, file.license) == (skill.name, fields["description"], "Apache-2.0")
    assert file.metadata == fields["metadata"]
    assert file.body.strip() == body.strip()


def commands(skill: Skill) -> Iterator[list[str]]:
    text = read_skill_file(builtin_folder(skill.name)).body
    for block in re.findall(r"```bash\n(.*?)```", text, re.S):
        yield from (shlex.split(line)[1:] for line in block.splitlines() if line.startswith("numprobe "))


@pytest.mark.parametrize("skill", BUILTIN, ids=NAMES)
def test_every_command_runs(skill: Skill, pair: Path, tmp_path: Path):
    places = {name.upper(): path for name, path in inputs_of(skill, pair).items()}
    shown = list(commands(skill))
    assert len(shown) >= 1
    for words in shown:
        ran = numprobe(tmp_path, *[places.get(word, word) for word in words])
        assert ran.code in (0, 1), f"{words}: {ran.err}"
        if "out" in (found := ran.json if "--json" in words else {}):
            places["RUN"] = found["out"]
        else:
            assert ran.out.strip()


@pytest.mark.parametrize("skill", BUILTIN, ids=NAMES)
def test_every_option_exists(skill: Skill):
    words = next(words for words in commands(skill) if words[0] in ("nan", "rl", "compare"))
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    known = {name for parameter in command.params for name in parameter.opts}
    body = read_skill_file(builtin_folder(skill.name)).body
    shown = {mark.split()[0] for mark in MARKS.findall(body) if re.match(r"--?[a-z]", mark)}
    assert shown
    assert shown <= known


@pytest.mark.parametrize("skill", BUILTIN, ids=NAMES)
def test_every_key_of_the_table_is_in_the_schema(skill: Skill):
    schema = schema_of(skill)
    result = schema["$defs"][schema["properties"]["result"]["$ref"].rpartition("/")[2]]
    body = read_skill_file(builtin_folder(skill.name)).body
    rows = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    keys = [key for row in rows for key in MARKS.findall(row)]
    assert {"verdict", "out"} <= set(keys)
    for key in keys:
        first, _, rest = key.partition("[0]")[0].partition(".")
        if not first:  # a key of findings[0]
            first, rest = "findings", key[1:]
        assert first in result["properties"], key
        if rest:
            assert rest in json.dumps(schema["$defs"]), key
    verdicts = result["properties"]["verdict"]["enum"]
    assert all(f"`{verdict}`" in body for verdict in verdicts)


def struct_matches(value: Any, kind: Any) -> None:
    """As the type says, and nothing that the type does not say."""
    again = msgspec.to_builtins(msgspec.convert(value, kind))
    assert again == value


@pytest.mark.parametrize(
    ("skill", "changed"),
    [
        (BUILTIN[0], {}),
        (BUILTIN[0], {"dump": CLEAN}),
        (BUILTIN[1], {}),
        (BUILTIN[2], {}),
        (BUILTIN[2], {"target": CLEAN}),
    ],
    ids=["nan", "nan clean", "rl", "compare", "compare equal"],
)
def test_results_are_as_the_schema_says(skill: Skill, changed: dict[str, Path], pair: Path, tmp_path: Path):
    inputs = {**inputs_of(skill, pair), **{name: str(path) for name, path in changed.items()}}
    flags = [word for name, path in inputs.items() for word in (f"--{name}", path)]
    ran = numprobe(tmp_path, "skills", "run", skill.name, *flags, "--json", "--quiet")
    assert ran.code in (0, 1, 3)
    struct_matches(ran.json, skill.result)


def test_the_result_is_that_of_the_command(tmp_path: Path):
    """Same folder, same figures, same exit code, by both doors."""
    one = numprobe(tmp_path, "nan", H, "-o", "a", "--json", "--exclude", "Torch.log", "--jobs", "1")
    flags = ("--dump", H, "-o", "b", "--exclude", "Torch.log", "--jobs", "1")
    other = numprobe(tmp_path, "skills", "run", "nan_overflow", *flags, "--json")
    assert one.code == other.code == 3
    assert {**one.json, "out": ""} == {**other.json, "out": ""}
    assert one.err.count("1/5") == other.err.count("1/5") == 1
    assert (tmp_path / "a" / "result.json").read_bytes() == (tmp_path / "b" / "result.json").read_bytes()


def test_the_page_is_that_of_the_command(tmp_path: Path):
    one = numprobe(tmp_path, "nan", H, "-o", "out", "--lang", "zh")
    other = numprobe(tmp_path, "skills", "run", "nan-overflow", "--dump", H, "-o", "out", "--lang", "zh")
    assert one.code == other.code == 1
    assert one.out == other.out


def test_a_dump_that_does_not_fit_is_one_error(tmp_path: Path):
    one = numprobe(tmp_path, "nan", NO_FIGURES)
    other = numprobe(tmp_path, "skills", "run", "nan-overflow", "--dump", NO_FIGURES)
    assert one.code == other.code
    missing = numprobe(tmp_path, "skills", "run", "nan-overflow", "--dump", "nowhere")
    assert (missing.code, missing.out) == (2, "")
    assert "E-FMT-001" in missing.err
