"""Kernels as a dump of modules, so that everything that reads dumps reads them: ``Cell.<name>.<type>.forward.<n>``."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numprobe.compare.kernels.read import INPUT, Kernel, numbered, read_kernels
from numprobe.formats.tensors import open_tensor
from numprobe.metrics.figures import figures_of
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import writing

Leaf = dict[str, Any]
FOUR = ("Max", "Min", "Mean", "Norm")


def write_records(folders: Mapping[tuple[int, int], Sequence[Path]], out: Path) -> None:
    """Write ``out/step<s>/rank<r>/dump.json`` for every rank and step, with a link to their tensors.

    Raises:
        NumprobeError: as :func:`~numprobe.compare.kernels.read.read_kernels`; E-OUT-002 it cannot be written.
    """
    for (rank, step), places in folders.items():
        kernels = read_kernels(places)
        root = Path(os.path.commonpath([place.absolute() for place in places]))
        tensors = all(kernel.figures is None for kernel in kernels)
        content = {
            "task": "tensor" if tensors else "statistics",
            "level": "L0",
            "framework": "mindspore",
            "dump_data_dir": str(root) if tensors else None,
            "data": _records(kernels, root),
        }
        folder = out / f"step{step}" / f"rank{rank}"
        with writing(out):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "dump.json").write_text(json.dumps(content), encoding="utf-8")
            link = folder / "dump_tensor_data"
            if tensors and not link.is_symlink():
                link.symlink_to(root, target_is_directory=True)


def _records(kernels: Sequence[Kernel], root: Path) -> dict[str, object]:
    """The k-th of each input and output of a task are one call; calls of one name are numbered in the order of time."""
    calls: dict[tuple[str, str, int, int], list[Kernel]] = defaultdict(list)
    for number, kernel in numbered(kernels):
        calls[kernel.type, kernel.name, kernel.task, number].append(kernel)
    records: dict[str, object] = {}
    counts: dict[str, int] = defaultdict(int)
    for (kind, name, _, _), parts in calls.items():  # the first of each in the order of time
        path = f"Cell.{name}.{kind}.forward"
        sides: dict[str, list[Leaf | None]] = {}
        for io in ("input", "output"):
            slots = {part.slot: _leaf(part, root) for part in parts if part.io == io}
            sides[io] = [slots.get(slot) for slot in range(max(slots, default=-1) + 1)]
        records[f"{path}.{counts[path]}"] = {
            "input_args": sides[INPUT],
            "input_kwargs": {},
            "output": sides["output"],
        }
        counts[path] += 1
    return records


def _leaf(kernel: Kernel, root: Path) -> Leaf:
    if kernel.figures is not None:
        figures = dict(zip(FOUR, kernel.figures, strict=True))
        return {"type": "mindspore.Tensor", "dtype": kernel.dtype, "shape": list(kernel.shape or ()), **figures}
    leaf: Leaf = {"type": "mindspore.Tensor", "data_name": kernel.file.absolute().relative_to(root).as_posix()}
    none = dict.fromkeys(FOUR)
    try:
        tensor = open_tensor(kernel.file)
        figures = dict(zip(FOUR, figures_of(tensor), strict=True)) if tensor.numel else none
    except NumprobeError:  # told where it is compared
        return {**leaf, "dtype": "Float32", "shape": None, **none}
    name = str(tensor.element)
    dtype = name.capitalize().replace("Uint", "UInt").replace("Bfloat", "BFloat")
    return {**leaf, "dtype": dtype, "shape": list(tensor.shape), **figures, "stat_dtype": "float64"}
