"""Figures of a pair of tensors against the same formulas over whole arrays, in other arithmetic."""

from __future__ import annotations

import itertools
import math
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.formats.tensors import open_tensor
from numprobe.metrics import stream, sums
from numprobe.metrics.distance import Distance, distance, shapes

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FLOATS = [np.float64, np.float32, np.float16, BF16, E4M3, E5M2]
OTHERS = [np.bool_, np.int8, np.uint8, np.int32, np.int64, np.uint64, np.complex64, np.complex128]
PRECISION = {np.float64: 53, np.float32: 24, np.float16: 11, BF16: 8, E4M3: 4, E5M2: 3}


def noisy(dtype: Any, n: int = 5000, error: float = 1e-2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    golden = rng.standard_normal(n) * 3
    return (golden + error * rng.standard_normal(n)).astype(dtype), golden.astype(dtype)


def as_parts(array: np.ndarray) -> np.ndarray:
    flat = array.reshape(-1)
    return np.stack([flat.real, flat.imag], 1).reshape(-1) if flat.dtype.kind == "c" else flat


def assert_follows_the_formulas(found: Distance, target: np.ndarray, golden: np.ndarray) -> None:
    """Everything but ULPs, written out over whole arrays with numpy's extended precision."""
    if "c" in (target.dtype.kind, golden.dtype.kind):
        target, golden = target.astype(complex), golden.astype(complex)
    t, g = (as_parts(a).astype(np.float64) for a in (target, golden))
    assert found.numel == t.size
    both = np.isfinite(t) & np.isfinite(g)
    assert found.finite == both.sum()
    for side, values in ((found.target, t), (found.golden, g)):
        own = values[np.isfinite(values)].astype(np.longdouble)
        assert (side.nan, side.pos_inf, side.neg_inf) == (
            np.isnan(values).sum(),
            (values == np.inf).sum(),
            (values == -np.inf).sum(),
        )
        assert side.norm == pytest.approx(float(np.sqrt((own**2).sum())), rel=1e-13)
        if own.size:
            assert (side.max, side.min) == (own.max(), own.min())
            assert side.mean == pytest.approx(float(own.mean()), rel=1e-13, abs=1e-14 * float(np.abs(own).max()))
        else:
            assert math.isnan(side.max + side.min + side.mean)
    assert found.nan_mismatch == (np.isnan(t) != np.isnan(g)).sum()
    assert found.pos_inf_mismatch == ((t == np.inf) != (g == np.inf)).sum()
    assert found.neg_inf_mismatch == ((t == -np.inf) != (g == -np.inf)).sum()
    same = (t == g) | (np.isnan(t) & np.isnan(g))
    assert found.nonfinite_mismatch == (~both & ~same).sum()
    if target.dtype.kind != golden.dtype.kind or target.dtype.kind not in "iu":
        assert found.differing == (both & ~same).sum()
    t, g = t[both].astype(np.longdouble), g[both].astype(np.longdouble)
    d = t - g
    size = np.abs(d)
    norm, rms = np.sqrt((g**2).sum()), np.sqrt((g**2).mean()) if g.size else np.longdouble(0)

    def over(value: Any, below: Any) -> float:
        return float(value / below) if below else math.copysign(math.inf, value) if value else 0.0

    assert found.rms == pytest.approx(float(rms), rel=1e-13)
    assert found.relative_l2 == pytest.approx(over(np.sqrt((d**2).sum()), norm), rel=1e-13)
    if not d.size:
        assert (found.max_abs, found.max_abs_index, found.scaled_max, found.p99) == (0.0, None, 0.0, 0.0)
        return
    assert found.max_abs == float(size.max())
    assert found.scaled_max == pytest.approx(over(size.max(), rms), rel=1e-13)
    assert found.mean_error == pytest.approx(over(d.mean(), rms), rel=1e-9, abs=1e-14 * found.scaled_max)
    relative = [float(a / b) if b else math.inf for a, b in zip(size, np.abs(g), strict=True) if a]
    assert found.max_relative == pytest.approx(max(relative, default=0.0), rel=1e-15)
    for share, quantile in ((0.5, found.p50), (0.99, found.p99)):
        exact = over(np.sort(size)[math.ceil(share * size.size) - 1], rms)
        assert quantile == pytest.approx(exact, rel=0.07)
    t_norm = np.sqrt((t**2).sum())
    if norm and t_norm:
        u = t / t_norm - g / norm
        assert found.one_minus_cosine == pytest.approx(
            float((u**2).sum() / 2), rel=1e-5, abs=1e-15 * found.relative_l2**2
        )


@pytest.mark.parametrize(
    ("target", "golden"), list(itertools.product(FLOATS + OTHERS, repeat=2)), ids=lambda d: np.dtype(d).name
)
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_every_pair_of_dtypes(target: Any, golden: Any):
    t, g = np.abs(noisy(np.float64)[0] * 9), np.abs(noisy(np.float64)[1] * 9)
    assert_follows_the_formulas(distance(t.astype(target), g.astype(golden)), t.astype(target), g.astype(golden))


@pytest.mark.parametrize("error", [1e-15, 1e-9, 1e-4, 1.0, 1e4])
def test_small_and_large_errors(error: float):
    target, golden = noisy(np.float64, error=error)
    assert_follows_the_formulas(distance(target, golden), target, golden)


VALUES = [0.0, -0.0, 1.0, -1.5, 448.0, 1e-3, np.inf, -np.inf, np.nan, 6e4, 1e38, 1e-40]
NUMBERS = st.sampled_from(VALUES) | st.floats(-1e60, 1e60).map(lambda x: x if abs(x) > 1e-60 else 0.0)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(FLOATS),
    st.sampled_from(FLOATS),
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60),
    st.integers(1, 9),
)
def test_any_values(target: Any, golden: Any, pairs: list[tuple[float, float]], chunk: int):
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "CHUNK", chunk)
        patch.setattr(stream, "BLOCK", 3 * chunk)
        t, g = (np.array([p[i] for p in pairs]).astype(d) for i, d in ((0, target), (1, golden)))
        found = distance(t, g)
        assert_follows_the_formulas(found, t, g)
        assert found.equal_bits == (t.dtype == g.dtype and t.tobytes() == g.tobytes())
        coarse = min(target, golden, key=PRECISION.__getitem__)
        steps = [ulps(x, y, coarse) for x, y in zip(t.astype(coarse), g.astype(coarse), strict=True)]
        both = np.isfinite(t.astype(float)) & np.isfinite(g.astype(float))
        kept = sorted(s for s, b in zip(steps, both, strict=True) if b)
        assert found.max_ulp == max(kept, default=0)
        exact = kept[math.ceil(len(kept) / 2) - 1] if kept else 0
        assert found.median_ulp == pytest.approx(exact, rel=0.07, abs=0)


def ulps(a: Any, b: Any, dtype: Any) -> int:
    """Numbers of a dtype from a to b, through the rank of each among them."""
    return abs(rank(a, dtype) - rank(b, dtype))


def rank(value: Any, dtype: Any) -> int:
    """Of 0 it is 0, of the smallest positive number 1, and so on; by the definition of the format."""
    bits = 8 * np.dtype(dtype).itemsize
    raw = int(np.array([value], dtype).view(f"u{bits // 8}")[0])
    return raw if raw < 1 << (bits - 1) else -(raw - (1 << (bits - 1)))


def test_ulps_are_steps_of_nextafter():
    for dtype in (np.float16, np.float32, np.float64):
        start = np.array([1.0, -3.0, 0.0, 65000 if dtype is np.float16 else 1e30], dtype)
        moved = start.copy()
        for steps in range(1, 6):
            moved = np.nextafter(moved, np.array(np.inf, dtype))
            found = distance(moved, start)
            assert (found.max_ulp, found.median_ulp) == (steps, steps)
            assert found.ulp_dtype == {2: "fp16", 4: "fp32", 8: "fp64"}[start.itemsize]


def test_ulps_of_a_float32_against_a_bfloat16():
    """Rounded to bfloat16 first: a float32 that rounds to the other side is 0 away."""
    golden = noisy(np.float32)[1]
    found = distance(golden.astype(BF16), golden)
    assert (found.max_ulp, found.ulp_dtype) == (0, "bf16")
    assert found.relative_l2 == pytest.approx(0.4 * 2**-8, rel=0.1)
    assert distance(noisy(np.float32)[1].astype(np.int32), golden).max_ulp is None


def test_sign_flip_scale_and_shift():
    golden = noisy(np.float32)[1]
    flipped = distance(-golden, golden)
    assert (flipped.one_minus_cosine, flipped.relative_l2) == (pytest.approx(2, rel=1e-15), pytest.approx(2, rel=1e-15))
    scaled = distance(golden * np.float32(1.5), golden)
    assert scaled.relative_l2 == pytest.approx(0.5, rel=1e-6)
    assert scaled.one_minus_cosine < 1e-15
    shifted = distance(golden.astype(float) + 0.1, golden.astype(float))
    assert shifted.mean_error == pytest.approx(0.1 / shifted.rms, rel=1e-12)


def test_one_minus_cosine_has_no_floor():
    """A cosine of float64 ends at 1 - 1e-16."""
    golden = noisy(np.float64)[1]
    target = golden.copy()
    target[7] *= 1 + 2**-40
    found = distance(target, golden)
    assert 0 < found.one_minus_cosine < 1e-24
    g, t = (list(map(Fraction, a)) for a in (golden, target))
    gg, tt, gt = (sum(a * b for a, b in zip(x, y, strict=True)) for x, y in ((g, g), (t, t), (g, t)))
    exact = 1 - Fraction(gt**2, gg * tt)  # = (1 - cos)(1 + cos), where the second factor is 2 to 1e-24
    assert found.one_minus_cosine == pytest.approx(float(exact) / 2, rel=1e-6)


def test_where_the_largest_error_is():
    golden = np.zeros((3, 4, 5), np.float32)
    target = golden.copy()
    target[2, 1, 3] = -7
    assert distance(target, golden).max_abs_index == (2, 1, 3)
    target[1, 0, 2] = np.nan
    found = distance(target, golden)
    assert (found.max_abs_index, found.nonfinite_mismatch_index) == ((2, 1, 3), (1, 0, 2))
    complex_target = golden.astype(np.complex64)
    complex_target[1, 2, 3] = 5j
    assert distance(complex_target, golden.astype(np.complex64)).max_abs_index == (1, 2, 3)
    assert distance(golden, golden).max_abs_index == (0, 0, 0)


def test_kinds_of_nonfinite_are_told_apart():
    golden = np.array([1, np.inf, -np.inf, np.nan, np.inf, np.nan, 2, 3], np.float32)
    target = np.array([1, -np.inf, -np.inf, np.nan, np.nan, 4, np.nan, np.inf], np.float32)
    found = distance(target, golden)
    assert (found.nan_mismatch, found.pos_inf_mismatch, found.neg_inf_mismatch) == (3, 3, 1)
    assert (found.nonfinite_mismatch, found.nonfinite_mismatch_index, found.finite, found.differing) == (5, (1,), 1, 0)
    assert found.mismatching == 5 / 8
    same = distance(golden, golden)
    assert (same.nonfinite_mismatch, same.nonfinite_mismatch_index, same.mismatching, same.equal_bits) == (
        0,
        None,
        0,
        True,
    )


def test_nothing_finite():
    found = distance(np.full(3, np.nan), np.full(3, np.inf))
    assert (found.finite, found.nonfinite_mismatch, found.relative_l2, found.max_abs_index) == (0, 3, 0.0, None)
    assert math.isnan(found.target.max)


def test_complex_tensors_are_pairs():
    """interop/compare/edge/complex: the imaginary parts are 5 and -3, which msProbe does not see."""
    found = distance(np.array([1 + 5j], np.complex64), np.array([1 - 3j], np.complex64))
    assert (found.numel, found.max_abs, found.differing) == (2, 8.0, 1)
    assert found.relative_l2 == pytest.approx(8 / math.sqrt(10))
    assert found.one_minus_cosine > 0.5
    assert distance(np.array([1 + 5j]), np.array([1.0])).max_abs == 5.0


def test_integers_are_exact():
    big = 2**62
    found = distance(np.array([big + 1, 5]), np.array([big, 5]))
    assert (found.max_integer, found.differing, found.max_abs, found.equal_bits) == (1, 1, 1.0, False)
    found = distance(np.array([-(2**63), 0]), np.array([2**63 - 1, 0]))
    assert (found.max_integer, found.max_abs_index) == (2**64 - 1, (0,))
    assert distance(np.array([2**64 - 1], np.uint64), np.array([0], np.uint64)).max_integer == 2**64 - 1
    assert distance(np.array([200], np.uint8), np.array([-100], np.int8)).max_integer == 300
    flags = distance(np.array([True, False, True]), np.array([False, False, True]))
    assert (flags.max_integer, flags.mismatching) == (1, 1 / 3)
    assert distance(np.array([1.0]), np.array([1])).max_integer is None


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([np.int64, np.uint64]), st.data())
def test_integers_of_64_bits(dtype: Any, data: st.DataObject):
    info = np.iinfo(dtype)
    numbers = st.integers(int(info.min), int(info.max)) | st.integers(0, 5)
    pairs = data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20))
    found = distance(*(np.array(side, dtype) for side in zip(*pairs, strict=True)))
    differences = [abs(a - b) for a, b in pairs]
    assert found.max_integer == max(differences)
    assert found.differing == sum(d > 0 for d in differences)
    assert found.max_abs == float(max(differences))


def test_beyond_the_squares_of_float64():
    rng = np.random.default_rng(0)
    golden = rng.standard_normal(1000)
    target = golden * (1 + 1e-3 * rng.standard_normal(1000))
    usual = distance(target, golden, tolerance=(1e-4, 1e-3))
    for exponent in (1000, -1000):
        scale = 2.0**exponent
        found = distance(target * scale, golden * scale, tolerance=(1e-4 * scale, 1e-3))
        for name in (
            "relative_l2",
            "one_minus_cosine",
            "scaled_max",
            "max_relative",
            "mean_error",
            "p50",
            "p99",
            "over",
            "differing",
        ):
            assert getattr(found, name) == pytest.approx(getattr(usual, name), rel=1e-9), name
        assert found.max_abs == pytest.approx(usual.max_abs * scale, rel=1e-12)
        assert found.golden.norm == pytest.approx(usual.golden.norm * scale, rel=1e-12)
        assert (found.golden.max, found.max_abs_index) == (golden.max() * scale, usual.max_abs_index)
    far = distance(np.array([1.7e308]), np.array([-1.7e308]))
    assert (far.relative_l2, far.one_minus_cosine, far.max_abs) == (2.0, 2.0, math.inf)


def test_share_over_a_tolerance():
    target, golden = noisy(np.float32)
    d, base = np.abs(target.astype(float) - golden), np.abs(golden.astype(float))
    for a, b in ((0.0, 0.0), (1e-3, 1e-3), (0.0, 1e-2), (1e-2, 0.0), (1.0, 1.0)):
        assert distance(target, golden, tolerance=(a, b)).over == (d > a + b * base).sum()
    assert distance(target, golden).over is None


def test_zeros():
    zero, one = np.zeros(3), np.ones(3)
    both, target, golden = distance(zero, zero), distance(zero, one), distance(one, zero)
    assert (both.relative_l2, both.one_minus_cosine, both.scaled_max, both.max_relative) == (0, 0, 0, 0)
    assert (target.relative_l2, target.one_minus_cosine, target.scaled_max, target.max_relative) == (1, 1, 1, 1)
    assert (golden.relative_l2, golden.one_minus_cosine) == (math.inf, 1)
    assert (golden.scaled_max, golden.max_relative, golden.mean_error, golden.p50) == (math.inf,) * 4
    signed = distance(np.array([-0.0]), np.array([0.0]))
    assert (signed.equal_bits, signed.differing, signed.max_ulp) == (False, 0, 0)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (2, 0, 5)], ids=str)
def test_few_elements(shape: tuple[int, ...]):
    target, golden = np.full(shape, 1.5, np.float32), np.full(shape, 1.25, np.float32)
    found = distance(target, golden)
    assert_follows_the_formulas(found, target, golden)
    if target.size:
        assert (found.relative_l2, found.max_abs_index) == (0.2, (0,) * len(shape))
    else:
        assert (found.relative_l2, found.mismatching, found.equal_bits, found.max_ulp) == (0.0, 0.0, True, 0)


def test_shapes():
    ones = np.ones
    assert shapes(ones((4, 5)), ones((4, 5))) == "equal"
    assert shapes(ones((4, 1, 5)), ones((4, 5))) == "squeezed"
    assert shapes(ones(()), ones((1, 1))) == "squeezed"
    assert shapes(ones((5, 4)), ones((4, 5))) == "different"
    assert distance(ones((4, 1, 5)), ones((4, 5))).squeezed
    assert not distance(ones((4, 5)), ones((4, 5))).squeezed
    with pytest.raises(ValueError, match=r"shapes \(5, 4\) and \(4, 5\)"):
        distance(ones((5, 4)), ones((4, 5)))


def test_threads_give_the_same_bits():
    target, golden = noisy(np.float32, n=5 * stream.BLOCK + 12345, error=1e-3)
    target[[5, 10**6, 3 * 10**6]] = np.nan, np.inf, 100
    one = distance(target, golden, tolerance=(1e-6, 1e-4), threads=1)
    used: set[int] = set()
    original = sums._add_chunk

    def noting(*args: Any) -> None:
        used.add(threading.get_ident())
        original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "_add_chunk", noting)
        for threads in (2, 3, 8):
            assert distance(target, golden, tolerance=(1e-6, 1e-4), threads=threads) == one
    assert len(used) > 2


def test_blocks_give_the_same_to_1e_12():
    target, golden = noisy(BF16, n=100_000)
    usual = distance(target, golden)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "CHUNK", 977)
        patch.setattr(stream, "BLOCK", 9999)
        other = distance(target, golden)
    for name in ("relative_l2", "one_minus_cosine", "scaled_max", "mean_error", "rms"):
        assert getattr(other, name) == pytest.approx(getattr(usual, name), rel=1e-12)
    assert (other.p99, other.median_ulp, other.max_abs_index) == (usual.p99, usual.median_ulp, usual.max_abs_index)


def test_files(tmp_path: Path):
    """From a file, also one that holds a transposed view, as from an array."""
    target, golden = torch.randn(700, 900), torch.randn(900, 700).t()
    torch.save(target, tmp_path / "t.pt")
    torch.save(golden, tmp_path / "g.pt")
    found = distance(open_tensor(tmp_path / "t.pt"), open_tensor(tmp_path / "g.pt"))
    assert found == distance(target.numpy(), golden.numpy())
    assert (found.target.dtype, found.target.shape) == ("fp32", (700, 900))
