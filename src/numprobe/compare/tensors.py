"""Leaves whose tensors lie on disk, measured element by element."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from numprobe.align.calls import Calls, Tensors
from numprobe.align.leaves import LeafPairs
from numprobe.compare.measure import DIGEST, FLOAT, INTEGER, NOTHING, REASON, REASONS, Measures
from numprobe.formats.tensors import TensorFile
from numprobe.metrics.distance import Distance, distance, shapes
from numprobe.metrics.sums import DEVICE_FAILED, Kernel, block_sums
from numprobe.record.errors import NumprobeError

AHEAD = 64  # pairs in work at once
LOOKED_AT = ("", "no_figures", "nonfinite", "padding")  # what only figures cannot say


def measure_tensors(
    measures: Measures, leaves: LeafPairs, target: Calls, golden: Calls, *, threads: int, device: str = ""
) -> None:
    """Replace estimates by what the tensors say, wherever both sides have a file. Equal digests need no look.

    Where a file that is named cannot be read the figures decide, if there are any; :attr:`Measures.problems` has the reason.
    ``device``: where torch computes; numpy does where it is empty.

    Raises:
        NumprobeError: E-CMP-016 and E-CMP-017 of the device.
    """
    files_t, files_g = target.values.files, golden.values.files
    if not files_t or not files_g:
        return
    rows = [
        (row, files_t[t], files_g[g])
        for row, (t, g) in enumerate(zip(leaves.target.tolist(), leaves.golden.tolist(), strict=True))
        if t in files_t and g in files_g and REASONS[measures.reason[row]] in LOOKED_AT
    ]
    folders = [calls.tensors for calls in (target, golden)]
    kernel = kernel_of(device)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(rows), AHEAD):  # bounded, so that an interrupt is not waited for
            part = rows[begin : begin + AHEAD]
            for (row, _, _), found in zip(
                part, pool.map(lambda r: _look(r, folders, measures, kernel), part), strict=True
            ):
                if isinstance(found, Distance):
                    _take(measures, row, found)
                elif found == "shape":
                    measures.reason[row] = REASON["shape"]
                elif found is not None:
                    measures.problems[row] = found
                    if measures.by[row] == NOTHING:
                        measures.reason[row] = REASON["file"]


def kernel_of(device: str) -> Kernel:
    """What computes a block of two tensors."""
    if not device:
        return block_sums
    from numprobe.metrics import on_device  # and torch

    return on_device.device(device).sums


def _look(
    row: tuple[int, str, str], folders: list[Tensors], measures: Measures, kernel: Kernel
) -> Distance | str | None:
    """The distance of one pair; a text says why there is none; None where nothing is to be measured."""
    number, *names = row
    if measures.by[number] == DIGEST and not measures.differs[number]:
        return None
    tensors: list[TensorFile] = []
    try:
        for folder, name in zip(folders, names, strict=True):
            tensors.append(folder.open(name))
        if shapes(tensors[0], tensors[1]) == "different":
            return "shape"
        return distance(tensors[0], tensors[1], threads=1, kernel=kernel)
    except NumprobeError as error:
        if error.code == DEVICE_FAILED:  # so it would with all the others
            raise
        side = ("target: ", "golden run: ", "")[len(tensors)]  # the last: it was opened, and then changed
        return f"{side}{error}"


def _take(m: Measures, row: int, d: Distance) -> None:
    m.details[row], m.reason[row] = d, 0
    m.from_tensors[row] = True
    m.nonfinite[row] = d.nonfinite_mismatch > 0
    if m.is_float[row] or "complex" in d.golden.dtype:
        m.by[row] = FLOAT
        m.differs[row] = d.differing > 0
        m.error[row] = d.relative_l2 if d.finite else math.nan if d.nonfinite_mismatch else 0.0
        m.local[row] = d.scaled_max
        m.rms[row] = d.rms
        m.numel[row] = d.numel
    else:
        m.by[row] = INTEGER
        m.differs[row] = d.differing > 0 or d.nonfinite_mismatch > 0


def columns(m: Measures) -> Iterator[tuple[str, np.ndarray[tuple[int], np.dtype[np.float64]]]]:
    """What only tensors tell, by row; NaN where there are none."""
    for name in ("one_minus_cosine", "max_abs", "max_relative", "p50", "p99", "mismatching", "max_ulp"):
        values = np.full(len(m), np.nan)
        for row, d in m.details.items():
            value = getattr(d, name)
            values[row] = np.nan if value is None else value
        yield name, values
