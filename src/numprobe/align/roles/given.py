"""A mapping of modules that a user wrote or corrected, read back.

Forms: the csv that ``numprobe map -o`` writes (also ``mapping.csv`` of a run), what ``numprobe map --json`` prints,
``output_0_key_mapping.json`` (training key -> rollout key, or a list of them), and msProbe's ``cell_mapping.yaml``
(``path.Class: path.Class``). What a file does not name keeps its place; a row without place takes its records out.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from numprobe.align.calls import Calls
from numprobe.align.mapping_files import read_cells
from numprobe.align.roles.form import NORM_BEFORE
from numprobe.align.roles.rules import Role, Rules, roles_of, standard_rules
from numprobe.align.yaml_file import read_yaml
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name

HEAD = ("place", "train", "rollout")
_EXPERTS = ("router", "mlp", "experts", "gate_up", "gate", "up", "down")  # what a mixture is read from


@dataclass(frozen=True)
class Row:
    """Records of both sides that are one place; ``place`` is None where the file does not say which."""

    place: str | None
    train: tuple[str, ...]
    rollout: tuple[str, ...]


@dataclass(frozen=True)
class UnknownName:
    """A name of the file that no record of its side has, and those that come close; ``side`` is train, rollout or place."""

    side: str
    name: str
    close: tuple[str, ...] = ()


@dataclass(frozen=True)
class Given:
    """By module path, the role that the user gives it; None: no place at all."""

    train: Mapping[str, Role | None] = field(default_factory=dict)
    rollout: Mapping[str, Role | None] = field(default_factory=dict)
    unknown: tuple[UnknownName, ...] = ()


NOTHING_GIVEN = Given()


# --- the file --------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    """The rows of a mapping file.

    Raises:
        NumprobeError: E-RLC-010 it cannot be read, E-RLC-011 it is damaged or of another form; of YAML E-CMP-010 to E-CMP-013.
    """
    if path.suffix in (".yaml", ".yml"):
        return [Row(None, (old,), (new,)) for old, new in read_cells(read_yaml(path))]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise NumprobeError(
            "E-RLC-010",
            "the mapping file cannot be read: {reason}",
            where=str(path),
            do="check the path, and that the file is text in UTF-8",
            reason=getattr(error, "strerror", None) or str(error),
        ) from None
    return _from_json(path, text) if text.lstrip()[:1] in ("{", "[") else _from_csv(path, text)


def _damaged(path: Path, line: int, found: str) -> NumprobeError:
    return NumprobeError(
        "E-RLC-011",
        "line {line} of the mapping file has another form than it should",
        where=str(path),
        found="{content}",
        do="take the form that numprobe map -o FILE writes: place,train,rollout",
        line=line,
        content=found[:120],
    )


def _from_csv(path: Path, text: str) -> list[Row]:
    reader = csv.reader(io.StringIO(text), strict=True)
    rows = []
    try:
        head = next(reader, [])
        if not set(HEAD) <= set(head):
            raise _damaged(path, 1, ",".join(head))
        at = [head.index(name) for name in HEAD]
        for line in reader:
            if not any(cell.strip() for cell in line):
                continue
            if len(line) <= max(at):
                raise _damaged(path, reader.line_num, ",".join(line))
            place, train, rollout = (line[n].strip() for n in at)
            rows.append(Row(place.partition(" #")[0], _listed(train), _listed(rollout)))
    except csv.Error as error:
        raise _damaged(path, reader.line_num, str(error)) from None
    return rows


def _listed(cell: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in cell.split(";") if name.strip())


def _from_json(path: Path, text: str) -> list[Row]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, getattr(error, "lineno", 1), getattr(error, "msg", str(error))) from None
    if not isinstance(content, dict):
        raise _damaged(path, 1, text)
    if isinstance(content.get("mapping"), dict):
        found = content["mapping"].items()
        return [Row(str(place).partition(" #")[0], *(_names(path, of, side) for side in "ab")) for place, of in found]
    return [Row(None, (str(old),), _names(path, {"b": new}, "b")) for old, new in content.items()]


def _names(path: Path, of: object, side: str) -> tuple[str, ...]:
    """One name, or a list of them."""
    value = of.get(side, []) if isinstance(of, dict) else None
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _damaged(path, 1, json.dumps(of)[:80])
    return tuple(name for name in names if name)


# --- what it says of two dumps ---------------------------------------------------------------------------------------


def given_roles(
    rows: Sequence[Row], train: Sequence[Calls], rollout: Sequence[Calls], path: Path, rules: Rules | None = None
) -> Given:
    """The roles that a file gives to the modules of two runs.

    Raises:
        NumprobeError: E-RLC-012 none of the names in it is that of a record.
    """
    rules = rules or standard_rules()
    sides = [_Side(side, ranks, rules) for side, ranks in (("train", train), ("rollout", rollout))]
    known = [role for side in sides for role in side.roles.values() if role.known]
    places = {place_of(role): role for one in known for role in (*_wholes(one, rules), one)}
    for row in rows:
        paths = [side.resolved(names) for side, names in zip(sides, (row.train, row.rollout), strict=True)]
        if row.place == "":
            for side, of in zip(sides, paths, strict=True):
                side.free += of
            continue
        role = places.get(row.place) if row.place else _role_of_pair(sides, paths)
        if role is None and row.place and any(paths):
            close = tuple(get_close_matches(row.place, places, 2))
            sides[0].unknown.append(UnknownName("place", row.place, close))
        elif role is not None:
            for side, of in zip(sides, paths, strict=True):
                side.give(of, role, rules)
    unknown = tuple(name for side in sides for name in side.unknown)
    if rows and not any(side.named for side in sides):
        first = unknown[0] if unknown else UnknownName("train", "")
        raise NumprobeError(
            "E-RLC-012",
            "none of the names in the mapping file is that of a recorded module",
            where=str(path),
            found="{name}",
            do="give a mapping of these two dumps: numprobe map A B -o FILE",
            name=" ~ ".join((first.name, *first.close[:1])),
        )
    return Given(sides[0].all(), sides[1].all(), unknown)


def place_of(role: Role) -> str:
    """``layers.3.mlp.down`` -> as the mapping shows it: ``layers.3.down``."""
    layer = "" if role.layer is None else f"layers.{role.layer}"
    return ".".join(p for p in (role.tower, layer, role.part, role.name) if p)


class _Side:
    def __init__(self, name: str, ranks: Sequence[Calls], rules: Rules) -> None:
        self.name = name
        paths = list(dict.fromkeys(op.path for calls in ranks for op in calls.ops if op.kind == "module"))
        classes = {op.path: op.api for calls in ranks for op in calls.ops if op.kind == "module"}
        self.roles = dict(zip(paths, roles_of(paths, rules), strict=True))
        self.by_class = {f"{path}.{kind}" if path else kind: path for path, kind in classes.items()}
        self.given: dict[str, Role | None] = {}
        self.free: list[str] = []
        self.named = 0
        self.unknown: list[UnknownName] = []

    def resolved(self, names: Iterable[str]) -> list[str]:
        """Module paths of names: of records, of modules with or without their class."""
        return [path for name in names for path in self._resolved(name)]

    def _resolved(self, name: str) -> Iterator[str]:
        op = parse_name(name)
        if op.kind == "api":  # functions have no place
            return
        plain = op.path if op.is_module else self.by_class.get(name, name.removeprefix("Module."))
        if plain in self.roles:
            self.named += 1
            yield plain
        else:
            self.unknown.append(UnknownName(self.name, name, tuple(get_close_matches(plain, self.roles, 2, 0.5))))

    def give(self, paths: Iterable[str], role: Role, rules: Rules) -> None:
        for path in paths:
            if not _part_of(self.roles[path], role, rules):
                self.given[path] = replace(role, given=True)
            else:
                self.given.setdefault(path, self.roles[path])

    def all(self) -> dict[str, Role | None]:
        """What is not as it was anyway."""
        free: dict[str, Role | None] = {path: None for path in self.free if path not in self.given}
        return free | {path: role for path, role in self.given.items() if role != self.roles[path]}


def _role_of_pair(sides: Sequence[_Side], paths: Sequence[Sequence[str]]) -> Role | None:
    """The role of the first of them that is known; a new one of two that are not."""
    found = [side.roles[path] for side, of in zip(sides, paths, strict=True) for path in of]
    if not all(paths):
        return None
    known = [role for role in found if role.known]
    return known[0] if known else replace(found[0], known=True, given=True)


def _wholes(role: Role, rules: Rules) -> Iterator[Role]:
    """What a role is a part of, by itself."""
    for whole, parts in rules.merged.items():
        if role.name in parts:
            yield replace(role, name=whole)
    if role.name == "router":
        yield replace(role, name="moe", part="")


def _part_of(role: Role, whole: Role, rules: Rules) -> bool:
    """Is a role read as a part of another by itself: q of qkv, the router of a mixture, a norm in front of a linear?"""
    if not role.known or (role.layer, role.tower) != (whole.layer, whole.tower):
        return False
    if whole.name == "moe":
        return role.name in _EXPERTS or role.part.startswith("experts")
    if role.part != whole.part:
        return False
    parts = {whole.name, NORM_BEFORE.get(whole.name, ""), *rules.merged.get(whole.name, ())}
    return role.name in parts
