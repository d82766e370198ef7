"""The NaN-overflow skill: which rank and which operator made the first NaN or Inf, over all ranks of a dump.

::

    from numprobe.diagnose import nan_overflow

    found = nan_overflow.run("dump/step0", out="out")
    found.verdict, found.source_ranks, found.first.op_name
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numprobe.diagnose.nan_overflow.result import NanResult
    from numprobe.diagnose.nan_overflow.skill import NanOptions
    from numprobe.execution.stages import Listener


def run(
    dump: str | Path,
    out: str | Path | None = None,
    *,
    options: NanOptions | None = None,
    jobs: int | None = None,
    lang: str = "en",
    compat: bool = False,
    listener: Listener | None = None,
) -> NanResult:
    """Run the skill and write its folder (default ``./numprobe_out/nan-<UTC time>``).

    A dump of more than 32 MB is scanned by ``jobs`` worker processes (default: that of ``options``, else one a core, up to
    8); they do not import the script that calls this. ``jobs=1`` works in this process.

    Raises:
        NumprobeError: nothing readable at ``dump``, or ``out`` holds something else.
    """
    from numprobe.diagnose.nan_overflow.command import run_to_folder
    from numprobe.diagnose.nan_overflow.skill import NanOptions
    from numprobe.execution.stages import ignore

    options = options or NanOptions()
    if jobs is not None:
        options = replace(options, jobs=jobs)
    analysis, _ = run_to_folder(
        dump, options, Path(out) if out else None, lang=lang, compat=compat, listener=listener or ignore
    )
    return analysis.result


__all__ = ["run"]
