"""Names of one side as the other calls them, without files and command line."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numprobe.align.layers import translate
from numprobe.align.leaves import pair_leaves
from numprobe.align.mapping import ApiRule, Mapping, RenamedModules
from numprobe.align.mindspore import pytorch_api
from numprobe.align.records import RecordPairs
from numprobe.formats.msprobe.values import ValueTable
from numprobe.record.names import parse_name


def modules(*names: str) -> list[object]:
    return [parse_name(f"{name}.forward.0") for name in names]


def paths(layers: dict[str, tuple[tuple[str, str], ...]], target: list[object], golden: list[object]) -> dict[str, str]:
    return translate(layers, target, golden).paths  # type: ignore[arg-type]


# --- modules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "before", "after"),
    [
        ((("net.fc1.Dense", "model.up.Linear"), ("net", "model")), ("net.fc1", "Dense"), ("model.up", "Linear")),
        ((("net", "model"), ("Dense", "Linear")), ("net.fc2", "Dense"), ("model.fc2", "Linear")),
        ((("net", "model"),), ("net.net", "Dense"), ("model.net", "Dense")),  # once
        ((("net", "model"), ("model.fc2", "model.down")), ("net.fc2", "Dense"), ("model.down", "Dense")),  # in order
        ((("module.net", "model"),), ("module.net.fc2", "Dense"), ("model.fc2", "Dense")),  # also behind a wrapper
        ((), ("module.fc2", "FSDPDense"), ("fc2", "Dense")),
        ((("net.Net", "Model"),), ("net", "Net"), ("", "Model")),
    ],
)
def test_cells(cells: tuple[tuple[str, str], ...], before: tuple[str, str], after: tuple[str, str]) -> None:
    assert RenamedModules(cells)(*before) == after


def test_a_mapping_goes_to_worker_processes() -> None:
    mapping = Mapping(
        {"a": "b"}, (("c", "d"),), (ApiRule(("Mint", "add"), ("Torch", "add"), {"input": (("0", "1"),)}),), {"Net": ()}
    )
    assert pickle.loads(pickle.dumps(mapping)) == mapping
    renamed = RenamedModules((("net", "model"),))
    assert renamed("net", "Net") == pickle.loads(pickle.dumps(renamed))("net", "Net")


# --- layers ----------------------------------------------------------------------------------------------------------


def test_a_child_may_span_levels_and_the_longest_wins() -> None:
    layers = {"TopLayer": (("net", "model"),), "Net": (("embedding", "nothing"), ("embedding.word", "words"))}
    found = paths(layers, modules("Cell.net.Net", "Cell.net.embedding.word.E", "Cell.net.embedding.position.P"), [])
    assert found["net.embedding.word"] == "model.words"
    assert found["net.embedding.position"] == "model.nothing.position"


def test_only_children_of_that_class_are_renamed() -> None:
    layers = {"A": (("x", "y"),)}
    assert paths(layers, modules("Cell.a.A", "Cell.b.B", "Cell.a.x.C", "Cell.b.x.C"), [])["b.x"] == "b.x"
    assert paths(layers, modules("Cell.a.A", "Cell.a.x.C"), [])["a.x"] == "a.y"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((4, 5), (0, 1), {4: 0, 5: 1}),  # a pipeline stage that counts on
        ((0, 1), (0, 1, 2, 3), {0: 0, 1: 1}),  # the first stage against the whole model
        ((2, 3), (0, 1, 2, 3), {2: 2, 3: 3}),  # the second one, with numbers of the model
        ((10, 9), (0, 1), {9: 0, 10: 1}),  # by number, not by text
        ((4, 5, 6), (0, 1), {4: 0, 5: 1, 6: 6}),  # one more than the other side has
    ],
)
def test_layers_of_pipeline_stages(ours: tuple[int, ...], theirs: tuple[int, ...], expected: dict[int, int]) -> None:
    target = modules("Cell.net.d.ParallelTransformer", *(f"Cell.net.d.layers.{n}.Layer" for n in ours))
    golden = modules("Module.model.d.ParallelTransformer", *(f"Module.model.d.layers.{n}.Layer" for n in theirs))
    found = paths({"TopLayer": (("net", "model"),)}, target, golden)
    assert {n: found[f"net.d.layers.{n}"] for n in ours} == {n: f"model.d.layers.{to}" for n, to in expected.items()}


def test_layers_of_other_classes_keep_their_numbers() -> None:
    found = paths(
        {}, modules("Cell.net.Encoder", "Cell.net.layers.4.L"), modules("Module.net.E", "Module.net.layers.0.L")
    )
    assert found["net.layers.4"] == "net.layers.4"


# --- APIs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mindspore", "pytorch"),
    [
        ("Mint.add", "Torch.add"),
        ("MintFunctional.relu", "Functional.relu"),
        ("Functional.dense", "Functional.linear"),
        ("Functional.softmax", "Functional.softmax"),
        ("Mint.equal", "Torch.equal"),
        ("Tensor.equal", "Tensor.eq"),
        ("Tensor.asnumpy", "Tensor.numpy"),
        ("Tensor.reshape", "Tensor.reshape"),
    ],
)
def test_apis_of_mindspore(mindspore: str, pytorch: str) -> None:
    assert ".".join(pytorch_api(*mindspore.split("."))) == pytorch


# --- leaves ----------------------------------------------------------------------------------------------------------


def table(counts: list[int]) -> ValueTable:
    """Records with so many inputs each."""
    rows = sum(counts)
    slots = [("input", f"input_args.{i}") for i in range(max(counts, default=0))]
    zeros = np.zeros(rows, np.int32)
    return ValueTable(
        [f"Torch.x.{i}.forward" for i in range(len(counts))],
        [parse_name(f"Torch.x.{i}.forward") for i in range(len(counts))],
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        slots,
        [("torch.Tensor", "torch.float32", "fp32")],
        [(1,)],
        np.array([i for n in counts for i in range(n)], np.int32),
        zeros,
        zeros,
        np.ones(rows, np.int64),
        np.zeros((rows, 4)),
        np.zeros((rows, 4), np.uint8),
    )


COUNTS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@given(st.data(), COUNTS, COUNTS)
def test_every_leaf_stands_once_whatever_is_given(data: st.DataObject, ours: list[int], theirs: list[int]) -> None:
    target, golden = table(ours), table(theirs)
    common = min(len(ours), len(theirs))
    pairs = RecordPairs(
        (*range(common), *range(common, len(ours)), *[-1] * (len(theirs) - common)),
        (*range(common), *[-1] * (len(ours) - common), *range(common, len(theirs))),
    )
    wanted = data.draw(
        st.dictionaries(st.integers(0, max(len(target) - 1, 0)), st.integers(-1, len(golden) - 1), max_size=4)
        if len(target)
        else st.just({})
    )
    leaves = pair_leaves(pairs, target, golden, wanted)
    found = dict(zip(leaves.target.tolist(), leaves.golden.tolist(), strict=True))
    assert sorted(row for row in leaves.target.tolist() if row >= 0) == list(range(len(target)))
    assert {row for row in leaves.golden.tolist() if row >= 0} == set(range(len(golden)))
    assert {row: found[row] for row in wanted} == wanted
    for row in set(range(len(target))) - wanted.keys():
        by_place = pair_leaves(pairs, target, golden)
        assert found[row] == dict(zip(by_place.target.tolist(), by_place.golden.tolist(), strict=True))[row]


def test_nothing_given_is_by_place() -> None:
    one = table([2, 1])
    leaves = pair_leaves(RecordPairs((0, 1), (0, 1)), one, replace(one))
    assert leaves.target.tolist() == leaves.golden.tolist() == [0, 1, 2]
