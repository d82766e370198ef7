"""A bound is never exceeded by what it bounds: against NumPy on random operands, and with the figures of the specification."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numprobe.diagnose.nan_overflow.bound import bound_of, contraction, matmul_estimate
from numprobe.diagnose.nan_overflow.result import Bound
from numprobe.formats.msprobe.members import record_from
from numprobe.record.trace import Record

from .samples import INF, NAN, call, scalar, t

Array = np.ndarray[Any, np.dtype[np.float64]]


def record(name: str, content: dict[str, Any]) -> Record:
    import json

    return record_from(name, 0, json.dumps(content).encode(), 0)


def bound(name: str, *inputs: Any, out: Any, **keywords: Any) -> Bound:
    return bound_of(record(name, call(*inputs, out=out, **keywords)), lambda x: f"{x:.4g}")


def described(x: Array, **more: Any) -> dict[str, Any]:
    return t(float(x.max()), float(x.min()), shape=x.shape, norm=float(np.linalg.norm(x)), **more)


@st.composite
def operands(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    """x (rows, k), w (columns, k), b (columns), of very different sizes and signs."""
    rows, k, columns = (draw(st.integers(1, 6)) for _ in range(3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def array(*shape: int) -> Array:
        made = rng.standard_normal(shape) * 10.0 ** draw(st.integers(-8, 8))
        return np.abs(made) if draw(st.booleans()) else made

    return array(rows, k), array(columns, k), array(columns)


@given(operands())
def test_no_product_exceeds_its_bound(xwb: tuple[Array, Array, Array]):
    x, w, b = xwb
    for name, inputs, y in (
        ("Functional.linear.0.forward", (x, w), x @ w.T),
        ("Functional.linear.0.forward", (x, w, b), x @ w.T + b),
        ("Torch.matmul.0.forward", (x, w.T), x @ w.T),
        ("Torch.addmm.0.forward", (b, x, w.T), b + x @ w.T),
        ("NPU.npu_grouped_matmul.0.forward", (x, w.T), x @ w.T),
    ):
        found = bound(name, *map(described, inputs), out=described(y))
        assert found.value is not None
        assert np.abs(y).max() <= found.value * (1 + 1e-12)


@given(operands())
def test_no_elementwise_result_exceeds_its_bound(xwb: tuple[Array, Array, Array]):
    x = xwb[0]
    y = x[::-1] * 3.0
    softmax = np.exp(x - x.max(-1, keepdims=True))
    for name, inputs, result in (
        ("Torch.add.0.forward", (x, y), x + y),
        ("Tensor.__sub__.0.forward", (x, y), x - y),
        ("Torch.mul.0.forward", (x, y), x * y),
        ("Functional.relu.0.forward", (x,), np.maximum(x, 0)),
        ("Torch.tanh.0.forward", (x,), np.tanh(x)),
        ("Functional.softmax.0.forward", (x,), softmax / softmax.sum(-1, keepdims=True)),
        ("Torch.mean.0.forward", (x,), x.mean(keepdims=True)),
    ):
        found = bound(name, *map(described, inputs), out=described(result))
        assert found.value is not None
        assert np.abs(result).max() <= found.value * (1 + 1e-12)


@given(operands())
def test_attention_is_a_mean_of_values(xwb: tuple[Array, Array, Array]):
    q, k = xwb[0], xwb[1]
    scores = q @ k.T / math.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    v = np.arange(k.size, dtype=float).reshape(k.shape) - 3.0
    y = weights / weights.sum(-1, keepdims=True) @ v
    found = bound("NPU.npu_fusion_attention.0.forward", *map(described, (q, k, v)), out=described(y))
    assert found.value is not None
    assert np.abs(y).max() <= found.value * (1 + 1e-12)


def test_the_figures_of_the_grouped_matmul():
    """|x| <= 8, |w| <= 0.1, K = 512: at most 409.6 where bf16 ends at 3.39e38, and still NaN."""
    x, w = (
        t(8.0, shape=(1024, 512), norm=INF, dtype="bfloat16"),
        t(0.1, shape=(2, 512, 2048), norm=None, dtype="bfloat16"),
    )
    found = bound("NPU.npu_grouped_matmul.7.forward", [x], [w], out=[t(NAN, shape=(1024, 2048), dtype="bfloat16")])
    assert (found.rule, found.formula, found.dtype, found.contradicts_output) == (
        "K*max|x|*max|w|",
        "512 x 8 x 0.1",
        "bf16",
        True,
    )
    assert found.value == pytest.approx(409.6)
    assert found.dtype_max == pytest.approx(3.3895e38, rel=1e-4)


def test_norms_give_the_tighter_bound():
    """||x|| ||w|| = 6 x 2 = 12 with 1 % for norms rounded down, against 4 x 5 x 3 = 60."""
    found = bound(
        "Functional.linear.0.forward", t(5.0, shape=(3, 4), norm=6.0), t(3.0, shape=(2, 4), norm=2.0), out=t(1.0)
    )
    assert (found.rule, found.value) == ("||x||*||w||", pytest.approx(12.12))
    with_bias = bound(
        "Functional.linear.0.forward",
        t(5.0, shape=(3, 4), norm=6.0),
        t(3.0, shape=(2, 4), norm=2.0),
        t(7.0, shape=(2,)),
        out=t(1.0),
    )
    assert (with_bias.rule, with_bias.value) == ("||x||*||w||+max|b|", pytest.approx(19.12))


def test_a_bound_above_the_limit_contradicts_nothing():
    big = t(6e4, shape=(4, 512), dtype="float16", norm=INF)
    found = bound(
        "Functional.linear.0.forward",
        big,
        t(1.0, shape=(8, 512), dtype="float16", norm=INF),
        out=t(INF, dtype="float16"),
    )
    assert (found.applicable, found.contradicts_output, found.dtype_max) == (True, False, 65504.0)


def test_a_finite_output_contradicts_nothing():
    found = bound("Functional.linear.0.forward", t(1.0), t(1.0), out=t(2.0))
    assert not found.contradicts_output


@pytest.mark.parametrize(
    ("name", "inputs", "reason"),
    [
        ("Torch.matmul.0.forward", (t(1.0, shape=(3, 4)), t(1.0, shape=(5, 6))), "bound.unknown_k"),
        ("Torch.matmul.0.forward", (t(1.0), t(None, norm=None)), "bound.unknown_input"),
        ("Torch.matmul.0.forward", (t(1.0), t(INF)), "bound.infinite_input"),
        ("Torch.matmul.0.forward", (scalar(1),), "bound.no_tensor"),
        ("Torch.matmul.0.backward", (t(1.0), t(1.0)), "bound.unknown_rule"),
        ("Torch.cumprod.0.forward", (t(1.0),), "bound.unknown_rule"),
        ("NPU.npu_quant_matmul.0.forward", (t(1.0, dtype="int8"), t(1.0, dtype="int8")), "bound.no_tensor"),
        (
            "Torch.matmul.0.forward",
            (t(1.0, dtype="float8_e4m3fn"), t(1.0, dtype="float8_e4m3fn")),
            "bound.unknown_scale",
        ),
    ],
)
def test_where_no_bound_applies_it_says_why(name: str, inputs: tuple[Any, ...], reason: str):
    found = bound(name, *inputs, out=t(NAN))
    assert (found.applicable, found.contradicts_output, found.value) == (False, False, None)
    assert found.reason is not None
    assert found.reason.key == reason


def test_the_length_of_the_sum():
    assert contraction("linear", (2, 3, 64), (128, 64)) == 64
    assert contraction("matmul", (2, 3, 64), (64, 128)) == 64
    assert contraction("bmm", (8, 3, 64), (8, 64, 5)) == 64
    assert contraction("npu_grouped_matmul", (1024, 512), (4, 512, 2048)) == 512
    assert contraction("conv2d", (1, 3, 8, 8), (16, 3, 3, 3)) == 27
    assert contraction("linear", (2, 64), (64, 128)) is None
    assert contraction("matmul", None, (64, 128)) is None


def test_the_estimate_of_a_product():
    """sqrt(2 ln n) ||x|| ||w|| / sqrt(n): what rows that point the same way reach, sqrt(K) above random signs."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((64, 256)) * 3.0, rng.standard_normal((128, 256)) * 0.5
    y = x @ w.T
    found = matmul_estimate(record("Functional.linear.0.forward", call(described(x), described(w), out=described(y))))
    assert found == pytest.approx(
        math.sqrt(2 * math.log(8192)) * np.linalg.norm(x) * np.linalg.norm(w) / math.sqrt(8192)
    )
    assert 0.5 < np.abs(y).max() * math.sqrt(256) / found < 2.0
    assert matmul_estimate(record("Functional.linear.0.forward", call(t(1.0, norm=INF), t(1.0), out=t(1.0)))) is None
    assert matmul_estimate(record("Torch.add.0.forward", call(t(1.0), t(1.0), out=t(1.0)))) is None
