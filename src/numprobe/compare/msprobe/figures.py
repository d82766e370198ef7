"""The figures of two matched items: differences of their statistics, or metrics of their tensor files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from numprobe.compare.msprobe.columns import Mode
from numprobe.compare.msprobe.items import Cell, Item
from numprobe.compare.msprobe.rows import Figures
from numprobe.formats.tensors.open import open_tensor
from numprobe.formats.tensors.tensor import TensorFile
from numprobe.metrics.reference import statistics_columns, tensor_columns
from numprobe.record.errors import NumprobeError

TENSOR_FOLDER = "dump_tensor_data"


def figures_for(mode: Mode, target: Path, golden: Path, threads: int | None = None) -> Figures:
    """What :func:`~numprobe.compare.msprobe.rows.rows` asks for. ``target`` and ``golden`` are the folders of the dump.json."""
    if mode is not Mode.TENSOR:
        return statistics_figures
    target, golden = target / TENSOR_FOLDER, golden / TENSOR_FOLDER

    def of_files(one: Item, other: Item) -> Sequence[Cell]:
        try:
            return tensor_columns(_open(target, one), _open(golden, other), threads)
        except NumprobeError:  # cut short: told as msProbe tells it
            return tensor_columns(None, None)

    return of_files


def statistics_figures(target: Item, golden: Item) -> Sequence[Cell]:
    return statistics_columns(
        (target.max, target.min, target.mean, target.norm), (golden.max, golden.min, golden.mean, golden.norm)
    )


def _open(folder: Path, item: Item) -> TensorFile | None:
    try:
        return open_tensor(item.data_name, folder)
    except NumprobeError:
        return None
