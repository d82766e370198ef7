"""Ranks that hold parts of one model: shapes, figures, tensors of the whole from those of the parts; which belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from numprobe.align.shards.columns import renumbered
from numprobe.align.shards.grid import sort_ranks
from numprobe.align.shards.likeness import match, replicas, shifted
from numprobe.align.shards.signature import Parameter, Signature, pattern
from numprobe.align.shards.split import Split, merged_figures, split_of
from numprobe.align.shards.tensor import Piece, joined, pieces
from numprobe.formats.layout import RankFolder
from numprobe.formats.tensors import TensorFile, open_tensor
from numprobe.metrics.distance import distance

Array = NDArray[Any]


# --- figures ---------------------------------------------------------------------------------------------------------


def figures(a: Array) -> list[float]:
    return [float(a.max()), float(a.min()), float(a.mean()), float(np.linalg.norm(a))]


def test_acc_10_merge() -> None:
    found = merged_figures(np.array([[[2, -1, 0.5, 3], [1, -4, -0.25, 4]]], float), np.array([[8, 24]]))
    assert found.tolist() == [[2, -4, -0.0625, 5]]


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 6), max_size=3),
    odd=st.sampled_from([0.0, np.inf, -np.inf, np.nan]),
)
def test_figures_of_parts_are_those_of_the_whole(seed: int, shape: list[int], cuts: list[int], odd: float) -> None:
    draw = np.random.default_rng(seed)
    whole = draw.standard_normal(shape) * 10.0 ** draw.integers(-3, 4)
    if odd:
        whole.flat[int(draw.integers(whole.size))] = odd
    parts = np.split(whole, sorted(min(c, shape[0]) for c in cuts))
    given_figures = np.array([[figures(p) if p.size else [np.nan] * 4 for p in parts]])
    found = merged_figures(given_figures, np.array([[p.size for p in parts]]))[0]
    np.testing.assert_allclose(found, figures(whole), rtol=1e-12, atol=1e-12)


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "full", "wanted"),
    [
        ([(4, 6), (4, 6)], (8, 6), Split(0)),  # a column parallel weight
        ([(8, 3), (8, 3)], (8, 6), Split(1)),  # a row parallel one
        ([(2, 1, 8), (2, 1, 8)], (4, 1, 8), Split(0)),  # the sequence
        ([(3, 2), (2, 2), (2, 2)], (7, 2), Split(0)),  # parts of different lengths
        ([(24, 1, 8)] * 4, (24, 2, 8), Split(1, copies=2)),  # four ranks and two k and v heads
        ([(256, 8), (256, 8)], (500, 8), Split(0, padded=12)),  # a vocabulary made a round number
        ([(8, 6), (8, 6)], (8, 6), None),  # every rank has all of it
        ([(4, 3), (4, 3)], (8, 6), None),  # two dimensions
        ([(4, 6), (4, 6)], (24, 2), None),
        ([(128, 8)] * 8, (500, 8), None),  # whole ranks would be padding
        ([(4, 6), None], (8, 6), None),
        ([(4,), (4,)], (8, 1), None),
        ([(0, 6), (0, 6)], (8, 6), None),
        ([(), ()], (), None),
    ],
)
def test_how_shapes_make_up_a_whole(
    shapes: list[tuple[int, ...] | None], full: tuple[int, ...], wanted: Split | None
) -> None:
    assert split_of(shapes, full) == wanted


# --- tensors ---------------------------------------------------------------------------------------------------------


def files(folder: Path, arrays: Sequence[Array]) -> Iterator[TensorFile]:
    for i, array in enumerate(arrays):
        np.save(folder / f"{i}.npy", array)
        yield open_tensor(folder / f"{i}.npy")


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_joined_tensors_read_like_the_whole_at_any_place(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("parts")
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    dim = data.draw(st.integers(0, len(shape) - 1))
    groups, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    sizes = [groups * n for n in data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))]
    draw = np.random.default_rng(0)
    parts = [draw.standard_normal((*shape[:dim], n, *shape[dim + 1 :])).astype(np.float32) for n in sizes]
    by_group = [np.split(p, groups, axis=dim) for p in parts]
    whole = np.concatenate([p[g] for g in range(groups) for p in by_group], axis=dim)
    tensor = joined(list(files(folder, parts)), dim, pieces(sizes, sum(sizes), groups))
    assert tensor.shape == whole.shape
    assert (tensor.array() == whole).all()
    start = data.draw(st.integers(0, whole.size - 1))
    length = data.draw(st.integers(1, whole.size - start))
    with tensor.reader() as reader:
        assert (reader.read(start, length) == whole.reshape(-1)[start : start + length]).all()
    assert distance(tensor, whole).equal_bits
    assert np.concatenate(list(tensor.blocks(7))).tobytes() == whole.tobytes()


def test_padding_is_cut_off_and_slices_of_one_file_are_tensors(tmp_path: Path) -> None:
    whole = np.arange(36.0).reshape(6, 6)
    padded = np.concatenate([whole, np.zeros((2, 6))])
    parts = list(files(tmp_path, np.split(padded, 2)))
    order = pieces([4, 4], 6)
    assert order == (Piece(0, 0, 4), Piece(1, 0, 2))
    tensor = joined(parts, 0, order)
    assert (tensor.array() == whole).all()
    assert (joined([tensor], 0, [Piece(0, 4, 2)]).array() == whole[4:]).all()
    assert (joined([tensor], 1, [Piece(0, 1, 2), Piece(0, 5, 1)]).array() == whole[:, [1, 2, 5]]).all()


# --- names -----------------------------------------------------------------------------------------------------------


def test_numbers_of_the_whole_model() -> None:
    assert pattern("layers.3.mlp.experts.11.fc1.weight") == ("layers.#.mlp.experts.#.fc1.weight", (3, 11))
    offsets = {"layers": 4, "layers.#.mlp.experts": 8}
    assert shifted("layers.3.mlp.experts.1.fc1.weight", offsets) == "layers.7.mlp.experts.9.fc1.weight"
    assert renumbered("layers.3.mlp.experts.1.fc1", offsets) == "layers.7.mlp.experts.9.fc1"
    assert renumbered("final.3", {"layers": 4}) == "final.3"


# --- which ranks belong together -------------------------------------------------------------------------------------

Weights = dict[str, Array]


def model(layers: int, seed: int = 0, experts: int = 0) -> Weights:
    draw = np.random.default_rng(seed)
    found = {"embed.weight": draw.standard_normal((16, 8)), "norm.weight": np.ones(8)}
    for i in range(layers):
        found[f"layers.{i}.norm.weight"] = np.ones(8)
        found[f"layers.{i}.qkv.weight"] = draw.standard_normal((24, 8))
        found[f"layers.{i}.proj.weight"] = draw.standard_normal((8, 8))
        for e in range(experts):
            found[f"layers.{i}.mlp.experts.{e}.fc1.weight"] = draw.standard_normal((8, 8))
    return found


def signature(weights: Weights, shapes: dict[str, tuple[int, ...]] | None = None) -> Signature:
    return Signature(
        {n: Parameter(w.shape, float(w.max()), float(w.min()), 2.0**-24) for n, w in weights.items()}, shapes or {}
    )


def part(weights: Weights, rank: int, count: int) -> Weights:
    """A tensor parallel shard: rows of qkv and embed, columns of proj."""
    found = {}
    for name, w in weights.items():
        axis = 1 if "proj" in name else 0 if "norm" not in name else None
        found[name] = w if axis is None or count == 1 else np.split(w, count, axis)[rank]
    return found


def stage(weights: Weights, rank: int, count: int, layers: int) -> Weights:
    """A pipeline stage, whose layers count from 0."""
    each = layers // count
    found = {}
    for name, w in weights.items():
        shape, numbers = pattern(name)
        if not numbers:
            if (shape == "embed.weight") == (rank == 0) or count == 1:
                found[name] = w
        elif numbers[0] // each == rank:
            found[shape.replace("#", str(numbers[0] % each), 1)] = w
    return found


def side(signatures: Sequence[Signature]) -> list[tuple[RankFolder, Signature]]:
    return [(RankFolder(f"rank{i}", i, Path(f"rank{i}")), s) for i, s in enumerate(signatures)]


def layout(weights: Weights, layers: int, tp: int, pp: int, dp: int) -> list[tuple[RankFolder, Signature]]:
    """Ranks in Megatron's order: tensor, data, pipeline."""
    return side(
        [signature(part(stage(weights, s, pp, layers), t, tp)) for s in range(pp) for _ in range(dp) for t in range(tp)]
    )


def grid_of(target: Any, golden: Any) -> list[tuple[list[list[int]], list[list[int]]]]:
    """Ranks by unit and side: columns of stages."""
    found = sort_ranks(target, golden)
    return [
        tuple([[g.ranks[s.rank].rank for s in column] for column in g.columns] for g in (u.target, u.golden))  # type: ignore[misc]
        for u in found.units
    ]


@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (1, 4), (2, 1), (2, 2), (4, 2), (8, 4)])
def test_ranks_of_one_model_against_a_rank_with_all_of_it(tp: int, pp: int, dp: int) -> None:
    weights = model(8)
    found = grid_of(layout(weights, 8, tp, pp, dp), layout(weights, 8, 1, 1, 1))
    wanted = [
        ([[s * tp * dp + d * tp + t for s in range(pp)] for t in range(tp)], [[0]])  # columns of stages
        for d in range(dp)
    ]
    assert found == wanted
    back = grid_of(layout(weights, 8, 1, 1, 1), layout(weights, 8, tp, pp, dp))
    assert back == [([[0]], wanted[0][0])]  # one copy of the golden run is enough


def test_layouts_that_nest_are_paired_part_by_part() -> None:
    weights = model(8)
    found = grid_of(layout(weights, 8, 4, 2, 1), layout(weights, 8, 2, 1, 1))
    assert found == [([[0, 4], [1, 5]], [[0]]), ([[2, 6], [3, 7]], [[1]])]
    same_stages = grid_of(layout(weights, 8, 2, 2, 1), layout(weights, 8, 1, 2, 1))
    assert same_stages == [([[0], [1]], [[0]]), ([[2], [3]], [[1]])]


def test_tensor_parallel_against_pipeline_parallel() -> None:
    weights = model(4)
    assert grid_of(layout(weights, 4, 2, 1, 1), layout(weights, 4, 1, 2, 1)) == [([[0], [1]], [[0, 1]])]


def test_experts_of_ranks_are_columns_not_stages() -> None:
    weights = model(2, experts=4)
    ranks = []
    for r in range(2):
        own = {}
        for name, w in part(weights, r, 2).items():
            numbers = pattern(name)[1]
            if len(numbers) < 2:
                own[name] = w
            elif numbers[1] // 2 == r:
                own[f"layers.{numbers[0]}.mlp.experts.{numbers[1] % 2}.fc1.weight"] = weights[name]
        ranks.append(signature(own))
    grid = sort_ranks(side(ranks), side([signature(weights)]))
    [unit] = grid.units
    assert [[s.rank for s in column] for column in unit.target.columns] == [[0], [1]]
    assert unit.target.columns[1][0].offsets == (("layers.#.mlp.experts", 2),)


def test_a_wrong_parameter_does_not_tear_ranks_apart() -> None:
    weights = model(4)
    wrong = {**weights, "layers.2.qkv.weight": weights["layers.2.qkv.weight"] * 1.5}
    assert replicas(signature(weights), signature(wrong))
    assert not replicas(signature(weights), signature(model(4, seed=1)))
    target = side([signature(weights), signature(wrong)])
    assert grid_of(target, layout(weights, 4, 1, 1, 1)) == [([[0]], [[0]]), ([[1]], [[0]])]
    shards = side([signature(part(weights, 0, 2)), signature(part(wrong, 1, 2))])
    assert grid_of(shards, layout(weights, 4, 1, 1, 1)) == [([[0], [1]], [[0]])]


def test_low_precision_copies_are_the_same_parameters() -> None:
    weights = model(4)
    coarse = {n: (w.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32) for n, w in weights.items()}
    other = Signature({n: replace_unit(p) for n, p in signature(coarse).parameters.items()}, {})
    assert match(other, signature(weights)).differ == 0


def replace_unit(parameter: Parameter) -> Parameter:
    return Parameter(parameter.shape, parameter.high, parameter.low, 2.0**-8)


def test_copies_that_share_a_batch_are_one_model() -> None:
    weights = model(2)
    half = {f"Module.a.A.forward.0 input_args.{i}": (12, 2, 8) for i in range(4)}
    whole = dict.fromkeys(half, (12, 4, 8))
    target = side([signature(weights, half), signature(weights, half)])
    assert grid_of(target, side([signature(weights, whole)])) == [([[0], [1]], [[0]])]
    assert len(grid_of(target, side([signature(weights, half)]))) == 2


def test_a_group_that_is_not_whole_fits_nothing() -> None:
    weights = model(4)
    ranks = layout(weights, 4, 4, 1, 1)
    grid = sort_ranks(ranks[:3], layout(weights, 4, 1, 1, 1))
    assert not grid.units
    assert [len(side) for side in grid.alone] == [3, 1]


def test_another_model_fits_nothing() -> None:
    grid = sort_ranks(layout(model(4), 4, 2, 1, 1), layout(model(4, seed=9), 4, 1, 1, 1))
    assert not grid.units


def test_ranks_that_only_one_side_recorded_stay_alone() -> None:
    weights = model(4)
    grid = sort_ranks(layout(weights, 4, 2, 1, 1)[:1], layout(weights, 4, 2, 1, 1))
    [unit] = grid.units
    assert unit.target.alone
    assert unit.golden.alone
    assert [r.key for r in grid.alone[1]] == ["rank1"]


def test_without_parameters_shapes_and_order_tell() -> None:
    half, whole = {"Torch.mm.0.forward output.0": (4, 8)}, {"Torch.mm.0.forward output.0": (8, 8)}
    two = side([Signature({}, half)] * 4)
    assert grid_of(two, side([Signature({}, whole)] * 2)) == [([[0], [1]], [[0]]), ([[2], [3]], [[1]])]
    assert sort_ranks(two, side([Signature({}, half)])).by_number
    assert not sort_ranks(two[:3], side([Signature({}, whole)] * 2)).units


def test_frozen_folders_are_found_by_key() -> None:
    weights = model(2)
    ranks = [(replace(r, key=f"proc{r.rank}", rank=None), s) for r, s in layout(weights, 2, 2, 1, 1)]
    [unit] = sort_ranks(ranks, layout(weights, 2, 1, 1, 1)).units
    assert [r.key for r in unit.target.ranks] == ["proc0", "proc1"]
