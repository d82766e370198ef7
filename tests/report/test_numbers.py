from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numprobe.report import names, numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.9375, "7.938"),
        (-8.0, "-8.000"),
        (1391.2, "1,391"),
        (0.01243, "0.01243"),
        (1.9041e-5, "1.904e-5"),
        (0.000999949, "9.999e-4"),
        (0.001, "0.001000"),
        (99_999.4, "99,999"),
        (99_999.96, "1.000e5"),
        (100_000.0, "1.000e5"),
        (3.3895313892515355e38, "3.390e38"),
        (256.0, "256.0"),
        (0.0, "0"),
        (-0.0, "0"),
        (411, "411"),
        (20_086, "20,086"),
        (True, "True"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (None, "-"),
    ],
)
def test_statistics(value, text):
    assert numbers.stat(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: abs(x) > 1e-300))
def test_four_digits_are_kept(value):
    shown = float(numbers.stat(value).replace(",", ""))
    assert abs(shown - value) <= 0.5001e-3 * abs(value) if abs(value) < 1e308 else True


@pytest.mark.parametrize(
    ("value", "text"), [(65504.0, "65504"), (3.3895e38, "3.39e38"), (448.0, "448"), (None, "-"), (1e5, "1.00e5")]
)
def test_limits(value, text):
    assert numbers.limit(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *[(0.018, "1.8 %"), (0.00083, "0.083 %"), (0.113, "11.3 %"), (1.0, "100 %"), (0.0, "0 %"), (0.1, "10.0 %")],
        *[(1e5, "10000000 %"), (3.5e9, "3.50e11 %"), (1e308, "1.00e310 %"), (-1.7e308, "-1.70e310 %")],
        *[(math.inf, "inf %"), (math.nan, "nan %")],
    ],
)
def test_percent(share, text):
    assert numbers.percent(share) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (812, "812 bytes"),
        (1000, "1.0 kB"),
        (7_310_000_000, "7.3 GB"),
        (41_200_000_000, "41.2 GB"),
        (999_960, "1.0 MB"),
        (2_500_000_000_000_000, "2,500 TB"),
    ],
)
def test_sizes(n, text):
    assert numbers.size(n) == text


@pytest.mark.parametrize(
    ("s", "text"), [(0.034, "34 ms"), (0.41, "0.4 s"), (6.08, "6.1 s"), (62.2, "62 s"), (103, "103 s"), (720, "12 min")]
)
def test_durations(s, text):
    assert numbers.duration(s) == text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([77], "77"), ([3, 2], "2, 3"), ([0, 1, 2, 3, 8, 9, 11], "0-3, 8, 9, 11"), ([5, 5], "5")],
)
def test_ranges(ranks, text):
    assert numbers.ranges(ranks) == text


def test_dtypes_shapes_signs():
    assert numbers.dtype("torch.bfloat16") == "bf16"
    assert numbers.dtype("BFloat16") == "bf16"
    assert numbers.dtype("torch.int64") == "int64"
    assert numbers.shape((1024, 512)) == "[1024, 512]"
    assert numbers.shape(()) == "[]"
    assert numbers.shape(None) == "-"
    assert numbers.signed(0.4) == "+0.40"
    assert numbers.signed(-0.2) == "-0.20"


@given(st.text())
def test_pieces_are_the_whole_name(name):
    assert "".join(names.pieces(name)) == name


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NPU.npu_grouped_matmul.7.forward", "npu_grouped_matmul"),
        ("Module.module.decoder.layers.0.mlp.linear_fc2.TERowParallelLinear.forward.0", "TERowParallelLinear"),
        ("Primitive.matmul.MatMul.0.forward", "matmul.MatMul"),
        ("Module.layers.3.mlp.MLP.parameters_grad.0", "MLP"),
        ("anything else", ""),
    ],
)
def test_telling_part(name, part):
    start, end = names.telling_part(name)
    assert name[start:end] == part
