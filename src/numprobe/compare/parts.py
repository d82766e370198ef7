"""What an interrupted run has finished, by pair of ranks: taken up again only where everything that went in is the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import msgspec

from numprobe._version import __version__
from numprobe.compare.rank import RankOutcome, RankTask
from numprobe.formats.layout import RankFolder


class _Stored(msgspec.Struct):
    """An outcome beside its part of the table: ``inputs`` stands for what it was made of, ``table`` for the bytes of the part."""

    inputs: str
    table: str
    outcome: RankOutcome


def done_before(task: RankTask, part: Path, inputs: str) -> RankOutcome | None:
    """The outcome of a pair, if it and its part of the table are whole and made of the same."""
    try:
        stored = msgspec.msgpack.decode(part.with_suffix(".msgpack").read_bytes(), type=_Stored)
        same = stored.inputs == inputs and stored.table == _digest(part.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return stored.outcome if same and (task.compat is None or task.compat.has(task.step, task.target)) else None


def store(part: Path, inputs: str, outcome: RankOutcome) -> None:
    """Beside a part that was written. Integers and texts that no msgpack holds are compared anew."""
    with suppress(OverflowError, UnicodeEncodeError):
        stored = _Stored(inputs, _digest(part.read_bytes()), outcome)
        part.with_suffix(".msgpack").write_bytes(msgspec.msgpack.encode(stored))


def inputs_of(task: RankTask) -> str:
    """A digest of the version, the options, and size and time of every file that is read for a pair of ranks."""
    options = replace(task, cache_to=None, threads=1, compat=None)
    found = blake2b(f"{__version__}\0{options!r}".encode("utf-8", "backslashreplace"), digest_size=16)
    for path in _files(task):
        found.update(repr((os.fspath(path), state(path))).encode("utf-8", "backslashreplace"))
    return found.hexdigest()


def state(path: Path) -> tuple[int, int] | None:
    """Size and time of a file; None where there is none."""
    try:
        facts = path.stat()
    except (OSError, ValueError):
        return None
    return facts.st_size, facts.st_mtime_ns


def members(task: RankTask) -> list[tuple[str, RankFolder]]:
    """The ranks of both sides, each with its side."""
    target, golden = (task.unit.target.ranks, task.unit.golden.ranks) if task.unit else ((task.target,), (task.golden,))
    return [*(("target", rank) for rank in target), *(("golden", rank) for rank in golden)]


def _files(task: RankTask) -> Iterator[Path]:
    further = [rank for rank in (task.noise, task.baseline) if rank is not None]
    for rank in (*(rank for _, rank in members(task)), *further):
        yield from (rank.dump, rank.construct, rank.stack)
        if task.tensors:
            for folder, folders, names in os.walk(rank.tensors):
                folders.sort()
                yield from (Path(folder, name) for name in sorted(names))
    for products in task.processing.products.values():
        yield from sorted({Path(file) for of_tensor in products.values() for _, file in of_tensor})


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
