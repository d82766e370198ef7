"""Tokens that an engine took in chunks of a prompt and in steps of one token, found in the sequences of a forward pass over all.

A *run* is a part of one call whose positions follow each other: of one request, or of two where the second happens to be at the
next position. It goes on where the request ended in an earlier call, or begins one at position 0. Requests that are at the same
position are told apart by the ids that training has, and where those are the same too by the order of the batch. Without
positions, calls are taken as those of one request after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Order = NDArray[np.int64]
ENOUGH = 0.5  # of the tokens of the side that has fewer


@dataclass
class _Request:
    """``fits`` are the sequences that begin with its ids; ``places`` are its tokens in the order of the calls."""

    fits: list[int]
    places: list[int] = field(default_factory=list)
    length: int = 0  # tokens so far
    agreeing: int = 0  # of them, those that the best sequence has too
    decodes: bool = False  # its last run was one token
    call: int = -1  # the last one


def follow(
    sequences: Sequence[Ids], firsts: Sequence[int], ids: Ids, positions: Ids | None, calls: Sequence[int]
) -> tuple[Order, Order] | None:
    """Which token is which: places in the training run, ascending, and in the rollout. None where too few are found.

    Args:
        sequences: token ids of training, one array a sequence; ``firsts`` has the place of the first token of each.
        ids: token ids of the rollout, call after call; ``positions`` those in their prompts, if recorded.
        calls: how many tokens each call took.
    """
    requests = _requests(sequences, ids, positions, calls) if positions is not None else _streams(sequences, ids, calls)
    one: list[NDArray[np.int64]] = []
    other: list[NDArray[np.int64]] = []
    taken: set[int] = set()
    for request in sorted(requests, key=lambda r: -r.agreeing):  # stable: the order of the calls
        sequence = next((s for s in request.fits if s not in taken), -1)
        if sequence >= 0 and request.agreeing:
            taken.add(sequence)
            one.append(firsts[sequence] + np.arange(request.agreeing))
            other.append(np.array(request.places[: request.agreeing], np.int64))
    found = sum(map(len, one))
    if found < 2 or found < ENOUGH * min(sum(map(len, sequences)), len(ids)):
        return None
    kept, at = np.concatenate(one), np.concatenate(other)
    order = np.argsort(kept, kind="stable")
    return kept[order], at[order]


def _requests(sequences: Sequence[Ids], ids: Ids, positions: Ids, calls: Sequence[int]) -> list[_Request]:
    followed = _Followed(sequences)
    begin = 0
    for number, count in enumerate(calls):
        followed.call(number, begin, ids[begin : begin + count], positions[begin : begin + count])
        begin += count
    return followed.requests


class _Followed:
    """The requests so far. ``waiting`` has them by the position that comes next, in the order of the batch."""

    def __init__(self, sequences: Sequence[Ids]) -> None:
        self.sequences = sequences
        self.requests: list[_Request] = []
        self.waiting: dict[int, list[_Request]] = {}

    def call(self, number: int, begin: int, ids: Ids, positions: Ids) -> None:
        """One call; ``begin`` is the place of its first token."""
        runs = _runs(positions)
        chosen = self._who_goes_on(runs, ids, positions)
        served: list[_Request] = []
        for (start, end), request in zip(runs, chosen, strict=True):
            at = start
            while at < end:
                if request is None or at > start:  # a decoded token may stand right behind another request's
                    request = self._waiting_for(int(positions[at]), int(ids[at])) or request
                if request is None:
                    break
                taken = self._length(request, ids[at:end])
                self._extend(request, ids[at : at + taken], range(begin + at, begin + at + taken), number)
                if request not in served:
                    served.append(request)
                at += taken
        for request in served:
            self.waiting.setdefault(request.length, []).append(request)

    def _who_goes_on(self, runs: Sequence[tuple[int, int]], ids: Ids, positions: Ids) -> list[_Request | None]:
        """The request of every run: those at one position are told apart by their ids, so that as many as can be go on as
        training has it (Kuhn's matching), each with the first in the order of the batch."""
        chosen: list[_Request | None] = [None] * len(runs)
        for first in dict.fromkeys(int(positions[start]) for start, _ in runs):
            group = [n for n, (start, _) in enumerate(runs) if positions[start] == first]
            if not first:
                for n in group:
                    chosen[n] = _Request(list(range(len(self.sequences))))
                    self.requests.append(chosen[n])  # type: ignore[arg-type]
                continue
            candidates = sorted(self.waiting.get(first, ()), key=lambda r: -r.call)
            tokens = [int(ids[runs[n][0]]) for n in group]
            goes_on = [[c for c, r in enumerate(candidates) if self._fits(r, token)] for token in tokens]
            found = _matching(goes_on)
            rest = [c for c, r in enumerate(candidates) if c not in found.values() and r.agreeing < r.length]
            for k, n in enumerate(group):
                if k in found:
                    chosen[n] = candidates[found[k]]
                elif rest:  # one that has left the sequences of training
                    chosen[n] = candidates[rest.pop(0)]
            for request in (chosen[n] for n in group):
                if request is not None:
                    self.waiting[first].remove(request)
        return chosen

    def _waiting_for(self, position: int, token: int) -> _Request | None:
        """Who goes on with this token, and has no run of this call yet."""
        candidates = sorted(self.waiting.get(position, ()), key=lambda r: -r.call)
        found = next((r for r in candidates if self._fits(r, token)), None)
        if found is not None:
            self.waiting[position].remove(found)
        return found

    def _fits(self, request: _Request, token: int) -> bool:
        if request.agreeing < request.length:
            return False
        at = request.length
        return any(at < len(self.sequences[s]) and self.sequences[s][at] == token for s in request.fits)

    def _length(self, request: _Request, ids: Ids) -> int:
        """How much of a run is this request's: as far as training has it so, of one that decodes a token; all of it where nobody
        else waits there."""
        if request.agreeing < request.length:
            return len(ids)
        agreed = max((_common(self.sequences[s][request.length :], ids) for s in request.fits), default=0)
        end = min(agreed, 1) if request.decodes else agreed
        for at in dict.fromkeys((end, agreed)):
            if 0 < at < len(ids) and any(
                self._fits(r, int(ids[at])) for r in self.waiting.get(request.length + at, ()) if r is not request
            ):
                return at
        return len(ids)

    def _extend(self, request: _Request, part: Ids, places: range, call: int) -> None:
        if request.agreeing == request.length:  # else it has left every sequence already
            agreeing = {s: _common(self.sequences[s][request.length :], part) for s in request.fits}
            most = max(agreeing.values(), default=0)
            if most:
                request.fits = [s for s in request.fits if agreeing[s] == most]
            request.agreeing += most
        request.decodes = request.length > 0 and len(part) == 1
        request.places += places
        request.length += len(part)
        request.call = call


def _runs(positions: Ids) -> list[tuple[int, int]]:
    """Begin and end of what follows each other."""
    ends = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    return [(a, b) for a, b in itertools.pairwise(ends) if b > a]


def _matching(goes_on: Sequence[Sequence[int]]) -> dict[int, int]:
    """As many pairs as there can be: of the left side, which of the right it may have, the best first."""
    taken: dict[int, int] = {}

    def place(left: int, seen: set[int]) -> bool:
        for right in goes_on[left]:
            if right not in seen:
                seen.add(right)
                if right not in taken or place(taken[right], seen):
                    taken[right] = left
                    return True
        return False

    for left in range(len(goes_on)):
        place(left, set())
    return {left: right for right, left in taken.items()}


def _common(one: Ids, other: Ids) -> int:
    """How many ids both begin with."""
    n = min(len(one), len(other))
    differs = np.flatnonzero(one[:n] != other[:n])
    return int(differs[0]) if len(differs) else n


def _streams(sequences: Sequence[Ids], ids: Ids, calls: Sequence[int]) -> list[_Request]:
    """Of every sequence, the longest run of calls that has its ids, from the first free call on."""
    begins = np.concatenate([[0], np.cumsum(calls)[:-1]]).astype(int).tolist()
    found: list[_Request] = []
    free = np.ones(len(ids), bool)
    for number, sequence in enumerate(sequences):
        lengths = {begin: _common(sequence, ids[begin:]) for begin in begins if free[begin]}
        best = max(lengths, key=lambda begin: (lengths[begin], -begin), default=0)
        length = lengths.get(best, 0)
        stop = np.flatnonzero(~free[best : best + length])
        length = int(stop[0]) if len(stop) else length
        free[best : best + length] = False
        found.append(_Request([number], list(range(best, best + length)), length, length))
    return found
