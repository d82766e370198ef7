"""The values table of a rank says what its records say, leaf by leaf."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.formats.dump import RankDump, open_dump
from numprobe.formats.msprobe.values import GIVEN, NULL, ValueTable

DATA = Path(__file__).parent.parent / "data"
DUMPS = sorted(p for p in DATA.rglob("*.json") if p.name in ("dump.json", "debug.json"))


def rank_of(file: Path) -> RankDump:
    dump = open_dump(file, use_cache=False)
    return dump.rank(dump.steps[0].ranks[0])


def listed(table: ValueTable, op: int) -> list[tuple[object, ...]]:
    """A record's leaves, as the table has them."""
    rows = []
    for row in table.rows(op):
        status = table.status[row].tolist()
        exact = table.exact.get(row) or table.figures[row].tolist()
        figures = [f if s == GIVEN else s == NULL for f, s in zip(exact, status, strict=True)]
        slot, kind = table.slots[table.slot[row]], table.kinds[table.kind[row]]
        rows.append((*slot, *kind[:2], table.shapes[table.shape[row]], repr(figures), repr(table.scalars.get(row))))
    return sorted(rows, key=repr)


def read_whole(rank: RankDump, op: int) -> list[tuple[object, ...]]:
    """The same from the record itself. ``grad_of`` is a column of its own in the table."""
    rows = []
    for value in rank.record(op).values:
        if value.path.startswith("grad_of"):
            continue
        given = [(getattr(value, name), name in value.present) for name in ("max", "min", "mean", "norm")]
        figures = [f if f is not None else there for f, there in given]
        rows.append(
            (value.role, value.path, value.value_type, value.dtype, value.shape, repr(figures), repr(value.scalar))
        )
    return sorted(rows, key=repr)


@pytest.mark.parametrize("file", DUMPS, ids=lambda f: f.relative_to(DATA).as_posix())
def test_every_leaf_of_the_samples(file: Path) -> None:
    rank = rank_of(file)
    table = rank.values
    assert table.names == rank.index.names
    for op in range(len(table.names)):
        assert listed(table, op) == read_whole(rank, op), table.names[op]


FIGURE = st.one_of(
    st.floats(),
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.none(),
    st.sampled_from(["nan", "-inf", "1.5", "text"]),
)
TENSOR = st.fixed_dictionaries(
    {
        "type": st.just("torch.Tensor"),
        "dtype": st.sampled_from(["torch.bfloat16", "torch.int64"]),
        "shape": st.lists(st.integers(0, 5), max_size=3),
    },
    optional={
        "Max": FIGURE,
        "Min": FIGURE,
        "Mean": FIGURE,
        "Norm": FIGURE,
        "requires_grad": st.booleans(),
        "md5": st.just("0a1b2c3d"),
        "data_name": st.just("x.pt"),
        "another": st.just([1]),
    },
)
PLAIN = st.sampled_from(
    [
        None,
        {},
        {"type": "int", "value": 3},
        {"type": "float", "value": "-inf"},
        {"type": "slice", "value": [0, None, 1]},
    ]
)
ITEM = st.recursive(TENSOR | PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
RECORDS = st.dictionaries(
    st.sampled_from(
        ["Torch.mul.0.forward", "Torch.mul.0.backward", "Module.a.B.forward.0", "Module.a.B.parameters_grad.0"]
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "input_args": st.lists(ITEM, max_size=3),
            "input_kwargs": st.dictionaries(st.sampled_from(["x", "dim"]), ITEM, max_size=2),
            "input": st.lists(ITEM, max_size=2),
            "output": st.lists(ITEM, max_size=2),
            "parameters": st.dictionaries(st.just("weight"), TENSOR, max_size=1),
            "weight": st.lists(TENSOR, max_size=1),
        },
    ),
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(RECORDS)
def test_every_leaf_of_any_records(tmp_path_factory: pytest.TempPathFactory, records: dict[str, object]) -> None:
    file = tmp_path_factory.mktemp("values") / "dump.json"
    file.write_text(json.dumps({"task": "statistics", "level": "mix", "framework": "pytorch", "data": records}))
    rank = rank_of(file)
    for op in range(len(rank.values.names)):
        assert listed(rank.values, op) == read_whole(rank, op)


def test_a_record_that_is_no_json_has_no_leaves(tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    whole = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [],
        "Max": 1.0,
        "Min": 1.0,
        "Mean": 1.0,
        "Norm": 1.0,
    }
    content = json.dumps({"task": "statistics", "data": {"Torch.a.0.forward": {"output": [whole]}}})
    file.write_text(content[:-1] + ', "x": [')
    table = rank_of(file).values
    assert len(table) == 1
    assert table.figures[0].tolist() == [1.0] * 4
    assert not any(math.isnan(f) for f in table.figures[0])


@pytest.mark.parametrize(("norms", "fine"), [([1.5, 3.25, 100.0], False), ([1.501, 3.2507, 100.03], True)])
def test_norms_of_more_digits_than_their_dtype_has(norms: list[float], fine: bool, tmp_path: Path) -> None:
    """bfloat16 has 8 bits: a collector that computes in it gives norms of 8 bits."""
    leaves = [
        {
            "type": "torch.Tensor",
            "dtype": "torch.bfloat16",
            "shape": [4],
            "Max": 1.0,
            "Min": -1.0,
            "Mean": 0.5,
            "Norm": n,
        }
        for n in norms
    ]
    data = {
        f"Torch.exp.{i}.forward": {"input_args": [leaf], "input_kwargs": {}, "output": [leaf]}
        for i, leaf in enumerate(leaves)
    }
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"task": "statistics", "level": "L1", "data": data}))
    assert rank_of(file).values.fine == (frozenset({"bf16"}) if fine else frozenset())
