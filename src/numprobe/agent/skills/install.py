"""Folders of skills: a new one to start from, and copies of those there are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from numprobe.agent.config.paths import skills_folder
from numprobe.agent.skills.builtin import BUILTIN
from numprobe.agent.skills.front_matter import FILE, check_name, read_skill_file
from numprobe.agent.skills.registry import builtin_folder, find_skill
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import writing

_TEMPLATE = Path(__file__).parent / "template"
_LEFT_OUT = ("__pycache__", ".git", ".pytest_cache")
_NAMES = tuple(skill.name for skill in BUILTIN)


def new_skill(name: str, to: Path) -> Path:
    """Make ``to/name`` with a SKILL.md, a skill.py that works, and a test of it.

    Raises:
        NumprobeError: E-SKL-001 no name of a skill, E-SKL-020 something is there already, E-SKL-021 the name is built in.
    """
    check_name(name)
    if name in _NAMES:
        raise _taken(name)
    words = {"{{name}}": name, "{{id}}": name.replace("-", "_"), "{{title}}": name.replace("-", " ")}

    def fill(folder: Path) -> None:
        for source in sorted(_TEMPLATE.iterdir()):
            text = source.read_text(encoding="utf-8")
            for word, value in words.items():
                text = text.replace(word, value)
            target = source.name.removesuffix(".txt").replace("skill_test", f"test_{words['{{id}}']}")
            (folder / target).write_text(text, encoding="utf-8", newline="\n")

    return _make(to / name, fill)


def install_skill(source: str, to: Path | None) -> tuple[str, Path]:
    """Copy a skill into ``to``, else into the user's folder of skills. ``source``: a folder, its SKILL.md, or the name of a
    skill. Nothing in it is executed. Name and new folder.

    Raises:
        NumprobeError: E-SKL-002 to E-SKL-005 its SKILL.md is none, E-SKL-020 there is something already, E-SKL-021 another
            skill has its name, E-SKL-022 it holds links.
    """
    name, folder = _source(source)
    if to is None and name in _NAMES:
        raise _taken(name)
    target = (to or skills_folder()) / name
    if target.resolve().is_relative_to(folder.resolve()) and not os.path.lexists(target):
        raise NumprobeError(
            "E-SKL-020",
            "a skill cannot be copied into itself",
            where=str(target),
            do="choose another --to",
        )
    links = [path for path in _files(folder) if path.is_symlink()]
    if links:
        raise NumprobeError(
            "E-SKL-022",
            "the skill holds a link, which may lead anywhere",
            where=str(links[0]),
            do="put the file itself there",
        )

    def copy(into: Path) -> None:
        for path in _files(folder):
            place = into / path.relative_to(folder)
            if path.is_dir():
                place.mkdir()
            else:
                shutil.copyfile(path, place)

    return name, _make(target, copy)


def _source(source: str) -> tuple[str, Path]:
    path = Path(source)
    if path.name == FILE and path.is_file():
        path = path.parent
    if path.is_dir() and (source not in _NAMES or (path / FILE).is_file()):
        return read_skill_file(path).name, path
    if os.sep in source or path.name == FILE:  # no name: say what is wrong with the path
        read_skill_file(path.parent if path.name == FILE else path)
    found = find_skill(source)
    if found.origin == "package":
        raise NumprobeError(
            "E-SKL-021",
            "{name} comes from an installed package, and is used from there",
            where=found.place,
            do="give a folder with a SKILL.md",
            name=found.name,
        )
    return found.name, builtin_folder(found.name) if found.origin == "builtin" else Path(found.place)


def _files(folder: Path) -> list[Path]:
    """All that is copied, folders before what lies in them."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT:
            continue
        found.append(path)
        if path.is_dir() and not path.is_symlink():
            found += _files(path)
    return found


def _make(target: Path, fill: Callable[[Path], None]) -> Path:
    """A folder that is there whole or not at all."""
    if os.path.lexists(target):
        raise NumprobeError(
            "E-SKL-020", "there is something of this name already", where=str(target), do="move it away, or choose --to"
        )
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with writing(target.parent):
        try:
            part.mkdir(parents=True)
            fill(part)
            part.rename(target)
        except BaseException:
            with suppress(OSError):
                shutil.rmtree(part)
            raise
    return target


def _taken(name: str) -> NumprobeError:
    return NumprobeError(
        "E-SKL-021",
        "{name} is built in",
        do="give your own skill another name; for another agent: numprobe skills install {name} --to .claude/skills",
        name=name,
    )
