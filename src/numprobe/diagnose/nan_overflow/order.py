"""Happened-before over ranks: what can have reached what.

A rank is totally ordered by its records, so the reach of an event is one number a rank: the earliest record that it can
have touched there. Every call is looked at once, whatever the number of ranks; no vector clocks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field

from numprobe.diagnose.nan_overflow.join import CONTRADICTED, Instance, Joined

NEVER = 1 << 60


def _progress(instance: Instance) -> float:
    return instance.progress


@dataclass
class Order:
    """Reachability over joined communication; joins that values contradict are no edges.

    What is unread counts as possible: a rank that was reached may pass it on in calls that were not recorded, if they come
    later in the step by where the other members have them.
    """

    joined: Joined
    positions: dict[int, list[int]] = field(default_factory=dict)
    unread: dict[int, list[Instance]] = field(default_factory=dict)  # by rank: instances in which its call is missing

    _timed: dict[int, list[Instance]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.positions = {r: [c.index for c, _ in calls] for r, calls in self.joined.by_rank.items()}
        for instance in self.joined.instances:
            for rank in instance.absent:
                self.unread.setdefault(rank, []).append(instance)

    def reach(self, starts: dict[int, int]) -> dict[int, int]:
        """Earliest reached record per rank, from records ``starts`` (rank -> op_index); ranks not reached are absent."""
        frontier = dict(starts)
        scanned: dict[int, int] = {}
        passed: set[int] = set()  # an instance that one member has reached is reached
        since: dict[int, float] = {}  # ranks with unread calls: how far into the step they were reached
        queue = deque(starts)

        def cross(instance: Instance, giver: int) -> None:
            if id(instance) in passed or instance.join == CONTRADICTED or not instance.gives(giver):
                return
            passed.add(id(instance))
            for other, theirs in instance.calls.items():
                if other != giver and instance.receives(other) and theirs.index < frontier.get(other, NEVER):
                    frontier[other] = theirs.index
                    queue.append(other)
                    self._touch(other, instance.progress, since)
            for other in instance.absent:
                if other != giver and instance.receives(other) and self._touch(other, instance.progress, since):
                    queue.append(other)

        while queue:
            rank = queue.popleft()
            for instance in self.unread.get(rank, ()):
                if instance.progress >= since.get(rank, 0.0):
                    cross(instance, rank)
            calls = self.joined.by_rank.get(rank)
            if calls is None or rank not in frontier:
                continue
            low = bisect_left(self.positions[rank], frontier[rank])
            high = scanned.get(rank, len(calls))
            if low < high:
                scanned[rank] = low
                for _, instance in calls[low:high]:
                    cross(instance, rank)
        return frontier

    def _touch(self, rank: int, progress: float, since: dict[int, float]) -> bool:
        """Note that a rank with unread calls was reached; True if that is earlier than known."""
        if rank not in self.unread or since.get(rank, 2.0) <= progress:
            return False
        since[rank] = progress
        return True

    def unread_before(self, targets: dict[int, int]) -> set[int]:
        """Ranks whose unread calls could have reached one of the records ``targets`` (rank -> op_index).

        :meth:`reach` backwards, for all ranks at once: what a rank gave matters up to the last call that leads there.
        """
        upto = dict(targets)  # the last record of a rank that leads to a target
        until: dict[int, float] = {}  # ranks with unread calls: how far into the step the last of those lies
        scanned: dict[int, int] = {}
        scanned_unread: dict[int, int] = {}
        passed: set[int] = set()
        queue = deque(targets)

        def cross(instance: Instance, receiver: int) -> None:
            if id(instance) in passed or not instance.receives(receiver):
                return
            passed.add(id(instance))
            for giver in instance.absent:
                if giver != receiver and instance.gives(giver) and until.get(giver, -1.0) < instance.progress:
                    until[giver] = instance.progress
                    queue.append(giver)
            if instance.join == CONTRADICTED:
                return
            for giver, call in instance.calls.items():
                if giver != receiver and instance.gives(giver) and upto.get(giver, -1) < call.index:
                    upto[giver] = call.index
                    queue.append(giver)

        while queue:
            rank = queue.popleft()
            calls = self.joined.by_rank.get(rank, [])
            if rank in until:
                timed = self._by_progress(rank)
                low, high = scanned_unread.get(rank, 0), bisect_right(timed, until[rank], key=_progress)
                scanned_unread[rank] = max(low, high)
                for instance in timed[low:high]:
                    cross(instance, rank)
            low, high = scanned.get(rank, 0), bisect_right(self.positions.get(rank, []), upto.get(rank, -1))
            if low < high:
                scanned[rank] = high
                for _, instance in calls[low:high]:
                    cross(instance, rank)
        return set(until)

    def _by_progress(self, rank: int) -> list[Instance]:
        """All instances of a rank with unread calls, by where they lie in the step."""
        if rank not in self._timed:
            calls = (instance for _, instance in self.joined.by_rank.get(rank, ()))
            self._timed[rank] = sorted([*self.unread[rank], *calls], key=_progress)
        return self._timed[rank]
