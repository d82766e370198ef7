"""Values of a configuration as the settings need them, or an error that says which key holds what, and what it may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from numprobe.record.errors import NumprobeError
from numprobe.record.ranges import MAX_COUNT, parse_ranges

_SHOWN = 80  # characters of a value that an error quotes


@dataclass(frozen=True)
class Given:
    """A value as somebody wrote it: under which key (dotted), in which file (empty for an argument), and where warnings go."""

    key: str
    value: Any
    where: str = ""
    warnings: list[str] = field(default_factory=list)

    def at(self, key: str, value: Any) -> Given:
        """A value inside of this one."""
        return replace(self, key=f"{self.key}{key}", value=value)

    def warn(self, text: str) -> None:
        self.warnings.append(f"{self.where}: {text}" if self.where else text)

    @property
    def shown(self) -> str:
        text = repr(self.value)
        return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."

    def wrong(self, example: str) -> NumprobeError:
        """The error of a value of the wrong kind; ``example`` is how a right one is written, in no language."""
        return NumprobeError(
            "E-CFG-005",
            "{key}: {value} is not what belongs there",
            where=self.where,
            do="write for example {example}",
            key=self.key,
            value=self.shown,
            example=example,
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that this one is probably a slip of; empty if none is close."""
    return next(iter(get_close_matches(name, known, n=1)), "")


def members(
    holder: Given, known: Iterable[str], tolerated: Iterable[str], elsewhere: str, there: Iterable[str]
) -> dict[str, Given]:
    """The known members of an object, those of null left out as msProbe does; a warning for each that means nothing here."""
    prefix = f"{holder.key}." if holder.key else ""
    found: dict[str, Given] = {}
    for key, value in holder.value.items():
        if key in known:
            if value is not None:
                found[key] = replace(holder, key=prefix + key, value=value)
        elif key in there:
            holder.warn(f"{prefix + key!r} is ignored: {elsewhere}")
        elif key not in tolerated:
            near = nearest(str(key), known)
            holder.warn(f"unknown key {prefix + str(key)!r} is ignored" + (f"; did you mean {near!r}?" if near else ""))
    return found


def choice(*allowed: str) -> Callable[[Given], str]:
    """One of these words."""

    def check(given: Given) -> str:
        if given.value in allowed:
            return str(given.value)
        raise NumprobeError(
            "E-CFG-006",
            "{key}: {value} is no known value",
            where=given.where,
            do="one of: {allowed}",
            key=given.key,
            value=given.shown,
            allowed=", ".join(allowed),
        )

    return check


def flag(given: Given) -> bool:
    if isinstance(given.value, bool):
        return given.value
    raise given.wrong("true | false")


def text(given: Given) -> str:
    if isinstance(given.value, str) and given.value:
        return given.value
    raise given.wrong('"req-0"')


def path(given: Given) -> Path:
    if isinstance(given.value, Path) or (isinstance(given.value, str) and given.value):
        return Path(given.value)
    raise given.wrong('"./dump"')


def folder(given: Given) -> Path:
    """A path that leads to a folder."""
    found = path(given)
    if found.is_dir():
        return found
    raise NumprobeError(
        "E-CFG-011",
        "{key} {value} is no folder",
        where=given.where,
        do="check the path",
        key=given.key,
        value=str(found),
    )


def integer(given: Given, least: int | None = None) -> int:
    """A whole number, at least ``least``; true and false are none."""
    value = given.value
    if isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least):
        return value
    raise given.wrong("0" if least is None else f"{least}, {least + 1}, ...")


def texts(given: Given) -> tuple[str, ...]:
    if isinstance(given.value, (list, tuple)) and all(isinstance(one, str) for one in given.value):
        return tuple(given.value)
    raise given.wrong('["linear", "conv2d"]')


def numbers(given: Given) -> frozenset[int]:
    """Steps or ranks (CFG-2): whole numbers and ranges such as ``"3-5"``, both ends included; one may stand without a list."""
    value = given.value
    parts = value if isinstance(value, (list, tuple, range, set, frozenset)) else [value]
    chosen: set[int] = set()
    for part in parts:
        if isinstance(part, str):
            chosen.update(_range(given.at("", part)))
        elif isinstance(part, int) and not isinstance(part, bool) and 0 <= part <= MAX_COUNT:
            chosen.add(part)
        else:
            raise _no_numbers(given.at("", part))
    if len(chosen) > MAX_COUNT or max(chosen, default=0) > MAX_COUNT:
        raise _no_numbers(given)
    return frozenset(chosen)


def _range(given: Given) -> frozenset[int]:
    try:
        return parse_ranges(given.value, given.key)
    except NumprobeError:
        raise _no_numbers(given) from None


def _no_numbers(given: Given) -> NumprobeError:
    return NumprobeError(
        "E-CFG-007",
        "{key}: {value} is no list of numbers and ranges from 0 to {most}",
        where=given.where,
        do='write for example [0, 5, "8-15"]',
        key=given.key,
        value=given.shown,
        most=MAX_COUNT,
    )
