"""Sequences with elements more, fewer or other on one side."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.align.sequence import match

SEQUENCE = st.lists(st.integers(0, 4), max_size=14)


def well_formed(a: list[int], b: list[int], pairs: list[tuple[int, int]]) -> bool:
    increasing = all(i < k and j < n for (i, j), (k, n) in pairwise(pairs))
    return increasing and all(a[i] == b[j] for i, j in pairs)


@settings(max_examples=500, deadline=None)
@given(SEQUENCE, SEQUENCE)
def test_pairs_are_equal_and_in_order(a: list[int], b: list[int]) -> None:
    assert well_formed(a, b, match(a, b))
    assert well_formed(a, b, match(a, b, lambda i, j: float(i == j)))


def test_the_one_that_is_too_many_is_the_one_that_is_not_alike() -> None:
    a = ["mul"] * 6
    b = ["mul"] * 5
    values = [1.0, 2.0, 9.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]
    pairs = match(a, b, lambda i, j: float(values[0][i] == values[1][j]))
    assert pairs == [(0, 0), (1, 1), (3, 2), (4, 3), (5, 4)]


def test_the_same_in_a_sequence_too_long_for_every_pair_of_places() -> None:
    draw = random.Random(0)
    b = [draw.random() for _ in range(4000)]
    a = [*b[:1234], 7.0, *b[1234:]]
    pairs = match(["mul"] * len(a), ["mul"] * len(b), lambda i, j: float(a[i] == b[j]))
    assert [i for i in range(len(a)) if i not in {k for k, _ in pairs}] == [1234]


def test_layers_with_one_call_more_and_three_fewer() -> None:
    draw = random.Random(0)
    layer = [draw.randrange(30) for _ in range(40)]
    a = layer * 500
    b = [*a[:7000], 5, *a[7000:]]
    del b[15_000:15_003]
    pairs = match(a, b)
    assert len(pairs) == len(a) - 3
    assert well_formed(a, b, pairs)


def test_sequences_that_have_nothing_to_do_with_each_other_end() -> None:
    draw = random.Random(1)
    a, b = ([draw.randrange(5) for _ in range(20_000)] for _ in range(2))
    assert well_formed(a, b, match(a, b))
