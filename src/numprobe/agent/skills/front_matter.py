"""SKILL.md: front matter in YAML between two lines of ``---``, then text for whoever uses the skill.

The rules are those of the Agent Skills format (https://agentskills.io/specification): ``name`` of lower case letters, digits and
single hyphens, at most 64, the same as the folder's; ``description`` of 1 to 1024 characters; optional ``license``,
``compatibility``, ``metadata`` (text to text) and more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from numprobe.record.errors import NumprobeError

FILE = "SKILL.md"
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
LONGEST_NAME, LONGEST_DESCRIPTION, LONGEST_COMPATIBILITY = 64, 1024, 500
NAMES = "write lower case letters and digits, with one hyphen between words; at most 64 characters"
LARGEST = 1 << 20  # bytes of a SKILL.md
_FORM = re.compile(r"---[ \t]*\r?\n(?P<yaml>.*?)(?:^|\r?\n)---[ \t]*(?:\r?\n|\Z)(?P<body>.*)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class SkillFile:
    """A SKILL.md that keeps to the rules. ``text`` is the whole file, ``body`` what follows the front matter."""

    name: str
    description: str
    license: str
    compatibility: str
    metadata: Mapping[str, str]
    text: str
    body: str


def is_name(name: str) -> bool:
    return len(name) <= LONGEST_NAME and NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        NumprobeError: E-SKL-001 no name of a skill.
    """
    if not is_name(name):
        raise NumprobeError(
            "E-SKL-001",
            "{name!r} is no name of a skill",
            do=NAMES,
            name=name,
        )
    return name


def read_skill_file(folder: Path) -> SkillFile:
    """The SKILL.md of a folder. Nothing in the folder is executed.

    Raises:
        NumprobeError: E-SKL-002 there is none, or it cannot be read; E-SKL-003 it has no front matter, or PyYAML cannot read it;
            E-SKL-004 a field is missing or wrong; E-SKL-005 PyYAML is not installed.
    """
    file = folder / FILE
    text = _text(file)
    form = _FORM.match(text)
    if form is None:
        raise NumprobeError(
            "E-SKL-003",
            "SKILL.md has no front matter",
            where=str(file),
            do="begin the file with a line ---, then name: and description:, then a line ---",
        )
    fields = _fields(file, form["yaml"])
    name = _field(file, fields, "name", LONGEST_NAME)
    if not is_name(name):
        raise NumprobeError(
            "E-SKL-004",
            "the name in SKILL.md is no name of a skill",
            where=str(file),
            found="{name}",
            do=NAMES,
            name=name,
        )
    called = folder.name if folder.name not in ("", "..") else folder.resolve().name
    if name != called:
        raise NumprobeError(
            "E-SKL-004",
            "SKILL.md names the skill {name}, its folder {folder}",
            where=str(file),
            do="give both one name",
            name=name,
            folder=called,
        )
    metadata = fields.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise NumprobeError(
            "E-SKL-004",
            "metadata in SKILL.md is not made of texts by name",
            where=str(file),
            do='write metadata: and below it, indented, lines such as version: "1"',
        )
    return SkillFile(
        name,
        _field(file, fields, "description", LONGEST_DESCRIPTION),
        _field(file, fields, "license", LARGEST, needed=False),
        _field(file, fields, "compatibility", LONGEST_COMPATIBILITY, needed=False),
        {str(key): value for key, value in metadata.items()},
        text,
        form["body"],
    )


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > LARGEST:
            raise ValueError(f"larger than {LARGEST} bytes")
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NumprobeError(
            "E-SKL-002", "no SKILL.md in this folder", where=str(file.parent), do="a skill is a folder with a SKILL.md"
        ) from None
    except (OSError, ValueError) as error:
        raise NumprobeError(
            "E-SKL-002",
            "SKILL.md cannot be read: {reason}",
            where=str(file),
            do="check that you may read it, and that it is text in UTF-8 of at most 1 MiB",
            reason=getattr(error, "strerror", None) or str(error),
        ) from None


def _fields(file: Path, text: str) -> dict[str, Any]:
    """The front matter, every scalar as text: a version 1.0 stays ``1.0``."""
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise NumprobeError(
            "E-SKL-005",
            "reading a SKILL.md needs PyYAML, which is not installed",
            where=str(file),
            do="pip install 'numprobe[yaml]'",
        ) from None
    try:
        fields = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise NumprobeError(
            "E-SKL-003",
            "line {line} of SKILL.md cannot be understood" if mark is not None else "SKILL.md cannot be understood",
            where=str(file),
            found="{reason}",
            do="check colons, quotes and indents there; a text with a colon in it stands in quotes",
            line=mark.line + 2 if mark is not None else 0,
            reason=" ".join(str(getattr(error, "problem", None) or error).split()) or type(error).__name__,
        ) from None
    if not isinstance(fields, dict):
        raise NumprobeError(
            "E-SKL-003",
            "the front matter of SKILL.md holds no fields",
            where=str(file),
            do="write name: and description:, each on a line of its own",
        )
    return {str(key): value for key, value in fields.items()}


def _field(file: Path, fields: Mapping[str, Any], name: str, most: int, *, needed: bool = True) -> str:
    value = fields.get(name, "")
    text = value.strip() if isinstance(value, str) else None
    if text is None or len(text) > most or (needed and not text):
        raise NumprobeError(
            "E-SKL-004",
            "{field} in SKILL.md is missing, too long or no text",
            where=str(file),
            found="{length} characters" if text else "",
            do="write {field}: and a text of at most {most} characters",
            field=name,
            most=most,
            length=len(text or ""),
        )
    return text
