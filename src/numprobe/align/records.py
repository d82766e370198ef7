"""Which record of the target is which of the golden run.

Names alone cannot say: one extra operator shifts the call numbers of every later call of its kind. Calls are therefore paired
as a tree: the calls inside a module are one sequence, two modules that were paired have theirs paired, and inside a sequence the
API, the shapes, the code line and the figures decide, never the number. A backward record belongs to its forward record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from numprobe.align.calls import RECOMPUTE, Calls
from numprobe.align.likeness import Likeness
from numprobe.align.naming import SAME_NAMES, Naming
from numprobe.align.sequence import match
from numprobe.formats.msprobe.values import GIVEN
from numprobe.record.names import BACKWARD, FORWARD, PARAMETERS_GRAD, OpName


@dataclass(frozen=True)
class RecordPairs:
    """Rows in the target's order; -1 where a side has no such record. Records of the golden run alone stand behind the one
    that they follow there."""

    target: tuple[int, ...]
    golden: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.target)


def pair_records(target: Calls, golden: Calls, naming: Naming = SAME_NAMES) -> RecordPairs:
    """Pair the records of two runs of one model."""
    if naming == SAME_NAMES and _the_same(target, golden):
        everything = tuple(range(len(target.ops)))
        return RecordPairs(everything, everything)
    return _Pairing(target, golden, naming).pairs()


def _the_same(target: Calls, golden: Calls) -> bool:
    """The same records in the same order, with the same parents and shapes: nothing to find out."""
    t, g = target.values, golden.values
    return (
        t.names == g.names
        and target.parent == golden.parent
        and t.shapes == g.shapes
        and len(t) == len(g)
        and bool((t.shape == g.shape).all())
    )


@dataclass
class _Pairing:
    target: Calls
    golden: Calls
    naming: Naming
    found: dict[int, int] = field(default_factory=dict)  # target record -> golden record

    def __post_init__(self) -> None:
        self.taken: set[int] = set()
        self.likeness = Likeness(self.target, self.golden)
        given = self.naming.given
        self.sides = (
            _Side(self.target, self.naming, given),
            _Side(self.golden, SAME_NAMES, {g: g for g in given.values()}),
        )
        for t, g in given.items():
            self._pair(t, g)

    def pairs(self) -> RecordPairs:
        for phase in (FORWARD, RECOMPUTE):
            self._phase(phase)
        self._recomputed_once()
        self._backward()
        self._by_name(PARAMETERS_GRAD)
        for phase in {*self.target.phase, *self.golden.phase} - {FORWARD, RECOMPUTE, BACKWARD, PARAMETERS_GRAD}:
            self._by_name(phase)
        return self._rows()

    def _pair(self, t: int, g: int) -> None:
        self.found[t] = g
        self.taken.add(g)

    # --- forward -------------------------------------------------------------------------------------------------

    def _phase(self, phase: str) -> None:
        roots: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side, calls in enumerate((self.target, self.golden)):
            for i, parent in enumerate(calls.parent):
                if calls.phase[i] == phase and (parent < 0 or calls.phase[parent] != phase):
                    roots[calls.around[i]][side].append(i)
        inside = [self._inside(t, g, phase) for t, g in self.naming.given.items()]
        for one, other in [*inside, *roots.values()]:
            self._sequences(one, other, phase)
        left = [
            [i for i, p in enumerate(calls.phase) if p == phase and calls.ops[i].is_module and i not in paired]
            for calls, paired in ((self.target, self.found), (self.golden, self.taken))
        ]
        self._sequences(left[0], left[1], phase)  # modules that the two trees have in different places

    def _sequences(self, targets: list[int], goldens: list[int], phase: str) -> None:
        """Pair two sequences of calls, and then what is inside of those that were paired."""
        work = [(targets, goldens)]
        while work:
            ts, gs = work.pop()
            pairs = self._sequence(ts, gs)
            for t, g in pairs:
                self._pair(t, g)
                inside = self._inside(t, g, phase)
                if inside[0] and inside[1]:
                    work.append(inside)

    def _inside(self, t: int, g: int, phase: str) -> tuple[list[int], list[int]]:
        """The calls inside two paired modules that have no partner yet."""
        one, other = self.target, self.golden
        return (
            [k for k in one.children[t] if one.phase[k] == phase and k not in self.found],
            [k for k in other.children[g] if other.phase[k] == phase and k not in self.taken],
        )

    def _sequence(self, ts: list[int], gs: list[int]) -> list[tuple[int, int]]:
        """The pairs of one sequence. A module without partner is opened, the outermost first: it may be a wrapper that the other
        side lacks, or its record may be lost there."""
        while True:
            pairs = self._by_keys(ts, gs)
            paired_t, paired_g = {t for t, _ in pairs}, {g for _, g in pairs}
            if len(paired_t) == len(ts) or len(paired_g) == len(gs):
                return pairs
            sides = (self.target, ts, paired_t), (self.golden, gs, paired_g)
            closed = [_depth(c.ops[i]) for c, records, paired in sides for i in records if _opens(c, i, paired)]
            if not closed:
                return pairs
            ts, gs = (_opened(c, records, paired, min(closed)) for c, records, paired in sides)

    def _by_keys(self, ts: list[int], gs: list[int]) -> list[tuple[int, int]]:
        one, other = self.sides
        gaps = [(ts, gs)]
        pairs: list[tuple[int, int]] = []
        for strict in (True, False):
            left: list[tuple[list[int], list[int]]] = []
            for a, b in gaps:
                keys_a, keys_b = [one.key(i, strict) for i in a], [other.key(i, strict) for i in b]
                found = match(keys_a, keys_b, lambda i, j, a=a, b=b: self.likeness(a[i], b[j]))  # type: ignore[misc]
                pairs += [(a[i], b[j]) for i, j in found]
                left += _between(a, b, found)
            gaps = left
        return pairs

    # --- recompute -----------------------------------------------------------------------------------------------

    def _recomputed_once(self) -> None:
        """A recompute without partner, on a run whose other side does not recompute, is compared with the first call."""
        one = self.sides[0]
        for t, twin in one.twins.items():
            if t not in self.found and twin in self.found:
                self.found[t] = self.found[twin]

    # --- backward ------------------------------------------------------------------------------------------------

    def _backward(self) -> None:
        """By the forward record; what has none by sequence, module by module where the tree is recorded."""
        of_forward: dict[int, list[int]] = defaultdict(list)
        one, other = self.sides
        for g, phase in enumerate(self.golden.phase):
            if phase == BACKWARD and g not in self.taken:
                of_forward[other.first_call(other.forward_of(g))].append(g)
        rest_t: list[int] = []
        for t, phase in enumerate(self.target.phase):
            if phase != BACKWARD or t in self.found:
                continue
            forward = one.first_call(one.forward_of(t))
            candidates = of_forward.get(self.found.get(forward, -2), [])
            if candidates:
                self._pair(t, candidates.pop(0))
            else:
                rest_t.append(t)
        rest_g = [g for g, p in enumerate(self.golden.phase) if p == BACKWARD and g not in self.taken]
        rest_t = [t for t in rest_t if one.forward_of(t) not in self.found]
        rest_g = [g for g in rest_g if other.forward_of(g) < 0 or other.forward_of(g) not in self.taken]
        for t, g in self._by_keys(rest_t, rest_g):
            self._pair(t, g)

    def _by_name(self, phase: str) -> None:
        """By name and call; what is left of modules by path and call, where the classes are others."""
        one, other = self.sides
        for strict in (True, False):
            waiting: dict[Hashable, list[int]] = defaultdict(list)
            for g, p in enumerate(self.golden.phase):
                if p == phase and g not in self.taken:
                    waiting[other.name_key(g, strict)].append(g)
            for t, p in enumerate(self.target.phase):
                if p == phase and t not in self.found and (candidates := waiting[one.name_key(t, strict)]):
                    self._pair(t, candidates.pop(0))

    # --- rows ----------------------------------------------------------------------------------------------------

    def _rows(self) -> RecordPairs:
        behind: dict[int, list[int]] = defaultdict(
            list
        )  # target record -> golden records without partner that follow it
        back = {g: t for t, g in sorted(self.found.items(), reverse=True)}
        last = -1
        for g in range(len(self.golden.ops)):
            if g in back:
                last = max(last, back[g]) if last < back[g] else back[g]
            else:
                behind[last].append(g)
        rows: list[tuple[int, int]] = [(-1, g) for g in behind[-1]]
        for t in range(len(self.target.ops)):
            rows.append((t, self.found.get(t, -1)))
            rows += [(-1, g) for g in behind.get(t, ())]
        return RecordPairs(tuple(t for t, _ in rows), tuple(g for _, g in rows))


def _depth(op: OpName) -> int:
    return op.path.count(".")


def _opens(calls: Calls, i: int, paired: set[int]) -> bool:
    """Is this a module without partner that has calls inside?"""
    return (
        i not in paired and calls.ops[i].is_module and any(calls.phase[k] == calls.phase[i] for k in calls.children[i])
    )


def _opened(calls: Calls, records: list[int], paired: set[int], depth: int) -> list[int]:
    """The sequence with the calls inside of the modules of this depth in their place."""
    opened: list[int] = []
    for i in records:
        if _opens(calls, i, paired) and _depth(calls.ops[i]) == depth:
            opened += [k for k in calls.children[i] if calls.phase[k] == calls.phase[i]]
        else:
            opened.append(i)
    return opened


def _between(
    a: Sequence[int], b: Sequence[int], found: Sequence[tuple[int, int]]
) -> Iterable[tuple[list[int], list[int]]]:
    """The stretches between pairs that hold elements of both sides."""
    i = j = 0
    for i1, j1 in [*found, (len(a), len(b))]:
        if i < i1 and j < j1:
            yield list(a[i:i1]), list(b[j:j1])
        i, j = i1 + 1, j1 + 1


class _Side:
    """Keys of the records of one side, each worked out once."""

    def __init__(self, calls: Calls, naming: Naming, given: Mapping[int, int]) -> None:
        self.calls = calls
        self.naming = naming
        self.given = given  # record -> the golden record that it is, whatever the names
        self._identity: dict[int, tuple[Hashable, Hashable]] = {}

    def key(self, i: int, strict: bool) -> Hashable:
        """What pairs: path and class of a module, prefix and name of an API; loosely, the path and the name alone."""
        found = self._identity.get(i)
        if found is None:
            same = ("given", self.given[i]) if i in self.given else None
            found = self._identity[i] = (same, same) if same else self._keys(self.calls.ops[i])
        return found[0] if strict else found[1]

    def _keys(self, op: OpName) -> tuple[Hashable, Hashable]:
        if op.is_module:
            path, kind = self.naming.module(op.path, op.api)
            return ("module", path, kind, op.direction), ("module", path, op.direction)
        prefix, api = self.naming.api(op.prefix, op.api)
        return ("api", prefix, api, op.direction), ("api", api.strip("_"), op.direction)

    def name_key(self, i: int, strict: bool) -> Hashable:
        op = self.calls.ops[i]
        if not op.is_module:
            return op.name
        path, kind = self.naming.module(op.path, op.api)
        return (path, kind, op.call) if strict else (path, op.call)

    def forward_of(self, i: int) -> int:
        """The forward record of a backward one; -1 where it is not recorded."""
        op = self.calls.ops[i]
        name = (
            f"{op.prefix}.{op.path}.{op.api}.{FORWARD}.{op.call}"
            if op.is_module
            else f"{op.prefix}.{op.api}.{op.call}.{FORWARD}"
        )
        return self.calls.position.get(name, -1)

    def first_call(self, i: int) -> int:
        """The call that a recompute repeats; any other is itself."""
        return self.twins.get(i, i)

    @property
    def twins(self) -> dict[int, int]:
        """Recompute record -> the record of the first call, by module and order."""
        if self._twins is None:
            self._twins = _find_twins(self.calls)
        return self._twins

    _twins: dict[int, int] | None = None


def _same_inputs(calls: Calls, i: int, k: int) -> bool:
    """Do the first tensors of two records have the same figures?"""
    values = calls.values
    a, b = (next((r for r in values.rows(n) if values.status[r, 0] == GIVEN), -1) for n in (i, k))
    return a >= 0 and b >= 0 and bool((values.figures[a] == values.figures[b]).all())


def _find_twins(calls: Calls) -> dict[int, int]:
    """Outermost recomputed calls find the first call of the same kind that has the same inputs and is not taken; what is
    inside follows in order."""
    twins: dict[int, int] = {}
    roots = [
        i
        for i, phase in enumerate(calls.phase)
        if phase == RECOMPUTE and (calls.parent[i] < 0 or calls.phase[calls.parent[i]] != RECOMPUTE)
    ]
    if not roots:
        return twins
    first: dict[Hashable, list[int]] = defaultdict(list)
    for i, phase in enumerate(calls.phase):
        if phase == FORWARD:
            op = calls.ops[i]
            first[op.prefix, op.path, op.api].append(i)
    work: list[tuple[int, int]] = []
    for i in roots:
        op = calls.ops[i]
        candidates = first[op.prefix, op.path, op.api]
        if candidates:
            best = next((k for k in candidates if _same_inputs(calls, i, k)), candidates[0])
            candidates.remove(best)
            work.append((i, best))
    while work:
        i, k = work.pop()
        twins[i] = k
        inside = [[c for c in calls.children[n] if calls.phase[c] == calls.phase[n]] for n in (i, k)]
        keys = [[(calls.ops[c].prefix, calls.ops[c].path, calls.ops[c].api) for c in part] for part in inside]
        work += [(inside[0][a], inside[1][b]) for a, b in match(keys[0], keys[1])]
    return twins
