"""``numprobe synth nan``: simulated dumps with known truth."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from numprobe.cli import common
from numprobe.record.errors import NumprobeError

if TYPE_CHECKING:
    from numprobe.synth.nan import Size


def synth_nan(
    out: Path = typer.Option(None, "-o", "--out", help="Folder to write; must be new or empty.", metavar="DIR"),
    scenario: str = typer.Option("grouped_matmul_nan", "--scenario", help="Name of the scenario; --list shows all."),
    size: str = typer.Option("unit", "--size", help="unit (16 ranks), ci (512), large, or RANKSxMB, as in 8x100."),
    seed: int = typer.Option(0, "--seed", help="Draws topology, order, filters and figures.", min=0),
    listed: bool = typer.Option(False, "--list", help="List the scenarios and exit."),
    debug: bool = common.Debug,
) -> None:
    """Write a dump whose cause is known; truth.json beside the steps says what it is."""
    from numprobe.report.run_folder import writing
    from numprobe.report.terminal import printable
    from numprobe.synth.nan import SCENARIOS, simulate

    names = list(SCENARIOS)
    if listed:
        print("\n".join(names))
        return
    if out is None:
        raise NumprobeError("E-USE-008", "no output folder", do="add -o DIR")
    if scenario not in names:
        raise NumprobeError(
            "E-USE-008",
            "--scenario {scenario}: unknown",
            do="choose one of {names}",
            scenario=scenario,
            names=", ".join(names),
        )
    wanted = named_size(size)
    with writing(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise NumprobeError("E-OUT-001", "the output folder is not empty", where=str(out), do="choose another -o")
        truth = simulate(scenario, out, seed=seed, size=wanted)
    found = f"{truth.verdict}, {truth.cls or '-'}, ranks {truth.source_ranks}"
    print(printable(f"{out}  {scenario}, seed {seed}: {found}"))


def named_size(text: str) -> Size:
    """``unit``, ``ci``, ``large`` or ``8x100`` (ranks x megabytes a rank).

    Raises:
        NumprobeError: E-USE-008 none of these.
    """
    from numprobe.synth.nan import CI, NIGHTLY, UNIT, sized

    fixed = {"unit": UNIT, "ci": CI, "large": NIGHTLY}
    if text in fixed:
        return fixed[text]
    found = re.fullmatch(r"(\d{1,4})x(\d{1,5}(?:\.\d+)?)", text)
    if found is None or not int(found[1]) or not float(found[2]):
        raise NumprobeError(
            "E-USE-008", "--size {size}: unknown", do="write unit, ci, large, or RANKSxMB such as 8x100", size=text
        )
    return sized(int(found[1]), float(found[2]))
