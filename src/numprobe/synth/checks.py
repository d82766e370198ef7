"""What no simulation does."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from numprobe.record.errors import NumprobeError


def refuse_unknown(scenario: str, names: Collection[str]) -> None:
    """Fail on a scenario that there is not.

    Raises:
        NumprobeError: E-USE-008.
    """
    if scenario not in names:
        raise NumprobeError(
            "E-USE-008",
            "no scenario {scenario!r}",
            do="one of: {names}",
            scenario=scenario,
            names=", ".join(sorted(names)),
        )


def refuse_used(out: Path, used: bool) -> None:
    """Fail on a folder that holds a dump.

    Raises:
        NumprobeError: E-OUT-001.
    """
    if used:
        raise NumprobeError("E-OUT-001", "{out} holds a dump already", do="name a new folder", out=str(out))
