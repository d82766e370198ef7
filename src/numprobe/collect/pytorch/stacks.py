"""Call stacks, interned: a program calls from few places, so each is worded once."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType, FrameType

_OWN = str(Path(__file__).parents[2])  # src/numprobe
MAX_FRAMES = 256


class Stacks:
    """Numbers for call stacks; ``frames(number)`` words one as the reference does, innermost first."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._texts: dict[int, tuple[str, ...]] = {}
        self._places: list[
            list[tuple[CodeType, int]]
        ] = []  # keeps the code objects, so that their addresses stay theirs

    def here(self, skip: int) -> int:
        """The number of the stack above ``skip`` frames of the caller."""
        begin = frame = sys._getframe(skip + 1)
        key: list[int] = []
        while frame is not None and len(key) < 2 * MAX_FRAMES:
            key.append(id(frame.f_code))
            key.append(frame.f_lasti)  # the line is worked out for new stacks only
            frame = frame.f_back  # type: ignore[assignment]
        number = self._numbers.get(tuple(key))
        if number is None:
            number = self._numbers[tuple(key)] = len(self._places)
            self._places.append(_places(begin))
        return number

    def frames(self, number: int) -> tuple[str, ...]:
        known = self._texts.get(number)
        if known is not None:
            return known
        found = []
        for code, line in self._places[number]:
            text = "" if code.co_filename.startswith(_OWN) else linecache.getline(code.co_filename, line).strip()
            if text:
                found.append(f"File {code.co_filename}, line {line}, in {code.co_name}, \n {text}")
        self._texts[number] = tuple(found)
        return self._texts[number]


def _places(begin: FrameType) -> list[tuple[CodeType, int]]:
    frame: FrameType | None = begin
    places: list[tuple[CodeType, int]] = []
    while frame is not None and len(places) < MAX_FRAMES:
        places.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return places
