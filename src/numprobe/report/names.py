"""Operator names on a page: always in full, broken after dots, with the telling part marked."""

from __future__ import annotations

from numprobe.record.names import parse_name

LONG = 47  # from here on a name may also break after an underscore


def telling_part(name: str) -> tuple[int, int]:
    """Start and end of the part that tells a record from its neighbours: the API, or the class of a module."""
    op = parse_name(name)
    if op.kind == "other" or not op.api:
        return 0, 0
    if op.is_module:
        start = len(op.prefix) + 1 + (len(op.path) + 1 if op.path else 0)
    else:
        start = name.find(op.api, len(op.prefix)) if op.prefix else 0
    return (start, start + len(op.api)) if name[start : start + len(op.api)] == op.api else (0, 0)


def pieces(name: str) -> list[str]:
    """The name cut where a line may break; joined, they are the name itself."""
    parts: list[str] = []
    begin = 0
    for index, letter in enumerate(name, 1):
        if letter == "." or (letter in "_/" and len(name) >= LONG):
            parts.append(name[begin:index])
            begin = index
    if begin < len(name):
        parts.append(name[begin:])
    return parts
