"""``numprobe skills list|show|run|new|install``: what the agent can do, as commands and as folders for other agents."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from numprobe.cli import common

if TYPE_CHECKING:
    from numprobe.agent.skills.skill import Skill

RUN = {  # all that follows the name belongs to the skill
    "allow_interspersed_args": False,
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
To = typer.Option(None, "--to", help="Folder of skills that it goes into.", metavar="DIR")


def list_skills(
    as_json: bool = common.Json, lang: str = common.Lang, quiet: bool = common.Quiet, debug: bool = common.Debug
) -> None:
    """The skills there are, where they come from, and what was skipped and why."""
    from numprobe.agent.skills.registry import all_skills
    from numprobe.agent.skills.show import list_object, render_list

    language, found = common.language(lang), all_skills()
    if as_json:
        _print_json(list_object(found, language))
    else:
        print(render_list(found, language, common.style(sys.stdout, quiet=quiet)))


def show_skill(
    name: str = typer.Argument(..., help="Name of a skill, as skills list shows it.", metavar="NAME"),
    schema: bool = typer.Option(False, "--schema", help="JSON schema of inputs, options and result instead."),
    lang: str = common.Lang,
    debug: bool = common.Debug,
) -> None:
    """Print the SKILL.md of a skill: when to use it, how, and how to read the result."""
    from numprobe.agent.skills.registry import find_skill, skill_text
    from numprobe.agent.skills.schema import schema_of
    from numprobe.record.errors import NumprobeError
    from numprobe.report.terminal import printable

    found = find_skill(name)
    if not schema:
        for line in skill_text(found).rstrip("\n").split("\n"):
            print(printable(line.rstrip("\r").expandtabs()))
    elif found.skill is None:
        raise NumprobeError(
            "E-SKL-015",
            "the schema of {name} is in its skill.py, which show does not execute",
            where=found.place,
            do="numprobe skills run {name} --schema",
            name=found.name,
        )
    else:
        _print_json(schema_of(found.skill))


def run_skill(
    context: typer.Context,
    name: str = typer.Argument(..., help="Name of a skill; then its inputs and options, or -h.", metavar="NAME"),
) -> None:
    """Run a skill. Exit codes, progress and results are those of numprobe nan, rl and compare."""
    if name in ("-h", "--help"):
        print(context.get_help())
        return
    from numprobe.agent.skills.registry import find_skill, load_skill

    found = find_skill(name)
    skill = load_skill(found)
    if "--schema" in context.args:
        from numprobe.agent.skills.schema import schema_of

        _print_json(schema_of(skill))
        return
    prog = f"{context.command_path} {found.name}"
    code = command_of(skill, found.about("en"), found.place)(args=context.args, prog_name=prog, standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)


def new_skill(
    name: str = typer.Argument(..., help="Lower case letters and digits, hyphens between words.", metavar="NAME"),
    to: Path = To,
    lang: str = common.Lang,
    debug: bool = common.Debug,
) -> None:
    """Make a skill to start from, in ./skills: SKILL.md, a skill.py that works, and a test of it."""
    from numprobe.agent.skills import install
    from numprobe.agent.skills.show import say

    language = common.language(lang)
    folder = install.new_skill(name, to or Path("skills"))
    print(say(language, "skills.made", path=folder.as_posix()))
    print(say(language, "skills.made.next", name=name, path=folder.as_posix()))


def install_skill(
    source: str = typer.Argument(..., help="A folder with a SKILL.md, or the name of a skill.", metavar="PATH"),
    to: Path = To,
    lang: str = common.Lang,
    debug: bool = common.Debug,
) -> None:
    """Copy a skill into your own folder of skills, or with --to into that of another agent, as in .claude/skills."""
    from numprobe.agent.skills import install
    from numprobe.agent.skills.show import say

    language = common.language(lang)
    name, folder = install.install_skill(source, to)
    print(say(language, "skills.installed", name=name, path=folder.as_posix()))


def command_of(skill: Skill, about: str, place: str) -> Any:
    """The command of one skill: its inputs as required options, the fields of its options as flags, then the common ones."""
    import msgspec

    parameters: list[tuple[str, Any, Any]] = []
    for one in skill.inputs:
        flag = f"--{one.name.replace('_', '-')}"
        parameters.append((f"input_{one.name}", str, typer.Option(..., flag, help=one.about, metavar="PATH")))
    fields = msgspec.structs.fields(skill.options)
    parameters += [(f"option_{field.name}", *_flag(field)) for field in fields]
    parameters += [
        ("out", Path, common.Out),
        ("as_json", bool, common.Json),
        ("schema", bool, typer.Option(False, "--schema", help="Print the JSON schema and exit.")),
        ("lang", str, common.Lang),
        ("progress", str, common.Progress),
        ("quiet", bool, common.Quiet),
        ("debug", bool, common.Debug),
    ]

    def command(**given: Any) -> None:
        inputs = {one.name: given[f"input_{one.name}"] for one in skill.inputs}
        asked = {field.name: given[f"option_{field.name}"] for field in fields}
        _run(skill, place, inputs, {name: value for name, value in asked.items() if value not in (None, [])}, given)

    command.__doc__ = about
    command.__annotations__ = {name: kind for name, kind, _ in parameters}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d, annotation=k) for n, k, d in parameters]
    )
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(command)
    return typer.main.get_command(app)


def _flag(field: Any) -> tuple[Any, Any]:
    """Type and option of a field. Values stay text until the options are made: their type says what is right."""
    import msgspec

    info, about = msgspec.inspect.type_info(field.type), ""
    if isinstance(info, msgspec.inspect.Metadata):
        about, info = (info.extra_json_schema or {}).get("description", ""), info.type
    flag = f"--{field.name.replace('_', '-')}"
    sequences = (msgspec.inspect.VarTupleType, msgspec.inspect.ListType, msgspec.inspect.SetType)
    if isinstance(info, msgspec.inspect.BoolType):
        return bool, typer.Option(field.default, flag, help=about)
    if isinstance(info, sequences):
        return list[str], typer.Option([], flag, help=f"{about} May be repeated.".strip(), metavar="TEXT")
    numbers = (msgspec.inspect.IntType, msgspec.inspect.FloatType)
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    kinds = tuple(k.type if isinstance(k, msgspec.inspect.Metadata) else k for k in kinds)
    default = field.default if isinstance(field.default, (int, float, str)) and field.default != "" else None
    shown = f"{about} [default: {default}]" if default is not None else about
    return str, typer.Option(None, flag, help=shown.strip(), metavar="N" if isinstance(kinds[0], numbers) else "TEXT")


def _run(skill: Skill, place: str, inputs: dict[str, str], asked: dict[str, Any], given: dict[str, Any]) -> None:
    import msgspec

    from numprobe.agent.skills.registry import pipeline_of
    from numprobe.agent.skills.show import run_and_show
    from numprobe.agent.skills.skill import Screen
    from numprobe.record.errors import NumprobeError

    language = common.language(given["lang"])
    try:
        options = msgspec.convert(asked, skill.options, strict=False)
    except msgspec.ValidationError as error:
        reason, _, field = str(error).partition(" - at `$.")
        raise NumprobeError(
            "E-USE-007",
            "--{option}: {reason}",
            do="numprobe skills run {name} -h lists what it takes",
            option=field.rstrip("`").replace("_", "-") or "options",
            reason=reason,
            name=skill.name,
        ) from None
    screen = Screen(
        common.style(sys.stdout, quiet=given["quiet"]),
        common.style(sys.stderr, quiet=given["quiet"]),
        given["as_json"],
        given["progress"],
        given["quiet"],
    )
    pipeline = pipeline_of(skill, place)
    raise typer.Exit(run_and_show(skill.name, pipeline, inputs, options, given["out"], language, screen))


def _print_json(value: object) -> None:
    from numprobe.report.language import is_utf8
    from numprobe.report.run_folder import plain

    print(json.dumps(plain(value), ensure_ascii=not is_utf8(sys.stdout.encoding), indent=1))


__all__: Sequence[str] = ["RUN", "install_skill", "list_skills", "new_skill", "run_skill", "show_skill"]
