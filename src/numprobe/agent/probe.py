"""What lies at a path, by a quick look: no more than the head of one file is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from numprobe.align.roles.rules import standard_rules
from numprobe.formats.dump import open_dump
from numprobe.record.errors import NumprobeError
from numprobe.record.names import FORWARD, parse_name
from numprobe.report.run_folder import MANIFEST

HEAD = 1 << 21  # bytes of a dump.json that are looked at
MOST_DUMPS = 8  # below one folder
RUNS = {"nan": "nan_overflow", "rl": "rl_consistency", "compare": "compare"}  # skill of a manifest

_HEADER = re.compile(rb'"(framework|task|level)"\s*:\s*"([^"\\]{0,40})"')
_RECORD = re.compile(rb'"((?:Module|Cell)\.[^"\\]{1,400}\.(?:forward|backward|parameters_grad)\.?[0-9]*)"\s*:\s*[{\[]')
_API = re.compile(rb'"[A-Z][A-Za-z]{1,20}\.[^"\\]{1,200}\.[0-9]+\.(?:forward|backward)"\s*:\s*\{')
_DIGEST = re.compile(rb'"(?:md5|crc32|hash|xor)"\s*:\s*"')
_RESULT_FILES = {
    "compare_table": re.compile(r"(?:compare_result|multi_step_compare_result).*\.(?:csv|xlsx)", re.IGNORECASE),
    "table": re.compile(r".*\.(?:csv|xlsx)", re.IGNORECASE),
    "graph": re.compile(r".*\.vis\.db", re.IGNORECASE),
    "trend": re.compile(r"trend.*\.db", re.IGNORECASE),
}


@dataclass(frozen=True)
class Probe:
    """What was found. ``kind``: dump | dumps (a folder of several, see ``inside``) | run (a run's folder) | compare_table |
    table | graph | trend | missing | unknown. ``problem`` is what :func:`open_dump` says of what it cannot open.

    ``engine``: a framework of ``align/roles/rules.json`` or empty, by the names of modules in the head of one rank; ``side``:
    train, rollout or empty.
    """

    path: str
    kind: str
    steps: int = 0
    ranks: int = 0
    framework: str = ""
    task: str = ""
    level: str = ""
    modules: bool = False
    apis: bool = False
    digests: bool = False
    engine: str = ""
    side: str = ""
    skill: str = ""  # of a run
    inside: tuple[Probe, ...] = ()
    problem: NumprobeError | None = None


def probe(path: str) -> Probe:
    """Look at a path. Never fails: what cannot be read has a ``problem``."""
    try:
        place = Path(path).expanduser()
        if not place.exists():
            return Probe(path, "missing")
        run = _run_of(place)
        if run is not None:
            return Probe(path if run[0] == place else str(run[0]), "run", skill=run[1])
        if place.is_file():
            kind = next((k for k, pattern in _RESULT_FILES.items() if pattern.fullmatch(place.name)), "")
            if kind:
                return Probe(path, kind)
    except (OSError, RuntimeError, ValueError):
        return Probe(path, "missing")
    if path.startswith("~"):
        path = str(place)
    try:
        return _dump(path)
    except NumprobeError as error:
        inside = _inside(place)
        return Probe(path, "dumps", inside=inside) if inside else Probe(path, "unknown", problem=error)


def _run_of(place: Path) -> tuple[Path, str] | None:
    """The folder and the skill of a run: its folder, its report or its manifest may be named."""
    folder = place if place.is_dir() else place.parent if place.name in (MANIFEST, "report.html", "report.md") else None
    if folder is None or not (folder / MANIFEST).is_file():
        return None
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    skill = RUNS.get(manifest.get("skill", "")) if isinstance(manifest, dict) else None
    return (folder, skill) if skill else None


def _dump(path: str) -> Probe:
    dump = open_dump(path)
    ranks = [rank for step in dump.steps for rank in step.ranks]
    found = Probe(path, "dump", len(dump.steps), max((len(s.ranks) for s in dump.steps), default=0))
    readable = [rank for rank in ranks if not rank.problem and rank.size]
    if readable:
        with suppress(OSError), readable[0].dump.open("rb") as file:
            found = _looked_at(found, file.read(HEAD))
    return found


def _looked_at(found: Probe, head: bytes) -> Probe:
    said = {key.decode(): value.decode("utf-8", "replace") for key, value in _HEADER.findall(head[:4096])}
    names = [name.decode("utf-8", "replace") for name in _RECORD.findall(head)]
    modules = [op for name in names if (op := parse_name(name)).is_module]
    engine, side = standard_rules().framework(f"{op.path.rpartition('.')[2]}.{op.api}" for op in modules)
    return replace(
        found,
        framework=said.get("framework", ""),
        task=said.get("task", ""),
        level=said.get("level", ""),
        modules=bool(names),
        apis=_API.search(head) is not None,
        digests=_DIGEST.search(head) is not None,
        engine=engine,
        side="train" if any(op.direction != FORWARD for op in modules) else side,  # engines have no backward pass
    )


def _inside(folder: Path) -> tuple[Probe, ...]:
    """The dumps right below a folder that is none itself, in the order of their names: ``train`` and ``rollout``."""
    try:
        children = sorted(child for child in folder.iterdir() if child.is_dir() and not (child / MANIFEST).exists())
    except OSError:
        return ()
    found: list[Probe] = []
    for child in children[:64]:
        with suppress(NumprobeError):
            found.append(_dump(str(child)))
        if len(found) > MOST_DUMPS:
            return ()
    return tuple(found)


def opened_out(probes: Sequence[Probe]) -> list[Probe]:
    """The probes, with a folder of several dumps replaced by them."""
    return [one for found in probes for one in (found.inside or (found,))]
