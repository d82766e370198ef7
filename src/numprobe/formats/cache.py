"""The per-rank cache in the user's cache folder: what a rerun need not read again.

An entry is keyed by the file's path, size and modification time and by the version of the code that made it, so a changed
dump is never answered from an old entry. A cache that cannot be written or read is no error: the work is done again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/numprobe``, ``%LOCALAPPDATA%\\numprobe`` or ``~/.cache/numprobe``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "numprobe"
    except RuntimeError:  # no home folder
        return Path(os.devnull)


def entry(folder: Path, files: list[Path], kind: str, version: int) -> Path | None:
    """Path of the entry that belongs to these files as they are now; None if one of them cannot be looked at."""
    digest = hashlib.blake2b(f"{kind}\0{version}".encode(), digest_size=16)
    for file in files:
        try:
            state = file.stat()
        except FileNotFoundError:
            digest.update(b"absent\0")
            continue
        except OSError:
            return None
        digest.update(f"{file.absolute()}\0{state.st_size}\0{state.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return folder / kind / f"{digest.hexdigest()}.msgpack"


def load(path: Path | None, kind: type[T]) -> T | None:
    if path is None:
        return None
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def store(path: Path | None, value: object) -> None:
    if path is None:
        return
    with contextlib.suppress(OSError, UnicodeEncodeError, OverflowError):  # text or numbers that it cannot hold
        part = path.with_suffix(f".{os.getpid()}.part")
        content = msgspec.msgpack.encode(value)
        try:
            try:
                part.write_bytes(content)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(content)
            part.replace(path)
        except OSError:  # no space left
            part.unlink(missing_ok=True)
