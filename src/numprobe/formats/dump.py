"""One door to every dump: ``open_dump(path)`` recognises what it is given and reads lazily."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from numprobe.formats import cache
from numprobe.formats.layout import DumpLayout, RankFolder, StepFolder, find_layout, none_readable
from numprobe.formats.msprobe.index import RankIndex
from numprobe.formats.msprobe.members import UndecodableMember, record_from
from numprobe.formats.msprobe.reference import Damage
from numprobe.formats.msprobe.scan import scan_file
from numprobe.formats.msprobe.structure import ModuleTree, Stacks, read_construct, read_stacks
from numprobe.formats.msprobe.values import ValueTable, read_values
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name
from numprobe.record.trace import Record, RunInfo

INDEX_VERSION = 2
LIVE_SECONDS = 1.0  # a file that is empty or cut off is looked at again if it was changed no longer ago


class _StoredIndex(msgspec.Struct):
    """A :class:`RankIndex` as the cache holds it: about 60 bytes a record."""

    info: tuple[str, str, str, str]
    names: list[str]
    start: bytes
    end: bytes
    flags: bytes
    size: int
    has_extrema: bool
    damage: tuple[int, str, str] | None
    repeated: list[str]


def load_index(file: Path, cache_to: Path | None = None) -> RankIndex:
    """The index of a dump.json, from the cache or by scanning.

    A file that grows while it is read is read once more; if it still changes, ``damage`` says ``live``.

    Raises:
        NumprobeError: as :func:`scan_file`.
    """
    place = cache.entry(cache_to, [file], "index", INDEX_VERSION) if cache_to else None
    stored = cache.load(place, _StoredIndex)
    index = _from_cache(stored) if stored is not None else None
    if index is not None:
        return index
    index, live = _scan_settled(file)
    if live:
        index.damage = index.damage or Damage(index.size, "", "live")
        return index
    if place is not None:
        damage = index.damage
        cache.store(
            place,
            _StoredIndex(
                (index.info.framework, index.info.task, index.info.level, index.info.grad_kind),
                index.names,
                index.start.tobytes(),
                index.end.tobytes(),
                np.stack([index.input, index.output, index.parameter]).tobytes(),
                index.size,
                index.has_extrema,
                (damage.offset, damage.record, damage.reason) if damage else None,
                index.repeated,
            ),
        )
    return index


def _from_cache(stored: _StoredIndex) -> RankIndex | None:
    """The index, or None where the entry is not whole."""
    rows = len(stored.names)
    if len(stored.start) != 8 * rows or len(stored.end) != 8 * rows or len(stored.flags) != 3 * rows:
        return None
    flags = np.frombuffer(stored.flags, np.uint8).reshape(3, -1)
    return RankIndex(
        RunInfo(*stored.info),
        stored.names,
        np.frombuffer(stored.start, np.int64),
        np.frombuffer(stored.end, np.int64),
        flags[0],
        flags[1],
        flags[2],
        stored.size,
        stored.has_extrema,
        Damage(*stored.damage) if stored.damage else None,
        stored.repeated,
    )


def _scan_settled(file: Path) -> tuple[RankIndex, bool]:
    """The index, and whether the file was still changing. The collector rewrites it after every thousand records."""
    before = _state(file)
    try:
        index = scan_file(file)
    except NumprobeError:
        young = abs(time.time() - before[1] / 1e9) < LIVE_SECONDS  # emptied a moment ago, to be written anew
        if _state(file) == before and not young:
            raise
    else:
        if _state(file) == before:
            return index, False
    time.sleep(0.2)
    before = _state(file)
    index = scan_file(file)
    return index, _state(file) != before


def _state(file: Path) -> tuple[int, int]:
    try:
        state = file.stat()
    except OSError:
        return (-1, -1)
    return state.st_size, state.st_mtime_ns


def unreadable(file: Path, error: OSError) -> NumprobeError:
    """What is said of a file that cannot be read, or cannot be any more."""
    return NumprobeError(
        "E-FMT-010",
        "{file} cannot be read: {reason}",
        where=str(file),
        do="check that the file exists and that you may read it",
        file=file.name,
        reason=error.strerror or str(error),
    )


@dataclass
class RankDump:
    """Lazy access to one rank of one step."""

    place: RankFolder
    cache_to: Path | None = None
    _open: io.FileIO | None = field(default=None, repr=False)

    @cached_property
    def index(self) -> RankIndex:
        return load_index(self.place.dump, self.cache_to)

    @cached_property
    def tree(self) -> ModuleTree:
        place = self.place
        return (
            ModuleTree(problem="outside", damage="outside")
            if place.construct.name in place.outside
            else read_construct(place.construct)
        )

    @cached_property
    def stacks(self) -> Stacks:
        place = self.place
        return Stacks({}, "outside") if place.stack.name in place.outside else read_stacks(place.stack)

    @cached_property
    def values(self) -> ValueTable:
        """Every leaf of every record, as columns.

        Raises:
            NumprobeError: E-FMT-010 the file cannot be read any more.
        """
        return read_values(self)

    def forget(self) -> None:
        """Drop what construct.json and stack.json say; it is read again where it is needed."""
        for name in ("tree", "stacks", "recomputed"):
            self.__dict__.pop(name, None)

    def look(self) -> tuple[RankIndex, ValueTable]:
        """Index and values, for another process: without what is made of the names there.

        Raises:
            NumprobeError: as :func:`load_index` and :attr:`values`.
        """
        index = self.index
        return index, replace(self.values, ops=[], names=index.names)

    def seen(self, found: tuple[RankIndex, ValueTable]) -> None:
        """Take over what :meth:`look` gave in another process."""
        self.index, self.values = found

    def share_names(self, other: RankDump) -> None:
        """Have the names of another dump in common, where they are the same: half of the memory of both."""
        values = self.values
        if values.names == other.values.names:
            self.index.names = values.names = other.values.names
            values.ops = other.values.ops
        elif not values.ops:
            values.ops = [parse_name(name) for name in values.names]

    @cached_property
    def recomputed(self) -> frozenset[str]:
        """Calls that activation checkpointing makes during backward, by their stacks."""
        return self.stacks.names_where(
            lambda frames: any("checkpoint" in f and ("recompute" in f or "in backward" in f) for f in frames),
            hint=b"checkpoint",
        )

    def find(self, name: str) -> int | None:
        """op_index of a record (the first one, where a name repeats)."""
        try:
            return self.index.names.index(name)
        except ValueError:
            return None

    def fresh(self) -> RankDump:
        """The same rank with nothing loaded, for a look that should leave nothing in memory."""
        return RankDump(self.place, self.cache_to)

    def records(self, positions: Sequence[int]) -> list[Record]:
        """Decode single records by their byte offsets.

        A record that cannot be decoded has no values. The file has to be as it was when it was indexed.

        Raises:
            NumprobeError: E-FMT-010 the file cannot be read any more.
        """
        found: list[Record] = []
        for i, offset, raw in self.raw(positions):
            try:
                found.append(record_from(self.index.names[i], i, raw, offset))
            except UndecodableMember:
                found.append(Record(parse_name(self.index.names[i]), i, (), offset, len(raw)))
        return found

    def raw(self, positions: Sequence[int]) -> Iterator[tuple[int, int, bytes]]:
        """(op_index, byte offset, JSON) of single records.

        Raises:
            NumprobeError: E-FMT-010 the file cannot be read any more.
        """
        starts, ends = self.index.start[positions].tolist(), self.index.end[positions].tolist()
        with self.kept_open() as file:
            for i, start, end in zip(positions, starts, ends, strict=True):
                file.seek(start)
                yield i, start, file.read(end - start)

    def text_of(self, positions: range) -> tuple[bytes, list[int], list[int]]:
        """What the file holds from the first to the last of neighbouring records, and where in it each begins and ends.

        Raises:
            NumprobeError: E-FMT-010 the file cannot be read any more.
        """
        if not positions:
            return b"", [], []
        starts, ends = self.index.start[positions], self.index.end[positions]
        first = int(starts[0])
        with self.kept_open() as file:
            file.seek(first)
            text = file.read(int(ends[-1]) - first)
        return text, (starts - first).tolist(), (ends - first).tolist()

    def record(self, position: int) -> Record:
        return self.records([position])[0]

    @contextmanager
    def kept_open(self) -> Iterator[io.FileIO]:
        """Inside, the dump.json stays open: for many single looks.

        Raises:
            NumprobeError: E-FMT-010 the file cannot be read any more.
        """
        if self._open is not None:
            yield self._open
            return
        try:
            with self.place.dump.open("rb", buffering=0) as self._open:
                yield self._open
        except OSError as error:
            raise unreadable(self.place.dump, error) from None
        finally:
            self._open = None


@dataclass(frozen=True)
class Dump:
    """A handle on a dump: its layout, and one lazy :class:`RankDump` a rank. Nothing is read until it is asked for."""

    layout: DumpLayout
    cache_to: Path | None = None

    @property
    def root(self) -> Path:
        return self.layout.root

    @property
    def steps(self) -> tuple[StepFolder, ...]:
        return self.layout.steps

    def rank(self, folder: RankFolder) -> RankDump:
        return RankDump(folder, self.cache_to)


def nothing_readable(where: Path, places: Sequence[RankFolder], reasons: Sequence[str]) -> NumprobeError:
    """The error of a step of which no rank could be read: that of the file where there is one only, else E-FMT-014."""
    if len(places) == 1 and not places[0].problem:
        try:
            load_index(places[0].dump)
        except NumprobeError as error:
            return error
    return none_readable(where, reasons)


def open_dump(path: str | Path, *, use_cache: bool = True) -> Dump:
    """Open what lies at ``path``: a step folder, a rank folder, ``proc<pid>``, a folder of steps or a single dump.json.

    Raises:
        NumprobeError: E-FMT-001 no such path, E-FMT-002 nothing to read there, E-FMT-003 folders of two jobs.
    """
    if not str(path):  # Path("") is the current folder
        raise NumprobeError("E-FMT-001", "no such file or folder", where="''", do="check the path")
    return Dump(find_layout(Path(path)), cache.cache_folder() if use_cache else None)
