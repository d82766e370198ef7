"""Which record of one run is which of the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from numprobe.align.calls import read_calls
from numprobe.align.leaves import pair_leaves
from numprobe.align.records import pair_records
from numprobe.formats.dump import open_dump

Tree = Mapping[str, str | None]


def leaf(seed: int, shape: tuple[int, ...] = (4, 4)) -> dict[str, object]:
    values = np.random.default_rng(seed).standard_normal(shape)
    figures = {"Max": values.max(), "Min": values.min(), "Mean": values.mean(), "Norm": float(np.linalg.norm(values))}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape), **figures, "requires_grad": False}


def call(seed: int) -> dict[str, object]:
    return {"input_args": [leaf(seed)], "input_kwargs": {}, "output": [leaf(seed + 1)]}


def side(folder: Path, records: Mapping[str, object], parents: Tree = {}, stacks: Mapping[str, str] = {}):  # type: ignore[no-untyped-def]  # noqa: B006
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text(
        json.dumps({"task": "statistics", "level": "mix", "framework": "pytorch", "data": records})
    )
    (folder / "construct.json").write_text(json.dumps(dict(parents)))
    (folder / "stack.json").write_text(json.dumps({str(i): [[n], [f]] for i, (n, f) in enumerate(stacks.items())}))
    dump = open_dump(folder, use_cache=False)
    return read_calls(dump.rank(dump.steps[0].ranks[0]))


def named(target, golden):  # type: ignore[no-untyped-def]
    """Pairs of names, None where a side has none."""
    pairs = pair_records(target, golden)
    return [
        (target.values.names[t] if t >= 0 else None, golden.values.names[g] if g >= 0 else None)
        for t, g in zip(pairs.target, pairs.golden, strict=True)
    ]


def test_equal_dumps_pair_by_position(tmp_path: Path) -> None:
    records = {f"Torch.f.{n}.forward": call(n) for n in range(4)}
    assert named(side(tmp_path / "t", records), side(tmp_path / "g", records)) == [(n, n) for n in records]


def test_an_extra_call_inside_a_module_shifts_only_numbers(tmp_path: Path) -> None:
    golden = side(
        tmp_path / "g",
        {
            "Torch.clamp.0.forward": call(0),
            "Module.a.A.forward.0": call(0),
            "Torch.clamp.1.forward": call(10),
            "Module.b.B.forward.0": call(10),
        },
        {"Torch.clamp.0.forward": "Module.a.A.forward.0", "Torch.clamp.1.forward": "Module.b.B.forward.0"},
    )
    target = side(
        tmp_path / "t",
        {
            "Torch.clamp.0.forward": call(50),
            "Torch.clamp.1.forward": call(0),
            "Module.a.A.forward.0": call(0),
            "Torch.clamp.2.forward": call(10),
            "Module.b.B.forward.0": call(10),
        },
        {
            "Torch.clamp.0.forward": "Module.a.A.forward.0",
            "Torch.clamp.1.forward": "Module.a.A.forward.0",
            "Torch.clamp.2.forward": "Module.b.B.forward.0",
        },
    )
    assert named(target, golden) == [
        ("Torch.clamp.0.forward", None),
        ("Torch.clamp.1.forward", "Torch.clamp.0.forward"),
        ("Module.a.A.forward.0", "Module.a.A.forward.0"),
        ("Torch.clamp.2.forward", "Torch.clamp.1.forward"),
        ("Module.b.B.forward.0", "Module.b.B.forward.0"),
    ]


def test_the_line_of_code_tells_calls_apart_whose_figures_do_not(tmp_path: Path) -> None:
    golden = side(
        tmp_path / "g",
        {"Torch.f.0.forward": call(0)},
        {},
        {"Torch.f.0.forward": "File m.py, line 3, in g, \n y = f(b)"},
    )
    target = side(
        tmp_path / "t",
        {"Torch.f.0.forward": call(0), "Torch.f.1.forward": call(0)},
        {},
        {
            "Torch.f.0.forward": "File m.py, line 7, in g, \n x = f(a)",
            "Torch.f.1.forward": "File m.py, line 9, in g, \n y = f(b)",
        },
    )
    assert named(target, golden) == [("Torch.f.0.forward", None), ("Torch.f.1.forward", "Torch.f.0.forward")]


def test_backward_records_go_with_their_forward_ones(tmp_path: Path) -> None:
    golden = side(
        tmp_path / "g", {"Torch.f.0.forward": call(0), "Torch.f.0.backward": {"input": [leaf(5)], "output": [leaf(6)]}}
    )
    target = side(
        tmp_path / "t",
        {
            "Torch.f.0.forward": call(90),
            "Torch.f.1.forward": call(0),
            "Torch.f.1.backward": {"input": [leaf(5)], "output": [leaf(6)]},
            "Torch.f.0.backward": {"input": [leaf(7)], "output": [leaf(8)]},
        },
    )
    assert named(target, golden) == [
        ("Torch.f.0.forward", None),
        ("Torch.f.1.forward", "Torch.f.0.forward"),
        ("Torch.f.1.backward", "Torch.f.0.backward"),
        ("Torch.f.0.backward", None),
    ]


def test_wrappers_on_one_side(tmp_path: Path) -> None:
    """DDP puts ``module.`` into every path, FSDP its own name into every class."""
    golden = side(tmp_path / "g", {"Module.layers.0.Block.forward.0": call(0)})
    target = side(tmp_path / "t", {"Module.module.layers.0.FSDPBlock.forward.0": call(0)})
    assert named(target, golden) == [("Module.module.layers.0.FSDPBlock.forward.0", "Module.layers.0.Block.forward.0")]


def test_a_module_that_one_side_lacks_is_opened(tmp_path: Path) -> None:
    """An extra wrapper module: what is inside has its partner among the calls of the other side."""
    golden = side(tmp_path / "g", {"Torch.f.0.forward": call(0), "Torch.g.0.forward": call(1)})
    target = side(
        tmp_path / "t",
        {"Torch.f.0.forward": call(0), "Torch.g.0.forward": call(1), "Module.outer.Wrapper.forward.0": call(0)},
        dict.fromkeys(("Torch.f.0.forward", "Torch.g.0.forward"), "Module.outer.Wrapper.forward.0"),
    )
    assert named(target, golden) == [
        ("Torch.f.0.forward", "Torch.f.0.forward"),
        ("Torch.g.0.forward", "Torch.g.0.forward"),
        ("Module.outer.Wrapper.forward.0", None),
    ]


def test_a_dump_that_is_cut_short_loses_its_last_modules_only(tmp_path: Path) -> None:
    """A module is recorded when it ends: of the last one only the calls inside are there."""
    records = {
        "Torch.f.0.forward": call(0),
        "Module.a.fc.Linear.forward.0": call(0),
        "Module.a.Block.forward.0": call(0),
    }
    parents = {
        "Torch.f.0.forward": "Module.a.fc.Linear.forward.0",
        "Module.a.fc.Linear.forward.0": "Module.a.Block.forward.0",
    }
    golden = side(tmp_path / "g", records, parents)
    target = side(tmp_path / "t", dict(list(records.items())[:2]), parents)
    assert named(target, golden) == [
        ("Torch.f.0.forward", "Torch.f.0.forward"),
        ("Module.a.fc.Linear.forward.0", "Module.a.fc.Linear.forward.0"),
        (None, "Module.a.Block.forward.0"),
    ]


def test_a_tree_that_goes_in_rings_is_cut(tmp_path: Path) -> None:
    records = {"Module.a.A.forward.0": call(0), "Module.b.B.forward.0": call(1)}
    ring = {"Module.a.A.forward.0": "Module.b.B.forward.0", "Module.b.B.forward.0": "Module.a.A.forward.0"}
    assert named(side(tmp_path / "t", records, ring), side(tmp_path / "g", records)) == [(n, n) for n in records]


def test_leaves_pair_by_place(tmp_path: Path) -> None:
    golden = side(
        tmp_path / "g",
        {"Torch.f.0.forward": {"input_args": [leaf(0)], "input_kwargs": {"x": leaf(1)}, "output": [leaf(2)]}},
    )
    target = side(
        tmp_path / "t",
        {"Torch.f.0.forward": {"input_args": [leaf(0), leaf(9)], "input_kwargs": {}, "output": [leaf(2)]}},
    )
    pairs = pair_leaves(pair_records(target, golden), target.values, golden.values)
    paths = [
        tuple(v.slots[v.slot[row]][1] if row >= 0 else None for v, row in ((target.values, t), (golden.values, g)))
        for t, g in zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True)
    ]
    assert paths == [
        ("input_args.0", "input_args.0"),
        ("input_args.1", None),
        ("output.0", "output.0"),
        (None, "input_kwargs.x"),
    ]
