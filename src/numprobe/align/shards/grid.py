"""Which ranks of two dumps belong together, when one model lies on more ranks in one of them.

Ranks that hold parameters of each other are one set: a tensor parallel group on one side and the rank with the whole tensors
on the other, the stages of a pipeline and the rank with all layers, and every data parallel copy of them. A set is sorted into
stages (by the layers that its ranks turn out to have), copies (ranks with the same parameters) and columns (what is left: tensor
parallel ranks, or ranks with other experts). Where no parameters were recorded the shapes tell, and ranks are taken in order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from numprobe.align.shards.columns import Stage
from numprobe.align.shards.likeness import Match, Offsets, joined_signature, match, replicas, shares_of
from numprobe.align.shards.signature import Signature, models_of
from numprobe.align.shards.split import split_of
from numprobe.align.shards.unit import Group, Unit
from numprobe.formats.layout import RankFolder

Rank = tuple[RankFolder, Signature]
Part = tuple["Place", Signature]
FEW = 0.05  # of the shapes


@dataclass(frozen=True)
class Place:
    """A rank, or one of the models that it lists: a stage of an interleaved pipeline."""

    folder: RankFolder
    chunk: int | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        return self.folder.key, self.chunk

    def stage(self, number: int, offsets: Offsets) -> Stage:
        """The rank has this number in its group. Models of a list get the number of the first, so that they are one."""
        return Stage(number, (("", -self.chunk), *offsets) if self.chunk else offsets, self.chunk)


@dataclass
class Grid:
    """``units`` are to be compared, each copy of a model for itself; the others have no partner, or not all of their group.
    ``by_number``: without parameters, and with shapes that are the same on both sides, only the numbers of ranks tell."""

    units: list[Unit] = field(default_factory=list)
    by_number: bool = False
    alone: tuple[list[RankFolder], list[RankFolder]] = field(default_factory=lambda: ([], []))


def sort_ranks(target: Sequence[Rank], golden: Sequence[Rank]) -> Grid:
    """Find the ranks that belong together."""
    grid = Grid()
    if not all(s.parameters for _, s in (*target, *golden)):
        ones, others = ([(Place(folder), s) for folder, s in ranks] for ranks in (target, golden))
        if not _parts(ones, others):
            return Grid(by_number=True)
        sets = list(_in_order(ones, others))
    else:
        sets = _sets(_places(target, golden), _places(golden, target))
    for found in sets:
        grid.units += _units(found)
    for side, ranks in enumerate((target, golden)):
        used = {rank.key for unit in grid.units for rank in (unit.target, unit.golden)[side].ranks}
        grid.alone[side].extend(rank for rank, _ in ranks if rank.key not in used)
    return grid


def _places(ranks: Sequence[Rank], others: Sequence[Rank]) -> list[Part]:
    """The ranks, or the models that they list, where the other side lists fewer: then they are stages of one."""
    lists = [models_of(signature) for _, signature in ranks]
    if len(lists[0]) == 1 or max(len(models_of(signature)) for _, signature in others) > 1:
        return [
            (Place(folder), next(iter(of.values())) if len(of) == 1 else signature)
            for (folder, signature), of in zip(ranks, lists, strict=True)
        ]
    models = sorted({model for of in lists for model in of})
    return [
        (Place(folder, model), of[model])
        for model in models
        for (folder, _), of in zip(ranks, lists, strict=True)
        if model in of
    ]


@dataclass
class _Set:
    """Ranks that hold parts of each other, on both sides; ``offsets`` by key of a rank: what makes its numbers global."""

    sides: tuple[list[Part], list[Part]]
    offsets: tuple[_OffsetsOf, _OffsetsOf]


_OffsetsOf = dict[tuple[str, int | None], Offsets]


# --- sets ------------------------------------------------------------------------------------------------------------


def _sets(target: Sequence[Part], golden: Sequence[Part]) -> list[_Set]:
    """Connected ranks. The side whose ranks have more parameters has the numbers that count."""
    fine = _size(target) <= _size(golden)  # the target's ranks are parts of the golden run's
    small, large = (target, golden) if fine else (golden, target)
    matches: dict[tuple[int, int], Match] = {}
    for j, (_, other) in enumerate(large):
        single = [match(one, other) for _, one in small]
        for members in _neighbours(small, other):
            found = match(joined_signature([small[i][1] for i in members], other), other)
            for i in members:
                single[i] = max(single[i], found, key=Match.score)
        matches.update({(i, j): found for i, found in enumerate(single) if found.good})
    sets = []
    for ones, others in _connected(matches):
        offsets: _OffsetsOf = {}
        for i in ones:
            best = max((matches[i, j] for j in others if (i, j) in matches), key=Match.score)
            offsets[small[i][0].key] = best.offsets
        sides = [small[i] for i in sorted(ones)], [large[j] for j in sorted(others)]
        all_offsets: tuple[_OffsetsOf, _OffsetsOf] = offsets, {}
        sets.append(_Set(sides, all_offsets) if fine else _Set(sides[::-1], all_offsets[::-1]))
    return sets


def _neighbours(ranks: Sequence[Part], other: Signature) -> Iterator[list[int]]:
    """Ranks that may be one tensor parallel group, as many as the share of the whole says that one has: next to each other, or as
    far from each other as can be. A single rank of many may have the largest element of none of its tensors; a group has."""
    shares = Counter(share for _, one in ranks[:1] for share in shares_of(one, other))
    shares.pop(1, None)
    size = shares.most_common(1)[0][0] if shares else 1
    if size < 2 or len(ranks) % size:
        return
    groups = len(ranks) // size
    yield from ([g * size + i for i in range(size)] for g in range(groups))
    if groups > 1:
        yield from (list(range(g, len(ranks), groups)) for g in range(groups))


def _size(ranks: Sequence[Part]) -> int:
    return max(len(s.parameters) for _, s in ranks)


def _connected(pairs: dict[tuple[int, int], Match]) -> Iterator[tuple[set[int], set[int]]]:
    waiting = set(pairs)
    while waiting:
        one, other = next(iter(sorted(waiting)))
        ones, others = {one}, {other}
        grown = True
        while grown:
            found = {(i, j) for i, j in waiting if i in ones or j in others}
            grown = bool(found)
            waiting -= found
            ones |= {i for i, _ in found}
            others |= {j for _, j in found}
        yield ones, others


def _parts(target: Sequence[Part], golden: Sequence[Part]) -> bool:
    """Have ranks of the larger side parts of what one of the smaller has? Of activations many are the same on all ranks."""
    few, many = sorted((target, golden), key=len)
    each = max(len(many) // len(few), 2)
    shapes, full = many[0][1].shapes, few[0][1].shapes
    shared = shapes.keys() & full.keys()
    parts = sum(split_of([shapes[key]] * each, full[key]) is not None for key in shared)
    same = sum(shapes[key] == full[key] for key in shared)
    return parts > FEW * len(shared) or same < len(shared) / 2


def _in_order(target: Sequence[Part], golden: Sequence[Part]) -> Iterator[_Set]:
    """Without parameters: so many neighbours of the larger side belong to one rank of the smaller."""
    few, many = sorted((target, golden), key=len)
    each, rest = divmod(len(many), len(few))
    for i in range(len(few)):
        sides = [few[i]], list(many[i * each : (i + 1) * each]) if not rest else []
        yield _Set(sides if few is target else sides[::-1], ({}, {}))


# --- units of a set --------------------------------------------------------------------------------------------------


def _units(found: _Set) -> list[Unit]:
    """The copies of the model in a set, each with its partner; none where they do not fit."""
    if not found.sides[0] or not found.sides[1]:
        return []
    blocks = [_block(ranks, offsets) for ranks, offsets in zip(found.sides, found.offsets, strict=True)]
    one, other = blocks
    if one is None or other is None:
        return []
    one, other = _split_batch(one, other), _split_batch(other, one)
    widths = len(one[0]), len(other[0])
    if min(widths) > 1 or not _whole(one[0], other[0]):
        return []
    return [Unit(_group(copy), _group(other[i * len(other) // len(one)])) for i, copy in enumerate(one)]


_Column = tuple[tuple[Part, Offsets], ...]  # by stage
_Copy = tuple[_Column, ...]


def _block(ranks: Sequence[Part], offsets: _OffsetsOf) -> list[_Copy] | None:
    """The ranks of one side as copies x columns x stages; None where they do not fill such a block."""
    stages: dict[Offsets, list[Part]] = defaultdict(list)
    for rank in ranks:
        stages[_of_layers(offsets.get(rank[0].key, ()))].append(rank)
    by_stage = [_classes(stages[o]) for o in sorted(stages, key=lambda o: ([n for _, n in o[:1]], o))]
    widths, copies = {len(c) for c in by_stage}, {len(members) for c in by_stage for members in c}
    if len(widths) != 1 or len(copies) != 1:
        return None
    return [
        tuple(
            tuple((classes[c][copy], offsets.get(classes[c][copy][0].key, ())) for classes in by_stage)
            for c in range(len(by_stage[0]))
        )
        for copy in range(copies.pop())
    ]


def _of_layers(offsets: Offsets) -> Offsets:
    """Without those of experts inside a layer: they make no stage."""
    return tuple((prefix, n) for prefix, n in offsets if "#" not in prefix)


def _classes(ranks: Sequence[Part]) -> list[list[Part]]:
    """Ranks with the same parameters."""
    found: list[list[Part]] = []
    for rank in ranks:
        for members in found:
            if rank[1].parameters and replicas(members[0][1], rank[1]):
                members.append(rank)
                break
        else:
            found.append([rank])
    return found


def _split_batch(mine: list[_Copy], theirs: list[_Copy]) -> list[_Copy]:
    """Copies of the parameters that each worked on a part of the other side's batch are columns of one model."""
    if len(mine) % len(theirs) or len(mine) == len(theirs):
        return mine
    each = len(mine) // len(theirs)
    shapes, full = mine[0][0][0][0][1].shapes, theirs[0][0][0][0][1].shapes
    votes = Counter(
        "same" if shapes[key] == full[key] else "part" if split_of([shapes[key]] * each, full[key]) else "other"
        for key in shapes.keys() & full.keys()
    )
    if votes["part"] <= votes["same"]:
        return mine
    return [tuple(c for copy in mine[i : i + each] for c in copy) for i in range(0, len(mine), each)]


def _whole(one: _Copy, other: _Copy) -> bool:
    """Are all members of the groups there? Tells the share of the whole that most parameters of a column have."""
    wide, narrow = (one, other) if len(one) >= len(other) else (other, one)
    shares = Counter(
        share for (rank, _) in wide[0] for (partner, _) in narrow[0] for share in shares_of(rank[1], partner[1])
    )
    shares.pop(1, None)
    return not shares or shares.most_common(1)[0][0] == len(wide)


def _group(copy: _Copy) -> Group:
    folders = {place.folder.key: place.folder for column in copy for (place, _), _ in column}
    ranks = sorted(folders.values(), key=lambda r: (r.rank or 0, r.key))
    number = {rank.key: i for i, rank in enumerate(ranks)}
    return Group(
        tuple(ranks),
        tuple(
            tuple(place.stage(number[place.folder.key], offsets) for (place, _), offsets in column) for column in copy
        ),
    )
