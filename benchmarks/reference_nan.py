"""The rules of msProbe's own tools, as their documentation and outputs show them, to score them on the same dumps.

Written from the published behaviour (specification NAN-3 to NAN-5 and section 3.3), not from their code:

- ``cross_rank``: a communication record is a source's if a top-level input has Max or Min NaN, else a receiver's if an
  output has. The answer is the first record name with a source, and its source ranks; no operator is named.
- ``overflow_check``: before the first communication record of each rank, the first record with clean top-level inputs
  and an abnormal output; if any rank has one, these are the answer. Else the lowest such record among those that follow
  communication, ordered by how many communication records precede it. Else the first one after the last.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMUNICATION = (
    *("send", "recv", "broadcast", "all_reduce", "reduce", "all_gather", "gather", "isend", "irecv", "scatter"),
    *("reduce_scatter", "all_to_all"),
)
IGNORED = ("Torch.empty", "Torch.fill")


@dataclass(frozen=True)
class Answer:
    """What such a tool reports: nothing (``ranks`` empty), or ranks and perhaps an operator."""

    ranks: tuple[int, ...] = ()
    op: str | None = None
    failed: str = ""


def load(step: Path) -> dict[int, dict[str, Any]]:
    """Every rank's ``data``, as ``json.load`` gives it; a rank that cannot be read is left out."""
    ranks: dict[int, dict[str, Any]] = {}
    for folder in sorted(step.iterdir()):
        digits = "".join(c for c in folder.name if c.isdigit()) if folder.name.startswith("rank") else ""
        try:
            ranks[int(digits) if digits else 0] = json.loads((folder / "dump.json").read_text())["data"]
        except (OSError, ValueError, KeyError):
            continue
    return ranks


def cross_rank(ranks: dict[int, dict[str, Any]]) -> Answer:
    """First communication record name with a source rank."""
    table: dict[str, list[int]] = {}
    for rank, data in ranks.items():
        for name, record in data.items():
            if name.startswith("Distributed.") and any(word in name for word in COMMUNICATION):
                sources = table.setdefault(name, [])
                if any(_nan(item) for item in record.get("input_args", ()) if isinstance(item, dict)):
                    sources.append(rank)
    for sources in table.values():
        if sources:
            return Answer(tuple(sorted(sources)))
    return Answer()


def overflow_check(ranks: dict[int, dict[str, Any]], complete: bool) -> Answer:
    """First origins; ``complete``: all three files of every rank are there, else the tool refuses to start."""
    if not complete:
        return Answer(failed="files missing or unreadable")
    early: dict[int, str] = {}
    later: list[tuple[int, int, str]] = []
    last: dict[int, str] = {}
    for rank, data in ranks.items():
        calls = sum(1 for name in data if name.startswith("Distributed."))
        seen = 0
        for name, record in data.items():
            if name.startswith("Distributed."):
                seen += 1
            if not _origin(name, record):
                continue
            if not seen:
                early.setdefault(rank, name)
            elif seen < calls:
                later.append((seen, rank, name))
            else:
                last.setdefault(rank, name)
    if early:
        return Answer(tuple(sorted(early)), early[min(early)])
    if later:
        _, rank, name = min(later)
        return Answer((rank,), name)
    if last:
        return Answer(tuple(sorted(last)), last[min(last)])
    return Answer()


def _origin(name: str, record: dict[str, Any]) -> bool:
    if any(word in name for word in IGNORED):
        return False
    inputs = [i for key in ("input_args", "input") for i in record.get(key) or () if isinstance(i, dict)]
    inputs += [i for i in (record.get("input_kwargs") or {}).values() if isinstance(i, dict)]
    outputs = [i for i in record.get("output") or () if isinstance(i, dict)]
    return not any(map(_abnormal, inputs)) and any(map(_abnormal, outputs))


def _nan(item: dict[str, Any]) -> bool:
    return any(str(item.get(key)).lower() == "nan" for key in ("Max", "Min"))


def _abnormal(item: dict[str, Any]) -> bool:
    return any(str(item.get(key)).lower() in ("nan", "inf", "-inf") for key in ("Max", "Min"))
