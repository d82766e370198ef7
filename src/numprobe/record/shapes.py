"""Shapes as dumps give them: untrusted lists."""

from __future__ import annotations

from collections.abc import Sequence

MAX_DIMS = 64
MAX_NUMEL = 1 << 60


def clean_shape(value: object) -> tuple[int, ...] | None:
    """A shape, or None where the value cannot be one (not a list of non-negative integers, too many dimensions)."""
    if not isinstance(value, (list, tuple)) or len(value) > MAX_DIMS:
        return None
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value):
        return None
    return tuple(value)


def numel(shape: Sequence[int] | None) -> int | None:
    """Number of elements; None for an unknown shape or one beyond 2**60 elements, which no tensor has."""
    if shape is None:
        return None
    n = 1
    for d in shape:
        n *= d
        if n > MAX_NUMEL:
            return None
    return n
