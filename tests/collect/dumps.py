"""What the tests of the collector share: running a program in a process of its own, reading what it dumped, comparing."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
SAMPLES = HERE.parent / "data" / "interop" / "pytorch"
FEATURES = HERE / "data" / "features"

Json = dict[str, Any]


@dataclass(frozen=True)
class Dump:
    """The files of one rank and step."""

    folder: Path

    def _read(self, name: str) -> Json:
        found: Json = json.loads((self.folder / name).read_text(encoding="utf-8"), object_pairs_hook=_unique)
        return found

    @property
    def header(self) -> Json:
        name = "dump.json" if (self.folder / "dump.json").exists() else "debug.json"
        return self._read(name)

    @property
    def data(self) -> Json:
        data: Json = self.header["data"]
        return data

    @property
    def names(self) -> list[str]:
        return list(self.data)

    @property
    def parents(self) -> dict[str, str | None]:
        return self._read("construct.json")

    @property
    def stacks(self) -> dict[str, list[str]]:
        """The frames of every name."""
        return {name: frames for names, frames in self._read("stack.json").values() for name in names}

    def backward(self) -> list[str]:
        return [name for name in self.data if ".backward" in name or ".parameters_grad" in name]


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    members = dict(pairs)
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    assert twice == []
    return members


def only(folder: Path, step: int = 0) -> Dump:
    """The dump of the one rank or process of a step."""
    [rank] = [p for p in (folder / f"step{step}").iterdir() if ".old" not in p.name]
    return Dump(rank)


def config(path: Path, **settings: Any) -> Path:
    """A config.json; options of the task are given like the others."""
    common = {"task", "level", "rank", "step", "risk_level", "extra_info", "dump_path"}
    task = settings.setdefault("task", "statistics")
    options = {key: settings.pop(key) for key in list(settings) if key not in common}
    settings.setdefault("dump_path", "./dump")
    path.write_text(json.dumps({**settings, task: options}))
    return path


def run(
    program: str | Path, *arguments: str | Path, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program; fails with its error output unless it ends with ``code``."""
    command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done


def is_tensor(value: object) -> bool:
    return isinstance(value, dict) and "dtype" in value and "shape" in value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor record and every plain value with its dotted path; empty containers too."""
    if isinstance(value, dict) and value and not is_tensor(value):
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for i, part in enumerate(value):
            yield from leaves(part, f"{path}.{i}")
    else:
        yield path, value


def close(found: Any, wanted: Any, relative: float, absolute: float = 1e-8) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool) or found is None or wanted is None:
        return found is wanted
    if math.isnan(wanted) or math.isnan(found):
        return math.isnan(wanted) and math.isnan(found)
    return math.isclose(found, wanted, rel_tol=relative, abs_tol=absolute)


OURS = frozenset(("stat_dtype", "nan", "pos_inf", "neg_inf"))  # keys that the reference has not
"""The reference computes Mean and Norm in the tensor's own dtype, and the norm of a 0-d tensor is its value."""


def differences(name: str, found: Json, wanted: Json, *, exact: float = 1e-6, loose: float = 1e-4) -> list[str]:
    """How a record differs from the reference's, in words; nothing where it may.

    Max and Min to ``exact``, Mean and Norm to ``loose`` of the largest magnitude, where the reference has them.
    """
    ours, theirs = dict(leaves(found)), dict(leaves(wanted))
    lines = []
    for path in dict.fromkeys([*theirs, *ours]):
        a, b = ours.get(path, "absent"), theirs.get(path, "absent")
        if not is_tensor(a) or not is_tensor(b):
            same = close(a, b, exact) if isinstance(a, float) and isinstance(b, float) else a == b
            if not same:
                lines.append(f"{name}{path}: {a}, reference {b}")
            continue
        top = max((abs(b[k]) for k in ("Max", "Min") if isinstance(b.get(k), (int, float))), default=0.0)
        top = top if math.isfinite(top) else 0.0
        for key in dict.fromkeys([*b, *a]):
            x, y = a.get(key, "absent"), b.get(key, "absent")
            if key in OURS and y == "absent":
                continue
            if key in ("Max", "Min"):
                same = close(x, y, exact, exact * top)
            elif key in ("Mean", "Norm"):
                y = abs(y) if key == "Norm" and b["shape"] == [] and y is not None else y
                same = y is None or close(x, y, loose, loose * top)
            else:
                same = x == y
            if not same:
                lines.append(f"{name}{path} {key}: {x}, reference {y}")
    return lines
