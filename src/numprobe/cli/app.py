"""The ``numprobe`` command: one Typer application, one module a command."""

from __future__ import annotations

import typer

from numprobe.cli.plain import PlainApp

app = PlainApp(
    name="numprobe",
    help="Finds where the numbers of a model went wrong, and why.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
synth_app = PlainApp(help="Simulated dumps with known truth.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(synth_app, name="synth")
collect_app = PlainApp(help="The recorder of PyTorch programs.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(collect_app, name="collect")
skills_app = PlainApp(
    help="What the agent can do: list, show, run, new, install.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(skills_app, name="skills")
config_app = PlainApp(help="Language and LLMs: show, set.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config")


def _version(value: bool) -> None:
    if value:
        from numprobe._version import __version__

        print(f"numprobe {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Finds where the numbers of a model went wrong, and why."""


def _register() -> None:
    from numprobe.cli import ask, chat, collect, compare, config, demo, inspect, map, mcp, merge, nan, rl, skills, synth

    app.command("ask", short_help="One sentence: the skill is chosen, run, and the answer given.")(ask.ask)
    app.command("chat", short_help="The same as a conversation, with follow-ups and kept sessions.")(chat.chat)
    app.command("follow", short_help="A question on a run, answered from what it wrote.")(ask.follow)
    app.command("nan")(nan.nan)
    app.command("compare", cls=compare.CompareCommand, short_help="Where two runs part, and what brought it in.")(
        compare.compare
    )
    app.command("merge")(merge.merge)
    app.command("merge_result", cls=merge.MergeResultCommand, hidden=True)(merge.merge)
    app.command("rl", short_help="Where training and rollout of the same tokens part.")(rl.rl)
    app.command("map")(map.map_modules)
    app.command("mcp", short_help="The skills and answers as an MCP server.")(mcp.mcp)
    app.command("inspect")(inspect.inspect)
    app.command("demo", short_help="A skill at work on a dump made for it: nan, or rl.")(demo.demo)
    synth_app.command("nan")(synth.synth_nan)
    synth_app.command("rl")(synth.synth_rl)
    collect_app.command("check", context_settings=collect.CONTEXT)(collect.check)
    config_app.command("show", short_help="Every setting and where it comes from.")(config.show_settings)
    config_app.command("set", short_help="Change a setting.")(config.set_settings)
    skills_app.command("list", short_help="The skills there are, and what was skipped.")(skills.list_skills)
    skills_app.command("show", short_help="The SKILL.md of a skill, or its JSON schema.")(skills.show_skill)
    skills_app.command("run", short_help="Run one by name.", context_settings=skills.RUN)(skills.run_skill)
    skills_app.command("new", short_help="A folder to start a skill from.")(skills.new_skill)
    skills_app.command("install", short_help="Copy a skill, for numprobe or another agent.")(skills.install_skill)


_register()
