"""The figures of two matched items: differences of their statistics, or metrics of their tensor files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numprobe.align.calls import Tensors
from numprobe.compare.msprobe.columns import Mode
from numprobe.compare.msprobe.items import Cell, Item
from numprobe.compare.msprobe.rows import Figures
from numprobe.metrics.reference import Columns, block_columns, statistics_columns, tensor_columns
from numprobe.metrics.stream import Tensor
from numprobe.metrics.sums import DEVICE_FAILED
from numprobe.record.errors import NumprobeError

if TYPE_CHECKING:
    from numprobe.compare.custom import PairMetrics


def figures_for(mode: Mode, target: Tensors, golden: Tensors, threads: int | None = None, device: str = "") -> Figures:
    """What :func:`~numprobe.compare.msprobe.rows.rows` asks for. ``target`` and ``golden`` open the tensors of a side."""
    if mode is not Mode.TENSOR:
        return statistics_figures
    columns = _columns(device)

    def of_files(one: Item, other: Item) -> Sequence[Cell]:
        try:
            return tensor_columns(_open(target, one), _open(golden, other), threads, columns)
        except NumprobeError as error:  # cut short: told as msProbe tells it
            if error.code == DEVICE_FAILED:
                raise
            return tensor_columns(None, None)

    return of_files


def with_custom(figures: Figures, custom: PairMetrics) -> Figures:
    """The figures, and behind them those of the user's own metrics. NaN is an empty cell, as msProbe writes it."""

    def of_files(one: Item, other: Item) -> Sequence[Cell]:
        cells = custom.of(one.data_name, other.data_name)
        return [*figures(one, other), *("" if cell != cell else cell for cell in cells)]

    return of_files


def _columns(device: str) -> Columns:
    if not device:
        return block_columns
    from numprobe.metrics import on_device

    return on_device.device(device).columns


def statistics_figures(target: Item, golden: Item) -> Sequence[Cell]:
    return statistics_columns(
        (target.max, target.min, target.mean, target.norm), (golden.max, golden.min, golden.mean, golden.norm)
    )


def _open(tensors: Tensors, item: Item) -> Tensor | None:
    try:
        return tensors.open(item.data_name)
    except NumprobeError:
        return None
