"""Two sequences that should be the same: which element is which, when one of them has more, fewer or other elements.

Common ends are taken off, elements that occur once on both sides are anchors (patience, O(n log n)), and what is left between two
anchors is small: there a scoring alignment decides, which can weigh how alike two elements are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

Pair = tuple[int, int]
Likeness = Callable[[int, int], float]

SMALL = 40_000  # cells of a scoring alignment; larger regions go by fewest edits, and are scored near the diagonal
MARGIN = 8  # how far from the diagonal, beyond the difference in length
WIDEST_BAND = 1_000_000
EDITS = 400


def match(a: Sequence[Hashable], b: Sequence[Hashable], likeness: Likeness | None = None) -> list[Pair]:
    """Pairs (i, j) of equal elements, increasing in both.

    ``likeness(i, j)`` in 0..1 tells elements with the same key apart: the alignment prefers pairs that are alike.
    """
    if a == b:
        return [(i, i) for i in range(len(a))]
    pairs: list[Pair] = []
    regions = [(0, len(a), 0, len(b))]
    while regions:
        a0, a1, b0, b1 = regions.pop()
        if likeness is None or _same_counts(a[a0:a1], b[b0:b1]):  # else the ends may be the wrong ones of several
            while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
                pairs.append((a0, b0))
                a0, b0 = a0 + 1, b0 + 1
            while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
                a1, b1 = a1 - 1, b1 - 1
                pairs.append((a1, b1))
        if a0 == a1 or b0 == b1:
            continue
        anchors = _anchors(a, a0, a1, b, b0, b1)
        if anchors:
            pairs += anchors
            ends = [*anchors, (a1, b1)]
            for i, j in ends:
                if a0 < i and b0 < j:
                    regions.append((a0, i, b0, j))
                a0, b0 = i + 1, j + 1
        else:
            pairs += _without_anchors(a, a0, a1, b, b0, b1, likeness)
    return sorted(pairs)


def _without_anchors(
    a: Sequence[Hashable], a0: int, a1: int, b: Sequence[Hashable], b0: int, b1: int, likeness: Likeness | None
) -> list[Pair]:
    rows, width = a1 - a0, b1 - b0
    if rows * width <= SMALL:
        return _scored(a, a0, a1, b, b0, b1, likeness, max(rows, width))
    fewest = _fewest_edits(a, a0, a1, b, b0, b1)
    band = abs(rows - width) + MARGIN
    if likeness is None or rows * band > WIDEST_BAND:
        return fewest
    scored = _scored(a, a0, a1, b, b0, b1, likeness, band)  # of equal elements, those that are alike
    return scored if len(scored) >= len(fewest) else fewest


def _same_counts(a: Sequence[Hashable], b: Sequence[Hashable]) -> bool:
    return len(a) == len(b) and Counter(a) == Counter(b)


def _anchors(a: Sequence[Hashable], a0: int, a1: int, b: Sequence[Hashable], b0: int, b1: int) -> list[Pair]:
    """The longest increasing chain of elements that occur once in each part."""
    once_a = _once(a, a0, a1)
    once_b = _once(b, b0, b1)
    candidates = sorted((i, once_b[key]) for key, i in once_a.items() if key in once_b)
    tails: list[int] = []  # positions in candidates: the chain of each length that ends lowest
    ends: list[int] = []
    before: list[int] = []
    for n, (_, j) in enumerate(candidates):
        k = bisect_left(ends, j)
        before.append(tails[k - 1] if k else -1)
        if k == len(tails):
            tails.append(n)
            ends.append(j)
        else:
            tails[k] = n
            ends[k] = j
    chain: list[Pair] = []
    n = tails[-1] if tails else -1
    while n >= 0:
        chain.append(candidates[n])
        n = before[n]
    return chain[::-1]


def _once(keys: Sequence[Hashable], begin: int, end: int) -> dict[Hashable, int]:
    found: dict[Hashable, int] = {}
    for i in range(begin, end):
        found[keys[i]] = -1 if keys[i] in found else i
    return {key: i for key, i in found.items() if i >= 0}


def _scored(
    a: Sequence[Hashable],
    a0: int,
    a1: int,
    b: Sequence[Hashable],
    b0: int,
    b1: int,
    likeness: Likeness | None,
    band: int,
) -> list[Pair]:
    """Needleman-Wunsch without gap costs: as many equal elements as possible, and the most alike of them.

    Only cells within ``band`` of the diagonal are looked at; none outside is ever better than those at its edge.
    """
    rows, width = a1 - a0, b1 - b0
    best: list[dict[int, float]] = [{} for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        here, below = best[i], best[i + 1]
        for j in range(min(width, i + band + 1) - 1, max(i - band, 0) - 1, -1):
            score = max(below.get(j, 0.0), here.get(j + 1, 0.0))
            if a[a0 + i] == b[b0 + j]:
                both = below.get(j + 1, 0.0) + 1 + (likeness(a0 + i, b0 + j) if likeness else 0.0)
                score = max(score, both)
            here[j] = score
    pairs = []
    i = j = 0
    while i < rows and j < width:
        score = best[i].get(j, 0.0)
        if score == best[i + 1].get(j, 0.0):
            i += 1
        elif score == best[i].get(j + 1, 0.0):
            j += 1
        else:
            pairs.append((a0 + i, b0 + j))
            i, j = i + 1, j + 1
    return pairs


def _fewest_edits(a: Sequence[Hashable], a0: int, a1: int, b: Sequence[Hashable], b0: int, b1: int) -> list[Pair]:
    """The longest common subsequence by fewest edits (E. W. Myers, "An O(ND) difference algorithm", 1986).

    After :data:`EDITS` edits the furthest path is taken as it is, and the search begins anew where it ended.
    """
    pairs: list[Pair] = []
    while a0 < a1 and b0 < b1:
        found, a0, b0 = _edit_path(a, a0, a1, b, b0, b1)
        pairs += found
    return pairs


def _edit_path(
    a: Sequence[Hashable], a0: int, a1: int, b: Sequence[Hashable], b0: int, b1: int
) -> tuple[list[Pair], int, int]:
    """Pairs of one search, and where the next one begins."""
    rows, width = a1 - a0, b1 - b0
    reach = {1: 0}  # diagonal i - j -> the furthest i on it
    trail: list[dict[int, int]] = []  # the same before each round
    for edits in range(EDITS + 1):
        trail.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            before = _diagonal(reach, k, edits)
            i = reach[before] + (before < k)
            j = i - k
            while i < rows and j < width and a[a0 + i] == b[b0 + j]:
                i, j = i + 1, j + 1
            reach[k] = i
            if i >= rows and j >= width:
                return _walk_back(trail, a0, b0, i, j), a1, b1
    inside = [k for k, i in reach.items() if i <= rows and 0 <= i - k <= width]
    k = max(inside, key=lambda k: 2 * reach[k] - k)
    i, j = reach[k], reach[k] - k
    return _walk_back(trail, a0, b0, i, j), a0 + i, b0 + j


def _diagonal(reach: dict[int, int], k: int, edits: int) -> int:
    """The diagonal from which diagonal ``k`` is reached by one more edit."""
    return k + 1 if k == -edits or (k != edits and reach[k - 1] < reach[k + 1]) else k - 1


def _walk_back(trail: list[dict[int, int]], a0: int, b0: int, i: int, j: int) -> list[Pair]:
    pairs: list[Pair] = []
    for edits in range(len(trail) - 1, -1, -1):
        before = _diagonal(trail[edits], i - j, edits)
        start = trail[edits][before]
        while i > start and j > start - before and i > 0 and j > 0:
            i, j = i - 1, j - 1
            pairs.append((a0 + i, b0 + j))
        i, j = start, start - before
    return pairs
