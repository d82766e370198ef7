"""Collectives by (group, ordinal), transfers by pair of ranks; values decide whether a join holds."""

from __future__ import annotations

from numprobe.diagnose.nan_overflow.comm import CommCall, Signature
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.join import Instance, Joined, join
from numprobe.record.nonfinite import Kinds

NAN = float("nan")
WORLD = frozenset(range(4))


def sized(maximum: float, *, numel: int = 8) -> Signature:
    return Signature(numel, maximum, -maximum, maximum * maximum)


def made(index: int, api: str = "all_reduce", group: tuple[int, ...] | None = None, peer: int = -1, **more: object):
    """A call; ``given`` and ``got`` are largest magnitudes, NaN for a dirty tensor, None where nothing is recorded."""
    given, got, numel = more.get("given", 1.0), more.get("got", 1.0), more.get("numel", 8)

    def kinds(x: object) -> int:
        return int(Kinds.UNKNOWN if x is None else Kinds.NAN if x != x else Kinds.CLEAN)

    def signature(x: object) -> Signature | None:
        return None if x is None else sized(float(x), numel=int(numel))  # type: ignore[arg-type, call-overload]

    return CommCall(
        index,
        f"Distributed.{api}.{index}.forward",
        api,
        group,
        peer,
        False,
        "SUM",
        kinds(given),
        kinds(got),
        signature(given),
        signature(got),
    )


def joined(*by_rank: list[CommCall], status: dict[int, str] | None = None) -> Joined:
    digests = [RankDigest(f"rank{r}", r, (status or {}).get(r, "ok"), calls=calls) for r, calls in enumerate(by_rank)]
    return join(digests, WORLD)


def table(found: Joined) -> set[tuple[str, object, int, tuple[tuple[int, int], ...], str]]:
    """(api, group, ordinal, ((rank, index), ...), grade) of every instance."""
    return {
        (i.api, i.group, i.ordinal, tuple(sorted((r, c.index) for r, c in i.calls.items())), i.join)
        for i in found.instances
    }


def test_groups_with_equal_names_stay_separate():
    """Both groups' first call is Distributed.all_reduce.0.forward."""
    low, high = (0, 1), (2, 3)
    found = joined([made(0, group=low)], [made(0, group=low)], [made(0, group=high)], [made(0, group=high)])
    assert table(found) == {
        ("all_reduce", low, 0, ((0, 0), (1, 0)), "verified"),
        ("all_reduce", high, 0, ((2, 0), (3, 0)), "verified"),
    }


def test_ordinals_count_calls_of_one_group_not_names():
    """Rank 0 has a call of another group in between, so that its names run ahead."""
    pair = (0, 1)
    found = joined(
        [made(0, group=pair, got=1.0), made(3, group=(0, 2), got=9.0), made(5, group=pair, got=2.0)],
        [made(0, group=pair, got=1.0), made(4, group=pair, got=2.0)],
        [made(1, group=(0, 2), got=9.0)],
        [],
    )
    assert table(found) == {
        ("all_reduce", pair, 0, ((0, 0), (1, 0)), "verified"),
        ("all_reduce", pair, 1, ((0, 5), (1, 4)), "verified"),
        ("all_reduce", (0, 2), 0, ((0, 3), (2, 1)), "verified"),
    }


def test_apis_are_numbered_apart():
    pair = (0, 1)
    found = joined(
        [made(0, "broadcast", pair, 0), made(1, group=pair)],
        [made(0, group=pair), made(1, "broadcast", pair, 0)],
        [],
        [],
    )
    assert table(found) == {
        ("broadcast", pair, 0, ((0, 0), (1, 1)), "verified"),
        ("all_reduce", pair, 0, ((0, 1), (1, 0)), "verified"),
    }


def test_no_group_is_the_world():
    """Absent, or the list of all ranks: the same communicator."""
    everyone = tuple(range(4))
    found = joined([made(0)], [made(0, group=everyone)], [made(0)], [made(0)])
    assert table(found) == {("all_reduce", "world", 0, ((0, 0), (1, 0), (2, 0), (3, 0)), "verified")}


def test_a_send_joins_the_receive_of_its_pair():
    found = joined([made(5, "send", peer=1, got=None)], [made(7, "recv", peer=0, given=None)], [], [])
    (instance,) = found.instances
    assert (instance.group, instance.id, instance.join) == ((0, 1), "p2p@0-1#0", "verified")
    assert (instance.calls[0].index, instance.calls[1].index) == (5, 7)
    assert [instance.gives(0), instance.receives(0), instance.gives(1), instance.receives(1)] == [
        True,
        False,
        False,
        True,
    ]


def test_both_directions_of_one_pair_are_two_sequences():
    found = joined(
        [made(0, "send", peer=1, got=None), made(1, "recv", peer=1, given=None, got=5.0)],
        [made(0, "recv", peer=0, given=None), made(1, "send", peer=0, given=5.0, got=None)],
        [],
        [],
    )
    assert table(found) == {
        ("p2p", (0, 1), 0, ((0, 0), (1, 0)), "verified"),
        ("p2p", (1, 0), 0, ((0, 1), (1, 1)), "verified"),
    }


def test_a_partner_that_is_not_there_is_no_error():
    """Rank 1 was not recorded: its half dangles."""
    found = joined([made(5, "send", peer=1, got=None)], [], [], [])
    (instance,) = found.instances
    assert (instance.absent, instance.join, found.summary.dangling) == ([1], "assumed", 1)


def test_transfers_without_a_peer_or_to_oneself_are_left_out():
    found = joined([made(0, "send", peer=-1), made(1, "send", peer=0)], [], [], [])
    assert found.instances == []


def test_a_shifted_sequence_is_put_right_by_its_values():
    """Rank 1's file begins one call later."""
    pair = (0, 1)
    values = [3.0, 5.0, 7.0, 11.0]
    found = joined(
        [made(i, group=pair, got=v) for i, v in enumerate(values)],
        [made(i, group=pair, got=v) for i, v in enumerate(values[1:])],
        [],
        [],
        status={1: "partial"},
    )
    pairs = {i.ordinal: sorted((r, c.index) for r, c in i.calls.items()) for i in found.instances}
    assert pairs == {0: [(0, 0)], 1: [(0, 1), (1, 0)], 2: [(0, 2), (1, 1)], 3: [(0, 3), (1, 2)]}
    assert [i.join for i in found.instances] == ["assumed", "verified", "verified", "verified"]
    assert [(n.key, n.values["shift"]) for n in found.summary.notes] == [("note.join.shifted", 1)]


def test_values_that_differ_contradict_a_join():
    pair = (0, 1)
    found = joined([made(0, group=pair, got=3.0)], [made(0, group=pair, got=4.0)], [], [])
    assert [i.join for i in found.instances] == ["contradicted"]


def test_sizes_that_differ_contradict_a_transfer_recorded_before_its_data():
    given = made(0, "send", peer=1, given=3.0, got=None)
    for numel, grade in ((8, "consistent"), (9, "contradicted")):
        late = CommCall(
            0,
            "r",
            "recv",
            None,
            0,
            True,
            "",
            int(Kinds.UNKNOWN),
            int(Kinds.UNKNOWN),
            None,
            Signature(numel, None, None, None),
        )
        assert [i.join for i in joined([given], [late], [], []).instances] == [grade]


def test_nan_is_checked_by_its_neighbours():
    """An instance that holds NaN has no value to compare: with verified ones around it, it is consistent."""
    pair = (0, 1)
    found = joined(
        [made(0, group=pair, got=3.0), made(1, group=pair, got=NAN)],
        [made(0, group=pair, got=3.0), made(1, group=pair, got=NAN)],
        [],
        [],
    )
    assert [i.join for i in found.instances] == ["verified", "consistent"]


def test_an_exchange_keeps_elements_and_squares():
    pair = (0, 1)

    def exchange(*sides: tuple[float, float]) -> str:
        calls = [[made(0, "all_to_all_single", pair, given=a, got=b)] for a, b in sides]
        (instance,) = joined(*calls, [], []).instances
        return instance.join

    assert exchange((3.0, 4.0), (4.0, 3.0)) == "verified"  # 9 + 16 in, 16 + 9 out
    assert exchange((3.0, 4.0), (4.0, 4.0)) == "contradicted"  # 25 in, 32 out
    assert exchange((3.0, NAN), (4.0, 3.0)) == "consistent"


def test_who_gives_and_who_receives():
    members = (0, 1)

    def roles(api: str) -> tuple[list[bool], list[bool]]:
        calls = {r: made(0, api, members, peer=0) for r in members}
        one = Instance(api, members, 0, members, calls)
        return [one.gives(r) for r in members], [one.receives(r) for r in members]

    assert roles("all_reduce") == ([True, True], [True, True])
    assert roles("broadcast") == ([True, False], [False, True])
    assert roles("scatter") == ([True, False], [False, True])
    assert roles("reduce") == ([True, True], [True, False])
    assert roles("gather") == ([True, True], [True, False])


def test_members_whose_input_nobody_recorded():
    """Rank 2 is in the group and has no call; rank 1's input is null."""
    members = (0, 1, 2)
    one = Instance("all_reduce", members, 0, members, {0: made(0), 1: made(0, given=None)})
    assert one.unknown_givers() == [1, 2]
    assert one.dirty_givers() == []
