"""What may have been meant by a path at which nothing lies."""

from __future__ import annotations

import difflib
from itertools import islice
from pathlib import Path

MOST_ENTRIES = 10_000  # of a folder
LIKE_ENOUGH = 0.6


def near_path(path: str | Path) -> str:
    """The path with its first part that is not there replaced by the name beside it that is most like it; empty where none is.

    What follows that part is kept where it is there too.
    """
    try:
        given = Path(path).expanduser()
        parents = [parent for parent in given.parents if parent.is_dir()]
        if given.exists() or not parents:
            return ""
        missing, *rest = given.relative_to(parents[0]).parts
        names = {entry.name.lower(): entry.name for entry in islice(parents[0].iterdir(), MOST_ENTRIES)}
        close = difflib.get_close_matches(missing.lower(), names, n=1, cutoff=LIKE_ENOUGH)
        if not close:
            return ""
        found = parents[0] / names[close[0]]
        return str(found.joinpath(*rest) if found.joinpath(*rest).exists() else found)
    except (
        OSError,
        ValueError,
        RuntimeError,
    ):  # a folder that may not be read, a name too long, a user that there is not
        return ""
