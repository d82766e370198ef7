"""Rows and verdicts are msProbe's: every cell of the stored results, and what they do not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from numprobe.align.calls import read_calls
from numprobe.compare.msprobe.columns import Mode, header
from numprobe.compare.msprobe.items import Item, items_of
from numprobe.compare.msprobe.rows import cells, comparable, rows
from numprobe.compare.msprobe.tables import rank_rows
from numprobe.compare.msprobe.verdicts import judge
from numprobe.compare.msprobe.workbook import read_rows
from numprobe.record.names import parse_name

from .by_name import pair_by_name
from .msprobe_tables import (
    column,
    compare_folder,
    csv_table,
    differences,
    only_rank,
    our_rows,
    our_table,
    records,
    text,
    the_csv,
)

DATA = Path(__file__).parents[1] / "data"
INTEROP = DATA / "interop" / "compare"
STORE = DATA / "compare" / "msprobe"

STORED = [
    (INTEROP / "mlp" / "statistics", Mode.STATISTICS),
    (INTEROP / "mlp" / "md5", Mode.MD5),
    (INTEROP / "mlp" / "tensor", Mode.TENSOR),
    (INTEROP / "edge" / "stats", Mode.STATISTICS),
    (INTEROP / "edge" / "md5", Mode.MD5),
    (INTEROP / "edge" / "tensor", Mode.TENSOR),
    (INTEROP / "edge" / "complex", Mode.TENSOR),
    (STORE / "leaves", Mode.STATISTICS),
    (STORE / "leaves_md5", Mode.MD5),
    (STORE / "pairs", Mode.STATISTICS),
    (STORE / "pairs_md5", Mode.MD5),
    (STORE / "saved", Mode.STATISTICS),
    (STORE / "calls", Mode.STATISTICS),
    (STORE / "thresholds", Mode.STATISTICS),
    (STORE / "thresholds_md5", Mode.MD5),
    (STORE / "thresholds_tensor", Mode.TENSOR),
]


@pytest.mark.parametrize(("folder", "mode"), STORED, ids=lambda x: x.name if isinstance(x, Path) else x.value)
def test_every_cell_is_the_stored_one(folder: Path, mode: Mode) -> None:
    theirs = csv_table(the_csv(folder / "result"))
    assert len(theirs[1]) > 1
    assert compare_folder(folder, mode, the_csv(folder / "result")) == []


@pytest.mark.parametrize(
    ("target", "golden", "mode"),
    [
        *((folder / "target", folder / "golden", mode) for folder, mode in STORED),
        (*(STORE / "two_ranks" / side / "step0" / "rank0" for side in ("target", "golden")), Mode.STATISTICS),
    ],
)
def test_rows_from_the_values_table_are_those_of_the_records(target: Path, golden: Path, mode: Mode) -> None:
    one, other = only_rank(target), only_rank(golden)
    pairs = pair_by_name(*([parse_name(name) for name in rank.index.names] for rank in (one, other)))
    fast = list(rank_rows(read_calls(one), read_calls(other), pairs, mode, one.stacks))
    assert fast == list(our_rows(target, golden, mode))
    assert fast


@pytest.mark.parametrize("rank", [0, 1])
def test_every_cell_of_a_recorded_program(rank: int) -> None:
    """Nested outputs, keywords, recomputed calls, P2P and collectives, as numprobe records them."""
    folder = STORE / "two_ranks"
    (result,) = (folder / "result").glob(f"compare_result_rank{rank}_*.csv")
    sides = [folder / side / "step0" / f"rank{rank}" for side in ("target", "golden")]
    ours = our_table(sides[0], sides[1], Mode.STATISTICS, stack=True)
    assert differences(ours, csv_table(result)) == []
    names = column(ours, "NPU Name")
    assert "Distributed.batch_isend_irecv.0.forward.output.0.1" in names
    assert "Module.0.branch.Branch.forward.0.output.0.extra.0" in names
    assert set(column(ours, "Result")) == {"pass", "warning", "error"}


@pytest.mark.parametrize("rank", [0, 1])
def test_spreadsheets_hold_the_same_numbers(rank: int) -> None:
    """msProbe's xlsx of the two ranks: numbers with 16 digits, truth values, texts; infinities are text."""
    folder = INTEROP / "ranks"
    (book,) = (folder / "result").glob(f"compare_result_rank{rank}_*.xlsx")
    head, *lines = read_rows(book)
    sides = [folder / side / "step0" / f"rank{rank}" for side in ("target", "golden")]
    ours = our_table(sides[0], sides[1], Mode.STATISTICS, stack=False)
    stored = [[text(cell) for cell in line] for line in lines]
    plain = [[cell.lstrip(" ") if cell in (" inf", " -inf") else cell for cell in line] for line in ours[1]]
    assert differences((ours[0], plain), (list(map(str, head)), stored)) == []


def test_the_order_of_a_record_is_not_that_of_the_file() -> None:
    record = next(
        r for r in records(only_rank(STORE / "leaves" / "target")) if r.name.name == "Module.fc.Linear.forward.0"
    )
    assert [v.path for v in record.values][:2] == ["output.0", "parameters.weight"]
    assert [i.key for i in items_of(record)] == [".input.0", ".parameters.weight", ".parameters.bias", ".output.0"]


def test_p2p_tensors_keep_where_they_went() -> None:
    record = next(
        r
        for r in records(only_rank(STORE / "two_ranks" / "target" / "step0" / "rank0"))
        if r.name.api == "batch_isend_irecv"
    )
    sent, received = items_of(record)[:2]
    assert (sent.name, sent.p2p_op, sent.p2p_peer) == ("Distributed.batch_isend_irecv.0.forward.input.0.0", "isend", 1)
    assert (received.path, received.p2p_op) == ("input_args.0.1.tensor", "irecv")


def test_a_stack_stands_on_the_first_row_of_a_record() -> None:
    of_stack = [
        row for row in our_rows(STORE / "leaves" / "target", STORE / "leaves" / "golden", Mode.STATISTICS) if row.stack
    ]
    assert [(row.op, row.target.key, len(row.stack or ())) for row in of_stack] == [
        ("Functional.odd.0.forward", ".input.0", 1)
    ]


def test_records_that_an_aligner_paired_need_not_have_one_name() -> None:
    """Items pair by their place in the record; what is only in the golden side has no row, as in msProbe's table."""
    one = {r.name.name: r for r in records(only_rank(INTEROP / "edge" / "stats" / "target"))}
    other = {r.name.name: r for r in records(only_rank(INTEROP / "edge" / "stats" / "golden"))}
    pairs = [
        (one["Functional.calls.2.forward"], other["Functional.calls.1.forward"]),
        (None, other["Functional.onlybench.0.forward"]),
    ]
    table = [cells(row, Mode.STATISTICS, stack=False) for row in rows(pairs, Mode.STATISTICS, lambda _, __: ["0"] * 8)]
    assert [line[:2] for line in table] == [
        ["Functional.calls.2.forward.input.0", "Functional.calls.1.forward.input.0"],
        ["Functional.calls.2.forward.output.0", "Functional.calls.1.forward.output.0"],
    ]
    assert all(len(line) == len(header(Mode.STATISTICS, stack=False)) for line in table)


def test_figures_are_asked_for() -> None:
    record = records(only_rank(INTEROP / "edge" / "stats" / "target"))[0]
    with pytest.raises(ValueError, match="needs figures"):
        list(rows([(record, record)], Mode.STATISTICS))


def test_backward_calls_pair_by_their_order() -> None:
    target = [parse_name(f"Functional.a.{i}.backward") for i in (2, 0)]
    golden = [parse_name(f"Functional.{api}.{i}.backward") for api, i in (("b", 0), ("a", 5))]
    assert pair_by_name(target, golden) == [(0, 1), (1, None)]


@pytest.mark.parametrize(
    ("target", "golden", "together"),
    [
        ("torch.float32", "torch.bfloat16", True),
        ("torch.float8_e4m3fn", "torch.bfloat16", False),
        ("torch.int64", "torch.int32", False),
        ("Float32", "BFloat16", True),
        ("Float32", "torch.bfloat16", True),
        ("Int32", "torch.int64", True),
        ("Int32", "torch.float32", False),
        ("int", "torch.int64", False),
        ("slice", "slice", True),
        ("N/A", "torch.float32", False),
    ],
)
def test_dtypes_that_are_compared(target: str, golden: str, together: bool) -> None:
    assert comparable(target, golden) is together


def item(name: str, **changes: object) -> Item:
    plain = Item(
        name, f"Functional.x.0.forward{name}", "", "", "torch.float32", "[2]", "False", 1.0, 0.0, 0.5, 1.0, "0", "-1"
    )
    return plain._replace(**changes)  # type: ignore[arg-type]


def test_the_worst_rule_gives_the_result_and_every_message_is_kept() -> None:
    figures = ["0"] * 7
    inputs = (item(".input.0"), item(".input.0"), [*figures, "1.0%"])
    output = (item(".output.0"), item(".output.0", requires_grad="True"), [*figures, "15.0%"])
    verdicts = judge([inputs, output], Mode.STATISTICS)
    assert verdicts[0].result == "pass"
    assert verdicts[0].err_message == "[]"
    assert verdicts[1].result == "error"
    assert verdicts[1].err_message == (
        '["error: The Required_Grad of NPU and Bench are inconsistent", '
        '"warning: The norm relative error of output is 10 times that of input."]'
    )
