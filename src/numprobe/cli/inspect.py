"""``numprobe inspect DUMP``: what is in here, and which skills apply."""

from __future__ import annotations

import sys

import typer

from numprobe.cli import common


def inspect(
    dump: str = typer.Argument(..., help="Step folder, rank folder, folder of steps, proc<pid>, or a dump.json."),
    as_json: bool = common.Json,
    step: str = common.Step,
    rank: str = common.Rank,
    jobs: int = common.Jobs,
    lang: str = common.Lang,
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """What is in a dump: steps, ranks, operators, sizes, non-finite counts, applicable skills."""
    from numprobe.diagnose import overview
    from numprobe.report.language import is_utf8

    found = overview.inspect(dump, common.ranges(step, "--step"), common.ranges(rank, "--rank"), jobs)
    if as_json:
        print(overview.as_json(found, ascii_only=not is_utf8(sys.stdout.encoding)))
    else:
        print(overview.render(found, common.language(lang), common.style(sys.stdout, quiet=quiet)))
