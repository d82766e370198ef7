"""Two dumps of kernels as a comparison takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from numprobe.compare.kernels.msprobe import write_tables
from numprobe.compare.kernels.read import find_kernels, read_kernels
from numprobe.compare.kernels.records import write_records
from numprobe.compare.msprobe.files import timestamp

Folders = Mapping[tuple[int, int], Sequence[Path]]


@dataclass(frozen=True)
class KernelPair:
    """The folders of both sides by rank and step."""

    target: Folders
    golden: Folders

    def records(self, folder: Path) -> tuple[Path, Path]:
        """Both sides as dumps below ``folder``.

        Raises:
            NumprobeError: as :func:`~numprobe.compare.kernels.records.write_records`.
        """
        places = folder / "target", folder / "golden"
        for folders, place in zip((self.target, self.golden), places, strict=True):
            write_records(folders, place)
        return places

    def tables(
        self, folder: Path, ranks: frozenset[int] | None, steps: frozenset[int] | None, *, xlsx: bool = False
    ) -> None:
        """msProbe's tables, one a rank and step that both sides have and that is asked for; those of an earlier run are replaced.

        Raises:
            NumprobeError: a table of statistics cannot be read, E-OUT-002 the results cannot be written.
        """
        stamp = timestamp()
        for rank, step in sorted(self.target.keys() & self.golden.keys()):
            if (ranks is None or rank in ranks) and (steps is None or step in steps):
                for old in folder.glob(f"compare_result_{rank}_{step}_*"):
                    old.unlink()
                sides = [read_kernels(side[rank, step]) for side in (self.target, self.golden)]
                write_tables(folder, f"compare_result_{rank}_{step}_{stamp}", *sides, xlsx=xlsx)


def kernel_pair(target: str | Path, golden: str | Path) -> KernelPair | None:
    """The kernels at two places; None where there are none at one of them."""
    sides = [find_kernels(Path(path)) for path in (target, golden)]
    return KernelPair(*sides) if all(sides) else None
