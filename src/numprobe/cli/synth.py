"""``numprobe synth nan`` and ``numprobe synth rl``: dumps with known truth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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
    from numprobe.report.terminal import printable
    from numprobe.synth.nan import SCENARIOS, simulate

    if listed:
        print("\n".join(SCENARIOS))
        return
    wanted = named_size(size)
    with _new_folder(out, scenario, list(SCENARIOS)):
        truth = simulate(scenario, out, seed=seed, size=wanted)
    found = f"{truth.verdict}, {truth.cls or '-'}, ranks {truth.source_ranks}"
    print(printable(f"{out}  {scenario}, seed {seed}: {found}"))


def synth_rl(
    out: Path = typer.Option(None, "-o", "--out", help="Folder to write; must be new or empty.", metavar="DIR"),
    scenario: str = typer.Option("activation", "--scenario", help="Name of the scenario; --list shows all."),
    layers: int = typer.Option(None, "--layers", help="Layers of the model (default: drawn, 3 to 5).", min=1, max=1000),
    tokens: int = typer.Option(
        None, "--tokens", help="Tokens of the prompt (default: drawn, 9 to 40).", min=2, max=9999
    ),
    tensors: bool = typer.Option(False, "--tensors", help="Write every tensor too, not figures alone."),
    seed: int = typer.Option(0, "--seed", help="Draws the model, its weights and the place of the fault.", min=0),
    listed: bool = typer.Option(False, "--list", help="List the scenarios and exit."),
    debug: bool = common.Debug,
) -> None:
    """Compute a decoder as a trainer and as an engine do, one of them wrong; truth.json beside train and rollout says how."""
    from numprobe.report.terminal import printable
    from numprobe.synth.rl import SCENARIOS, simulate

    if listed:
        print("\n".join(SCENARIOS))
        return
    with _new_folder(out, scenario, list(SCENARIOS)):
        truth = simulate(scenario, out, seed=seed, tensors=tensors, layers=layers, tokens=tokens)
    found = (
        f"{'/'.join(truth.verdicts)}, {'/'.join(truth.figures.classes) or '-'}, {'/'.join(truth.figures.places) or '-'}"
    )
    print(printable(f"{out}  {scenario}, seed {seed}: {found}"))


@contextmanager
def _new_folder(out: Path | None, scenario: str, names: list[str]) -> Iterator[None]:
    """Room for the dumps of a scenario of these names."""
    from numprobe.report.run_folder import writing

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
    with writing(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise NumprobeError("E-OUT-001", "the output folder is not empty", where=str(out), do="choose another -o")
        yield


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
