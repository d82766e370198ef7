"""Runs on disk: a run's folder with its manifest and its conclusion as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from numprobe.agent.probe import RUNS
from numprobe.compare.result import CompareResult
from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.diagnose.rl_consistency.result import RlResult
from numprobe.formats.near import near_path
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import MANIFEST, digest
from numprobe.report.terminal import shortened

Result: TypeAlias = "NanResult | RlResult | CompareResult"
_TYPES: dict[str, type[Result]] = {
    "nan_overflow": NanResult,
    "rl_consistency": RlResult,
    "compare": CompareResult,
}
_SCREENS = {  # loaded where a run has just ended
    "nan_overflow": "numprobe.diagnose.nan_overflow.page.screen",
    "rl_consistency": "numprobe.diagnose.rl_consistency.page.screen",
    "compare": "numprobe.compare.page.screen",
}
_LARGEST = 1 << 30  # bytes of a result.json


class Manifest(msgspec.Struct):
    """The part of ``run.json`` that answers need."""

    skill: str
    inputs: dict[str, Any]
    status: str = ""
    options: dict[str, Any] = {}
    artifacts: list[dict[str, Any]] = []
    input_files: list[dict[str, Any]] = []  # of the NaN skill: file, size, mtime_ns, edges_blake2b


@dataclass(frozen=True)
class FinishedRun:
    """A run that reached a conclusion. ``skill`` is its id."""

    folder: Path
    skill: str
    manifest: Manifest
    result: Result = field(repr=False)

    @cached_property
    def inputs(self) -> dict[str, str]:
        return {name: path for name, path in self.manifest.inputs.items() if isinstance(path, str)}

    @property
    def told(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        screen = import_module(_SCREENS[self.skill])
        found: dict[str, Any] = msgspec.json.decode(screen.render_json_line(self.result, self.folder.as_posix()))
        return found

    def artifact(self, name: str) -> Path | None:
        """A file of the run as the run wrote it; None where it is gone, was changed, or is none of the run's."""
        if Path(name).name != name or name not in (listed := _digests(self.manifest)):
            return None
        file = self.folder / name
        try:
            return file if file.is_file() and digest(file) == listed[name] else None
        except OSError:
            return None


def load_run(path: str | Path) -> FinishedRun:
    """The run of a folder; its report or its manifest may be named too.

    Raises:
        NumprobeError: E-AGT-003 no run there, E-AGT-004 it reached no conclusion, E-AGT-005 its files are damaged.
    """
    try:
        folder = Path(path).expanduser()
        if folder.is_file():
            folder = folder.parent
        manifest = msgspec.json.decode(_content(folder / MANIFEST), type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _damaged(folder / MANIFEST, error) from None
    except (OSError, ValueError, RuntimeError):
        near = near_path(path)
        raise NumprobeError(
            "E-AGT-003",
            "no run here: {file} is not there or cannot be read",
            where=shortened(str(path)),
            do="did you mean {near}?" if near else "name the folder that a run printed last, as numprobe_out/nan-...",
            file=MANIFEST,
            near=near,
        ) from None
    skill = RUNS.get(manifest.skill, "")
    if not skill:
        raise NumprobeError(
            "E-AGT-003",
            "a run of {skill}, which answers no questions",
            where=str(folder),
            do="name a run of {skills}",
            skill=manifest.skill,
            skills=", ".join(sorted(RUNS)),
        )
    file = folder / "result.json"
    if manifest.status != "done" or not file.is_file():
        raise NumprobeError(
            "E-AGT-004",
            "the run reached no conclusion: {status}",
            where=str(folder),
            do="run the same command again with -o {out}: it goes on from there",
            status=manifest.status or "running",
            out=str(folder),
        )
    try:
        # not strict: the file has NaN and infinities as text
        result = msgspec.convert(msgspec.json.decode(_content(file)), _TYPES[skill], strict=False)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise _damaged(file, error) from None
    run = FinishedRun(folder, skill, manifest, result)
    if run.artifact(file.name) is None:
        raise _damaged(file, ValueError("it is not what the run wrote"))
    return run


def _digests(manifest: Manifest) -> dict[str, str]:
    return {
        one["name"]: one["blake2b"]
        for one in manifest.artifacts
        if isinstance(one.get("name"), str) and isinstance(one.get("blake2b"), str)
    }


def _content(file: Path) -> bytes:
    """The bytes of a regular file: of a pipe or a device there may be no end.

    Raises:
        OSError: it is none, or cannot be read, or is larger than 1 GiB.
        ValueError: the path cannot be one.
    """
    if not file.is_file():
        raise FileNotFoundError(str(file))
    if file.stat().st_size > _LARGEST:
        raise OSError("larger than 1 GiB")
    return file.read_bytes()


def _damaged(file: Path, error: Exception) -> NumprobeError:
    return NumprobeError(
        "E-AGT-005",
        "{file} is damaged: {reason}",
        where=str(file),
        do="run the skill again into a new folder",
        file=file.name,
        reason=str(error),
    )


def latest_run(root: Path) -> Path | None:
    """The run below ``root`` (``numprobe_out``) that ended last."""
    try:
        folders = [f for f in root.iterdir() if (f / "result.json").is_file() and (f / MANIFEST).is_file()]
    except OSError:
        return None
    return max(folders, key=lambda f: ((f / MANIFEST).stat().st_mtime_ns, f.name), default=None)
