"""Run the released msProbe beside numprobe. Not a test: msProbe is not installed where tests run.

    python -m tests.compare.against_msprobe MSPROBE --store            the cases below -> tests/data/compare/msprobe
    python -m tests.compare.against_msprobe MSPROBE --random 20        random pairs in every mode, compared at once

``MSPROBE`` is the command of an installation of msprobe 26.2; it is run as a program, with its own Python.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from numprobe.compare.msprobe.columns import Mode

from .msprobe_tables import compare_folder, the_csv

STORE = Path(__file__).parents[1] / "data" / "compare" / "msprobe"
INF, NAN = float("inf"), float("nan")
Leaf = Any
Data = dict[str, Any]


def tensor(
    high: Any = 1.0, low: Any = 0.0, mean: Any = 0.5, norm: Any = 2.0, dtype: str = "torch.float32", **more: Any
) -> Leaf:
    figures = {"Max": high, "Min": low, "Mean": mean, "Norm": norm}
    return {"type": "torch.Tensor", "dtype": dtype, "shape": [2, 2], **figures, "requires_grad": False, **more}


def value(kind: str, content: Any) -> Leaf:
    return {"type": kind, "value": content}


def group(*ranks: int) -> Leaf:
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": "1a2b3c4d"}


def p2p(op: str = "isend", peer: int = 1) -> Leaf:
    return {
        "class_type": "torch.distributed.P2POp",
        "tensor": tensor(),
        "op": op,
        "peer": peer,
        "tag": 0,
        "group_id": "1a2b3c4d",
    }


ARRAY = {"type": "numpy.ndarray", "dtype": "float32", "shape": [2], "Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0}


def leaves() -> Data:
    """Every kind of leaf, in every place."""
    arguments = [
        tensor(), None, value("int", 3), value("float", 2.5), value("float", INF), value("float", NAN), value("bool", True),
        value("str", ""), value("str", "text"), value("int", None), value("slice", [1, None, 2]), value("torch.Size", [2, 3]),
        value("Ellipsis", "..."), {"type": "torch.memory_format", "format": "channels_last"},
        value("torch.dtype", "torch.float16"), value("torch.device", "cpu"), {}, [], [[tensor()], {"k": tensor(), "e": {}}],
        group(0, 1), value("torch.distributed.ReduceOp", "RedOpType.SUM"), value("float64", 1.5), ARRAY, p2p(),
        {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 0.0, "Mean": 0.5},
        {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]},
        {"type": "torch.Tensor", "shape": [2], "Max": 1.0}, value("int", -5), value("float", -0.0), value("float", 1e-300),
    ]  # fmt: skip
    keywords = {
        "src": value("int", 3),
        "dst": tensor(),
        "group_dst": value("int", 1),
        "axis": value("int", 1),
        "nested": {"a": [value("int", 1)]},
    }
    return {
        "Functional.odd.0.forward": {
            "input_args": arguments,
            "input_kwargs": keywords,
            "output": [tensor()],
            "unknown": [tensor()],
            "parameters": {"weight": tensor(), "bias": None},
        },
        "Module.fc.Linear.parameters_grad.0": {"weight": [tensor()], "bias": [tensor(2.0)]},
        "Module.fc.Linear.parameters_grad.1": {"weight": [None]},
        "Module.fc.Linear.forward.0": {
            "output": [tensor()],
            "parameters": {"weight": tensor(), "bias": tensor()},
            "input_args": [tensor()],
            "input_kwargs": {},
            "is_recompute": False,
        },
        "Module.fc.Linear.backward.0": {"output": [tensor()], "input": [tensor(), [tensor(), None]]},
        "Functional.single.0.forward": {"input_args": [], "output": value("int", 2)},
        "Functional.empty.0.forward": {},
        "of_no.known_kind": {"input_args": [tensor()]},
    }


def leaf_pairs() -> tuple[Data, Data]:
    """Pairs of leaves, each as an input and as an output."""
    integers: Callable[..., Leaf] = lambda high, dtype="torch.int64": tensor(high, 0, None, None, dtype)  # noqa: E731
    pairs: dict[str, tuple[Leaf, Leaf]] = {
        "int_float": (value("int", 1), value("float", 1.0)),
        "int_int": (value("int", 1), value("int", 2)),
        "str": (value("str", "a"), value("str", "b")),
        "bool": (value("bool", True), value("bool", False)),
        "none_tensor": (None, tensor()),
        "tensor_none": (tensor(), None),
        "none_int": (None, value("int", 1)),
        "tensor_float": (tensor(), value("float", 1.0)),
        "size": (value("torch.Size", [2, 3]), value("torch.Size", [3, 2])),
        "slice": (value("slice", [1, None, 2]), value("slice", [0, None, 2])),
        "group": (group(0, 1), group(2, 3)),
        "device": (value("torch.device", "cuda:0"), value("torch.device", "npu:0")),
        "fp8": (tensor(dtype="torch.float8_e4m3fn"), tensor()),
        "bf16": (tensor(dtype="torch.bfloat16"), tensor()),
        "int8_int64": (integers(1, "torch.int8"), integers(1)),
        "bool_int64": (tensor(True, False, None, None, "torch.bool"), integers(1)),
        "complex": (tensor(dtype="torch.complex64"), tensor()),
        "mindspore": (tensor(dtype="Float16"), tensor(dtype="Float32")),
        "array": (ARRAY, {**ARRAY, "dtype": "float64"}),
        "p2p_op": (p2p(), p2p("irecv")),
        "p2p_peer": (p2p(), p2p(peer=2)),
        "requires_grad": (tensor(requires_grad=True), tensor()),
        "shape": (tensor(shape=[]), tensor(shape=[1])),
        "inf_both": (tensor(INF, -1.0), tensor(INF, -2.0)),
        "inf_target": (tensor(INF, -1.0), tensor(1.0, -1.0)),
        "inf_nan": (tensor(INF, -1.0), tensor(NAN, NAN)),
        "inf_minus_inf": (tensor(INF, -1.0), tensor(-INF, -INF)),
        "minus_inf_inf": (tensor(-INF, -INF), tensor(INF, 0.0)),
        "nan_target": (tensor(NAN, NAN, NAN, NAN), tensor()),
        "nan_golden": (tensor(), tensor(NAN, NAN, NAN, NAN)),
        "mean_inf": (tensor(1.0, 0.0, INF, INF), tensor()),
        "norm_minus_inf": (tensor(), tensor(norm=INF)),
        "null_target": (tensor(None, None, None, None), tensor()),
        "null_golden": (tensor(), tensor(None, None, None, None)),
        "integer_figures": (tensor(1, 0, 0.5, 2), tensor()),
        "large": (integers(2**60 + 1), integers(2**60)),
        "minus_zero": (tensor(0.0, 0.0, 0.0, 0.0), tensor(-0.0, 0.0, 0.0, 0.0)),
        "sign": (tensor(-1.0, -2.0, -1.5, 2.0), tensor(-2.0, -1.0, 1.5, 1.0)),
    }
    sides: tuple[Data, Data] = ({}, {})
    for name, pair in pairs.items():
        for data, leaf in zip(sides, pair, strict=True):
            data[f"Functional.{name}.0.forward"] = {
                "input_args": [leaf],
                "input_kwargs": {"src": leaf},
                "output": [tensor()],
            }
            data[f"Functional.{name}.1.forward"] = {"input_args": [tensor()], "output": [leaf]}
    return sides


def saved() -> Data:
    """debug.json, as ``debugger.save`` writes it."""
    return {
        "y.0.debug": tensor(data_name="y.0.debug.pt"),
        "plain.0.debug": value("int", 3),
        "nest.0.debug": {
            "k": [tensor(data_name="nest.0.debug.k.0.pt"), value("int", 3), [value("str", "text"), tensor()]],
            "z": {"p": value("float", 1.5)},
        },
        "nest_grad.0.debug": {"k": [None, None], "z": {"p": None}},
        "y.1.debug": tensor(),
        "list.0.debug": [tensor(), value("int", 2)],
        "none.0.debug": None,
    }


def calls(target: bool) -> Data:
    """Calls whose numbers are not those of the other side: backward ones pair by order, forward ones by number."""
    forward = {"input_args": [tensor()], "output": [tensor()]}
    backward = {"input": [tensor()], "output": [tensor()]}
    names = (
        "Functional.a.{}.forward 0 1|0 1", "Functional.a.{}.backward 2 0 1|1 0", "Module.m.Layer.backward.{} 3 1|1 0",
        "Module.m.Layer.parameters_grad.{} 0|0", "Functional.b.{}.backward 5|0", "Functional.c.{}.forward 1|0",
    )  # fmt: skip
    data: Data = {}
    for line in names:
        name, _, numbers = line.partition(" ")
        for number in numbers.split("|")[0 if target else 1].split():
            entry = {"weight": [tensor()]} if "parameters_grad" in name else backward if "backward" in name else forward
            data[name.format(number)] = entry
    return data


def first_differences(target: bool) -> Data:
    """Outputs around what ``compare -da`` calls a difference."""
    of_target = {
        "Torch.empty_like.0.forward": [tensor(norm=9.0)],
        "Tensor.__setitem__.0.forward": [tensor(norm=9.0)],
        "three.parts.forward": [tensor(norm=9.0)],
        "NPU.npu_fusion_attention.0.forward": [
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            tensor(norm=9.0),
            tensor(norm=9.0),
        ],
        "Functional.half.0.forward": [tensor(norm=3.0)],
        "Functional.inf.0.forward": [tensor(INF)],
        "Functional.nan.0.forward": [tensor(NAN)],
        "Functional.unmatched.0.forward": [tensor()],
        "Module.m.Layer.forward.0": [tensor(norm=3.001), value("int", 1)],
        "Functional.later.0.forward": [value("float", 3.5)],
        "Distributed.batch_isend_irecv.0.forward": [tensor()],
    }
    data: Data = {}
    for name, outputs in of_target.items():
        entry: Data = {
            "input_args": [tensor(), value("int", 7)],
            "input_kwargs": {"k": value("bool", True)},
            "output": outputs,
        }
        if name.startswith("Module"):
            entry["parameters"] = {"weight": tensor()}
        if "batch" in name:
            entry["input_args"] = [[p2p(), p2p("irecv", 3)]]
        if not target:
            if "unmatched" in name:
                continue
            entry = copy.deepcopy(entry)
            for i, leaf in enumerate(entry["output"]):
                entry["output"][i] = (
                    tensor() if "dtype" in leaf else value(leaf["type"], 1 if leaf["value"] == 1 else 1.5)
                )
        data[name] = entry
    return data


STACKS = {"0": [["Module.m.Layer.forward.0", "Functional.odd.0.forward"], ["File a.py, line 1, in f, \n y = g(x)"]]}


def with_checksums(data: Data, seed: int) -> Data:
    draw = random.Random(seed)
    data = copy.deepcopy(data)

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            if part.get("type") == "torch.Tensor" and "data_name" not in part:
                part["md5"] = draw.choice(("0a1b2c3d", "00000001", "1e500000"))
            part = list(part.values())
        if isinstance(part, list):
            for item in part:
                walk(item)

    walk(data)
    return data


# --- random pairs --------------------------------------------------------------------------------------------------------

APIS = (
    *["add"] * 8, "to", "empty", "numpy", "__setitem__", "_all_gather_base", "batch_isend_irecv", "all_to_all_single",
    "_reduce_scatter_base",
)  # fmt: skip
FIGURES = (
    1.0,
    1.001,
    1.01,
    1.05,
    1.09,
    1.0999,
    1.1,
    1.15,
    1.2,
    1.4,
    1.5,
    1.51,
    2.0,
    3.0,
    0.0,
    -1.0,
    INF,
    -INF,
    NAN,
    None,
)


def random_leaf(draw: random.Random) -> Leaf:
    kind = draw.random()
    if kind < 0.28:
        contents = (
            None,
            value("int", draw.randrange(3)),
            value("float", draw.choice((0.0, 0.5, 1.0))),
            value("bool", True),
        )
        return draw.choice((*contents, value("str", draw.choice("ab"))))
    dtype = draw.choice(("float32",) * 6 + ("bfloat16", "float16", "int64", "int32", "bool"))
    shape = draw.choice(([2, 2],) * 6 + ([4], [1], []))
    if "int" in dtype or dtype == "bool":
        high = draw.random() < 0.5 if dtype == "bool" else draw.choice((1, 5))
        return tensor(high, dtype != "bool" and 0, None, None, f"torch.{dtype}", shape=shape)
    figures = [draw.choice(FIGURES) if draw.random() < 0.05 else 1.0 for _ in range(4)]
    return tensor(*figures, f"torch.{dtype}", shape=shape, requires_grad=draw.random() < 0.5)


def changed(leaf: Leaf, draw: random.Random) -> Leaf:
    if draw.random() < 0.5:
        return copy.deepcopy(leaf) if draw.random() < 0.9 else random_leaf(draw)
    leaf = copy.deepcopy(leaf)
    if leaf is not None and "float" in leaf.get("dtype", ""):
        for _ in range(draw.choice((1, 1, 2, 3))):
            key = draw.choice(("Norm",) * 4 + ("Max", "Min", "Mean", "dtype", "shape", "requires_grad"))
            options: dict[str, Callable[[], Any]] = {
                "dtype": lambda: draw.choice(("torch.float32", "torch.bfloat16", "torch.int64")),
                "shape": lambda: draw.choice(([2, 2], [4], [2, 1, 2])),
                "requires_grad": lambda: draw.random() < 0.5,
            }
            leaf[key] = options.get(key, lambda: draw.choice(FIGURES))()
    elif leaf is not None and "value" in leaf:
        return random_leaf(draw)
    return leaf


def changed_part(part: Any, draw: random.Random) -> Any:
    if isinstance(part, dict):
        return {key: changed(leaf, draw) for key, leaf in part.items()}
    return [changed(leaf, draw) for leaf in part]


def random_pair(seed: int, number: int) -> tuple[Data, Data]:
    """Records whose figures lie around the thresholds of the verdict rules."""
    draw = random.Random(seed)
    target: Data = {}
    golden: Data = {}
    for i in range(number):
        api = draw.choice(APIS)
        others = (f"Module.qkv{i}.L.forward.0", f"Module.m{i}.L.forward.0", f"Module.m{i}.L.parameters_grad.0")
        name = draw.choice((f"Functional.{api}.{i}.forward",) * 6 + (f"Functional.{api}.{i}.backward", *others))
        if "parameters_grad" in name:
            entry: Data = {key: [random_leaf(draw)] for key in ("w", "b")}
        else:
            inputs = "input" if "backward" in name else "input_args"
            entry = {
                inputs: [random_leaf(draw) for _ in range(draw.choice((0, 1, 1, 2, 3)))],
                "output": [random_leaf(draw) for _ in range(draw.choice((0, 1, 1, 1, 2, 3)))],
            }
            if "Module" in name:
                entry["parameters"] = {"w": random_leaf(draw), "b": random_leaf(draw)}
            elif inputs == "input_args" and draw.random() < 0.2:
                entry["input_kwargs"] = {"k": random_leaf(draw), "src": value("int", 1)}
        target[name] = entry
        if draw.random() < 0.95:
            golden[name] = {key: changed_part(part, draw) for key, part in entry.items()}
            if draw.random() < 0.1:
                golden[name][list(entry)[-1]] = type(entry[list(entry)[-1]])()
    return target, golden


NARROW = (torch.bfloat16, torch.float16)


def random_tensor(draw: random.Random) -> torch.Tensor:
    shape = draw.choice(((3, 4),) * 6 + ((12,), (1,), (), (0, 3), (3, 1, 4), (2,)))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(draw.randrange(10**6))) * 5
    dtype = draw.choice(
        (torch.float32,) * 6 + (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
    )
    x = x > 0 if dtype == torch.bool else x.to(dtype)
    if x.is_floating_point() and draw.random() < 0.1 and x.numel() > 3:
        x.view(-1)[draw.randrange(3)] = draw.choice((INF, -INF, NAN))
    return torch.zeros_like(x) if draw.random() < 0.1 else x


def disturbed(x: torch.Tensor, draw: random.Random) -> torch.Tensor:
    kind = draw.random()
    if kind < 0.3:
        return x
    if kind < 0.4:
        return random_tensor(draw)
    if x.dtype == torch.bool:
        return ~x
    if not x.is_floating_point():
        return x + 1
    if kind < 0.6:
        return x * draw.choice((-1.0, 1.0005, 1.002, 1.004, 1.01, 3.0, 0.5))
    if kind < 0.7:
        return x.to(draw.choice((*NARROW, torch.float32, torch.float64)))
    if kind < 0.8:
        return x.reshape(tuple(reversed(x.shape)))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(draw.randrange(10**6))).to(x.dtype)
    return x + draw.choice((1e-3, 1e-1, 1.0, 3.0)) * noise


def statistics_of(x: torch.Tensor) -> tuple[Any, ...]:
    if not x.numel():
        return None, None, None, None
    if x.dtype == torch.bool:
        return bool(x.any()), bool(x.all()), None, None
    if not x.is_floating_point():
        return x.max().item(), x.min().item(), None, None
    y = x.float()
    return y.max().item(), y.min().item(), y.mean().item(), y.norm().item()


def random_tensors(folder: Path, seed: int, number: int) -> tuple[Data, Data]:
    """Records with tensor files in ``folder/target`` and ``folder/golden``; a few have none, a few files are missing."""
    draw = random.Random(seed)
    sides: tuple[Data, Data] = ({}, {})
    files = [folder / side / "dump_tensor_data" for side in ("target", "golden")]
    for place in files:
        place.mkdir(parents=True)

    def leaf(x: Any, name: str, place: Path) -> Leaf:
        if not isinstance(x, torch.Tensor):
            return x
        made = tensor(*statistics_of(x), str(x.dtype), shape=list(x.shape))
        if draw.random() < 0.97:
            made["data_name"] = f"{name}.pt"
            if draw.random() < 0.98:
                torch.save(x.clone(), place / made["data_name"])
        return made

    for i in range(number):
        name = draw.choice((f"Functional.{draw.choice(APIS)}.{i}.forward",) * 2 + (f"Module.m{i}.L.forward.0",))
        content: dict[str, list[Any]] = {
            "input": [
                random_tensor(draw) if draw.random() < 0.9 else value("int", 1)
                for _ in range(draw.choice((0, 1, 1, 2)))
            ],
            "output": [random_tensor(draw) for _ in range(draw.choice((1, 1, 2)))],
        }
        quiet = draw.random() < 0.5  # inputs agree
        for data, place in zip(sides, files, strict=True):
            entry: Data = {}
            for part, xs in content.items():
                moved = place is files[0] and not (part == "input" and quiet)
                ys = [disturbed(x, draw) if moved and isinstance(x, torch.Tensor) else x for x in xs]
                entry[part] = [leaf(y, f"{name}.{part}.{k}", place) for k, y in enumerate(ys)]
            data[name] = entry
    return sides


# --- running -------------------------------------------------------------------------------------------------------------


def write(folder: Path, data: Data, *, task: str = "statistics", file: str = "dump.json", stacks: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "task": task,
        "level": "debug" if file == "debug.json" else "mix",
        "framework": "pytorch",
        "dump_data_dir": None,
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in data.items())
    text = json.dumps(head, indent=1).removesuffix("\n}") + f',\n "data": {{\n{lines}\n }}\n}}\n'
    (folder / file).write_text(text, encoding="utf-8")
    if stacks:
        (folder / "stack.json").write_text(json.dumps(STACKS), encoding="utf-8")


def run(msprobe: str, target: Path, golden: Path, out: Path, *options: str) -> None:
    command = [msprobe, "compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not out.is_dir() or not any(out.iterdir()):
        sys.exit(f"msprobe wrote nothing for {target}\n" + "\n".join((done.stdout + done.stderr).splitlines()[-3:]))


def pair(msprobe: str, folder: Path, target: Data, golden: Data, **how: Any) -> None:
    file = how.get("file", "dump.json")
    write(folder / "target", target, **how)
    write(folder / "golden", golden, **how)
    run(msprobe, folder / "target" / file, folder / "golden" / file, folder / "result")


def cases(msprobe: str, store: Path) -> Iterator[tuple[Path, Mode]]:
    """Make every stored case and run msProbe on it."""
    pairs = leaf_pairs()
    made: dict[str, tuple[Data, Data, Mode, dict[str, Any]]] = {
        "leaves": (leaves(), leaves(), Mode.STATISTICS, {"stacks": True}),
        "leaves_md5": (with_checksums(leaves(), 1), with_checksums(leaves(), 1), Mode.MD5, {}),
        "pairs": (*pairs, Mode.STATISTICS, {}),
        "pairs_md5": (with_checksums(pairs[0], 1), with_checksums(pairs[1], 2), Mode.MD5, {}),
        "saved": (saved(), saved(), Mode.STATISTICS, {"file": "debug.json"}),
        "calls": (calls(True), calls(False), Mode.STATISTICS, {}),
        "thresholds": (*random_pair(0, 100), Mode.STATISTICS, {}),
        "thresholds_md5": (*(with_checksums(d, i) for i, d in enumerate(random_pair(1, 60))), Mode.MD5, {}),  # type: ignore[dict-item]
    }
    for name, (target, golden, mode, how) in made.items():
        pair(msprobe, store / name, target, golden, **how)
        yield store / name, mode
    folder = store / "thresholds_tensor"
    pair(msprobe, folder, *random_tensors(folder, 3, 20), task="tensor")
    yield folder, Mode.TENSOR


def first_difference_cases(msprobe: str, store: Path) -> None:
    """Rank 0 differs, rank 1 does not."""
    target, golden = first_differences(True), first_differences(False)
    for name, sides in (
        ("diff", (target, golden)),
        ("diff_md5", (with_checksums(target, 0), with_checksums(golden, 1))),
    ):
        folder = store / name
        for rank in (0, 1):
            write(folder / "target" / "step0" / f"rank{rank}", sides[rank], stacks=True)
            write(folder / "golden" / "step0" / f"rank{rank}", sides[1], stacks=True)
        run(msprobe, folder / "target" / "step0", folder / "golden" / "step0", folder / "result", "-da")


def collected(msprobe: str, store: Path) -> None:
    """A real program on two ranks, in bfloat16 against float32: a table a rank, and merged ones."""
    folder = store / "two_ranks"
    for side, dtype in (("target", "bfloat16"), ("golden", "float32")):
        subprocess.run([sys.executable, "-m", "tests.compare.two_ranks", str(folder / side), dtype], check=True)
        for file in (folder / side).rglob("*.json"):  # paths of this machine mean nothing elsewhere
            text = file.read_text(encoding="utf-8")
            for place in (sys.prefix, str(Path.cwd())):
                text = text.replace(place, "/workspace")
            file.write_text(text, encoding="utf-8")
    sides = folder / "target" / "step0", folder / "golden" / "step0"
    run(msprobe, *sides, folder / "result")
    run(msprobe, *sides, folder / "result_xlsx", "--xlsx")
    wanted = folder / "merge.yaml"
    wanted.write_text("api:\n- Distributed\n- Functional.linear\n", encoding="utf-8")
    merge = ["merge_result", "-i", folder / "result_xlsx", "-o", folder / "merged", "-config", wanted]
    subprocess.run([msprobe, *merge], check=True, capture_output=True)


def random_runs(msprobe: str, number: int) -> int:
    """Random pairs in the three modes; prints what differs."""
    wrong = 0
    for seed in range(number):
        for mode in Mode:
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                if mode is Mode.TENSOR:
                    pair(msprobe, folder, *random_tensors(folder, seed, 150), task="tensor")
                else:
                    target, golden = random_pair(seed, 400)
                    if mode is Mode.MD5:
                        target, golden = with_checksums(target, 1), with_checksums(golden, 2)
                    pair(msprobe, folder, target, golden)
                found = compare_folder(folder, mode, the_csv(folder / "result"))
                wrong += len(found)
                print(
                    seed, mode.value, "equal" if not found else "\n  ".join([f"{len(found)} cells differ", *found[:10]])
                )
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("msprobe")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--random", type=int, default=0)
    options = parser.parse_args()
    wrong = 0
    if options.store:
        for folder in STORE.glob("*/"):
            shutil.rmtree(folder)
        for folder, mode in cases(options.msprobe, STORE):
            found = compare_folder(folder, mode, the_csv(folder / "result"))
            wrong += len(found)
            print(folder.name, "equal" if not found else "\n  ".join([f"{len(found)} cells differ", *found[:10]]))
        first_difference_cases(options.msprobe, STORE)
        collected(options.msprobe, STORE)
    wrong += random_runs(options.msprobe, options.random)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
