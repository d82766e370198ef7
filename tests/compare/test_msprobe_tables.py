"""The two ways to the items of a record agree: from the values table, and from the record itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.align.calls import read_calls
from numprobe.compare.msprobe.items import items_of
from numprobe.compare.msprobe.tables import TableItems

from .against_msprobe import ARRAY, group, p2p, tensor, value
from .msprobe_tables import only_rank, records

FIGURES = st.sampled_from((0.0, -0.0, 1.5, 3, True, None, math.inf, -math.inf, math.nan, 2**60 + 1, "nan", "1.5"))
TENSORS = st.builds(
    tensor,
    *[FIGURES] * 4,
    st.sampled_from(("torch.float32", "torch.int64", "Float16", "")),
    shape=st.sampled_from(([2, 2], [], [0], None, [2.5])),
    requires_grad=st.sampled_from((True, False, None)),
) | st.sampled_from(
    (
        {**tensor(), "md5": "0a1b2c3d"},
        {**tensor(), "data_name": "x.0.forward.input.0.pt", "stat_dtype": "float64"},
        {**tensor(), "placements": ["Shard(0)"]},
        {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]},
        {"type": "torch.Tensor", "shape": [2], "Max": 1.0},
        ARRAY,
    )
)
LEAVES = (
    TENSORS
    | st.sampled_from((None, {}, group(0, 1), p2p(), {"type": "torch.memory_format", "format": "channels_last"}))
    | st.builds(value, st.sampled_from(("int", "float", "str", "bool", "slice", "torch.Size", "mystery")), FIGURES)
    | st.sampled_from(
        (value("slice", [1, None]), value("torch.Size", [2]), value("dict", {"a": [1]}), value("str", "=1"))
    )
)
PARTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(("k", "src", "0")), inner, max_size=2),
)
SECTIONS = st.sampled_from(("input_args", "input_kwargs", "input", "output", "parameters", "unknown"))
MEMBERS = st.dictionaries(SECTIONS, PARTS.filter(lambda part: part is not None), max_size=4)
NAMES = st.sampled_from(
    (
        "Functional.x.{}.forward",
        "Functional.x.{}.backward",
        "Module.m.0.Layer.forward.{}",
        "Module.m.Layer.parameters_grad.{}",
        "x.{}.debug",
        "of_no_known.kind.{}",
    )
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NAMES, MEMBERS), max_size=4))
def test_both_ways_agree(tmp_path_factory: pytest.TempPathFactory, members: list[tuple[str, dict[str, Any]]]) -> None:
    folder = tmp_path_factory.mktemp("dump")
    data = {name.format(i): body for i, (name, body) in enumerate(members)}
    content = {"task": "statistics", "level": "mix", "framework": "pytorch", "data": data}
    (folder / "dump.json").write_text(json.dumps(content), encoding="utf-8")
    rank = only_rank(folder)
    table = TableItems(read_calls(rank))
    assert [table.of(i) for i in range(len(data))] == [items_of(r) for r in records(rank)]


def test_a_record_that_cannot_be_decoded_has_no_items(tmp_path: Path) -> None:
    text = (
        '{"task": "statistics", "data": {"Functional.x.0.forward": {"input_args": [{]}, "Functional.y.0.forward": {}}}'
    )
    (tmp_path / "dump.json").write_text(text, encoding="utf-8")
    rank = only_rank(tmp_path)
    assert [TableItems(read_calls(rank)).of(i) for i in range(len(rank.index.names))] == [[]] * len(rank.index.names)
