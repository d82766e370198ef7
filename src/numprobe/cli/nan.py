"""``numprobe nan DUMP``: NaN and overflow root cause over all ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from numprobe.cli import common


def nan(
    dump: str = typer.Argument(..., help="Step folder, rank folder, folder of steps, proc<pid>, or a dump.json."),
    out: Path = common.Out,
    as_json: bool = common.Json,
    step: str = common.Step,
    rank: str = common.Rank,
    top: int = typer.Option(1, "-k", "--top", help="List the first N independent overflow nodes.", min=1, metavar="N"),
    exclude: list[str] = typer.Option(
        [], "--exclude", help="Leave out records of this name or prefix; may be repeated.", metavar="NAME"
    ),
    jobs: int = common.Jobs,
    executor: str = typer.Option("local", "--executor", help="local; ray follows.", hidden=True),
    lang: str = common.Lang,
    compat: str = typer.Option(None, "--compat", help="msprobe: also write its file names.", metavar="NAME"),
    progress: str = common.Progress,
    full_digest: bool = typer.Option(False, "--full-digest", help="Digest the inputs whole, not only their edges."),
    no_cache: bool = typer.Option(False, "--no-cache", help="Neither read nor write the per-rank cache."),
    verbose: bool = typer.Option(False, "--verbose", help="Also print the map of ranks."),
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Which rank and which operator made the first NaN or Inf. Exit 0: none, 1: found, 3: the data cannot decide."""
    from numprobe.diagnose.nan_overflow.command import run_command
    from numprobe.diagnose.nan_overflow.skill import NanOptions
    from numprobe.record.errors import NumprobeError

    if compat is not None:
        common.one_of("--compat", compat, ("msprobe",))
    if executor != "local":
        raise NumprobeError("E-USE-007", "--executor {executor}: not available", do="write local", executor=executor)
    options = NanOptions(
        common.ranges(step, "--step"), common.ranges(rank, "--rank"), jobs, tuple(exclude), top, not no_cache
    )
    language = common.language(lang)
    code = run_command(
        dump,
        options,
        out=out,
        lang=language,
        as_json=as_json,
        compat=compat == "msprobe",
        progress=progress,
        full_digest=full_digest,
        verbose=verbose,
        style_out=common.style(sys.stdout, quiet=quiet),
        style_err=common.style(sys.stderr, quiet=quiet),
        quiet=quiet,
    )
    raise typer.Exit(code)
