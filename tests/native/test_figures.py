"""The kernel of Max, Min, Mean and Norm against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from numprobe.native import kernels

if kernels is None:
    pytest.skip("the kernels are not compiled here", allow_module_level=True)

KINDS: list[Any] = [np.float32, ml_dtypes.bfloat16, np.float16]


def figures(values: NDArray[Any]) -> tuple[float, float, float, float] | None:
    assert kernels is not None
    found: tuple[float, float, float, float] | None = kernels.figures(
        values.ctypes.data, values.size, KINDS.index(values.dtype)
    )
    return found


def assert_right(values: NDArray[Any]) -> None:
    found = figures(values)
    exact = values.astype(np.float64)
    largest = float(np.abs(exact).max())
    if not np.isfinite(exact).all() or not (largest == 0 or 1e-12 < largest < 1e17):
        assert found is None
        return
    assert found is not None
    assert found[:2] == (exact.max(), exact.min())
    assert abs(found[2] - exact.mean()) <= 4e-7 * np.abs(exact).mean()
    assert found[3] == pytest.approx(math.sqrt(np.sum(exact**2)), rel=4e-7, abs=1e-40)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 31, 32, 33, 1023, 1024, 1025, 32_767, 32_768, 100_003])
def test_every_length(kind: Any, count: int) -> None:
    values = np.random.default_rng(count).normal(0.5, 2.0, count).astype(kind)
    assert_right(values)
    place = count * 2 // 3
    for wrong in (np.nan, np.inf, -np.inf):
        values[place] = wrong
        assert figures(values) is None


@given(st.sampled_from(KINDS), st.binary(min_size=2, max_size=300))
def test_every_pattern_of_bits(kind: Any, raw: bytes) -> None:
    size = np.dtype(kind).itemsize
    values = np.frombuffer(raw * size, kind).copy()
    with np.errstate(over="ignore", invalid="ignore"):
        assert_right(values)


def test_every_half() -> None:
    """Each number of 16 bits is read as numpy and ml_dtypes read it."""
    for kind in KINDS[1:]:
        for value in np.arange(1 << 16, dtype=np.uint16).view(kind):
            found = figures(np.array([value], kind))
            wide = float(value)
            if math.isfinite(wide) and (wide == 0 or 1e-12 < abs(wide) < 1e17):
                assert found is not None
                assert found[0] == found[1] == found[2] == wide
            else:
                assert found is None


@pytest.mark.parametrize(
    "arguments", [(), (0, 1, 0), (1 << 40, 0, 0), (1 << 40, -1, 0), (1 << 40, 1, 3), (1 << 40, 1, -1)]
)
def test_what_cannot_be_is_refused(arguments: tuple[int, ...]) -> None:
    assert kernels is not None
    with pytest.raises((TypeError, ValueError)):
        kernels.figures(*arguments)
