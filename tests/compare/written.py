"""Small dumps written by hand, for cases that a model would not give."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from numprobe.compare.result import CompareResult
from numprobe.compare.run import CompareOptions, compare

Entry = Mapping[str, object]


def tensor(values: object, dtype: str = "torch.float32", **more: object) -> dict[str, object]:
    """A leaf as a collector writes it, with figures in float64."""
    array = np.asarray(values)
    leaf: dict[str, object] = {"type": "torch.Tensor", "dtype": dtype, "shape": list(array.shape)}
    if array.size:
        wide = np.real(array).astype(np.float64)
        leaf |= {"Max": wide.max().item(), "Min": wide.min().item()}
        leaf |= {"Mean": wide.mean().item(), "Norm": float(np.linalg.norm(wide.ravel())), "stat_dtype": "float64"}
    else:
        leaf |= {"Max": None, "Min": None, "Mean": None, "Norm": None}
    if "int" in dtype or "bool" in dtype:
        leaf |= {"Max": array.max().item(), "Min": array.min().item(), "Mean": None, "Norm": None}
    return leaf | {"requires_grad": False} | more


def call(inputs: Sequence[object], outputs: Sequence[object], **kwargs: object) -> Entry:
    return {"input_args": list(inputs), "input_kwargs": kwargs, "output": list(outputs)}


def write(
    folder: Path, records: Mapping[str, Entry], parents: Mapping[str, str | None] | None = None, **header: object
) -> Path:
    """``folder/step0/rank0`` with these records; returns the step's folder."""
    place = folder / "step0" / "rank0"
    place.mkdir(parents=True)
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, **header}
    (place / "dump.json").write_text(json.dumps({**head, "data": records}))
    (place / "construct.json").write_text(json.dumps(parents or {}))
    return folder / "step0"


def save(step: Path, name: str, values: NDArray[np.generic]) -> str:
    """A tensor beside the dump; returns its ``data_name``."""
    folder = step / "rank0" / "dump_tensor_data"
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", values)
    return f"{name}.npy"


def compared(target: Path, golden: Path, **options: object) -> CompareResult:
    return compare(target, golden, CompareOptions(use_cache=False, jobs=1, **options)).result  # type: ignore[arg-type]
