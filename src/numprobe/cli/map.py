"""``numprobe map A B``: which module of one run is which of the other."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from numprobe.cli import common
from numprobe.cli.rl import MAPPING


def map_modules(
    a: str = typer.Argument(..., help="A dump: Megatron, Hugging Face, vLLM, SGLang modules.", metavar="A"),
    b: str = typer.Argument(..., help="A dump of the same model.", metavar="B"),
    out: Path = typer.Option(None, "-o", "--out", help="Also write it as a csv file.", metavar="FILE"),
    mapping: str = typer.Option("", "--mapping", help=MAPPING, metavar="FILE"),
    as_json: bool = common.Json,
    step: str = common.Step,
    rank: str = common.Rank,
    lang: str = common.Lang,
    debug: bool = common.Debug,
) -> None:
    """How the modules of two dumps are paired, by layer and role. Exit 0: all of them, 1: some have no partner."""
    from numprobe.diagnose.rl_consistency.mapping import mapping_of, render_mapping, write_mapping
    from numprobe.report.running import print_conclusion

    found = mapping_of(a, b, common.ranges(step, "--step"), common.ranges(rank, "--rank"), mapping)
    if out is not None:
        write_mapping(found, out)
    style = common.style(sys.stdout)
    print_conclusion(render_mapping(found, common.language(lang), style, as_json=as_json))
    raise typer.Exit(1 if found.unmatched_train or found.unmatched_rollout else 0)
