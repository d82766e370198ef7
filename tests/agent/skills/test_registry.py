"""Which skills there are, which one of a name counts, and why others are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli.shell import CLEAN, H, numprobe, process, tree

GOOD = "---\nname: {name}\ndescription: Counts things. Use when counting.\n---\nHow to count.\n"
BROKEN = [
    ("no-file", None, "E-SKL-002"),
    ("no-front-matter", "# Heading\n", "E-SKL-003"),
    ("never-ends", "---\nname: never-ends\n", "E-SKL-003"),
    ("bad-yaml", "---\nname: bad-yaml\ndescription: a: b\n---\n", "E-SKL-003"),
    ("bad-quotes", '---\nname: "bad-quotes\ndescription: a\n---\n', "E-SKL-003"),
    ("a-list", "---\n- name\n---\n", "E-SKL-003"),
    ("empty-front", "---\n---\n", "E-SKL-003"),
    ("deep", "---\nname: " + "[" * 5000 + "\n---\n", "E-SKL-003"),
    ("no-name", "---\ndescription: a\n---\n", "E-SKL-004"),
    ("no-description", "---\nname: no-description\n---\n", "E-SKL-004"),
    ("null-description", "---\nname: null-description\ndescription:\n---\n", "E-SKL-004"),
    ("list-description", "---\nname: list-description\ndescription: [a]\n---\n", "E-SKL-004"),
    ("long-description", f"---\nname: long-description\ndescription: {'a' * 1025}\n---\n", "E-SKL-004"),
    ("other-name", "---\nname: another-name\ndescription: a\n---\n", "E-SKL-004"),
    ("Upper", "---\nname: Upper\ndescription: a\n---\n", "E-SKL-004"),
    ("two--hyphens", "---\nname: two--hyphens\ndescription: a\n---\n", "E-SKL-004"),
    ("l" * 65, f"---\nname: {'l' * 65}\ndescription: a\n---\n", "E-SKL-004"),
    ("bad-metadata", "---\nname: bad-metadata\ndescription: a\nmetadata: [a]\n---\n", "E-SKL-004"),
    ("deep-metadata", "---\nname: deep-metadata\ndescription: a\nmetadata: {a: {b: c}}\n---\n", "E-SKL-004"),
]


def write(folder: Path, text: str | None, code: str | None = None) -> Path:
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "SKILL.md").write_text(text.format(name=folder.name) if text is GOOD else text, encoding="utf-8")
    if code is not None:
        (folder / "skill.py").write_text(code, encoding="utf-8")
    return folder


def listed(cwd: Path, **environ: str) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    ran = numprobe(cwd, "skills", "list", "--json", **environ)
    assert (ran.code, ran.err) == (0, "")
    return ({one["name"]: one for one in ran.json["skills"]}, {one["name"]: one for one in ran.json["skipped"]})


def test_only_the_built_in_ones(tmp_path: Path):
    used, skipped = listed(tmp_path)
    assert list(used) == ["nan-overflow", "rl-consistency", "compare"]
    assert skipped == {}
    assert all(one["from"] == "builtin" and one["runs"] and one["version"] == "1" for one in used.values())
    assert [one["id"] for one in used.values()] == ["nan_overflow", "rl_consistency", "compare"]


@pytest.mark.parametrize(("name", "text", "code"), BROKEN, ids=[name[:20] for name, _, _ in BROKEN])
def test_a_broken_folder_is_told_and_the_others_work(name: str, text: str | None, code: str, tmp_path: Path):
    folder = write(tmp_path / "skills" / name, text)
    write(tmp_path / "skills" / "fine", GOOD)
    used, skipped = listed(tmp_path)
    assert list(used) == ["nan-overflow", "rl-consistency", "compare", "fine"]
    assert list(skipped) == [name]
    assert skipped[name]["code"] == code
    assert str(folder.relative_to(tmp_path)) in skipped[name]["where"]
    assert skipped[name]["do"]
    for lang in ("en", "zh"):
        page = numprobe(tmp_path, "skills", "list", "--lang", lang).out
        assert code in page
        assert "fine" in page
    for ran in (numprobe(tmp_path, "skills", "show", name), numprobe(tmp_path, "skills", "run", name)):
        assert (ran.code, ran.out, code in ran.err) == (2, "", True)


def test_the_wrong_line_is_named(tmp_path: Path):
    write(tmp_path / "skills" / "bad", "---\nname: bad\nlicense: MIT\ndescription: a: b\n---\n")
    assert listed(tmp_path)[1]["bad"]["what"] == "line 4 of SKILL.md cannot be understood"


def test_text_of_a_skill_cannot_drive_the_terminal(tmp_path: Path):
    text = "---\nname: loud\ndescription: quiet\n---\nred \x1b[31m, title \x1b]0;x\x07, \u202eturned, \ttab\n"
    write(tmp_path / "skills" / "loud", text)
    write(tmp_path / "skills" / "escaped", '---\nname: escaped\ndescription: "a \\e[31m b"\n---\n')
    for words in (("show", "loud"), ("show", "escaped"), ("list",), ("list", "--json")):
        out = numprobe(tmp_path, "skills", *words).out
        assert not {c for c in out if ord(c) < 32 or ord(c) in (0x7F, 0x202E)} - {"\n"}, words


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_editors_write_is_read(newline: str, tmp_path: Path):
    """A byte order mark, Windows line ends, folded text, numbers and dates that stay text, fields of other products."""
    lines = [
        "---",
        "name: fine",
        "description: >-",
        "  统计 things",
        "  in two lines.",
        "metadata:",
        "  version: 1.0",
        "  since: 2026-01-02",
        "keywords: [a, b]",
        "---",
        "Body.",
    ]
    folder = write(tmp_path / "skills" / "fine", None)
    (folder / "SKILL.md").write_bytes(("\ufeff" + newline.join(lines) + newline).encode())
    fine = listed(tmp_path)[0]["fine"]
    assert (fine["about"], fine["version"], fine["runs"]) == ("统计 things in two lines.", "1.0", False)
    shown = numprobe(tmp_path, "skills", "show", "fine")
    assert (shown.code, shown.out.splitlines()[-1]) == (0, "Body.")


def test_places_and_precedence(tmp_path: Path):
    own = tmp_path / ".config" / "numprobe" / "skills"
    write(own / "nan-overflow", GOOD)
    write(own / "mine", GOOD)
    write(tmp_path / "skills" / "mine", GOOD)
    write(tmp_path / "skills" / "accuracy" / "in-a-category", GOOD)
    (tmp_path / "skills" / ".hidden").mkdir()
    (tmp_path / "skills" / "README.md").write_text("text")
    used, skipped = listed(tmp_path)
    assert [(name, one["from"]) for name, one in used.items()] == [
        ("nan-overflow", "builtin"),
        ("rl-consistency", "builtin"),
        ("compare", "builtin"),
        ("mine", "user"),
        ("in-a-category", "local"),
    ]
    assert used["mine"]["place"] == str(own / "mine")
    ran = numprobe(tmp_path, "skills", "list", "--json").json
    assert [(one["name"], one["from"], one["code"]) for one in ran["skipped"]] == [
        ("nan-overflow", "user", "E-SKL-014"),
        ("mine", "local", "E-SKL-014"),
    ]
    assert skipped["mine"]["found"] == str(own / "mine")
    shown = numprobe(tmp_path, "skills", "show", "nan-overflow").out
    assert "How to count" not in shown


LOUD = "from pathlib import Path\nPath('executed').touch()\nraise ValueError('on line 3')\n"


def test_code_of_a_folder_is_executed_by_run_alone(tmp_path: Path):
    write(tmp_path / "skills" / "loud", GOOD, LOUD)
    assert listed(tmp_path)[0]["loud"]["runs"] is True
    assert numprobe(tmp_path, "skills", "list").code == 0
    assert numprobe(tmp_path, "skills", "show", "loud").code == 0
    schema = numprobe(tmp_path, "skills", "show", "loud", "--schema")
    assert (schema.code, "E-SKL-015" in schema.err) == (2, True)
    assert numprobe(tmp_path, "skills", "install", "skills/loud").code == 0
    assert numprobe(tmp_path, "skills", "run", "compare", "-h").code == 0
    assert numprobe(tmp_path, "skills", "run", "louder").code == 2
    assert not (tmp_path / "executed").exists()
    ran = numprobe(tmp_path, "skills", "run", "loud", "--dump", "x")
    assert (ran.code, ran.out) == (2, "")
    assert (tmp_path / "executed").exists()
    assert "ValueError: on line 3" in ran.err
    assert "skill.py:3" in ran.err


BAD_CODE = [
    ("import no_such_module", "E-SKL-012"),
    ("def x(:", "E-SKL-012"),
    ("raise SystemExit(0)", "E-SKL-012"),
    ("", "E-SKL-013"),
    ("SKILL = 1", "E-SKL-013"),
]
MADE = """
import msgspec
from numprobe.agent.skills.skill import Input, Options, Skill
class Asked(Options, frozen=True):
    {field}
SKILL = Skill({name!r}, 1, (Input({input!r}, "what is read"),), Asked, lambda: {load})
"""


@pytest.mark.parametrize(
    "code",
    [
        *BAD_CODE,
        (MADE.format(name="other", input="dump", field="a: int = 1", load=1), "E-SKL-013"),
        (MADE.format(name="bad", input="dump", field="dump: str = ''", load=1), "E-SKL-013"),
        (MADE.format(name="bad", input="json", field="a: int = 1", load=1), "E-SKL-013"),
        (MADE.format(name="bad", input="a b", field="a: int = 1", load=1), "E-SKL-013"),
        (MADE.format(name="bad", input="dump", field="a: int = msgspec.field()", load=1), "E-SKL-012"),
        (MADE.format(name="bad", input="dump", field="a: int = 1", load=1), "E-SKL-013"),
    ],
)
def test_code_that_gives_no_skill_is_one_error(code: tuple[str, str], tmp_path: Path):
    write(tmp_path / "skills" / "bad", GOOD, code[0])
    ran = numprobe(tmp_path, "skills", "run", "bad", "--dump", "x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("E-SKL") == 1
    assert code[1] in ran.err


def test_text_alone_cannot_be_run(tmp_path: Path):
    write(tmp_path / "skills" / "text", GOOD)
    ran = numprobe(tmp_path, "skills", "run", "text")
    assert (ran.code, ran.out, "E-SKL-011" in ran.err) == (2, "", True)
    assert "(text only)" in numprobe(tmp_path, "skills", "list").out


@pytest.mark.parametrize("action", [("show",), ("run",), ("install",)])
def test_an_unknown_name_tells_the_nearest(action: tuple[str, ...], tmp_path: Path):
    ran = numprobe(tmp_path, "skills", *action, "nan-overflw")
    assert (ran.code, ran.out, "E-SKL-010" in ran.err) == (2, "", True)
    assert "nan-overflow" in ran.err


def test_without_yaml_the_built_in_ones_work(tmp_path: Path):
    """A folder says what to install."""
    write(tmp_path / "skills" / "mine", GOOD)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "yaml.py").write_text("raise ImportError('not installed')")
    ran = process(tmp_path, "skills", "list", PYTHONPATH=str(tmp_path / "hidden"))
    assert ran.code == 0
    assert "rl-consistency" in ran.out
    assert "E-SKL-005" in ran.out
    assert "pip install 'numprobe[yaml]'" in ran.out
    for words in (("show", "compare"), ("run", "nan-overflow", "--dump", CLEAN), ("install", "compare", "--to", "x")):
        assert process(tmp_path, "skills", *words, PYTHONPATH=str(tmp_path / "hidden")).code == 0


# --- packages --------------------------------------------------------------------------------------------------------

PACKAGE = """
from pathlib import Path
Path("imported").touch()
from numprobe.agent.skills.skill import Input, Options, Skill
SKILL = Skill("packed", 3, (Input("dump", "a dump"),), Options, lambda: None, about="Packs.")
"""


def package(folder: Path, code: str, entry: str = "packed = packed_skill:SKILL") -> str:
    """A distribution as pip installs it; what PYTHONPATH needs."""
    info = folder / "site" / "packed-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: packed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[numprobe.skills]\n{entry}\n")
    (folder / "site" / "packed_skill").mkdir()
    (folder / "site" / "packed_skill" / "__init__.py").write_text(code)
    return str(folder / "site")


def test_a_skill_of_a_package(tmp_path: Path):
    path = package(tmp_path, PACKAGE)
    listing = process(tmp_path, "skills", "list", "--json", PYTHONPATH=path).json
    packed = next(one for one in listing["skills"] if one["name"] == "packed")
    assert (packed["from"], packed["place"], packed["version"]) == ("package", "packed_skill:SKILL", "3")
    assert packed["about"] == "Packs."
    text = process(tmp_path, "skills", "show", "packed", PYTHONPATH=path)
    assert (text.code, "E-SKL-002" in text.err) == (2, True)
    (tmp_path / "site" / "packed_skill" / "SKILL.md").write_text(GOOD.format(name="packed"))
    text = process(tmp_path, "skills", "show", "packed", PYTHONPATH=path)
    assert (text.code, text.out.splitlines()[-1]) == (0, "How to count.")
    schema = process(tmp_path, "skills", "show", "packed", "--schema", PYTHONPATH=path).json
    assert (schema["title"], schema["version"]) == ("packed", 3)


def test_packages_are_not_loaded_for_other_skills(tmp_path: Path):
    path = package(tmp_path, PACKAGE)
    assert process(tmp_path, "skills", "run", "nan-overflow", "--dump", H, PYTHONPATH=path).code == 1
    assert process(tmp_path, "skills", "show", "compare", PYTHONPATH=path).code == 0
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("code", "entry", "expected"),
    [
        ("import no_such_module", "packed = packed_skill:SKILL", "E-SKL-012"),
        (PACKAGE, "packed = packed_skill:NOTHING", "E-SKL-012"),
        (PACKAGE, "packed = no_such_package:SKILL", "E-SKL-012"),
        (PACKAGE, "other = packed_skill:SKILL", "E-SKL-013"),
        (PACKAGE, "Not_A_Name = packed_skill:SKILL", "E-SKL-001"),
        ("SKILL = 1", "packed = packed_skill:SKILL", "E-SKL-013"),
    ],
)
def test_a_package_that_fails_is_told(code: str, entry: str, expected: str, tmp_path: Path):
    path = package(tmp_path, code, entry)
    ran = process(tmp_path, "skills", "list", "--json", PYTHONPATH=path)
    assert ran.code == 0
    assert [one["name"] for one in ran.json["skills"]] == ["nan-overflow", "rl-consistency", "compare"]
    assert [one["code"] for one in ran.json["skipped"]] == [expected]


def test_nothing_is_written_where_skills_lie(tmp_path: Path):
    write(tmp_path / "skills" / "mine", GOOD)
    before = tree(tmp_path / "skills")
    for words in (("list",), ("list", "--json"), ("show", "mine")):
        assert numprobe(tmp_path, "skills", *words).code == 0
    assert tree(tmp_path / "skills") == before
    assert "numprobe_skill_mine" not in sys.modules
