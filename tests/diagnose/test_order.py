"""What can have reached what: one number a rank, every call looked at once."""

from __future__ import annotations

import random

import pytest

from numprobe.diagnose.nan_overflow.comm import CommCall
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.join import CONTRADICTED, Instance, Joined, join
from numprobe.diagnose.nan_overflow.order import Order

from .test_join import made


def ordered(*by_rank: list[CommCall], world: int | None = None) -> Order:
    digests = [RankDigest(f"rank{r}", r, records=200, calls=calls) for r, calls in enumerate(by_rank)]
    return Order(join(digests, frozenset(range(world or len(by_rank)))))


def send(index: int, to: int) -> CommCall:
    return made(index, "send", peer=to, got=None)


def recv(index: int, of: int) -> CommCall:
    return made(index, "recv", peer=of, given=None)


def test_only_later_calls_pass_anything_on():
    order = ordered([made(10, group=(0, 1)), made(20, group=(0, 1))], [made(5, group=(0, 1)), made(9, group=(0, 1))])
    assert order.reach({0: 3}) == {0: 3, 1: 5}
    assert order.reach({0: 11}) == {0: 11, 1: 9}
    assert order.reach({0: 20}) == {0: 20, 1: 9}
    assert order.reach({0: 21}) == {0: 21}


def test_a_pipeline_with_both_directions_is_no_cycle():
    """1F1B: rank 0 sends activations at 10 and gets a gradient at 20; rank 1 gets and gives them in one call each."""
    order = ordered([send(10, 1), recv(20, 1)], [recv(4, 0), send(6, 0)])
    assert order.reach({0: 0}) == {0: 0, 1: 4}
    assert order.reach({1: 5}) == {1: 5, 0: 20}
    assert order.reach({0: 15}) == {0: 15}  # too late for what was sent at 10


def test_one_call_on_both_neighbours():
    """send_forward_recv_backward is one record on each side: dirt of rank 1 must not come back to what it caused."""
    order = ordered([send(10, 1), recv(10, 1)], [recv(10, 0), send(10, 0)])
    assert order.reach({0: 10}) == {0: 10, 1: 10}
    assert order.reach({1: 10}) == {1: 10, 0: 10}
    assert order.reach({1: 11}) == {1: 11}


def test_a_chain_over_four_stages():
    order = ordered([send(1, 1)], [recv(2, 0), send(3, 2)], [recv(4, 1), send(5, 3)], [recv(6, 2)])
    assert order.reach({0: 0}) == {0: 0, 1: 2, 2: 4, 3: 6}
    assert order.reach({2: 0}) == {2: 0, 3: 6}


def test_broadcast_and_reduce_have_a_direction():
    order = ordered(*[[made(1, "broadcast", (0, 1, 2), peer=0)] for _ in range(3)])
    assert order.reach({0: 0}) == {0: 0, 1: 1, 2: 1}
    assert order.reach({1: 0}) == {1: 0}
    order = ordered(*[[made(1, "reduce", (0, 1, 2), peer=2)] for _ in range(3)])
    assert order.reach({0: 0}) == {0: 0, 2: 1}


def test_contradicted_joins_are_no_edges():
    order = ordered([made(1, group=(0, 1), got=3.0)], [made(1, group=(0, 1), got=4.0)])
    assert order.joined.instances[0].join == CONTRADICTED
    assert order.reach({0: 0}) == {0: 0}


def test_a_later_arrival_is_replaced_by_an_earlier_one():
    """Rank 2 is reached over rank 1 at 9, and directly at 3."""
    order = ordered(
        [made(5, group=(0, 1)), made(7, group=(0, 2))],
        [made(1, group=(0, 1)), made(2, group=(1, 2))],
        [made(3, group=(0, 2)), made(9, group=(1, 2))],
    )
    assert order.reach({0: 0}) == {0: 0, 1: 1, 2: 3}


def test_an_unread_rank_may_pass_it_on():
    """Rank 1 has no folder. Rank 0 and rank 2 share only it."""
    order = ordered([send(1, 1)], [], [recv(8, 1)])
    assert order.reach({0: 0}) == {0: 0, 2: 8}
    assert order.unread_before({2: 8}) == {1}
    assert order.unread_before({2: 7}) == set()


def test_an_unread_rank_that_only_receives_reaches_nobody():
    order = ordered([send(1, 1)], [], [])
    assert order.unread_before({0: 9, 2: 9}) == set()


def test_unread_ranks_before_a_record_in_a_chain():
    """0 -> 1 -> 2 -> 3 over transfers, 1 and 2 unread; then a call of all but rank 1."""
    order = ordered([send(1, 1), made(9, group=(0, 2, 3))], [], [], [recv(5, 2), made(9, group=(0, 2, 3))])
    assert order.unread_before({3: 4}) == set()
    assert order.unread_before({3: 5}) == {2}  # nothing shows that 1 and 2 have to do with each other
    assert order.unread_before({0: 9}) == {2}
    assert order.unread_before({0: 8}) == set()


@pytest.mark.parametrize("rooted", [False, True])
def test_unread_ranks_before_a_record_are_those_from_which_it_is_reached(rooted: bool):
    """Against the search forwards from every single rank, over random calls of eight ranks of which three are unread.

    Forwards, what one unread rank gives another one alone (as the root of a reduce) is not followed.
    """
    draw = random.Random(7)
    for _ in range(300):
        unread = set(draw.sample(range(8), 3))
        calls: list[list[CommCall]] = [[] for _ in range(8)]
        for step in range(draw.randint(1, 12)):
            members = tuple(sorted(draw.sample(range(8), draw.choice((2, 3, 4)))))
            api = draw.choice(("all_reduce", "broadcast", "reduce")) if rooted else "all_reduce"
            root = {"broadcast": members[0], "reduce": members[-1]}.get(api, -1)
            for rank in set(members) - unread:
                calls[rank].append(made(10 * step + draw.randrange(9), api, members, peer=root))
        order = ordered(*calls)
        target = draw.choice(sorted(set(range(8)) - unread))
        index = draw.randrange(120)
        expected = set()
        for rank in unread:
            for instance in order.unread.get(rank, ()):
                got = [(r, c.index) for r, c in instance.calls.items() if instance.receives(r) and instance.gives(rank)]
                if any(order.reach({r: i}).get(target, 1 << 60) <= index for r, i in got):
                    expected.add(rank)
        found = order.unread_before({target: index})
        assert expected <= found if rooted else expected == found


def test_a_hub_costs_one_look_a_member_not_one_a_pair():
    """512 ranks x 40 calls in one group: 20,480 calls, against 10 million pairs."""
    ranks, calls = 512, 40
    group = tuple(range(ranks))
    instances = [
        Instance("all_reduce", group, n, group, {r: made(n, group=group) for r in group}, "verified")
        for n in range(calls)
    ]
    looks = Counted()
    for instance in instances:
        instance.calls = looks.watch(instance.calls)
    by_rank = {r: [(i.calls.plain[r], i) for i in instances] for r in group}  # type: ignore[attr-defined]
    order = Order(Joined(instances, by_rank, join([], frozenset()).summary))
    looks.count = 0
    frontier = order.reach({7: 0})
    assert frontier == dict.fromkeys(group, 0)
    assert looks.count == ranks * calls


class Counted:
    """Counts how many members of instances are looked at."""

    count = 0

    def watch(self, calls: dict[int, CommCall]) -> dict[int, CommCall]:
        outer = self

        class Watched(dict[int, CommCall]):
            plain = calls

            def items(self):  # type: ignore[no-untyped-def]
                for pair in super().items():
                    outer.count += 1
                    yield pair

        return Watched(calls)
