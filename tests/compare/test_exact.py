"""Digests of many rows at once are told apart as single ones are."""

from __future__ import annotations

import pytest

from numprobe.compare.exact import digest_of, digests_of


@pytest.mark.parametrize(
    "texts",
    [
        ["9f0a12cd", "00000000", "9f0a12cd"],
        ["9f0a12cd", "d41d8cd98f00b204e9800998ecf8427e"],  # CRC-32 and MD5
        ["9f0a12cd", "9F0A12CD", " 9f0a12cd"],
        ["9f0a12cd", "", "none", "N/A"],
        ["0x1f", "1f", "sum:7"],
        ["deadbeef", "null"],
        [],
    ],
)
def test_many_digests_are_told_apart_as_single_ones_are(texts: list[str]) -> None:
    rows = dict(enumerate(texts))
    asked = [*rows, len(texts)]  # the last has none
    kinds, found = digests_of(rows, asked)
    assert list(zip(kinds, found, strict=True)) == [digest_of(rows.get(row)) for row in asked]
