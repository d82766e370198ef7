"""``numprobe rl TRAIN ROLLOUT``: why training and rollout differ."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from numprobe.cli import common

MAPPING = (
    "Which modules belong together: what numprobe map -o wrote, corrected; or a key mapping, or msProbe's cell mapping."
)


def rl(
    train: str = typer.Argument(..., help="Dump of the training side: Megatron, FSDP or Hugging Face modules."),
    rollout: str = typer.Argument(..., help="Dump of the rollout side: vLLM or SGLang modules."),
    out: Path = common.Out,
    as_json: bool = common.Json,
    step: str = common.Step,
    rank: str = common.Rank,
    mapping: str = typer.Option("", "--mapping", help=MAPPING, metavar="FILE"),
    as_given: bool = typer.Option(
        False, "--as-given", help="The first dump is the training side, whatever its module names say."
    ),
    lang: str = common.Lang,
    compat: str = typer.Option(
        None, "--compat", help="msprobe: also write its files output_0 to output_5.", metavar="NAME"
    ),
    progress: str = common.Progress,
    no_cache: bool = typer.Option(False, "--no-cache", help="Neither read nor write the per-rank cache."),
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Where do a training and a rollout dump of the same tokens part? Exit 0: nowhere, 1: found, 3: cannot be said."""
    from numprobe.diagnose.rl_consistency.command import run_command
    from numprobe.diagnose.rl_consistency.skill import RlOptions

    if compat is not None:
        common.one_of("--compat", compat, ("msprobe",))
    code = run_command(
        train,
        rollout,
        RlOptions(common.ranges(step, "--step"), common.ranges(rank, "--rank"), not no_cache, mapping, as_given),
        out=out,
        lang=common.language(lang),
        compat=compat == "msprobe",
        as_json=as_json,
        progress=progress,
        style_out=common.style(sys.stdout, quiet=quiet),
        style_err=common.style(sys.stderr, quiet=quiet),
        quiet=quiet,
    )
    raise typer.Exit(code)
