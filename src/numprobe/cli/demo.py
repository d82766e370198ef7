"""``numprobe demo``: a skill on a generated dump, end to end, offline."""

from __future__ import annotations

import typer

from numprobe.cli import common


def demo(
    skill: str = typer.Argument("nan", help="nan"),
    lang: str = common.Lang,
    debug: bool = common.Debug,
) -> None:
    """Make the dump of a 512-rank job whose loss is NaN at its first step, and find the cause."""
    raise NotImplementedError
