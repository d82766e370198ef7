"""Do two ranks hold the same part of a model, or one a part of what the other holds? Told from their parameters.

A part of a tensor has no element outside of the range of the whole, and some part has its largest. Of two tensors with the same
shape, extremes that agree to the rounding of their dtypes are as good as a proof. Constant tensors tell nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from numprobe.align.shards.signature import Parameter, Signature, numbered, pattern
from numprobe.align.shards.split import split_of

Offsets = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Match:
    """``agree`` and ``differ`` count parameters. ``offsets``: what has to be added to the first rank's numbers to get those of
    the second, by the path before the number; only where it is not 0."""

    agree: int
    differ: int
    offsets: Offsets = ()

    def score(self) -> int:
        return self.agree - self.differ

    @property
    def good(self) -> bool:
        """A fault spoils few parameters; those that all ranks have, as gains of norms, agree on any two."""
        return self.agree > 2 * self.differ


def match(one: Signature, other: Signature) -> Match:
    """Which part of ``other`` is ``one``? Numbers of layers, then of experts, are shifted so that most parameters agree."""
    offsets: dict[str, int] = {}
    depth = max((len(pattern(name)[1]) for name in one.parameters), default=0)
    for level in range(depth):
        for prefix, names in _by_prefix(one, level).items():
            shift = _best_shift(one, other, names, level, offsets)
            if shift:
                offsets[prefix] = shift
    votes = Counter(_vote(one, other, name, offsets) for name in one.parameters)
    return Match(votes[1], votes[-1], tuple(sorted(offsets.items())))


def shifted(name: str, offsets: Mapping[str, int]) -> str:
    """The name of a parameter with the numbers of the whole model."""
    if not offsets:
        return name
    shape, numbers = pattern(name)
    pieces = shape.split("#")
    at, moved = "", []
    for piece, number in zip(pieces, numbers, strict=False):
        at += piece
        moved.append(number + offsets.get(at.rstrip("."), 0))
        at += "#"
    return numbered(shape, moved)


def _by_prefix(one: Signature, level: int) -> dict[str, list[str]]:
    """Names that have a number at this level, by what stands before it."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in one.parameters:
        shape, numbers = pattern(name)
        if len(numbers) > level:
            found["#".join(shape.split("#")[: level + 1]).rstrip(".")].append(name)
    return found


def _best_shift(one: Signature, other: Signature, names: list[str], level: int, offsets: Mapping[str, int]) -> int:
    """The shift under which most of these parameters agree; 0 where nothing speaks for another."""
    prefix = "#".join(pattern(names[0])[0].split("#")[: level + 1]).rstrip(".")
    mine = {pattern(shifted(name, offsets))[1][level] for name in names}
    theirs = {
        numbers[level]
        for shape, numbers in map(pattern, other.parameters)
        if len(numbers) > level and "#".join(shape.split("#")[: level + 1]).rstrip(".") == prefix
    }
    if not theirs:
        return 0
    best, most = 0, -len(names) - 1
    for shift in sorted(range(min(theirs) - min(mine), max(theirs) - max(mine) + 1), key=abs):
        votes = sum(_vote(one, other, name, {**offsets, prefix: shift}) for name in names)
        if votes > most:
            best, most = shift, votes
    return best


def _vote(one: Signature, other: Signature, name: str, offsets: Mapping[str, int]) -> int:
    theirs = other.parameters.get(shifted(name, offsets))
    return 0 if theirs is None else alike(one.parameters[name], theirs)


def alike(a: Parameter, b: Parameter) -> int:
    """1: the same, or one a part of the other; -1: neither; 0: cannot tell."""
    if a.constant or b.constant or a.high != a.high or b.high != b.high:
        return 0
    slack = 2 * max(a.unit, b.unit) if a.unit != b.unit else 0.0
    highs, lows = _close(a.high, b.high, slack), _close(a.low, b.low, slack)
    if a.shape == b.shape:
        return 1 if highs and lows else -1
    if len(a.shape) != len(b.shape) or sum(m != n for m, n in zip(a.shape, b.shape, strict=True)) != 1:
        return -1
    small, large = (a, b) if a.shape < b.shape else (b, a)
    inside = (highs or small.high <= large.high) and (lows or small.low >= large.low)
    return -1 if not inside else 1 if highs or lows else 0


def joined_signature(members: Sequence[Signature], whole: Signature) -> Signature:
    """Parameters of a tensor parallel group, of tensors in the shapes that they have in ``whole``."""
    full = _shapes(whole)
    first = members[0].parameters
    found = {}
    for name, parameter in first.items():
        each = [m.parameters[name] for m in members if name in m.parameters]
        shape = next(
            (s for s in full.get(pattern(name)[0], ()) if split_of([p.shape for p in each], s)), parameter.shape
        )
        found[name] = Parameter(shape, max(p.high for p in each), min(p.low for p in each), parameter.unit)
    return Signature(found, {})


def shares_of(one: Signature, whole: Signature) -> Iterator[int]:
    """How many times as large the same parameters of ``whole`` are."""
    full = _shapes(whole)
    for name, parameter in one.parameters.items():
        for shape in full.get(pattern(name)[0], ()):
            yield round(prod(shape) / max(prod(parameter.shape), 1))


def _shapes(whole: Signature) -> dict[str, set[tuple[int, ...]]]:
    """By name without numbers."""
    found: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name, parameter in whole.parameters.items():
        found[pattern(name)[0]].add(parameter.shape)
    return found


def _close(a: float, b: float, slack: float) -> bool:
    return abs(a - b) <= slack * max(abs(a), abs(b))


def replicas(one: Signature, other: Signature) -> bool:
    """Do two ranks of one dump have the same parameters? One that went wrong on a rank does not count against it, one that
    differs in most layers does: it is split, or of other experts."""
    if {n: p.shape for n, p in one.parameters.items()} != {n: p.shape for n, p in other.parameters.items()}:
        return False
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    for name, parameter in one.parameters.items():
        votes[pattern(name)[0]][alike(parameter, other.parameters[name])] += 1
    against = [v for v in votes.values() if v[-1] > v[1]]
    many = [v for v in against if v.total() > 1]
    return not many and len(against) <= max(1, len(votes) // 4)
