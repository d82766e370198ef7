"""Which skills there are: built in, from installed packages, from the user's folder, from ``./skills``.

The first of a name counts, so that nothing takes the place of a built-in one. Listing executes nothing that lies in a folder;
packages that bring a skill (entry points of the group ``numprobe.skills``) are imported, and one that fails is told.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path
from types import ModuleType

import msgspec

from numprobe.agent.config.paths import skills_folder
from numprobe.agent.skills.builtin import BUILTIN
from numprobe.agent.skills.front_matter import FILE, SkillFile, check_name, is_name, read_skill_file
from numprobe.agent.skills.skill import Pipeline, Skill
from numprobe.record.errors import NumprobeError
from numprobe.report.messages import GENERIC, Catalogue

CATALOGUE = Catalogue((Path(__file__).parent / "messages", *GENERIC.folders))
GROUP = "numprobe.skills"
CODE = "skill.py"
ATTRIBUTE = "SKILL"  # of skill.py
FLAGS = ("out", "json", "lang", "progress", "quiet", "debug", "help", "schema")  # what every skill has
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Found:
    """A skill, or what was taken for one. ``origin``: builtin, package, user or local.

    ``place`` is a folder, or ``module:attribute`` of an entry point; ``runs`` whether there is code and not text alone;
    ``skipped`` says why it cannot be used.
    """

    name: str
    origin: str
    place: str
    skill: Skill | None = None
    file: SkillFile | None = None
    runs: bool = False
    skipped: NumprobeError | None = None

    @property
    def version(self) -> str:
        return str(self.skill.version) if self.skill else self.file.metadata.get("version", "") if self.file else ""

    def about(self, lang: str) -> str:
        """What it is for."""
        if self.origin == "builtin" and self.skill is not None:
            return CATALOGUE.say(lang, f"skills.about.{self.skill.id}")
        return (self.skill.about if self.skill else "") or (self.file.description if self.file else "")


def all_skills() -> list[Found]:
    """Every skill, and what was skipped, with the reason."""
    found: list[Found] = []
    taken: dict[str, str] = {}
    for one in _candidates():
        if one.skipped is None and one.name in taken:
            one = replace(one, skipped=_shadowed(one, taken[one.name]))
        if one.skipped is None:
            taken[one.name] = one.place
        found.append(one)
    return found


def find_skill(name: str) -> Found:
    """The skill of this name; ``nan_overflow`` means nan-overflow. Loads no other one.

    Raises:
        NumprobeError: E-SKL-010 there is none, or why the one there is cannot be used.
    """
    wanted = name.replace("_", "-")
    seen: list[Found] = []
    for one in _candidates(wanted):
        if one.name == wanted:
            if one.skipped is None:
                return one
            seen.append(one)
    if seen and seen[0].skipped is not None:
        raise seen[0].skipped
    known = [one.name for one in all_skills() if one.skipped is None]
    raise NumprobeError(
        "E-SKL-010",
        "no skill is called {name}",
        found="{known}",
        do="numprobe skills list shows all; a folder is added with numprobe skills install",
        name=name,
        known=", ".join(difflib.get_close_matches(wanted, known, n=3, cutoff=0.5) or known),
    )


def load_skill(found: Found) -> Skill:
    """The code of a skill. That of a folder is executed here, and nowhere else.

    Raises:
        NumprobeError: E-SKL-011 it is text alone; E-SKL-012 its code fails, E-SKL-013 or is no skill.
    """
    if found.skill is not None:
        return found.skill
    file = Path(found.place) / CODE
    if not file.is_file():
        raise NumprobeError(
            "E-SKL-011",
            "{name} cannot be run: it is text for people and agents, without a skill.py",
            where=found.place,
            do="read it with numprobe skills show {name}",
            name=found.name,
        )
    module = _execute(file, found.name)
    return _checked(getattr(module, ATTRIBUTE, None), found.name, str(file))


def skill_text(found: Found) -> str:
    """The text of SKILL.md.

    Raises:
        NumprobeError: E-SKL-002 a package brings none, or it cannot be read.
    """
    if found.file is not None:
        return found.file.text
    if found.origin == "builtin":
        return (_HERE / found.name / FILE).read_text(encoding="utf-8")
    module = sys.modules.get(found.place.partition(":")[0])
    folder = Path(getattr(module, "__file__", None) or found.place).parent
    try:
        return (folder / FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise NumprobeError(
            "E-SKL-002",
            "the package of {name} brings no SKILL.md",
            where=str(folder),
            do="numprobe skills show {name} --schema says what it takes",
            name=found.name,
        ) from None


def builtin_folder(name: str) -> Path:
    """Where the SKILL.md of a built-in skill lies."""
    return _HERE / name


def _candidates(wanted: str | None = None) -> Iterator[Found]:
    """In order of precedence; with ``wanted``, packages are loaded for that name alone."""
    for skill in BUILTIN:
        yield Found(skill.name, "builtin", str(_HERE / skill.name), skill, runs=True)
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
        if wanted is None or point.name.replace("_", "-") == wanted:
            yield _from_package(point)
    own, local = skills_folder(), Path("skills")
    yield from _from_folder(own, "user")
    if own.resolve() != local.resolve():
        yield from _from_folder(local, "local")


def _from_package(point: metadata.EntryPoint) -> Found:
    name = point.name.replace("_", "-")
    try:
        check_name(name)
        try:
            loaded = point.load()
        except (Exception, SystemExit) as error:
            raise NumprobeError(
                "E-SKL-012",
                "the skill {name} of an installed package cannot be loaded: {reason}",
                where=point.value,
                do="install its package again, or ask its author",
                name=name,
                reason=_reason(error),
            ) from error
        skill = _checked(loaded, name, point.value)
    except NumprobeError as error:
        return Found(name, "package", point.value, skipped=error)
    return Found(name, "package", point.value, skill, runs=True)


def _from_folder(folder: Path, origin: str) -> Iterator[Found]:
    """Each folder with a SKILL.md in ``folder``, or one level below, in a folder that is a category."""
    try:
        children = [child for child in sorted(folder.iterdir()) if child.is_dir() and _counts(child)]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield Found(folder.name, origin, str(folder), skipped=_unreadable(folder, error))
        return
    for child in children:
        try:
            below = [] if (child / FILE).exists() else [c for c in sorted(child.iterdir()) if (c / FILE).exists()]
        except OSError as error:
            yield Found(child.name, origin, str(child), skipped=_unreadable(child, error))
            continue
        for one in below or [child]:
            yield _one_folder(one, origin)


def _one_folder(folder: Path, origin: str) -> Found:
    try:
        file = read_skill_file(folder)
    except NumprobeError as error:
        return Found(folder.name, origin, str(folder), skipped=error)
    return Found(file.name, origin, str(folder), file=file, runs=(folder / CODE).is_file())


def _counts(folder: Path) -> bool:
    return not folder.name.startswith((".", "__"))


def _execute(file: Path, name: str) -> ModuleType:
    """skill.py as a package of its own, so that it may import what lies beside it: ``from . import tables``."""
    called = f"numprobe_skill_{name.replace('-', '_')}"
    spec = util.spec_from_file_location(called, file, submodule_search_locations=[str(file.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[called] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[called]
        raise NumprobeError(
            "E-SKL-012",
            "the code of {name} fails: {reason}",
            where=_line(file, error),
            do="correct it there, or ask its author",
            name=name,
            reason=_reason(error),
        ) from error
    return module


def _checked(skill: object, name: str, place: str) -> Skill:
    problem = _problem(skill, name)
    if problem or not isinstance(skill, Skill):
        raise NumprobeError(
            "E-SKL-013",
            "{place} gives no usable skill: {problem}",
            do="make it as numprobe skills new does",
            place=place,
            problem=problem,
        )
    return skill


def _problem(skill: object, name: str) -> str:
    if not isinstance(skill, Skill):
        return f"{ATTRIBUTE} is {type(skill).__name__}, not numprobe.agent.skills.skill.Skill"
    if skill.name != name:
        return f"its name is {skill.name!r}, not {name!r}"
    if not (isinstance(skill.options, type) and issubclass(skill.options, msgspec.Struct)):
        return "options is no msgspec.Struct"
    needed = [field.name for field in msgspec.structs.fields(skill.options) if field.required]
    if needed:
        return f"options without a default: {', '.join(needed)}"
    names = [one.name for one in skill.inputs]
    flags = names + [field.name for field in msgspec.structs.fields(skill.options)] + list(FLAGS)
    wrong = [one for one in names if not one.isidentifier()] + sorted({one for one in flags if flags.count(one) > 1})
    return f"inputs and options cannot be called {', '.join(wrong)}" if wrong else ""


def pipeline_of(skill: Skill, place: str) -> Pipeline:
    """What the skill does, imported.

    Raises:
        NumprobeError: E-SKL-013 ``load`` gives something else.
    """
    pipeline = skill.load()
    if not isinstance(pipeline, Pipeline):
        raise NumprobeError(
            "E-SKL-013",
            "{place} gives no usable skill: {problem}",
            do="make it as numprobe skills new does",
            place=place,
            problem=f"load() gives {type(pipeline).__name__}, not a Pipeline",
        )
    return pipeline


def _shadowed(one: Found, by: str) -> NumprobeError:
    return NumprobeError(
        "E-SKL-014",
        "another skill of the name {name} comes first",
        where=one.place,
        found="{by}",
        do="give this one another name, in SKILL.md and as its folder",
        name=one.name,
        by=by,
    )


def _unreadable(folder: Path, error: OSError) -> NumprobeError:
    return NumprobeError(
        "E-SKL-002",
        "the folder of skills cannot be read: {reason}",
        where=str(folder),
        do="check that you may read and enter it",
        reason=error.strerror or str(error),
    )


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300].rstrip(": ")


def _line(file: Path, error: BaseException) -> str:
    """The last line of the file that was at work."""
    number = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).absolute() == file.absolute():
            number = trace.tb_lineno
        trace = trace.tb_next
    return f"{file}:{number}" if number else str(file)


__all__ = ["CATALOGUE", "Found", "all_skills", "find_skill", "is_name", "load_skill", "pipeline_of", "skill_text"]
