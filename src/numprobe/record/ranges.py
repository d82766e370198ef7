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
                "E-USE-004",
                "{option} {text}: {piece!r} is no number or range",
                do="write 5 or 5-8; several: 0,3,8-15",
                option=option,
                text=text,
                piece=piece,
            )
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise NumprobeError(
                "E-USE-004",
                "{option} {piece}: the range ends before it starts",
                do="write {last}-{first}; several: 0,3,8-15",
                option=option,
                piece=piece,
                first=low,
                last=high,
            )
        if high - low >= MAX_COUNT:
            raise NumprobeError(
                "E-USE-004",
                "{option} {piece}: more than a million",
                do="write a shorter range",
                option=option,
                piece=piece,
            )
        chosen.update(range(low, high + 1))
        if len(chosen) > MAX_COUNT:
            raise NumprobeError("E-USE-004", "{option}: more than a million", do="write shorter ranges", option=option)
    return frozenset(chosen)
