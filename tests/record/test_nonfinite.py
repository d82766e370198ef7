"""Max and Min decide whether a tensor is non-finite, however they are spelled."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numprobe.record.nonfinite import Kinds, kinds_of, number
from numprobe.record.trace import Value

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("written", "figure"),
    [
        ("Infinity", INF),
        ("-Infinity", -INF),
        ('"inf"', INF),
        ('"-inf"', -INF),
        ('"inf\\t"', INF),
        ('"-inf\\t"', -INF),
        ('"INF"', INF),
        ('"+Infinity"', INF),
        ('"-iNfInItY"', -INF),
        ("1e400", INF),
        ("-1e400", -INF),
        ('"1e400"', INF),
        ("1" + "0" * 309, INF),
        ("-1" + "0" * 309, -INF),
        ("true", True),
        ("false", False),
        ("null", None),
        ('"1.5"', 1.5),
        ('" -2\\t"', -2.0),
        ('".5"', 0.5),
        ('"5."', 5.0),
        ("3", 3),
        ("9007199254740993", 9007199254740993),
        ('"1_0"', None),
        ('"١"', None),
        ('"1e４００"', None),
        ('"NaN5"', None),
        ('"- inf"', None),
        ('""', None),
        ("[1]", None),
        ("{}", None),
    ],
)
def test_a_figure_in_any_spelling(written: str, figure: object):
    found = number(json.loads(written))
    assert found == figure
    assert type(found) is type(figure)


@pytest.mark.parametrize("written", ["NaN", '"nan"', '"NaN"', '"NAN"', '"-nan"', '"+nan"', '"nan\\t"', '" nan "'])
def test_nan_in_any_spelling(written: str):
    found = number(json.loads(written))
    assert isinstance(found, float)
    assert math.isnan(found)


def test_integers_are_infinite_from_where_doubles_end():
    last = int(sys.float_info.max)
    assert number(last) == last
    assert number(2**1024 - 2**970 - 1) == 2**1024 - 2**970 - 1  # rounds down to the last double
    assert number(2**1024 - 2**970) == INF
    assert number(-(2**1024)) == -INF


@given(st.integers())
def test_an_integer_figure_can_always_become_a_double(value: int):
    figure = number(value)
    assert figure == value or math.isinf(float(figure))  # type: ignore[arg-type]
    float(figure)  # type: ignore[arg-type]


@given(st.floats() | st.integers() | st.text() | st.booleans() | st.none() | st.lists(st.floats(), max_size=1))
def test_reading_a_figure_twice_changes_nothing(value: object):
    once = number(value)
    assert number(once) == once or once != once


@pytest.mark.parametrize(
    ("maximum", "minimum", "kinds", "words"),
    [
        (1.5, -2.0, Kinds.CLEAN, "finite"),
        (3.4e38, -3.4e38, Kinds.CLEAN, "finite"),
        (NAN, NAN, Kinds.NAN, "NaN"),
        (NAN, 1.0, Kinds.NAN, "NaN"),
        (0.0, -INF, Kinds.NEG_INF, "-inf"),  # masked_fill: Max stays finite
        (-INF, -INF, Kinds.NEG_INF, "-inf"),
        (INF, 0.0, Kinds.POS_INF, "inf"),
        (INF, -INF, Kinds.POS_INF | Kinds.NEG_INF | Kinds.MAYBE_NAN, "inf, -inf"),
        (NAN, -INF, Kinds.NAN | Kinds.NEG_INF, "NaN, -inf"),
        (None, -INF, Kinds.NEG_INF, "-inf"),
        (1.0, None, Kinds.CLEAN, "finite"),
        (None, None, Kinds.UNKNOWN, "unknown"),
        (True, False, Kinds.CLEAN, "finite"),
        (10**300, -(10**300), Kinds.CLEAN, "finite"),
        (-INF, INF, Kinds.CLEAN, "finite"),  # a reduction over no elements
    ],
)
def test_kinds(maximum: float | None, minimum: float | None, kinds: Kinds, words: str):
    assert kinds_of(maximum, minimum) == kinds
    assert kinds.words() == words
    assert kinds.dirty == (words not in ("finite", "unknown"))


def test_a_finite_mask_is_clean_whatever_its_mean_and_norm():
    """A bf16 mask filled with finfo.min above the diagonal, as every HF model makes it."""
    mask = Value(
        "input",
        "input_args.1",
        "torch.Tensor",
        "torch.bfloat16",
        (1, 1, 64, 64),
        max=0.0,
        min=-3.3895313892515355e38,
        mean=-INF,
        norm=INF,
        present=frozenset(("max", "min", "mean", "norm")),
    )
    assert mask.kinds == Kinds.CLEAN


def test_tensors_without_elements_and_other_leaves_are_clean():
    nulls = frozenset(("max", "min", "mean", "norm"))
    assert Value("output", "output.0", "torch.Tensor", "torch.float32", (0, 8), present=nulls).kinds == Kinds.CLEAN
    assert Value("output", "output.0", "torch.Tensor", "torch.float32", (2, 8), present=nulls).kinds == Kinds.UNKNOWN
    assert Value("input", "input_args.1", "float", scalar=-INF).kinds == Kinds.CLEAN


def test_figures_decide_over_a_shape_that_says_there_is_nothing():
    dirty = Value("output", "output.0", "torch.Tensor", "torch.float32", (0,), max=NAN, min=NAN)
    assert dirty.kinds == Kinds.NAN
