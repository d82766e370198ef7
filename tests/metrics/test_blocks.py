"""Errors by head, row and channel."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.formats.tensors import open_tensor
from numprobe.metrics import blocks, stream
from numprobe.metrics.blocks import BlockErrors, block_errors
from numprobe.metrics.distance import distance


def expected(target: np.ndarray, golden: np.ndarray, axis: int, size: int) -> list[tuple[float, float]]:
    """Norms of difference and golden of each block, slice by slice."""
    found = []
    for begin in range(0, golden.shape[axis], size):
        t, g = (np.take(a, range(begin, min(begin + size, golden.shape[axis])), axis) for a in (target, golden))
        keep = np.isfinite(t) & np.isfinite(g)
        t, g = t[keep], g[keep]
        found.append((float(np.linalg.norm(t - g)), float(np.linalg.norm(g))))
    return found


def norms(found: BlockErrors) -> list[tuple[float, float]]:
    return list(zip(found.d_norms.tolist(), found.g_norms.tolist(), strict=True))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(-4, 3), st.integers(1, 7)), min_size=1, max_size=4),
    st.sampled_from([np.float64, np.complex128]),
    st.integers(1, 20),
    st.booleans(),
)
def test_any_split(shape: list[int], splits: list[tuple[int, int]], dtype: Any, chunk: int, holes: bool):
    rng = np.random.default_rng(len(shape))
    golden, target = (rng.standard_normal((*shape, 2)).view(complex)[..., 0] for _ in range(2))
    golden, target = (a if dtype is np.complex128 else a.real for a in (golden, target))
    if holes and dtype is np.float64:
        golden.flat[0], target.flat[-1] = np.nan, np.inf
    splits = [(axis, size) for axis, size in splits if -len(shape) <= axis < len(shape)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CHUNK", chunk)
        patch.setattr(stream, "BLOCK", 2 * chunk + 1)
        found = block_errors(target, golden, splits)
    assert len(found) == len(splits)
    for one, (axis, size) in zip(found, splits, strict=True):
        assert (one.axis, one.size) == (axis % len(shape), size)
        for got, want in zip(norms(one), expected(target, golden, axis, size), strict=True):
            assert got == pytest.approx(want, rel=1e-12, abs=1e-15)


def test_one_bad_head_of_64():
    """At 3 % of its size: 0.4 % of the whole, where bfloat16 alone makes 0.2 %."""
    rng = np.random.default_rng(0)
    golden = rng.standard_normal((128, 64 * 32)).astype(np.float32)
    target = golden.copy()
    target[:, 17 * 32 : 18 * 32] *= np.float32(1.03)
    target, head = target.astype(ml_dtypes.bfloat16), 17
    assert distance(target, golden).relative_l2 < 0.005
    by_head, by_row = block_errors(target, golden, [(-1, 32), (0, 1)])
    assert by_head.worst == (head, pytest.approx(0.03, rel=0.02))
    assert np.sort(by_head.errors)[-2] < 0.002
    assert by_row.errors.max() < 0.006


def test_worst_of_odd_blocks():
    golden, target = np.array([[0.0, 0], [1, 1], [0, 0]]), np.array([[0.0, 0], [1, 2], [1, 0]])
    (rows,) = block_errors(target, golden, [(0, 1)])
    assert rows.errors.tolist() == [0, pytest.approx(math.sqrt(0.5)), math.inf]
    assert rows.worst == (2, math.inf)
    (huge,) = block_errors(np.array([1e200]), np.array([2e200]), [(0, 1)])
    assert huge.worst == (0, math.inf)


def test_what_cannot_be_split():
    ones = np.ones((2, 3))
    for target, golden, split in (
        (ones, ones.T, (0, 1)),
        (ones, ones, (2, 1)),
        (ones, ones, (-3, 1)),
        (ones, ones, (0, 0)),
        (np.ones((0, 3)), np.ones((0, 3)), (0, 1)),
        (np.ones(()), np.ones(()), (0, 1)),
        (np.zeros((1 << 20) + 1, bool), np.zeros((1 << 20) + 1, bool), (0, 1)),
    ):
        with pytest.raises(ValueError, match="shape"):
            block_errors(target, golden, [split])


def test_threads_and_files(tmp_path: Path):
    target, golden = torch.randn(1500, 1000), torch.randn(1500, 1000)
    torch.save(target, tmp_path / "t.pt")
    torch.save(golden, tmp_path / "g.pt")
    splits = [(0, 100), (-1, 1), (1, 64)]
    one = block_errors(target.numpy(), golden.numpy(), splits, threads=1)
    files = block_errors(open_tensor(tmp_path / "t.pt"), open_tensor(tmp_path / "g.pt"), splits, threads=3)
    assert [norms(a) for a in one] == [norms(b) for b in files]
