"""torch on a device against the numpy kernels: any dtypes, any values, and devices that are not there."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.formats.tensors import open_tensor
from numprobe.metrics import on_device, stream
from numprobe.metrics.distance import Distance, distance
from numprobe.metrics.on_device import device
from numprobe.metrics.reference import tensor_columns
from numprobe.record.errors import NumprobeError

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
OTHERS = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64, np.complex64, np.complex128]
VALUES = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    448.0,
    460.0,
    464.0,
    470.0,
    480.0,
    1e-3,
    np.inf,
    -np.inf,
    np.nan,
    6e4,
    1e38,
    1e-40,
    1e160,
]
NUMBERS = st.sampled_from(VALUES) | st.floats(-1e60, 1e60).map(lambda x: x if abs(x) > 1e-60 else 0.0)
CLOSE = 1e-12


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def there(request: pytest.FixtureRequest) -> on_device.Device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return device(request.param)


def assert_same(found: Distance, expected: Distance) -> None:
    """Counts, places and extremes are equal, sums to 1e-12 of the sum of sizes."""
    sizes = {"mean_error": expected.scaled_max, "one_minus_cosine": min(expected.relative_l2, 1e9) ** 2}
    for one, other in ((found, expected), (found.target, expected.target), (found.golden, expected.golden)):
        for field in dataclasses.fields(one):
            value, wanted = getattr(one, field.name), getattr(other, field.name)
            if not isinstance(wanted, float):
                assert dataclasses.is_dataclass(wanted) or value == wanted, field.name
                continue
            size = sizes.get(field.name, 0.0)
            if field.name == "mean" and not math.isnan(other.max):  # type: ignore[union-attr]
                size = max(abs(other.max), abs(other.min))  # type: ignore[union-attr]
            assert value == pytest.approx(wanted, rel=CLOSE, abs=CLOSE * min(size, 1e300), nan_ok=True), field.name


def assert_same_cells(found: Sequence[float | str], expected: Sequence[float | str]) -> None:
    for cell, wanted in zip(found, expected, strict=True):
        assert cell == (wanted if isinstance(wanted, str) else pytest.approx(wanted, rel=CLOSE, abs=CLOSE))


def pair(target: Any, golden: Any) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    values = np.abs(rng.standard_normal(5000) * 9)
    with np.errstate(all="ignore"):
        return (values + 0.01 * rng.standard_normal(5000)).astype(target), values.astype(golden)


@pytest.mark.parametrize("target", FLOATS + OTHERS, ids=lambda d: np.dtype(d).name)
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_every_pair_of_dtypes(there: on_device.Device, target: Any) -> None:
    for golden in FLOATS + OTHERS:
        t, g = pair(target, golden)
        for tolerance in (None, (1e-3, 1e-3)):
            assert_same(distance(t, g, kernel=there.sums, tolerance=tolerance), distance(t, g, tolerance=tolerance))
        assert_same_cells(tensor_columns(t, g, columns=there.columns), tensor_columns(t, g))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FLOATS),
    st.sampled_from(FLOATS),
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40),
    st.integers(1, 20),
)
def test_any_values(there: on_device.Device, target: Any, golden: Any, pairs: list[Any], block: int) -> None:
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        t, g = (np.array([p[i] for p in pairs]).astype(d) for i, d in ((0, target), (1, golden)))
        expected, cells = distance(t, g), tensor_columns(t, g)
        patch.setattr(stream, "BLOCK", block)
        assert_same(distance(t, g, kernel=there.sums), expected)
        assert_same_cells(tensor_columns(t, g, columns=there.columns), cells)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_that_no_float_holds(there: on_device.Device, dtype: Any) -> None:
    t = np.array([2**62 + 1, 5, 0], dtype)
    found = distance(t, np.array([2**62, 5, 3], dtype), kernel=there.sums)
    assert (found.max_integer, found.differing) == (3, 2)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 1, 5), (2, 3, 4)])
def test_shapes_and_files(there: on_device.Device, tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.asarray(np.random.default_rng(1).standard_normal(shape), np.float32)
    np.save(tmp_path / "t.npy", np.asfortranarray(values * 2))
    np.save(tmp_path / "g.npy", values)
    t, g = open_tensor(tmp_path / "t.npy"), open_tensor(tmp_path / "g.npy")
    assert_same(distance(t, g, kernel=there.sums), distance(t, g))


def test_several_blocks_in_several_threads(there: on_device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    t, g = pair(np.float32, ml_dtypes.bfloat16)
    expected = distance(t, g)
    monkeypatch.setattr(stream, "BLOCK", 512)
    for threads in (1, 4):
        assert_same(distance(t, g, kernel=there.sums, threads=threads), expected)


# --- devices that are not there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cuda:99", "npu", "nonsense", "cpu:x", "", "meta"])
@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="here is an NPU")
def test_a_device_that_cannot_be_used(name: str) -> None:
    with pytest.raises(NumprobeError, match="E-CMP-016") as caught:
        device(name)
    assert "\n" not in caught.value.what
    assert ("torch_npu" in caught.value.what) == (name == "npu")
    assert "--device" in caught.value.do


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    device.cache_clear()
    with pytest.raises(NumprobeError, match="PyTorch, which is not installed") as caught:
        device("cpu")
    assert caught.value.do.startswith("install torch")


def test_a_device_that_computes_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without float64 says so by its figures."""
    gathered = on_device._gathered

    def rough(*args: Any) -> Any:
        sums = gathered(*args)
        sums.d_squares = float(np.float32(sums.d_squares))
        return sums

    monkeypatch.setattr(on_device, "_gathered", rough)
    device.cache_clear()
    with pytest.raises(NumprobeError, match="does not compute in float64"):
        device("cpu")
    device.cache_clear()


def test_a_device_that_fails_on_the_way(there: on_device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*args: Any) -> None:
        raise RuntimeError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(on_device._Torch, "put", out_of_memory)
    for work in (
        lambda t, g: distance(t, g, kernel=there.sums),
        lambda t, g: tensor_columns(t, g, columns=there.columns),
    ):
        with pytest.raises(NumprobeError, match=r"E-CMP-017  device .* failed: CUDA out of memory.$"):
            work(*pair(np.float32, np.float32))
