"""Max, Min, Mean and Norm of a tensor that may be larger than memory."""

from __future__ import annotations

import math

import numpy as np

from numprobe.formats.tensors import TensorFile
from numprobe.metrics.stream import BLOCK, reading


def figures_of(tensor: TensorFile) -> tuple[float, float, float, float]:
    """Max, Min, Mean and Norm in float64, block by block, of one element or more; of complex numbers by their sizes.

    Raises:
        NumprobeError: the file cannot be read.
    """
    highest, lowest, total, squares = -math.inf, math.inf, 0.0, 0.0
    with reading(tensor) as read, np.errstate(all="ignore"):
        for start in range(0, tensor.numel, BLOCK):
            block = np.asarray(read(start, min(BLOCK, tensor.numel - start)))
            part = (np.abs(block) if block.dtype.kind == "c" else block).astype(np.float64)
            highest, lowest = float(np.maximum(highest, part.max())), float(np.minimum(lowest, part.min()))
            total, squares = total + float(part.sum()), squares + float(np.square(part).sum())
    return highest, lowest, total / tensor.numel, math.sqrt(squares)
