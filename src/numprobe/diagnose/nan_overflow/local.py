"""Stage 2, one rank: from its files to the digest that all later stages work on."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from numprobe.diagnose.nan_overflow import apis
from numprobe.diagnose.nan_overflow.comm import comm_calls
from numprobe.diagnose.nan_overflow.complete import partners_of
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.surroundings import LOOK_BACK
from numprobe.diagnose.nan_overflow.walk import Walk, only_parameters
from numprobe.formats.dump import RankDump, unreadable
from numprobe.record.names import FORWARD, module_key, parse_name
from numprobe.record.nonfinite import DIRTY, Kinds
from numprobe.record.trace import INPUT, PARAMETER

_NAN, _DIRTY = int(Kinds.NAN), int(DIRTY)
_EDGE = 1 << 14
_COMMUNICATION = ("Distributed.", "MintDistributed.")


def digest_rank(dump: RankDump) -> RankDigest:
    """Read one rank: its communication calls, its unexplained events, its look-alikes."""
    place, index = dump.place, dump.index
    damage = index.damage
    digest = RankDigest(
        place.key,
        place.rank,
        status=index.status,
        reason=damage.reason if damage else "",
        reason_at=damage.offset if damage else -1,
        last_record=index.names[-1] if index.names else "",
        records=len(index),
        size=index.size,
        has_extrema=index.has_extrema,
        framework=index.info.framework,
        level=index.info.level,
        task=index.info.task,
        repeated=len(index.repeated),
        edges=edges_of(place.dump),
    )
    dirty = np.flatnonzero(index.output & _DIRTY)
    digest.dirty_records = int(np.count_nonzero((index.input | index.output | index.parameter) & _DIRTY))
    digest.first_dirty = int(dirty[0]) if len(dirty) else -1
    digest.backward_from = _first_backward(index.names)
    digest.program, digest.begins, digest.ends = _stage(index.names, digest)
    with dump.kept_open():
        positions = [i for i, n in enumerate(index.names) if n[0:1] in "DM" and n.startswith(_COMMUNICATION)]
        digest.calls = list(comm_calls((parse_name(index.names[i]), i, raw) for i, _, raw in dump.raw(positions)))
        digest.partners = partners_of(digest.calls)
        if len(dirty) or index.parameter.any():
            walk = Walk(dump, digest)
            walk.run()
            digest.events = walk.events
            digest.look_alikes = list(walk.look.values())
            if walk.events:
                _context(dump, digest)
    return digest


def _first_backward(names: list[str]) -> int:
    return next(
        (i for i, n in enumerate(names) if ".backward" in n and (n.endswith(".backward") or ".backward." in n)), -1
    )


def edges_of(file: Path) -> str:
    """blake2b of a file's first and last 16 kB: tells a changed input at little cost.

    Raises:
        NumprobeError: E-FMT-010 the file cannot be read any more.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        with file.open("rb") as content:
            digest.update(content.read(_EDGE))
            size = content.seek(0, os.SEEK_END)
            if size > _EDGE:
                content.seek(max(_EDGE, size - _EDGE))
                digest.update(content.read())
    except OSError as error:
        raise unreadable(file, error) from None
    return digest.hexdigest()


def _context(dump: RankDump, digest: RankDigest) -> None:
    """Figures that decide between a fault and a step that is meant to overflow, or one that began dirty."""
    index = dump.index
    names = index.names
    if digest.events and digest.events[0].kind == "parameter":
        digest.parameters, digest.dirty_parameters = _sampled_parameters(dump)
    digest.optimizer_records = sum(1 for p in dump.tree.parents.values() if p == "optimizer") or sum(
        1 for n in names[digest.backward_from :] if any(f".{word}" in n for word in apis.OPTIMIZER_STEPS)
    )
    nan_outputs = (parse_name(names[i]) for i in np.flatnonzero(index.output & _NAN).tolist()[:LOOK_BACK])
    digest.backward_only = all(e.phase != FORWARD for e in digest.events) and not any(
        op.direction == FORWARD and not apis.is_communication(op) and apis.is_kernel(op) for op in nan_outputs
    )
    for i, name in enumerate(names):
        op = parse_name(name)
        if op.kind == "api" and not (
            apis.is_communication(op) or apis.is_allocation(op) or apis.is_copy(op) or apis.is_fill(op)
        ):
            digest.first_computing = i
            break


def _stage(names: list[str], digest: RankDigest) -> tuple[str, bool, bool]:
    """What tells one pipeline stage from another: the first and the last forward module, or API where there are none."""
    last = digest.backward_from if digest.backward_from >= 0 else len(names)
    loss = any(apis.is_loss(parse_name(n)) for n in names[max(0, last - 16) : last])
    modules = [n for n in names[:last] if n.startswith(("Module.", "Cell."))]
    if modules:
        begin, *tail = (module_key(parse_name(n)).lower() for n in (modules[0], *modules[-8:]))
        head = any(word in path for path in tail for word in ("head", "output_layer", "loss"))
        return f"{begin} {tail[-1]}", "embed" in begin, head or loss
    operators = [op for n in names[:16] if (op := parse_name(n)).kind == "api" and apis.is_kernel(op)]
    begins = any("embedding" in op.api for op in operators)
    return f"{begins} {loss}", begins, loss


def _sampled_parameters(dump: RankDump) -> tuple[int, int]:
    """Of up to 64 forward records that read parameters, how many there are and how many read a non-finite one."""
    names = dump.index.names
    reads = [
        i
        for i, n in enumerate(names)
        if n.endswith(".forward") and apis.base(parse_name(n)).lower() in apis.PARAMETER_ARGUMENTS
    ] or [i for i, n in enumerate(names) if n.startswith(("Module.", "Cell.")) and f".{FORWARD}." in n]
    seen = dirty = 0
    for record in dump.records(reads[:: max(1, len(reads) // 64)]):
        values = [v for v in record.of(INPUT, PARAMETER) if v.is_tensor and only_parameters(record.name, record, [v])]
        seen += bool(values)
        dirty += any(v.kinds.dirty for v in values)
    return seen, dirty
