"""Range expressions: ``0,3,8-15``, as ``--rank`` and ``--step`` take them and the collector's configuration writes them."""

from __future__ import annotations

import re

from numprobe.record.errors import NumprobeError

MAX_COUNT = 1_000_000
_NUMBER = re.compile(r"[0-9]{1,18}")


def parse_ranges(text: str, option: str) -> frozenset[int]:
    """``"0,3,8-15"`` -> {0, 3, 8, ..., 15}. ``option`` names the option in the error, such as ``--rank``.

    Raises:
        NumprobeError: E-USE-004 for anything that is no list of numbers and ranges.
    """
    chosen: set[int] = set()
    for part in text.split(","):
        piece = part.strip()
        first, dash, last = piece.partition("-")
        if not _NUMBER.fullmatch(first) or (dash and not _NUMBER.fullmatch(last)):
            raise NumprobeError(
                "E-USE-004", f"{option} {text}: {piece!r} is no number or range", do="write 5 or 5-8; several: 0,3,8-15"
            )
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise NumprobeError(
                "E-USE-004",
                f"{option} {piece}: the range ends before it starts",
                do=f"write {high}-{low}; several: 0,3,8-15",
            )
        if high - low >= MAX_COUNT:
            raise NumprobeError("E-USE-004", f"{option} {piece}: more than a million", do="write a shorter range")
        chosen.update(range(low, high + 1))
        if len(chosen) > MAX_COUNT:
            raise NumprobeError("E-USE-004", f"{option}: more than a million", do="write shorter ranges")
    return frozenset(chosen)
