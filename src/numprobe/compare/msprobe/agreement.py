"""Ranks whose outputs should agree and do not: results of collectives, across the members of their group."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from numprobe.compare.msprobe.items import PROCESS_GROUP
from numprobe.compare.msprobe.results import RankResult
from numprobe.compare.msprobe.workbook import Cell

# every member of the group holds the same values afterwards
SAME_EVERYWHERE = frozenset(("all_reduce", "all_gather", "all_gather_into_tensor", "_all_gather_base", "broadcast"))
HEAD = ("NPU Name", "group", "what", "ranks that agree", "their value", "other ranks", "their values", "golden agrees")

_NAME = re.compile(r"((?:Distributed|MintDistributed)\.([a-z_]+)\.[0-9]+\.forward)\.(input|output)(?:\.(.+))?")

_Signature = tuple[Cell, ...]


@dataclass(frozen=True)
class Disagreement:
    """One output of one collective that is not the same on all members of its group.

    ``what``: ``values``, or ``calls`` where the members did not call this API equally often, so that their calls cannot be
    put together. ``name`` is the item on the lowest rank. ``values`` holds max, min, mean and norm (or the checksum) a rank;
    for ``calls`` their number. ``golden_agrees``: the golden side has one value on all members; None where it is not known.
    """

    name: str
    group: str
    what: str
    values: Mapping[int, _Signature]
    golden_agrees: bool | None

    @property
    def common(self) -> _Signature:
        """The value of most ranks; of the lowest of them, where several are as frequent."""
        return Counter(self.values[rank] for rank in sorted(self.values)).most_common(1)[0][0]

    @property
    def others(self) -> list[int]:
        return [rank for rank in sorted(self.values) if self.values[rank] != self.common]

    def line(self) -> list[Cell]:
        agree = [rank for rank in sorted(self.values) if self.values[rank] == self.common]
        return [
            self.name,
            self.group,
            self.what,
            " ".join(map(str, agree)),
            _text(self.common),
            " ".join(map(str, self.others)),
            "; ".join(_text(self.values[rank]) for rank in self.others),
            self.golden_agrees,
        ]


def _text(signature: _Signature) -> str:
    return ", ".join(map(str, signature))


@dataclass
class _Output:
    """One output of one call, by rank."""

    name: str
    target: dict[int, _Signature] = field(default_factory=dict)
    golden: dict[int, _Signature] = field(default_factory=dict)


def disagreements(
    results: Sequence[RankResult], groups: Mapping[str, Sequence[int]] | None = None
) -> list[Disagreement]:
    """Outputs of all_reduce, all_gather and broadcast that differ between the ranks of one group, in execution order.

    A call's group is the recorded argument; where none was given, all ranks that have a result. The n-th call of an API on
    a group is the n-th on every member. ``groups`` gives names to sets of ranks.
    """
    ranks = tuple(result.rank for result in results)
    names = {tuple(sorted(members)): name for name, members in (groups or {}).items()}

    def label(members: tuple[int, ...]) -> str:
        return names.get(members) or " ".join(map(str, members))

    outputs: dict[tuple[str, tuple[int, ...], int, str], _Output] = {}
    calls: dict[tuple[str, tuple[int, ...]], dict[int, int]] = defaultdict(dict)
    first: dict[tuple[str, tuple[int, ...]], str] = {}
    for result in results:
        for call in _calls(result, ranks):
            shared = (call.api, call.members)
            number = calls[shared].get(result.rank, 0)
            calls[shared][result.rank] = number + 1
            first.setdefault(shared, call.record)
            for name, place, target, golden in call.outputs:
                output = outputs.setdefault((*shared, number, place), _Output(name))
                output.target[result.rank] = target
                output.golden[result.rank] = golden
    found: list[Disagreement] = []
    uneven: set[tuple[str, tuple[int, ...]]] = set()
    for shared, counts in calls.items():
        number_of: dict[int, _Signature] = {rank: (counts.get(rank, 0),) for rank in shared[1] if rank in ranks}
        if len(set(number_of.values())) > 1:
            uneven.add(shared)
            found.append(Disagreement(first[shared], label(shared[1]), "calls", number_of, None))
    for (api, members, _, _), output in outputs.items():
        if (api, members) not in uneven and len(set(output.target.values())) > 1:
            agrees = len(set(output.golden.values())) == 1 if all(output.golden.values()) else None
            found.append(Disagreement(output.name, label(members), "values", output.target, agrees))
    return found


@dataclass
class _Call:
    record: str
    api: str
    members: tuple[int, ...]
    outputs: list[tuple[str, str, _Signature, _Signature]] = field(default_factory=list)


def _calls(result: RankResult, ranks: tuple[int, ...]) -> Iterator[_Call]:
    """The collectives of one rank in its order."""
    call: _Call | None = None
    for row in result.communication:
        match = _NAME.fullmatch(row.name)
        if match is None or match[2] not in SAME_EVERYWHERE:
            continue
        if call is None or call.record != match[1]:
            if call is not None:
                yield call
            call = _Call(match[1], match[2], ranks)
        if match[3] == "output":
            call.outputs.append((row.name, match[4] or "", row.target, row.golden))
        elif row.dtype == PROCESS_GROUP:
            call.members = _members(str(row.target[0])) or ranks
    if call is not None:
        yield call


def _members(text: str) -> tuple[int, ...]:
    """``[0, 1]`` -> (0, 1); empty where it is no list of ranks."""
    try:
        members = json.loads(text)
    except ValueError:
        return ()
    if not isinstance(members, list) or not all(type(rank) is int for rank in members):
        return ()
    return tuple(sorted(members))
