"""Runs a script without the recorder, once more without it, and with it; compares what each run computed.

Two plain runs that differ say that the script itself is not deterministic: then nothing follows from the third.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numprobe.record.errors import NumprobeError

STARTUP = Path(__file__).parent / "startup"
UNCHANGED, CHANGED, INCONCLUSIVE = "unchanged", "changed", "inconclusive"
RUNS = ("plain", "again", "recorded")
_TAIL = 2000  # characters of what a failed run said

Events = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Difference:
    """Where two runs part: ``step`` optimizer steps were equal before it.

    ``kind``: loss | step | random | end | length. ``parameters`` are the names of those that differ, if the kind has any.
    """

    process: str
    step: int
    kind: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """``reason``: equal | differs | fails (only with the recorder) | random (without it, too) | nothing (was observed)."""

    verdict: str
    reason: str
    processes: int
    steps: int
    losses: int
    first: Difference | None = None
    said: str = ""


def check(
    command: Sequence[str],
    out: Path,
    *,
    settings: dict[str, Any],
    steps: int | None = None,
    tell: Callable[[str], None] = lambda run: None,
) -> Result:
    """Run ``command`` three times and compare.

    Args:
        command: what is run, with its arguments.
        out: an empty folder for journals, outputs and the dump.
        settings: of the recorder, unless the command has one itself.
        steps: end each run after so many optimizer steps.
        tell: is given the name of each run as it begins, one of :data:`RUNS`.

    Raises:
        NumprobeError: E-COL-009 the command fails without the recorder as well.
    """
    found: dict[str, Events] = {}
    for run in RUNS:
        tell(run)
        folder = out / run
        folder.mkdir(parents=True)
        code, said = _run(command, folder, settings if run == "recorded" else None, steps)
        found[run] = _read(folder)
        if code and run == "recorded":
            return Result(CHANGED, "fails", *_counts(found["plain"]), None, said)
        if code:
            raise NumprobeError(
                "E-COL-009",
                "the command fails without the recorder, with exit code {exit}",
                where=" ".join(command),
                found="{said}",
                do="check it by itself first",
                exit=code,
                said=said,
            )
        if run == "again":
            if not found["plain"]:
                return Result(INCONCLUSIVE, "nothing", 0, 0, 0)
            difference = _first_difference(found["plain"], found["again"])
            if difference is not None:
                return Result(INCONCLUSIVE, "random", *_counts(found["plain"]), difference)
    difference = _first_difference(found["plain"], found["recorded"])
    verdict, reason = (UNCHANGED, "equal") if difference is None else (CHANGED, "differs")
    return Result(verdict, reason, *_counts(found["plain"]), difference)


def command_of(script: str, arguments: Sequence[str]) -> list[str]:
    """A Python file with this interpreter, anything else as a program (torchrun).

    Raises:
        NumprobeError: E-COL-010 it is neither.
    """
    if (Path(script).is_file() and not os.access(script, os.X_OK)) or script.endswith(".py"):
        if Path(script).is_file():
            return [sys.executable, script, *arguments]
    elif (program := shutil.which(script)) is not None:
        return [program, *arguments]
    raise NumprobeError(
        "E-COL-010",
        "{script} is no file and no program",
        do="give a Python script, or a program such as torchrun, and then its arguments",
        script=script,
    )


def _run(command: Sequence[str], folder: Path, settings: dict[str, Any] | None, steps: int | None) -> tuple[int, str]:
    """The exit code and the end of what was said."""
    asked = {"out": str(folder.resolve()), "steps": steps, "record": settings}
    paths = [str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "PYTHONHASHSEED": "0",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "NUMPROBE_CHECK": json.dumps(asked),
        "NUMPROBE_RECORD": "0" if settings is None else "1",
    }
    output = folder / "output.txt"
    with output.open("wb") as file:
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False
        )
    text = output.read_text(encoding="utf-8", errors="replace").strip()
    return done.returncode, text if len(text) <= _TAIL else "..." + text[-_TAIL:]


def _read(folder: Path) -> Events:
    """Events by process: ``rank3``; where several have one name, by when they began."""
    journals: dict[str, list[list[dict[str, Any]]]] = {}
    for file in folder.glob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        journals.setdefault(file.name.split(".")[0], []).append(lines)
    found: Events = {}
    for name, several in sorted(journals.items()):
        several.sort(key=lambda lines: lines[0]["began"])
        for i, lines in enumerate(several):
            found[name if len(several) == 1 else f"{name}.{i}"] = lines[1:]
    return found


def _counts(events: Events) -> tuple[int, int, int]:
    """Processes, and steps and losses of the one with most."""
    kinds = [[event["kind"] for event in listed] for listed in events.values()]
    return (
        len(kinds),
        max((k.count("step") for k in kinds), default=0),
        max((k.count("loss") for k in kinds), default=0),
    )


def _first_difference(one: Events, other: Events) -> Difference | None:
    """The earliest one by optimizer steps over all processes."""
    found = [_part(process, one.get(process, []), other.get(process, [])) for process in sorted({*one, *other})]
    return min((d for d in found if d is not None), key=lambda d: d.step, default=None)


def _part(process: str, one: list[dict[str, Any]], other: list[dict[str, Any]]) -> Difference | None:
    steps = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine["kind"] != theirs["kind"]:
            return Difference(process, steps, "length")
        if mine != theirs:
            before, after = mine.get("parameters", {}), theirs.get("parameters", {})
            names = tuple(name for name in {**before, **after} if before.get(name) != after.get(name))
            kind = "random" if mine["kind"] == "step" and not names else str(mine["kind"])
            return Difference(process, steps, kind, names)
        steps += mine["kind"] == "step"
    return Difference(process, steps, "length") if len(one) != len(other) else None
