"""``numprobe compare TARGET GOLDEN``: two dumps that should agree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from numprobe.cli import common, msprobe
from numprobe.cli.plain import PlainCommand


class CompareCommand(PlainCommand):
    """Takes msProbe's spellings of options too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, msprobe.compare_arguments(args))


def _mapping(short: str, long: str, what: str) -> Any:
    return typer.Option(None, short, long, help=f"Other names on the golden side: {what}.", metavar="[YAML]")


def compare(
    target: str = typer.Argument(..., help="The run under suspicion: a step or rank folder, steps, or a dump.json."),
    golden: str = typer.Argument(..., help="The run that is trusted."),
    out: Path = common.Out,
    as_json: bool = common.Json,
    step: str = common.Step,
    rank: str = common.Rank,
    noise: str = typer.Option(
        None, "--noise", help="A second run of the golden program: how far apart two good runs are.", metavar="DUMP"
    ),
    baseline: str = typer.Option(
        None, "--baseline", help="A trusted run of low precision: the target may be as far from golden.", metavar="DUMP"
    ),
    factor: float = typer.Option(2.0, "--factor", help="How much farther than --baseline is still fine.", min=1.0),
    by: str = typer.Option("auto", "--by", help="auto, statistics, tensor or digest.", metavar="HOW"),
    data_mapping: str = _mapping("-dm", "--data-mapping", "single inputs and outputs"),
    cell_mapping: str = _mapping("-cm", "--cell-mapping", "modules"),
    api_mapping: str = _mapping("-am", "--api-mapping", "APIs"),
    layer_mapping: str = _mapping("-lm", "--layer-mapping", "children of modules, by class"),
    config: Path = typer.Option(
        None, "--config", help="Tensors that are multiplied with a matrix before they are compared.", metavar="YAML"
    ),
    table: list[str] = typer.Option([], "--table", help="Also write the table as csv or xlsx.", metavar="KIND"),
    only_fail: bool = typer.Option(False, "--only-fail", help="Of the csv or xlsx: rows that do not pass."),
    filter: str = typer.Option("", "--filter", help="Of the csv or xlsx: rows whose name holds this.", metavar="TEXT"),
    top: int = typer.Option(5, "--top", help="How many findings are shown.", min=1, metavar="N"),
    compat: str = typer.Option(None, "--compat", help="msprobe: also write its result files.", metavar="NAME"),
    xlsx: bool = typer.Option(False, "--xlsx", help="msProbe's result files as xlsx instead of csv."),
    first_diff: bool = typer.Option(
        False, "-da", "--first-diff", help="msProbe's diff_analyze files instead: the first difference over all ranks."
    ),
    merge: bool = typer.Option(
        False, "--merge", help="Put ranks that hold parts of one model together, also where both sides have as many."
    ),
    metrics: Path = typer.Option(
        None, "--metrics", help="Run the alg_<name>.py files there: further columns of tensors.", metavar="FOLDER"
    ),
    device: str = typer.Option(
        "", "--device", help="Compute on tensors with torch: cuda, cuda:1, npu, cpu.", metavar="NAME"
    ),
    jobs: int = common.Jobs,
    lang: str = common.Lang,
    progress: str = common.Progress,
    no_cache: bool = typer.Option(False, "--no-cache", help="Neither read nor write the per-rank cache."),
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Where do two runs part? Exit 0: they agree, 1: they differ, 3: the data cannot decide.

    The mapping options take a YAML file as msProbe does, or nothing (or the word default) for what is built in. msProbe's -tp
    and -gp are taken too, and then bring --compat msprobe with them.
    """
    from numprobe.align.mapping_files import read_mapping
    from numprobe.compare.command import Output, run_command
    from numprobe.compare.processing import NO_PROCESSING, read_processing
    from numprobe.compare.run import CompareOptions

    common.one_of("--by", by, ("auto", "statistics", "tensor", "digest"))
    for kind in table:
        common.one_of("--table", kind, ("csv", "xlsx"))
    if compat is not None:
        common.one_of("--compat", compat, ("msprobe",))
    code = run_command(
        target,
        golden,
        CompareOptions(
            common.ranges(step, "--step"),
            common.ranges(rank, "--rank"),
            mapping=read_mapping(data_mapping, cell_mapping, api_mapping, layer_mapping),
            processing=read_processing(config) if config is not None else NO_PROCESSING,
            noise=noise,
            baseline=baseline,
            factor=factor,
            by=by,
            jobs=jobs,
            merge=merge,
            device=device,
            metrics=metrics,
            use_cache=not no_cache,
        ),
        Output(
            tuple(dict.fromkeys(table)),
            only_fail,
            filter,
            top,
            compat is not None or xlsx or first_diff,
            xlsx,
            first_diff,
        ),
        out=out,
        lang=common.language(lang),
        as_json=as_json,
        progress=progress,
        style_out=common.style(sys.stdout, quiet=quiet),
        style_err=common.style(sys.stderr, quiet=quiet),
        quiet=quiet,
    )
    raise typer.Exit(code)
