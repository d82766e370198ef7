"""The same elements in another order, and the name of the order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.formats.tensors import open_tensor
from numprobe.metrics import permutation
from numprobe.metrics.permutation import Layout, find_layouts, multiset_hash, same_elements

G = np.random.default_rng(3).standard_normal((12, 16, 8)).astype(np.float32)
ALL_DTYPES = [np.bool_, np.int8, np.int64, np.float16, np.float32, np.float64, np.complex64, np.complex128]
ALL_DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


def mix(z: int) -> int:
    """SplitMix64 of one number, in Python."""
    mask = (1 << 64) - 1
    z = (z + 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=30), st.integers(1, 7))
def test_the_hash_by_definition(numbers: list[int], chunk: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "CHUNK", chunk)
        patch.setattr(permutation, "BLOCK", 3 * chunk)
        found = multiset_hash(np.array(numbers, np.uint64))
    assert found == sum(map(mix, numbers)) % 2**64


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda d: np.dtype(d).name)
def test_orders_have_one_hash(dtype: Any):
    rng = np.random.default_rng(0)
    values = np.append((rng.standard_normal(999) * 5).astype(dtype), np.zeros(1, dtype))
    shuffled = rng.permutation(values)
    assert same_elements(shuffled, values)
    assert same_elements(shuffled.reshape(20, 50), values)
    changed = shuffled.copy()
    changed[17] = next(v for v in values if v != changed[17])
    assert not same_elements(changed, values)
    assert not same_elements(values[:-1], values)


def test_dtypes_tell_elements_apart():
    assert not same_elements(np.zeros(4, np.int32), np.zeros(4, np.float32))
    assert not same_elements(np.array([-0.0]), np.array([0.0]))
    assert same_elements(np.array([np.nan, 1]), np.array([1, np.nan]))


def block_swap(a: np.ndarray) -> np.ndarray:
    b = a.copy()
    b[:, 2:5], b[:, 9:12] = a[:, 9:12], a[:, 2:5]
    return b


def neighbours(a: np.ndarray) -> np.ndarray:
    b = a.copy()
    b[:, 2:4], b[:, 4:6] = a[:, 4:6], a[:, 2:4]
    return b


LAYOUTS = {
    "sign": (lambda a: -a, Layout("sign_flip")),
    "reshape": (lambda a: a.reshape(16, 12, 8), Layout("reshape")),
    "flattened": (lambda a: a.reshape(-1), Layout("reshape")),
    "transpose": (lambda a: a.swapaxes(0, 2), Layout("transpose", (0, 2))),
    "transpose, one shape": (lambda a: a[:8, :8].swapaxes(0, 1), Layout("transpose", (0, 1))),
    "gate and up": (lambda a: np.roll(a, 8, 1), Layout("half_swap", (1,))),
    "two blocks": (block_swap, Layout("block_swap", (1,), size=3, blocks=(2, 9))),
    "two neighbours": (neighbours, Layout("block_swap", (1,), size=2, blocks=(2, 4))),
    "reverse": (lambda a: a[:, :, ::-1], Layout("reverse", (2,))),
    "rotary pairs": (
        lambda a: a.reshape(12, 2, 8, 8).swapaxes(1, 2).reshape(12, 16, 8),
        Layout("interleave", (1,), parts=2, size=1),
    ),
    "rotary halves": (
        lambda a: a.reshape(12, 8, 2, 8).swapaxes(1, 2).reshape(12, 16, 8),
        Layout("interleave", (1,), parts=8, size=1),
    ),
    "fused qkv, heads of 2": (
        lambda a: a.reshape(3, 2, 2, 16, 8).swapaxes(0, 1).reshape(12, 16, 8),
        Layout("interleave", (0,), parts=3, size=2),
    ),
}


def source(name: str) -> np.ndarray:
    return G[:8, :8] if name == "transpose, one shape" else G


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_named(name: str):
    change, layout = LAYOUTS[name]
    target = np.ascontiguousarray(change(source(name)))
    assert same_elements(target, np.ascontiguousarray(source(name))) != (name == "sign")
    assert find_layouts(target, source(name)) == [layout]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_under_rounding(name: str):
    """bfloat16 against float32: no element is bit-equal."""
    change, layout = LAYOUTS[name]
    target = np.ascontiguousarray(change(source(name))).astype(ml_dtypes.bfloat16)
    assert find_layouts(target, source(name)) == []
    assert find_layouts(target, source(name), tolerance=0.02) == [layout]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_in_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Single elements read by position."""
    monkeypatch.setattr(permutation, "_IN_MEMORY", 0)
    change, layout = LAYOUTS[name]
    torch.save(torch.from_numpy(np.ascontiguousarray(change(source(name)))), tmp_path / "t.pt")
    torch.save(torch.from_numpy(source(name)), tmp_path / "g.pt")
    assert find_layouts(open_tensor(tmp_path / "t.pt"), open_tensor(tmp_path / "g.pt")) == [layout]


def test_an_unnamed_order_is_none():
    shuffled = np.random.default_rng(1).permutation(G.reshape(-1)).reshape(G.shape)
    assert same_elements(shuffled, G)
    assert find_layouts(shuffled, G) == []


def test_golden_as_it_is():
    assert find_layouts(G.copy(), G) == []
    assert find_layouts(G.astype(ml_dtypes.bfloat16), G, tolerance=0.02) == []
    assert find_layouts(np.zeros((3, 4)), np.zeros((4, 3))) == [Layout("reshape"), Layout("transpose", (0, 1))]


def test_what_the_data_does_not_tell_apart():
    row, other = G[0, :1], G[0, 1:2]
    golden = np.concatenate([row, row, other, other])
    found = find_layouts(np.concatenate([other, other, row, row]), golden)
    assert found == [Layout("half_swap", (0,)), Layout("reverse", (0,))]


def test_nan_and_infinities_keep_their_places():
    golden = G.copy()
    golden[3, 4, 5], golden[0, 9, 1] = np.nan, np.inf
    assert find_layouts(np.roll(golden, 8, 1), golden) == [Layout("half_swap", (1,))]


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2,), (2, 2)], ids=str)
def test_few_elements(shape: tuple[int, ...]):
    """A single one has no order."""
    golden = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    assert find_layouts(golden, golden) == []
    assert find_layouts(golden + 100, golden) == []
    assert find_layouts(-golden, golden) == ([Layout("sign_flip")] if golden.size > 1 else [])


def test_a_different_number_of_elements():
    assert find_layouts(np.ones(3), np.ones(4)) == []
