"""Folders of skills: a new one that works at once, and copies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.shell import CLEAN, H, environment, numprobe, tree
from numprobe.agent.skills.testing import run_skill


@pytest.fixture
def made(tmp_path: Path) -> Path:
    ran = numprobe(tmp_path, "skills", "new", "count-dirty")
    assert (ran.code, ran.err) == (0, "")
    return tmp_path / "skills" / "count-dirty"


def test_a_new_skill_works_as_it_is(made: Path):
    """Its own test passes, and it counts what is there."""
    assert sorted(path.name for path in made.iterdir()) == ["SKILL.md", "skill.py", "test_count_dirty.py"]
    cwd = made.parent.parent
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "skills/count-dirty"],
        cwd=cwd,
        env=environment(cwd),
        capture_output=True,
        text=True,
    )
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout
    ran = numprobe(cwd, "skills", "run", "count_dirty", "--dump", H, "--json")
    counted = {
        f"step0/{file.parent.name}": sum(
            any(word in json.dumps(record.get("output", [])) for word in ("NaN", "Infinity"))
            for name, record in json.loads(file.read_text())["data"].items()
            if name.endswith(".forward")
        )
        for file in H.rglob("dump.json")
    }
    assert ran.code == 1
    assert ran.json["verdict"] == "dirty"
    assert ran.json["ranks"].keys() == counted.keys()
    assert all(ran.json["ranks"][key] >= count > 0 for key, count in counted.items())
    assert numprobe(cwd, "skills", "run", "count-dirty", "--dump", CLEAN, "--quiet").code in (0, 1)


def test_a_new_skill_passes_the_linters_of_this_project(made: Path):
    root = Path(__file__).parents[3]
    for command in (["ruff", "check"], ["ruff", "format", "--check"]):
        ran = subprocess.run(
            [sys.executable, "-m", *command, "--config", root / "pyproject.toml", made], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout


def test_options_and_help_of_a_new_skill(made: Path):
    cwd = made.parent.parent
    page = numprobe(cwd, "skills", "run", "count-dirty", "-h")
    assert page.code == 0
    for word in ("--dump PATH", "--allow N", "[default: 0]", "--step", "--rank", "--out DIR", "--json"):
        assert word in page.out
    assert numprobe(cwd, "skills", "run", "count-dirty", "--dump", H, "--allow", "1000", "--quiet").code == 0
    text = numprobe(cwd, "skills", "run", "count-dirty", "--dump", H, "--rank", "1,2", "--lang", "zh")
    assert text.out.startswith("✗ count-dirty：dirty")
    assert "rank0" not in text.out
    schema = numprobe(cwd, "skills", "run", "count-dirty", "--schema").json
    assert schema["$defs"]["Asked"]["properties"]["allow"]["minimum"] == 0


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--allow", "-1"), "--allow"),
        (("--allow", "many"), "--allow"),
        (("--allow", "1.5"), "--allow"),
        (("--rank", "5-2"), "--rank"),
        (("--nonsense", "1"), "--nonsense"),
        (("extra",), "extra"),
        (("--progress", "loud"), "--progress"),
        (("--lang", "fr"), "--lang"),
    ],
)
def test_a_wrong_option_is_one_error(flags: tuple[str, ...], word: str, made: Path):
    ran = numprobe(made.parent.parent, "skills", "run", "count-dirty", "--dump", H, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("E-USE") == 1
    assert word in ran.err


def test_a_skill_that_fails_at_work_is_one_line(made: Path):
    code = (made / "skill.py").read_text()
    (made / "skill.py").write_text(code.replace("    told = Told(listener)\n", "    raise KeyError('gone')\n"))
    cwd = made.parent.parent
    ran = numprobe(cwd, "skills", "run", "count-dirty", "--dump", H)
    assert (ran.code, ran.out) == (4, "")
    assert len(ran.err.splitlines()) == 1


def test_a_skill_may_have_modules_beside_it(made: Path):
    (made / "words.py").write_text("ABOUT = 'From the module beside.'\n")
    code = (made / "skill.py").read_text()
    code = code.replace("import msgspec\n", "import msgspec\n\nfrom . import words\n", 1)
    (made / "skill.py").write_text(
        code.replace('about="How many records of each rank gave a NaN or Inf."', "about=words.ABOUT")
    )
    assert numprobe(made.parent.parent, "skills", "run", "count-dirty", "--dump", H, "--quiet").code == 1


CHANGES = [
    ('folder.finish("done")', "pass", "finish"),
    ("1 if verdict", "7 if verdict", "exit codes"),
    ('folder.write_json("result.json", {', 'folder.write_json("result.json", {"at": str(folder.path), ', "other bytes"),
    ('"verdict": verdict, "ranks": counts}', '"ranks": counts}', None),
    ("told = Told(listener)", "told = Told(lambda event: None)", "no stage"),
    ("told = Told(listener)", 'told = Told(listener)\n    (Path(inputs["dump"]) / "x").touch()', "written to"),
    ("return Done(msgspec.to_builtins(result)", 'return Done({"verdict": "bad"}', "Invalid"),
]


@pytest.mark.parametrize(("old", "new", "said"), CHANGES, ids=[str(said) for _, _, said in CHANGES])
def test_the_helper_holds_a_skill_to_its_promises(old: str, new: str, said: str | None, made: Path, tmp_path: Path):
    import shutil

    shutil.copytree(H, tmp_path / "dump")
    code = (made / "skill.py").read_text()
    assert old in code
    (made / "skill.py").write_text(code.replace(old, new))
    if said is None:
        run_skill(made, {"dump": tmp_path / "dump"}, tmp_path / "out")
    else:
        with pytest.raises(Exception, match=said):
            run_skill(made, {"dump": tmp_path / "dump"}, tmp_path / "out")


@pytest.mark.parametrize("name", ["Upper", "a b", "a--b", "a-", "a_b", "a/b", "..", "", "技能", "a" * 65])
def test_new_refuses_what_is_no_name(name: str, tmp_path: Path):
    ran = numprobe(tmp_path, "skills", "new", name)
    assert (ran.code, ran.out, "E-SKL-001" in ran.err) == (2, "", True)
    assert list(tmp_path.iterdir()) == []


def test_new_and_install_overwrite_nothing(made: Path):
    cwd = made.parent.parent
    before = tree(made)
    assert "E-SKL-020" in numprobe(cwd, "skills", "new", "count-dirty").err
    assert "E-SKL-020" in numprobe(cwd, "skills", "install", made, "--to", "skills").err
    assert "E-SKL-021" in numprobe(cwd, "skills", "new", "compare").err
    (cwd / "link").symlink_to("nowhere")
    (cwd / "to").mkdir()
    (cwd / "to" / "count-dirty").symlink_to("nowhere")
    assert "E-SKL-020" in numprobe(cwd, "skills", "install", made, "--to", "to").err
    assert tree(made) == before


# --- install ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nan-overflow", "rl-consistency", "compare"])
def test_a_built_in_skill_for_another_agent(name: str, tmp_path: Path):
    ran = numprobe(tmp_path, "skills", "install", name, "--to", ".claude/skills")
    assert (ran.code, ran.err) == (0, "")
    folder = tmp_path / ".claude" / "skills" / name
    assert [path.name for path in folder.iterdir()] == ["SKILL.md"]
    assert (folder / "SKILL.md").read_text() == numprobe(tmp_path, "skills", "show", name).out
    assert oct(folder.stat().st_mode & 0o777) == oct(0o777 & ~os.umask(os.umask(0o22)))
    assert [path.name for path in folder.parent.iterdir()] == [name]


@pytest.mark.parametrize("how", ["folder", "file", "name", "dot"])
def test_install_into_the_own_folder(how: str, made: Path):
    cwd = made.parent.parent
    (made / "references").mkdir()
    (made / "references" / "notes.md").write_text("notes")
    (made / "__pycache__").mkdir()
    (made / "__pycache__" / "x.pyc").write_bytes(b"x")
    source = {"folder": made, "file": made / "SKILL.md", "name": "count-dirty", "dot": "."}[how]
    config = str(cwd / "settings")
    ran = numprobe(made if how == "dot" else cwd, "skills", "install", source, XDG_CONFIG_HOME=config)
    assert (ran.code, ran.err) == (0, "")
    installed = Path(config) / "numprobe" / "skills" / "count-dirty"
    names = {str(path.relative_to(installed)) for path in installed.rglob("*")}
    assert names == {"SKILL.md", "skill.py", "test_count_dirty.py", "references", "references/notes.md"}
    elsewhere = cwd / "elsewhere"
    elsewhere.mkdir()
    found = numprobe(elsewhere, "skills", "list", "--json", XDG_CONFIG_HOME=config).json["skills"]
    assert [(one["name"], one["from"]) for one in found if one["from"] != "builtin"] == [("count-dirty", "user")]
    assert numprobe(elsewhere, "skills", "run", "count-dirty", "--dump", H, "--quiet", XDG_CONFIG_HOME=config).code == 1


def test_what_is_not_installed(made: Path):
    cwd = made.parent.parent
    cases = {
        ("compare",): "E-SKL-021",
        ("nowhere/at-all",): "E-SKL-002",
        ("nowhere",): "E-SKL-010",
        ("skills",): "E-SKL-002",
        (str(made), "--to", str(made)): "E-SKL-020",
        (str(made), "--to", str(made / "below")): "E-SKL-020",
        (str(H),): "E-SKL-002",
    }
    for words, code in cases.items():
        ran = numprobe(cwd, "skills", "install", *words)
        assert (ran.code, ran.out) == (2, ""), words
        assert code in ran.err, words
    (made / "SKILL.md").write_text("---\nname: other\ndescription: a\n---\n")
    assert "E-SKL-004" in numprobe(cwd, "skills", "install", made).err
    assert not (cwd / ".config").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "skill.py", "nowhere"])
def test_links_are_not_followed(target: str, made: Path):
    (made / "data").symlink_to(target)
    cwd = made.parent.parent
    ran = numprobe(cwd, "skills", "install", made, "--to", "to")
    assert (ran.code, "E-SKL-022" in ran.err) == (2, True)
    assert not (cwd / "to").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(made: Path):
    cwd = made.parent.parent
    (cwd / "locked").mkdir(mode=0o500)
    ran = numprobe(cwd, "skills", "install", made, "--to", "locked")
    assert (ran.code, "E-OUT-002" in ran.err) == (2, True)


def test_a_target_below_a_file(made: Path):
    cwd = made.parent.parent
    (cwd / "file").write_text("text")
    ran = numprobe(cwd, "skills", "install", made, "--to", "file")
    assert (ran.code, ran.out, "E-OUT-002" in ran.err) == (2, "", True)
