"""What a long job says about itself while it runs: one event a step forward, whoever is listening."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True, tag_field="kind", tag="progress"):
    """A stage's state. ``name`` is a message key; ``note`` is worded text, shown as it stands.

    ``state``: ``running`` | ``done`` | ``interrupted`` | ``failed``. ``total`` is 0 where the amount of work is unknown;
    ``eta_s`` is None until it can be estimated. ``elapsed_s`` counts from the start of the stage.
    """

    stage: int
    of: int
    name: str
    done: int = 0
    total: int = 0
    eta_s: float | None = None
    note: str = ""
    state: str = "running"
    elapsed_s: float = 0.0
