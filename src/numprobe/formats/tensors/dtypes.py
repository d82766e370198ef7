"""How the elements of each dtype lie in files, and what numpy calls them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from numprobe.record.dtypes import short_dtype

DType = np.dtype[Any]

# By the short names of record/dtypes.py. What PyTorch calls torch.<key>, or what short_dtype makes of it.
STORED: dict[str, DType] = {
    **{
        name: np.dtype(name)
        for name in (
            "bool",
            *("int8", "int16", "int32", "int64"),
            *("uint8", "uint16", "uint32", "uint64"),
            *("complex64", "complex128"),
        )
    },
    "fp64": np.dtype("float64"),
    "fp32": np.dtype("float32"),
    "fp16": np.dtype("float16"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
    "complex32": np.dtype([("real", "float16"), ("imag", "float16")]),
}
SHORT: dict[DType, str] = {dtype: name for name, dtype in STORED.items()}


def stored_as(name: str) -> DType | None:
    """How a dtype of any framework's spelling is stored, None where numpy has nothing for it."""
    return STORED.get(short_dtype(name))


def element_type(stored: DType) -> DType:
    """The dtype of the arrays that a reader gives: native byte order, complex32 widened to complex64."""
    return np.dtype(np.complex64) if stored.names else stored.newbyteorder("=")


def decode(raw: NDArray[Any]) -> NDArray[Any]:
    """Elements as stored, flat -> elements to compute with; the same array where nothing is to be done."""
    stored = raw.dtype
    if stored.names:
        return raw.view(np.float16).astype(np.float32).view(np.complex64)
    if stored.kind == "b":  # any byte but 0 is true, but numpy takes different ones to be different
        return np.not_equal(raw.view(np.uint8), 0)
    return raw if stored.isnative else raw.astype(stored.newbyteorder("="))
