"""Communication records to calls: which argument is the input, which the output, and who the partner is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from numprobe.diagnose.nan_overflow.comm import CommCall, comm_calls
from numprobe.record.names import parse_name
from numprobe.record.nonfinite import Kinds

from .samples import INF, NAN, group, scalar, t

CLEAN, UNKNOWN = int(Kinds.CLEAN), int(Kinds.UNKNOWN)
IS_NAN, POS, NEG = int(Kinds.NAN), int(Kinds.POS_INF), int(Kinds.NEG_INF)
GOOD, BAD, GARBAGE = t(2.0), t(NAN), t(1e38)


def calls(api: str, positional: list[Any], named: dict[str, Any], after: list[Any]) -> list[CommCall]:
    raw = json.dumps({"input_args": positional, "input_kwargs": named, "output": after}).encode()
    return list(comm_calls([(parse_name(f"Distributed.{api}.0.forward"), 7, raw)]))


def only(
    api: str, positional: list[Any], named: dict[str, Any] | None = None, after: list[Any] | None = None
) -> CommCall:
    (one,) = calls(api, positional, named or {}, after if after is not None else [*positional, *(named or {}).values()])
    return one


# API, positional arguments before the call: the dirty one is the output buffer, which is no input
PLACEHOLDERS: list[tuple[str, list[Any]]] = [
    ("all_gather", [[BAD, BAD], GOOD]),
    ("all_gather_into_tensor", [BAD, GOOD]),
    ("_all_gather_base", [BAD, GOOD]),
    ("reduce_scatter", [BAD, [GOOD, GOOD]]),
    ("reduce_scatter_tensor", [BAD, GOOD]),
    ("_reduce_scatter_base", [BAD, GOOD]),
    ("all_to_all", [[BAD, BAD], [GOOD, GOOD]]),
    ("all_to_all_single", [BAD, GOOD]),
    ("gather", [GOOD, [BAD, BAD]]),
    ("scatter", [BAD, [GOOD, GOOD]]),
]


@pytest.mark.parametrize(("api", "positional"), PLACEHOLDERS)
def test_an_output_buffer_is_no_input(api: str, positional: list[Any]):
    one = only(
        api, positional, after=[GOOD if a is BAD else [GOOD, GOOD] if isinstance(a, list) else a for a in positional]
    )
    assert (one.api, one.given, one.got) == (api, CLEAN, CLEAN)
    assert only(api, positional).got == IS_NAN  # after the call the buffer is the output


NAMES = {
    "all_gather": ("tensor_list", "tensor"),
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "reduce_scatter": ("output", "input_list"),
    "reduce_scatter_tensor": ("output", "input"),
    "all_to_all": ("output_tensor_list", "input_tensor_list"),
    "all_to_all_single": ("output", "input"),
}


@pytest.mark.parametrize("api", NAMES)
def test_placeholders_by_keyword(api: str):
    out, given = NAMES[api]
    one = only(api, [], {given: GOOD, out: BAD}, after=[GOOD, t(INF, 0.0)])
    assert (one.given, one.got) == (CLEAN, POS)
    swapped = only(api, [], {out: GARBAGE, given: BAD}, after=[GOOD, BAD])
    assert (swapped.given, swapped.got) == (IS_NAN, CLEAN)
    mixed = only(api, [GARBAGE], {given: BAD}, after=[GOOD, BAD])
    assert (mixed.given, mixed.got) == (IS_NAN, CLEAN)


def test_null_placeholders():
    """A recorder that knows the buffers writes null for them."""
    one = only("all_to_all_single", [None, GOOD], after=[GOOD, GOOD])
    assert (one.given, one.got) == (CLEAN, CLEAN)


def test_in_place_collectives_read_and_write_one_tensor():
    one = only("all_reduce", [GOOD], {"group": group(0, 1)}, after=[BAD, group(0, 1)])
    assert (one.given, one.got, one.group, one.peer) == (CLEAN, IS_NAN, (0, 1), -1)
    assert one.given_signature is not None
    assert (one.given_signature.numel, one.given_signature.max, one.given_signature.min) == (32, 2.0, -2.0)


def test_a_receive_has_no_input_and_a_send_no_output():
    one = only("recv", [BAD, scalar(3)], after=[GOOD, scalar(3)])
    assert (one.api, one.peer, one.given, one.got) == ("recv", 3, UNKNOWN, CLEAN)
    one = only("isend", [BAD, scalar(3)])
    assert (one.api, one.peer, one.given, one.got, one.asynchronous) == ("send", 3, IS_NAN, UNKNOWN, True)
    one = only("irecv", [], {"tensor": GARBAGE, "src": scalar(2)}, after=[GOOD, scalar(2)])
    assert (one.api, one.peer, one.given, one.got, one.asynchronous) == ("recv", 2, UNKNOWN, CLEAN, True)


def test_partners_by_position_keyword_and_place_in_the_group():
    assert only("send", [GOOD, scalar(5)]).peer == 5
    assert only("send", [GOOD], {"dst": scalar(5)}).peer == 5
    assert only("send", [GOOD], {"group_dst": scalar(1), "group": group(4, 9)}).peer == 9
    assert only("recv", [GOOD], {"group_src": scalar(0), "group": group(4, 9)}).peer == 4
    assert only("send", [GOOD], {"group_dst": scalar(1)}).peer == -1  # place in a group that was not recorded
    assert only("send", [GOOD], {"group_dst": scalar(7), "group": group(4, 9)}).peer == -1
    assert only("recv", [GOOD]).peer == -1  # from anybody


def test_roots():
    assert only("broadcast", [GOOD, scalar(2)]).peer == 2
    assert only("broadcast", [GOOD], {"src": scalar(2)}).peer == 2
    assert only("reduce", [GOOD, scalar(1)]).peer == 1
    assert only("gather", [GOOD, None, scalar(3)]).peer == 3
    assert only("scatter", [GOOD, [GOOD], scalar(3)]).peer == 3
    assert only("scatter", [GOOD]).peer == 0  # torch's default
    assert only("all_reduce", [GOOD]).peer == -1


def test_groups():
    assert only("all_reduce", [GOOD]).group is None
    assert only(
        "all_reduce", [GOOD, {"type": "torch.distributed.ReduceOp", "value": "RedOpType.SUM"}, group(1, 3)]
    ).group == (1, 3)
    nameless = {"type": "torch.ProcessGroup", "group_id": "3f9a01bc"}
    assert only("all_reduce", [GOOD], {"group": nameless}).group == "3f9a01bc"
    assert only("all_reduce", [GOOD], {"group": {"type": "torch.ProcessGroup", "group_ranks": []}}).group is None


def test_batches_are_taken_apart():
    """One record, four transfers. What a batched receive shows was recorded before the data came."""

    def operation(op: str, tensor: Any, peer: int) -> dict[str, Any]:
        return {
            "class_type": "torch.distributed.P2POp",
            "op": op,
            "tensor": tensor,
            "peer": peer,
            "tag": 0,
            **group(0, 1, 2),
        }

    operations = [
        operation("isend", GOOD, 1),
        operation("irecv", BAD, 1),
        operation("isend", BAD, 2),
        operation("irecv", t(1.0, shape=(3,)), 2),
    ]
    for arguments in ([operations], operations):
        found = calls("batch_isend_irecv", arguments, {}, [])
        assert [(c.api, c.peer, c.given, c.got) for c in found] == [
            ("send", 1, CLEAN, UNKNOWN),
            ("recv", 1, UNKNOWN, UNKNOWN),
            ("send", 2, IS_NAN, UNKNOWN),
            ("recv", 2, UNKNOWN, UNKNOWN),
        ]
        assert [c.got_signature.numel for c in found if c.got_signature] == [32, 3]
        assert {c.index for c in found} == {7}
    assert [c.api for c in calls("batch_isend_irecv", [], {"p2p_op_list": operations}, [])] == [
        "send",
        "recv",
        "send",
        "recv",
    ]


def test_lists_are_one_signature():
    one = only("all_to_all", [[None], [t(2.0, -1.0, shape=(4,), norm=3.0), t(1.0, -5.0, shape=(6,), norm=4.0)]])
    signature = one.given_signature
    assert signature is not None
    assert (signature.numel, signature.max, signature.min, signature.square) == (10, 2.0, -5.0, 25.0)


def test_empty_tensors_are_clean():
    """A rank whose expert got no token sends an empty tensor without statistics."""
    one = only("all_to_all_single", [None, t(None, shape=(0, 64), norm=None)])
    assert (one.given, one.given_signature and one.given_signature.numel) == (CLEAN, 0)


def test_quoted_and_bare_spellings():
    for spelled in (NAN, "NaN", "nan"):
        assert only("all_reduce", [t(spelled, spelled)]).given == IS_NAN
    for spelled in (-INF, "-inf", "-Infinity"):
        assert only("all_reduce", [t(0.0, spelled)]).given == NEG


@pytest.mark.parametrize("far", ["1e400", "9" * 400, "9" * 6000])
def test_numbers_beyond_every_double(far: str):
    """Infinite, and no reason to lose the call, nor those that are decoded together with it."""
    plain = json.dumps(
        {"input_args": [t(12345.0), [None, "x"]], "input_kwargs": {"group": group(0, 1)}, "output": [t(2.0)]}
    )
    records = [plain, plain.replace("-12345.0", "-" + far).replace("12345.0", far)]
    name = parse_name("Distributed.all_reduce.0.forward")
    normal, odd = comm_calls((name, i, raw.encode()) for i, raw in enumerate(records))
    assert (normal.given, normal.group) == (CLEAN, (0, 1))
    assert (odd.given & (POS | NEG), odd.group, odd.got) == (POS | NEG, (0, 1), CLEAN)


def test_what_moves_no_tensor_is_no_call():
    assert calls("barrier", [], {}, []) == []
    assert calls("new_group", [[scalar(0)]], {}, []) == []
    assert not list(comm_calls([(parse_name("Distributed.all_reduce.0.forward"), 0, b'{"input_args": [')]))


def test_asynchronous_calls_are_marked():
    assert only("all_reduce", [GOOD], {"async_op": scalar(True)}).asynchronous
    assert not only("all_reduce", [GOOD], {"async_op": scalar(False)}).asynchronous
    assert not only("all_reduce", [GOOD]).asynchronous
