"""config.toml on disk: read, brought up to date, written whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from numprobe.agent.config.model import EXAMPLES, VERSION
from numprobe.record.errors import NumprobeError

Step = Callable[[MutableMapping[str, Any]], None]
LARGEST = 1 << 20  # bytes


def _no_change(document: MutableMapping[str, Any]) -> None:
    """A file that was written by hand has no number; its form is that of version 1."""


STEPS: dict[int, Step] = {0: _no_change}  # by the version that a step starts from


def read_text(file: Path) -> str | None:
    """The text, None if there is no file.

    Raises:
        NumprobeError: E-SET-001 it cannot be read.
    """
    try:
        if file.stat().st_size > LARGEST:
            raise ValueError(f"larger than {LARGEST} bytes")
        with file.open(encoding="utf-8-sig", newline="") as stream:  # line ends stay as they are
            return stream.read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NumprobeError(
            "E-SET-001",
            "the settings cannot be read: {reason}",
            where=str(file),
            do="check that it is a text file in UTF-8 that you may read",
            reason=getattr(error, "strerror", None) or str(error),
        ) from None


def parse(text: str, file: Path) -> dict[str, Any]:
    """TOML as plain data.

    Raises:
        NumprobeError: E-SET-002 it is no TOML.
    """
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        found: dict[str, Any] = toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise NumprobeError(
            "E-SET-002",
            "the settings are no TOML",
            where=str(file),
            found="{reason}",
            do="check quotes, brackets and equals signs there",
            reason=str(error) or type(error).__name__,
        ) from None
    return found


def bring_up_to_date(document: MutableMapping[str, Any], file: Path) -> int:
    """Change the document to the form of :data:`VERSION`; the version that it had.

    Raises:
        NumprobeError: E-SET-004 the version is no number, E-SET-007 it is newer than this numprobe knows.
    """
    version = document.get("version", 0)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise NumprobeError(
            "E-SET-004",
            "the value of {key} is wrong",
            where=str(file),
            do="write it like {example}",
            key="version",
            example=EXAMPLES["version"],
        )
    version = int(version)
    if version > VERSION:
        raise NumprobeError(
            "E-SET-007",
            "the settings have version {version}, and this numprobe knows {known}",
            where=str(file),
            do="install a newer numprobe, or name another file with NUMPROBE_CONFIG; this one was left as it is",
            version=version,
            known=VERSION,
        )
    for older in range(version, VERSION):
        STEPS[older](document)
        document["version"] = older + 1
    return version


def write(file: Path, text: str, *, backup_of: int | None = None) -> Path | None:
    """Put ``text`` in place of the file, for its owner alone; a link stays one. ``backup_of``: keep the file of that version
    beside it, at the path that is returned.

    Raises:
        NumprobeError: E-SET-008 it cannot be written; the file is as it was.
    """
    with _writing(file):
        place = file.resolve()
        if place.exists() and not place.is_file():  # /dev/null stays what it is
            raise OSError(errno.EINVAL, "no ordinary file")
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        backup = None
        if backup_of is not None:
            backup = _free(place.with_name(f"{place.name}.v{backup_of}.bak"))
            _create(backup, place.read_bytes())
        part = _free(place.with_name(f".{place.name}.{os.getpid()}.part"))
        try:
            _create(part, text.encode())
            part.replace(place)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        return backup


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One writer at a time, where the system has locks: two that set something at once lose nothing."""
    with _writing(file):
        folder = file.resolve().parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create(file: Path, content: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _free(file: Path) -> Path:
    """The path itself, or with a number that is free."""
    candidate, counter = file, 2
    while candidate.exists():
        candidate = file.with_name(f"{file.name}.{counter}")
        counter += 1
    return candidate


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NumprobeError(
            "E-SET-008",
            "the settings cannot be written: {reason}",
            where=str(file),
            do="check that you may write there, or name another file with NUMPROBE_CONFIG",
            reason=error.strerror or str(error),
        ) from None


def plain_document(file: Path) -> tuple[Mapping[str, Any], int | None]:
    """The settings of a file in today's form, and the version that they have there; None where there is no file.

    Raises:
        NumprobeError: as :func:`read_text`, :func:`parse`, :func:`bring_up_to_date`.
    """
    text = read_text(file)
    if text is None:
        return {}, None
    document = parse(text, file)
    return document, bring_up_to_date(document, file)
