"""Happened-before over ranks: what can have reached what.

A rank is totally ordered by its records, so the reach of an event is one number a rank: the earliest record that it can
have touched there. Every call is looked at once, whatever the number of ranks; no vector clocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from numprobe.diagnose.nan_overflow.join import CONTRADICTED, Joined

NEVER = 1 << 60


@dataclass
class Order:
    """Reachability over joined communication; joins that values contradict are no edges."""

    joined: Joined
    positions: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.positions = {r: [c.index for c, _ in calls] for r, calls in self.joined.by_rank.items()}

    def reach(self, starts: dict[int, int]) -> dict[int, int]:
        """Earliest reached record per rank, from records ``starts`` (rank -> op_index); ranks not reached are absent."""
        frontier = dict(starts)
        scanned: dict[int, int] = {}
        passed: set[int] = set()  # an instance that one member has reached is reached
        queue = deque(starts)
        while queue:
            rank = queue.popleft()
            calls = self.joined.by_rank.get(rank)
            if calls is None:
                continue
            low = bisect_left(self.positions[rank], frontier[rank])
            high = scanned.get(rank, len(calls))
            if low >= high:
                continue
            scanned[rank] = low
            for _, instance in calls[low:high]:
                if id(instance) in passed or instance.join == CONTRADICTED or not instance.gives(rank):
                    continue
                passed.add(id(instance))
                for other, theirs in instance.calls.items():
                    if other != rank and instance.receives(other) and theirs.index < frontier.get(other, NEVER):
                        frontier[other] = theirs.index
                        queue.append(other)
        return frontier

    def reach_of_absent(self, rank: int) -> dict[int, int]:
        """What the unread calls of a missing or partial rank could have touched."""
        starts: dict[int, int] = {}
        for instance in self.joined.instances:
            if rank in instance.members and rank not in instance.calls and instance.gives(rank):
                for other, call in instance.calls.items():
                    if instance.receives(other):
                        starts[other] = min(starts.get(other, NEVER), call.index)
        return self.reach(starts)
