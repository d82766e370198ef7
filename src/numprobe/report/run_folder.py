"""One folder a run: a manifest, the artifacts of its stages, the reports.

``run.json`` is the only file with clock times, host-dependent paths and versions; every other file is the same bytes for
the same input, options and version.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from numprobe._version import __version__
from numprobe.record.errors import NumprobeError
from numprobe.report.terminal import encodable, printable

MANIFEST = "run.json"
NO_ROOM = {getattr(errno, name, 0) for name in ("ENOSPC", "EDQUOT", "EFBIG")}


OUT = Path("numprobe_out")  # where runs are written if nothing else is said


def default_folder(skill: str, root: Path = OUT) -> Path:
    """``./numprobe_out/<skill>-<UTC time>``, with a counter where one of that second exists."""
    stem = f"{skill}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    folder = root / stem
    counter = 2
    while folder.exists():
        folder = root / f"{stem}-{counter}"
        counter += 1
    return folder


@dataclass
class RunFolder:
    """An output folder and its manifest. ``status``: running | done | interrupted | failed."""

    path: Path
    manifest: dict[str, Any]
    artifacts: list[str] = field(default_factory=list)

    def write_text(self, name: str, text: str) -> None:
        part = self.path / f".{name}.part"
        with writing(self.path):
            try:
                part.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
                part.replace(self.path / name)
            except BaseException:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
                raise
        if name not in self.artifacts and name != MANIFEST:
            self.artifacts.append(name)

    def write_json(self, name: str, value: object) -> None:
        """Strict JSON in UTF-8: NaN and infinities are the strings ``nan``, ``inf``, ``-inf``."""
        text = json.dumps(plain(value), ensure_ascii=False)
        self.write_text(
            name, msgspec.json.format(text, indent=1) + "\n"
        )  # json.dumps takes ten times as long to indent

    def write_csv(self, name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table whose cells are data to a spreadsheet too: text that would be a formula there has a ``'`` in front."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(head)
        writer.writerows([_cell(value) for value in row] for row in rows)
        self.write_text(name, out.getvalue())

    def discard(self) -> None:
        """Take away the folder of a run that has not written anything but its manifest."""
        with suppress(OSError):
            others = [part for part in self.path.iterdir() if part.name != MANIFEST]
            if all(part.is_dir() and not any(part.iterdir()) for part in others):
                for part in others:
                    part.rmdir()
                (self.path / MANIFEST).unlink()
                self.path.rmdir()

    def finish(self, status: str, **more: object) -> None:
        self.manifest.update(more)
        self.manifest["status"] = status
        self.manifest["ended"] = _now()
        with writing(self.path):
            self.manifest["artifacts"] = [{"name": n, "blake2b": digest(self.path / n)} for n in self.artifacts]
        self.write_json(MANIFEST, self.manifest)


def digest(file: Path) -> str:
    """What the manifest says of an artifact as ``blake2b``."""
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as content:
        while piece := content.read(1 << 20):  # tables may be of gigabytes
            digest.update(piece)
    return digest.hexdigest()


def open_run(skill: str, out: Path | None, inputs: dict[str, object], options: dict[str, object]) -> RunFolder:
    """Create the folder, or take up one of an earlier run with the same inputs and options.

    Raises:
        NumprobeError: E-OUT-001 the folder holds something else, E-OUT-002 it cannot be written.
    """
    folder = out or default_folder(skill)
    same = {"skill": skill, "inputs": plain(inputs), "options": plain(options)}
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise NumprobeError(
                "E-OUT-001", "the output is a file, not a folder", where=str(folder), do="choose another -o"
            )
        if folder.exists() and any(folder.iterdir()):
            _same_run(folder, same)
        folder.mkdir(parents=True, exist_ok=True)
        run = RunFolder(folder, {**same, "version": __version__, "status": "running", "begun": _now()})
        run.write_json(MANIFEST, run.manifest)
    return run


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Inside, only the output is read and written: an error of the operating system becomes E-OUT-002."""
    try:
        yield
    except OSError as error:
        raise NumprobeError(
            "E-OUT-002",
            "the output folder cannot be written: {reason}",
            where=str(folder),
            do="free space there, or choose another -o" if error.errno in NO_ROOM else "choose another -o",
            reason=error.strerror or str(error),
        ) from None


def _same_run(folder: Path, same: dict[str, object]) -> None:
    try:
        before = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = {}
    if not isinstance(before, dict) or any(before.get(k) != v for k, v in same.items()):
        raise NumprobeError(
            "E-OUT-001",
            "the output folder is not empty and holds no run of this input with these options",
            where=str(folder),
            do="choose another -o, or none to get a new folder",
        )


def plain(value: object) -> Any:
    """Builtin types only, for strict JSON in UTF-8: non-finite floats as strings, other bytes in names escaped."""
    return _plain(msgspec.to_builtins(value, str_keys=True))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {encodable(k) if isinstance(k, str) else k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value)
    formula = text.startswith(("=", "+", "-", "@")) and text != "-inf"
    return f"'{text}" if formula else text


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
