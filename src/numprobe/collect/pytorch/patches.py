"""Taking replaced attributes away again, in whatever order several collectors, and the program, replaced them."""

from __future__ import annotations

from typing import Any

INHERITED = object()  # there was nothing at that place itself


def put_back(owner: Any, attribute: str, ours: Any, before: Any) -> None:
    """Undo the replacement of ``owner.attribute`` by the function ``ours``; ``before`` is what was there.

    Where somebody has replaced it again since, theirs stays, and calls what is beneath through ours, which then records no more.
    """
    now = vars(owner).get(attribute) if hasattr(owner, "__dict__") else getattr(owner, attribute)
    if now is not ours:
        ours.__numprobe_beneath__ = before
        return
    while hasattr(before, "__numprobe_beneath__"):  # of a collector that was closed meanwhile
        before = before.__numprobe_beneath__
    if before is INHERITED:
        delattr(owner, attribute)
    else:
        setattr(owner, attribute, before)
