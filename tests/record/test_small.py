"""Ranges, shapes, number formats and errors."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numprobe.record.dtypes import FLOATS, float_format, short_dtype
from numprobe.record.errors import NumprobeError
from numprobe.record.ranges import parse_ranges
from numprobe.record.shapes import clean_shape, numel


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("5", {5}),
        ("0,3,8-11", {0, 3, 8, 9, 10, 11}),
        (" 1 , 2 ", {1, 2}),
        ("7-7", {7}),
        ("1-3,2-4", {1, 2, 3, 4}),
        ("007", {7}),
    ],
)
def test_ranges(text: str, chosen: set[int]):
    assert parse_ranges(text, "--rank") == chosen


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "--rank : '' is no number or range"),
        ("1,", "--rank 1,: '' is no number or range"),
        ("-5", "--rank -5: '-5' is no number or range"),
        ("1-2-3", "--rank 1-2-3: '1-2-3' is no number or range"),
        ("a", "--rank a: 'a' is no number or range"),
        ("1.5", "--rank 1.5: '1.5' is no number or range"),
        ("٣", "--rank ٣: '٣' is no number or range"),
        ("8-3", "--rank 8-3: the range ends before it starts"),
        ("0-1000000", "--rank 0-1000000: more than a million"),
        ("0-999999,1000000-1000001", "--rank: more than a million"),
    ],
)
def test_ranges_that_are_none(text: str, what: str):
    with pytest.raises(NumprobeError) as error:
        parse_ranges(text, "--rank")
    assert (error.value.code, error.value.what) == ("E-USE-004", what)
    assert error.value.do


def test_a_number_of_thousands_of_digits_is_refused_in_one_line():
    with pytest.raises(NumprobeError, match="E-USE-004"):
        parse_ranges("9" * 5000, "--step")


@given(st.sets(st.integers(0, 300), min_size=1))
def test_every_set_can_be_written(chosen: set[int]):
    assert parse_ranges(",".join(map(str, chosen)), "--rank") == chosen
    assert parse_ranges(f"{min(chosen)}-{max(chosen)}", "--rank") == set(range(min(chosen), max(chosen) + 1))


@pytest.mark.parametrize(
    ("value", "shape", "count"),
    [
        ([4, 8], (4, 8), 32),
        ([], (), 1),
        ([0, 5], (0, 5), 0),
        ([2**60], (2**60,), 2**60),
        ([2**60, 2], (2**60, 2), None),  # no tensor has that many elements
        ([10**400], (10**400,), None),
        ([10**400, 0], (10**400, 0), None),
        ([1] * 64, (1,) * 64, 1),
        ([1] * 65, None, None),
        ([-1, 2], None, None),
        ([True], None, None),
        ([2.0], None, None),
        ([None], None, None),
        ([[1]], None, None),
        ("4,8", None, None),
        (None, None, None),
        ({"0": 1}, None, None),
    ],
)
def test_shapes_are_untrusted(value: object, shape: tuple[int, ...] | None, count: int | None):
    assert clean_shape(value) == shape
    assert numel(shape) == count


@pytest.mark.parametrize(
    ("name", "short", "largest"),
    [
        ("torch.float32", "fp32", 3.4028234663852886e38),
        ("torch.bfloat16", "bf16", 3.3895313892515355e38),
        ("torch.float16", "fp16", 65504.0),
        ("torch.half", "fp16", 65504.0),
        ("Float32", "fp32", 3.4028234663852886e38),
        ("BFloat16", "bf16", 3.3895313892515355e38),
        ("mindspore.float16", "fp16", 65504.0),
        ("float64", "fp64", 1.7976931348623157e308),
        ("torch.float8_e4m3fn", "e4m3", 448.0),
        ("torch.float8_e5m2", "e5m2", 57344.0),
        ("torch_npu.HiFloat8Tensor", "hif8", 32768.0),
        ("torch.int64", "int64", None),
        ("torch.bool", "bool", None),
        ("torch.complex64", "complex64", None),
        ("", "", None),
        (None, "", None),
    ],
)
def test_number_formats(name: str | None, short: str, largest: float | None):
    assert short_dtype(name) == short
    found = float_format(name)
    assert (found.max if found else None) == largest


def test_the_largest_value_of_a_format_follows_from_its_bits():
    """(2 - 2**(1-p)) * 2**emax; e4m3 gives its last significand away to NaN."""
    exponents = {"fp64": 1023, "fp32": 127, "fp16": 15, "bf16": 127, "e5m2": 15}
    for name, emax in exponents.items():
        assert FLOATS[name].max == (2 - 2.0 ** (1 - FLOATS[name].p)) * 2.0**emax
        assert FLOATS[name].smallest_normal == 2.0 ** (1 - emax)
    assert FLOATS["e4m3"].max == 1.75 * 2.0**8


def test_an_error_survives_the_way_from_a_worker():
    error = NumprobeError("E-FMT-012", "dump.json is not a dump", where="rank3/dump.json", do="wait and run again")
    back = pickle.loads(pickle.dumps(error))
    assert str(back) == "E-FMT-012  dump.json is not a dump"
    assert back.lines() == [("where", "rank3/dump.json"), ("do", "wait and run again")]


def test_an_error_keeps_its_templates_and_values_on_the_way():
    error = NumprobeError(
        "E-FMT-010", "{file} cannot be read: {reason}", found="{size:,} bytes", file="a", reason="b", size=1204
    )
    back = pickle.loads(pickle.dumps(error))
    assert (back.what, back.found, str(back)) == (
        "a cannot be read: b",
        "1,204 bytes",
        "E-FMT-010  a cannot be read: b",
    )
    assert (back.templates, back.values) == (error.templates, {"file": "a", "reason": "b", "size": 1204})


@pytest.mark.parametrize("name", ["{}", "{0}", "{file}", "{reason.__class__}", "a{b", "a}b", "{{x}}", "{x!r:>9}"])
def test_braces_in_the_values_of_an_error_mean_nothing(name: str):
    error = NumprobeError(
        "E-FMT-010", "{file} cannot be read: {reason}", where=name, do="look at {file}", file=name, reason="no"
    )
    for one in (error, pickle.loads(pickle.dumps(error)), error.translated({})):
        assert (one.what, one.where, one.do) == (f"{name} cannot be read: no", name, f"look at {name}")
    assert error.translated({"look at {file}": "看 {file}"}).do == f"看 {name}"
    assert NumprobeError("E-FMT-010", f"{name} is plain text", do=name).lines() == [("do", name)]
