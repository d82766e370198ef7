"""``numprobe merge RESULT...``: the results of many ranks side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from numprobe.cli import common

_MSPROBE = {"--config-path": "--config", "--input_dir": "-i", "--output_dir": "--out"}


class MergeResultCommand(TyperCommand):
    """msProbe's ``merge_result -i DIR -o DIR -config YAML``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = [_MSPROBE.get(arg, arg) for arg in args]
        return super().parse_args(ctx, [word for word in words if word != "-i"])


def merge(
    results: list[Path] = typer.Argument(
        ..., help="Folders or files of compare's results: msProbe's csv or xlsx, or a run of numprobe compare."
    ),
    config: Path = typer.Option(
        None, "-config", "--config", help="YAML with api, compare_index and groups; all may be missing.", metavar="YAML"
    ),
    out: Path = common.Out,
    step: int = typer.Option(None, "--step", help="Of a run that compared several steps.", min=0, metavar="N"),
    csv: bool = typer.Option(False, "--csv", help="Csv files instead of sheets of one xlsx."),
    as_json: bool = common.Json,
    lang: str = common.Lang,
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Put the results of many ranks side by side. Exit 0: nothing is wrong, 1: some rank has an error, or ranks disagree.

    Writes a sheet for every index, what is worst in each process group, and the outputs that should be the same on all ranks of
    a group (all_reduce, all_gather, broadcast) and are not.
    """
    from numprobe.compare.msprobe.merge_command import run_command

    code = run_command(
        results,
        config,
        out=out,
        lang=common.language(lang),
        step=step,
        csv=csv,
        as_json=as_json,
        style_out=common.style(sys.stdout, quiet=quiet),
    )
    raise typer.Exit(code)
